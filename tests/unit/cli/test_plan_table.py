"""A plan on a terminal: pipelines side by side, folded and told apart; first lines true for all of them."""

from dataclasses import replace

import pytest

from tangram_sim.cli.plan_table import print_document
from tangram_sim.cli.verbosity import Verbosity, saying
from tangram_sim.hwdb import ReadSet
from tangram_sim.layouts import Layout
from tangram_sim.reports.plan_words import batch_words
from tangram_sim.sim.critical import critical_path
from tangram_sim.studies.advice import gap_words, tail_s
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.training.plan import Pipeline, Share, pipeline_of_shares
from tangram_sim.units import show_seconds
from tests.unit.export.plans import HWDB, plan_of


def pipeline(first: int, microbatches: int, dp: int = 1) -> Pipeline:
    shares = [
        [Share("g0", tuple(range(first + dp * s, first + dp * (s + 1))), dp, Layout(dp=dp))] for s in range(2)
    ]
    return pipeline_of_shares(microbatches, (0, 2, 4), shares)


def told(*pipelines: Pipeline) -> PlanDocument:
    gpus = sum(len(stage.ranks) for item in pipelines for stage in item.stages)
    return document(forecast(plan_of(pipelines, 4, gpus), HWDB), HWDB, ReadSet(), 0.001)


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_pipelines_side_by_side_are_told_apart(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    found = told(pipeline(0, 4), pipeline(2, 4), pipeline(4, 8, dp=2))
    print_document(found)
    out = capsys.readouterr().out
    assert (
        "3 pipelines side by side: 2 of them 4 microbatches of 1 sequence, 8 microbatches of 2 sequences"
        in " ".join(out.split())
    )
    table = [line for line in out.splitlines() if "embedding+0-1" in line]
    assert [line.split()[:2] for line in table] == [["0,", "1"], ["2", "0"]]
    assert max(map(len, out.splitlines())) <= columns


def test_one_pipeline_needs_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_document(told(pipeline(0, 4)))
    out = capsys.readouterr().out
    (heads,) = [line for line in out.splitlines() if "layers " in line and "memory" in line]
    assert "pipeline" not in heads
    assert "\n4 microbatches of 1 sequence (" in out


def test_runs_of_equal_pipelines_are_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(*(pipeline(2 * place, 4) for place in range(4)))
    print_document(found)
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "embedding+0-1" in line]
    assert rows == ["0-3"]
    assert batch_words(found) == "4 pipelines side by side, 4 microbatches of 1 sequence each"


def test_parts_of_a_mixed_stage_have_letters(capsys: pytest.CaptureFixture[str]) -> None:
    shares = [[Share("g0", (0, 1), 3, Layout(dp=2)), Share("g0", (2,), 1, Layout())]]
    print_document(told(replace(pipeline_of_shares(2, (0, 4), shares))))
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "embedding" in line]
    assert rows == ["0a", "0b"]


def test_a_plan_faster_than_a_bound_on_others_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No single pipeline takes less than so much; two side by side do."""
    monkeypatch.setenv("COLUMNS", "200")
    found = told(pipeline(0, 4), pipeline(2, 4))
    found = found.with_fields(pipeline_bound_step_s=found.step_s / 0.95)
    with saying(Verbosity.VERBOSE):
        print_document(found)
    line = (
        f"searched: {show_seconds(found.pipeline_bound_step_s)} (this plan, of 2 pipelines, takes 5.0 % less)"
    )
    assert line in capsys.readouterr().out
    plan = told(pipeline(0, 4))
    assert gap_words(plan, plan.step_s / 0.9) == "this plan, which is none of these, takes 10.0 % less"
    assert gap_words(plan, plan.step_s * (1 + 1e-12)) == "optimality gap 0.0 %"
    assert gap_words(plan, plan.step_s / 1.081) == "optimality gap 8.1 %"


def test_what_both_ends_wait_for_once_a_step_is_in_sync(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of tied embeddings follow those of the stages; inner stages have no copy."""
    monkeypatch.setenv("COLUMNS", "200")
    shares = [[Share("g0", (place,), 1, Layout())] for place in range(3)]
    plan = plan_of((pipeline_of_shares(4, (0, 2, 4, 6), shares),), 6, 3)
    played = forecast(replace(plan, model=replace(plan.model, tied=True)), HWDB)
    found = document(played, HWDB, ReadSet(), 0.001)
    times = played.lowered.steps[0].times
    assert [stage.tied_embeddings_s for stage in found.stages] == [times.tied_s, 0.0, times.tied_s]
    # Nobody shares a layer: all that is waited for after the last backward is the tied matrix.
    assert [tail_s(stage) for stage in found.stages] == [times.tied_s, 0.0, times.tied_s]
    path = critical_path(played.timeline)
    graph = played.timeline.graph
    assert "TIED" in {graph.kinds[graph.kind[op]] for op in path.ops.tolist()}
    print_document(found)
    rows = [line for line in capsys.readouterr().out.splitlines() if " g0 " in line]
    assert [show_seconds(times.tied_s) in row for row in rows] == [True, False, True]

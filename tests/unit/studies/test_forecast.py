"""What a played plan says about itself, and `explain`: causes that add up, verdicts with numbers."""

from pathlib import Path

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.sim import fast
from tangram_sim.studies import api
from tangram_sim.studies.explain import Explanation, explain
from tangram_sim.studies.results import Result
from tangram_sim.training.job import Job
from tests.commands import files, tangram

HWDB = Hwdb.load()


@pytest.fixture(scope="module")
def result() -> Result:
    cluster = load_cluster("azure-c1-t4x4-v100x4", HWDB)
    return api.plan(
        load_model("gpt3-1.3b"), cluster, Job(global_batch=32), wishes=SearchOptions(top=3), hwdb=HWDB
    )


@pytest.fixture(scope="module")
def explained(result: Result) -> Explanation:
    return explain(result.forecast.plan, HWDB)


def test_the_critical_path_sums_to_the_step(explained: Explanation) -> None:
    assert sum(share.seconds for share in explained.path) == pytest.approx(
        explained.forecast.step_s, rel=1e-9
    )


def test_kernel_classes_sum_to_the_time_of_a_microbatch(result: Result) -> None:
    for stage, shares in zip(result.document.stages, result.forecast.inside, strict=True):
        inside = sum(share.seconds for share in shares)
        assert inside == pytest.approx(stage.forward_s + stage.backward_s, rel=0.01)
        assert stage.limited_by == shares[0].cause
        assert stage.limited_by_share == pytest.approx(shares[0].seconds / inside)


def test_every_tensor_parallel_degree_has_a_verdict(explained: Explanation) -> None:
    """The question "why not tp=8?" is answered for each divisor of a stage's GPUs."""
    for number, stage in enumerate(explained.forecast.plan.pipelines[0].stages):
        layouts = {entry.layout for entry in explained.why_not if entry.stage == number}
        others = {f"tp{tp}" for tp in divisors(len(stage.ranks)) if tp != stage.layout.tp}
        assert others <= layouts
    assert all(entry.verdict for entry in explained.why_not)


def test_verdicts_carry_numbers_or_the_law_that_breaks(explained: Explanation) -> None:
    for entry in explained.why_not:
        numbers = "% step" in entry.verdict or "same step" in entry.verdict or "GiB usable" in entry.verdict
        assert (
            numbers
            or "does not divide" in entry.verdict
            or "saves nothing" in entry.verdict
            or "idle" in entry.verdict
        )


def test_no_single_change_beats_the_plan(explained: Explanation) -> None:
    """The planner considered these layouts; a change that helps by more than its tolerance was missed."""
    assert not [
        entry for entry in explained.why_not if "-1" in entry.verdict.split("% step")[0].split("(")[0][:4]
    ]


def test_what_no_saver_makes_fit_says_the_least_that_is_needed() -> None:
    cluster = load_cluster("azure-c1-v100x16", HWDB)
    layout = Uniform(tp=4, pp=2, dp=2, zero_stage=1, recompute="full", sequence_parallel=True)
    made = api.estimate(load_model("gpt3-13b"), cluster, Job(global_batch=16), layout, hwdb=HWDB)
    assert not made.document.feasible
    assert "GiB of" in " ".join(made.document.notes)
    verdicts = [entry.verdict for entry in explain(made.forecast.plan, HWDB).why_not if entry.layout == "tp1"]
    assert verdicts
    assert all("at least" in verdict and "usable" in verdict for verdict in verdicts)


def test_alternatives_are_slower_and_say_what_they_trade(result: Result) -> None:
    document = result.document
    assert len(document.alternatives) == 2
    assert all(other.step_s >= document.step_s for other in document.alternatives)
    assert all("% step" in other.summary for other in document.alternatives)


def test_sharing_of_links_is_part_of_the_step(result: Result) -> None:
    """What is reported is never less than the play in which every transfer has its link to itself."""
    alone = fast.play(result.forecast.step.graph()).makespan_s
    assert result.document.step_s >= alone * (1 - 1e-9)
    assert api.simulate(result.document, engine="reference").document.step_s == pytest.approx(
        result.document.step_s, rel=1e-9
    )


def test_a_sequence_longer_than_the_model_was_made_for_is_noted() -> None:
    made = api.estimate(
        load_model("bert-base"),
        load_cluster("azure-c1-t4x4-v100x4", HWDB),
        Job(seq=2048),
        Uniform(dp=4),
        hwdb=HWDB,
    )
    assert any("512 tokens" in note for note in made.document.notes)


@pytest.mark.slow
def test_explain_reads_well_at_any_width(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert tangram("plan", *files(tmp_path), "--global-batch", 16, "-o", plan).code == 0
    for columns in (80, 120, 200):
        out = tangram("explain", plan, columns=columns).out
        assert max(map(len, out.splitlines())) <= columns
        assert "critical path" in out
        assert "tp2" in out
        assert "--fix tp=8" in " ".join(out.split())

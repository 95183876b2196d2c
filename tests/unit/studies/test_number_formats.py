"""`dtype=auto` where old GPUs lack bf16: both formats are planned, the faster wins and says so."""

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

import tangram_sim as ts
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import Counts, NothingBelowError, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import format_choice
from tangram_sim.studies.comparison import compare_planners, plan_with
from tangram_sim.studies.number_formats import formats
from tangram_sim.training.job import Job

MIXED, NEW, OLD = "H100x4:1+V100-SXM2-32GBx4:1", "H100x4:1+A100-SXM4-80GBx4:1", "T4x4:1+V100-SXM2-32GBx4:1"


def dtypes(cluster: str, wishes: SearchOptions | None = None, dtype: str = "auto") -> list[str]:
    return [job.dtype for job in formats(Job(dtype=dtype), load_cluster(cluster, Hwdb.load()), wishes)]


@pytest.mark.parametrize(
    ("cluster", "wishes", "wanted"),
    [
        (MIXED, SearchOptions(), ["fp16", "bf16"]),
        (NEW, SearchOptions(), ["bf16"]),
        (OLD, SearchOptions(), ["fp16"]),
        (MIXED, SearchOptions(exclude=("g1",)), ["bf16"]),
        (MIXED, SearchOptions(order=("g1",)), ["fp16"]),
        (MIXED, SearchOptions(order=("g0",)), ["bf16"]),
        (MIXED, SearchOptions(order=("g1", "g0")), ["fp16", "bf16"]),  # as without: either may stay idle
        (MIXED, SearchOptions(frameworks=("torchtitan",)), ["bf16"]),
        (MIXED, SearchOptions(frameworks=("torchtitan", "megatron")), ["fp16", "bf16"]),
        (OLD, SearchOptions(frameworks=("torchtitan",)), ["fp16"]),
    ],
)
def test_what_auto_stands_for(cluster: str, wishes: SearchOptions, wanted: list[str]) -> None:
    assert dtypes(cluster, wishes) == wanted


def test_a_dtype_that_is_given_is_kept() -> None:
    assert dtypes(MIXED, dtype="fp16") == ["fp16"]


@pytest.mark.parametrize("cluster", ["H100x4:1+T4x2:1", "A100-SXM4-40GBx2:1+V100-SXM2-32GBx4:2"])
def test_auto_is_the_faster_format_and_fp16_only_where_old_gpus_are_used(cluster: str) -> None:
    """Old GPUs that are of little use do not decide for all; where they carry the step, they do."""
    job, wishes = Job(global_batch=16, seq=512), SearchOptions(beside=False)
    steps = {
        dtype: ts.plan("gpt3-350m", cluster, Job(16, 512, dtype), wishes=wishes).step_s
        for dtype in ("fp16", "bf16")
    }
    found = ts.plan("gpt3-350m", cluster, job, wishes=wishes).document
    taken = found.job.dtype
    assert found.step_s <= steps[taken] * (1 + 1e-9)
    assert found.step_s <= min(steps.values()) * 1.02
    if found.step_s > min(steps.values()) * (1 + 1e-9):  # no old GPU is used: nothing asks for fp16
        fp16 = ts.plan("gpt3-350m", cluster, Job(16, 512, "fp16"), wishes=wishes).document
        assert taken == "bf16" and not {stage.gpu for stage in fp16.stages} & {"T4", "V100-SXM2-32GB"}
    assert any(note.startswith(taken) and "loss scaling" in note for note in found.notes)
    assert not any(note.startswith("effort") for note in found.notes), (
        "a glance at the other is not the effort"
    )


def test_schedules_of_several_chunks_are_searched_in_full_in_both_formats() -> None:
    """On few GPUs the search in bf16 finds nothing to cut into chunks: it takes the plan found in fp16."""
    job = Job(16, 512, "auto", schedule="interleaved")
    found = ts.plan("gpt3-350m", "A100-SXM4-80GBx4:1+T4x2:1", job, wishes=SearchOptions(beside=False))
    assert {stage.gpu for stage in found.document.stages} == {"A100-SXM4-80GB"}
    (note,) = [note for note in found.document.notes if "loss scaling" in note]
    assert note.endswith("% longer") and "no plan" not in note and "at a glance" not in note
    longer = float(note.split()[-3])
    assert (found.document.job.dtype == "fp16") == (longer > 2)


def test_what_was_not_looked_at_is_not_said_to_have_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time ends behind the first format, whose plan uses no old GPU: nothing is known of the second."""
    ended: list[bool] = []
    search = format_choice.kept

    def first_only(*given: Any) -> Any:
        try:
            return search(*given)
        finally:
            ended.append(True)

    monkeypatch.setattr(format_choice, "kept", first_only)
    monkeypatch.setattr(Deadline, "over", lambda self: bool(ended))
    job = Job(16, 512, "auto")
    found = ts.plan("gpt3-350m", "A100-SXM4-80GBx4:1+T4x2:1", job, wishes=SearchOptions(beside=False))
    assert len(ended) == 1
    (note,) = [note for note in found.document.notes if "loss scaling" in note]
    assert note.endswith("was not looked at for lack of time")
    assert "as T4 have no bf16" not in note


@pytest.mark.parametrize(
    ("slower", "in_full", "looks", "taken"),
    [
        (1.0, 1.0, [True], "bf16"),
        (1.015, 1.0, [True], "bf16"),
        (1.05, 1.0, [True, False], "bf16"),
        (1.05, 1.05, [True, False], "fp16"),
        (1.5, 1.0, [True], "fp16"),
    ],
)
def test_bf16_is_taken_where_it_is_as_fast(
    monkeypatch: pytest.MonkeyPatch, slower: float, in_full: float, looks: list[bool], taken: str
) -> None:
    """A glance decides that it is, or that it is far off; between, bf16 is searched in full. Never slower."""
    glances: list[bool] = []
    search = format_choice._search
    monkeypatch.setattr(format_choice, "_GAINED", 1.0)

    def slowed(*given: Any, glance: bool = False, below_s: float = inf, **more: Any) -> Any:
        if given[2].job.dtype == "fp16":
            nonlocal fp16
            fp16 = search(*given, **more, glance=glance)
            return fp16
        glances.append(glance)
        assert (below_s < inf) == glance
        found = search(*given, **more | {"known": fp16_plan_in_bf16()}, glance=glance)
        step_s = fp16.ranked[0].step_s * (slower if glance else in_full)
        return replace(found, ranked=[replace(found.ranked[0], step_s=step_s)])

    def fp16_plan_in_bf16() -> list[Any]:
        plan = fp16.ranked[0].plan
        return [replace(plan, job=replace(plan.job, dtype="bf16"))]

    fp16: Any = None
    monkeypatch.setattr(format_choice, "_search", slowed)
    job = Job(16, 512, "auto")
    found = ts.plan("gpt3-350m", "A100-SXM4-80GBx4:1+T4x2:1", job, wishes=SearchOptions(beside=False))
    assert glances == looks
    assert found.document.job.dtype == taken
    if taken == "fp16":
        (note,) = [note for note in found.document.notes if "loss scaling" in note]
        assert note.startswith("fp16 with loss scaling, though all GPUs used have bf16")
        assert f"{slower if looks == [True] else in_full:.2f}"[-1] in note


def test_each_planner_is_compared_in_the_format_that_suits_it() -> None:
    """Fp16 on everything, or bf16 on what has it."""
    model, cluster = load_model("gpt3-350m"), load_cluster(MIXED, Hwdb.load())
    told = {}
    for dtype in ("auto", "fp16", "bf16"):
        answers = compare_planners(model, cluster, Job(16, 512, dtype), ["tangram", "uniform", "sailor"])
        told[dtype] = {answer.planner: answer.result for answer in answers}
    for planner, result in told["auto"].items():
        of = [found for dtype in ("fp16", "bf16") if (found := told[dtype][planner]) is not None]
        assert result is not None and result.step_s in [found.step_s for found in of]
        plan = result.forecast.plan
        least_s = min(found.step_s for found in of)
        assert result.step_s == least_s or (plan.job.dtype == "bf16" and result.step_s <= 1.02 * least_s)
        assert result.document.notes[0].startswith((f"in {plan.job.dtype}; ", f"{plan.job.dtype}, "))
    assert told["bf16"]["uniform"] is None  # it lays its layout over all GPUs


def test_a_planner_asked_alone_has_the_format_of_the_comparison() -> None:
    model, cluster = load_model("gpt3-350m"), load_cluster(MIXED, Hwdb.load())
    (beside,) = compare_planners(model, cluster, Job(16, 512), ["sailor"])
    assert beside.result is not None
    assert plan_with("sailor", model, cluster, Job(16, 512)).step_s == beside.result.step_s


def test_the_first_reason_is_told_where_no_format_has_a_plan() -> None:
    wishes = SearchOptions(constraints=Constraints(fixed=(("tp", 8),)))
    with pytest.raises(InfeasibleError, match="8 GPUs or more"):
        ts.plan("gpt3-350m", MIXED, Job(16, 512), wishes=wishes)


def test_a_glance_ends_where_it_cannot_win() -> None:
    """It looks below a step alone: it finds what a glance without one does, or says that there is nothing."""
    model, cluster, hwdb = load_model("gpt3-350m"), load_cluster(MIXED, Hwdb.load()), Hwdb.load()
    job, wishes = Job(16, 512, "bf16"), SearchOptions(sub_islands=False, effort="quick")
    free = format_choice.tangram(model, cluster, job, hwdb, wishes)
    below = format_choice.tangram(model, cluster, job, hwdb, wishes, below_s=1.2 * free.ranked[0].step_s)
    assert below.ranked[0].step_s == pytest.approx(free.ranked[0].step_s, rel=1e-9)
    with pytest.raises(NothingBelowError) as told:
        format_choice.tangram(model, cluster, job, hwdb, wishes, below_s=free.lower_bound_step_s)
    assert 0 <= told.value.counts.played <= free.counts.played
    known = format_choice.tangram(
        model, cluster, job, hwdb, wishes, below_s=1e-9, known=[free.ranked[0].plan]
    )
    assert known.ranked[0].step_s == pytest.approx(free.ranked[0].step_s, rel=1e-9)


def test_a_format_that_is_far_behind_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*given: Any, below_s: float = inf, **more: Any) -> Any:
        if below_s < inf:
            raise NothingBelowError(below_s, Counts(asked=1000))
        return search(*given, **more)

    search = format_choice._search
    monkeypatch.setattr(format_choice, "_search", nothing)
    monkeypatch.setattr(format_choice, "_GAINED", 1.0)
    wishes = SearchOptions(beside=False)
    found = ts.plan("gpt3-350m", "A100-SXM4-40GBx2:1+V100-SXM2-32GBx8:2", Job(16, 512), wishes=wishes)
    (note,) = [note for note in found.document.notes if "loss scaling" in note]
    assert note.endswith("takes 15 % longer or more, at a glance")
    assert found.document.partial_plans.asked >= 1000


@pytest.mark.parametrize(("gained", "near"), [(1.0, 1.15), (1.4, 1.61), (9.0, 2.3), (inf, 2.3)])
def test_a_glance_may_be_as_far_behind_as_the_first_formats_halves_were(gained: float, near: float) -> None:
    """World 41 of `benchmarks anywhere`: 249 ms at halves, 126 node by node, where the first came to 187."""
    found: Any = SimpleNamespace(ranked=[SimpleNamespace(step_s=2.0)], gained=gained)
    best = format_choice.Searched(Job(), SearchOptions(), (), found, 0.0)
    assert format_choice._near_s(best) == pytest.approx(2.0 * near)

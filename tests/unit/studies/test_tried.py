"""`--schedule auto` and `--parallelizer auto`: the fastest of what each of them gives."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import api, tried
from tangram_sim.studies.comparison import compare_planners
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.results import Result
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
CLUSTER = load_cluster("azure-c1-t4x4-v100x4", HWDB)
MODEL = load_model("gpt3-350m")
JOB = Job(global_batch=4, seq=512, schedule=tried.AUTO)


@dataclass(frozen=True)
class Made:
    """Of a plan: its cluster, its job, and what makes it another."""

    cluster: Cluster
    job: Job
    step_s: float


FAST = SearchOptions(sub_islands=False, replicate=False, beside=False)


@pytest.mark.slow
def test_the_fastest_schedule_is_shown_and_all_are_told() -> None:
    """No schedule alone is faster, and the file replays under the one that was chosen."""
    found = tried.plan(MODEL, CLUSTER, JOB, wishes=FAST, hwdb=HWDB).document
    named = replace(JOB, schedule="zb-h1")
    alone = api.plan(MODEL, CLUSTER, named, wishes=FAST, hwdb=HWDB).document.step_s
    assert found.step_s <= alone * (1 + 1e-9)
    assert found.schedule in tried.SCHEDULES
    assert found.notes[0].startswith("tried: 1f1b ")
    assert api.simulate(found, hwdb=HWDB).document.step_s == pytest.approx(found.step_s, rel=1e-9)


def answering(
    monkeypatch, steps: dict[str, float], launchable: set[str] = frozenset(), fullness: float = 0.5
) -> list[tuple]:
    """`api.plan` answers with these steps by schedule; what it was asked is kept.

    A glance finds the step itself, a full search one that can be launched where `launchable` says so: by a
    hundredth slower. Without a step there is no plan.
    """
    asked = []

    def plan(model, cluster, job, *, wishes, hwdb, progress, deadline, known=()):
        whole = not wishes.sub_islands
        asked.append((job.schedule, job.dtype, wishes.effort, [item.job.schedule for item in known], whole))
        if progress:
            progress(1, 2, "half way")
        if job.schedule not in steps:
            raise InfeasibleError("none")
        able = job.schedule in launchable and wishes.beside
        made = Made(CLUSTER, replace(job, dtype="fp16"), steps[job.schedule])
        document = PlanDocument.model_construct(
            step_s=steps[job.schedule] * (1.01 if able and known else 1.0),
            launchable_with=["megatron"] * able,
            work_bound_step_s=1.0,
            memory_margin=0.1,
        )
        return Result(document, SimpleNamespace(plan=made), ranked=(made,) * min(wishes.kept, 3))

    monkeypatch.setattr(api, "plan", plan)
    monkeypatch.setattr(tried, "fullness", lambda made, hwdb: fullness)
    return asked


def test_others_begin_at_the_plan_of_the_first_and_are_glanced_at(monkeypatch) -> None:
    """In the format that the first one chose; in full only where a glance comes near it."""
    steps = {"1f1b": 2.0, "zb-h1": 2.03, "interleaved": 2.5, "zb-v": 2.2, "gpipe": 3.0}
    asked, told = answering(monkeypatch, steps), list[str]()
    found = tried.plan(
        MODEL,
        CLUSTER,
        JOB,
        wishes=SearchOptions(effort="normal"),
        hwdb=HWDB,
        progress=lambda done, total, what: told.append(what),
    )
    assert [item[0] for item in asked] == ["1f1b", "zb-h1", "zb-h1", "interleaved", "zb-v", "gpipe"]
    assert [item[2] for item in asked] == ["normal", "quick", "normal", "normal", "normal", "quick"]
    assert [item[1] for item in asked] == ["auto"] + ["fp16"] * 5
    assert asked[1][3] == ["zb-h1"]
    assert asked[3][3] == asked[4][3] == ["1f1b"] * 3  # cut: nothing is searched for them
    assert told[0] == "1f1b: half way"
    assert told[-1] == "gpipe: half way"
    assert found.document.notes[0] == (
        "tried: 1f1b 2 s, zb-h1 2.03 s, interleaved 2.5 s, zb-v 2.2 s, gpipe 3 s at a glance; this is 1f1b"
    )


def test_a_plan_that_no_framework_launches_has_to_be_faster_by_what_simpler_plans_may_be_slower(
    monkeypatch,
) -> None:
    """As beside a single search; `simple_within` sets it."""
    steps = {"1f1b": 2.0, "zb-h1": 1.997, "interleaved": 9.0, "zb-v": 9.0, "gpipe": 9.0}
    answering(monkeypatch, steps, {"1f1b"})
    for within, step_s in ((None, 2.0), (0.0, 1.997)):
        wishes = SearchOptions(simple_within=within)
        assert tried.plan(MODEL, CLUSTER, JOB, wishes=wishes, hwdb=HWDB).step_s == step_s


def test_a_plan_that_can_be_launched_is_no_reason_to_show_a_slower_one(monkeypatch) -> None:
    """Without `auto` the faster one would have been shown: 2.7 % were lost so on alike nodes."""
    steps = {"1f1b": 2.0, "zb-h1": 1.999}
    answering(monkeypatch, steps, {"zb-h1"})
    found = tried.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(simple_within=0.03), hwdb=HWDB)
    assert found.step_s == 2.0  # the full search of zb-h1 showed 2.019 s, which can be launched


def test_a_glance_looks_at_parts_of_islands_where_the_first_plan_is_none_of_its_own(monkeypatch) -> None:
    """It has other chunks, or does not fit what the margin leaves: zb-h1 and gpipe hold more than 1f1b."""
    steps = {"1f1b": 2.0, "zb-h1": 1.9, "interleaved": 2.5, "zb-v": 2.2, "gpipe": 3.0}
    for fullness, whole in ((0.9, True), (0.91, False)):
        asked = answering(monkeypatch, steps, fullness=fullness)
        tried.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(effort="normal"), hwdb=HWDB)
        glances = {item[0]: item[4] for item in asked if item[2] == "quick"}
        assert glances == {"zb-h1": whole, "gpipe": whole}
        assert [item[3] for item in asked if item[0] == "gpipe"] == [["gpipe"] * whole]


def test_a_parallelizer_that_finds_nothing_but_the_plan_it_began_at_is_left_at_a_glance(monkeypatch) -> None:
    """A known plan is the answer of every later search; under another schedule it says little of others."""
    asked = answering(monkeypatch, {"1f1b": 2.0, "gpipe": 2.0})
    both = SearchOptions(parallelizer=tried.AUTO)
    found = tried.plan(MODEL, CLUSTER, replace(JOB, schedule="1f1b"), wishes=both, hwdb=HWDB)
    assert [item[2:] for item in asked[1:]] == [("quick", ["1f1b"], True), ("quick", ["1f1b"], False)]
    assert found.document.notes[0] == "tried: grid 2 s, galvatron nothing faster at a glance; this is grid"
    asked.clear()
    found = tried.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(), hwdb=HWDB)
    assert [item[2] for item in asked if item[0] == "gpipe"] == ["quick", "normal"]


def test_a_launchable_plan_of_a_full_search_is_not_given_up_for_that_of_a_glance(monkeypatch) -> None:
    """The glance prefers none; the full search knows its plan and shows what can be launched."""
    steps = {"1f1b": 2.0, "interleaved": 1.8}
    answering(monkeypatch, steps, {"interleaved"})
    found = tried.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(), hwdb=HWDB)
    assert found.document.launchable_with == ["megatron"]
    assert found.step_s == pytest.approx(1.818)
    assert "zb-h1 no plan at a glance, interleaved 1.82 s, zb-v no plan" in found.document.notes[0]


def test_of_plans_that_are_as_fast_to_rounding_the_first_is_shown(monkeypatch) -> None:
    """On one stage every schedule is the same: 1f1b needs no saying."""
    steps = {"1f1b": 2.0, "zb-h1": 2.0 - 4e-16, "gpipe": 2.0 * (1 - 1e-12)}
    answering(monkeypatch, steps)
    found = tried.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(), hwdb=HWDB)
    assert found.document.notes[0].endswith("this is 1f1b")


@pytest.mark.slow
def test_a_schedule_that_holds_more_than_fits_of_the_first_plan_is_not_lost() -> None:
    """1f1b's plan of 5.63 s does not fit under zb-h1, whose own is faster by a tenth."""
    model, cluster = load_model("gpt3-6.7b"), load_cluster("azure-c1", HWDB)
    wishes = SearchOptions(effort="quick", beside=False)
    job = Job(32, 2048, "fp16", schedule="zb-h1")
    alone = api.plan(model, cluster, job, wishes=wishes, hwdb=HWDB)
    found = tried.plan(model, cluster, replace(job, schedule=tried.AUTO), wishes=wishes, hwdb=HWDB)
    assert found.step_s <= alone.step_s * (1 + 1e-9)


def test_nothing_is_tried_that_the_bound_leaves_no_room_for(monkeypatch) -> None:
    """The work bound holds for any schedule."""
    asked = answering(monkeypatch, {"1f1b": 1.0})
    found = tried.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(), hwdb=HWDB)
    assert len(asked) == 1
    assert found.document.notes[0] == (
        "tried: 1f1b 1 s; this is 1f1b; not looked at since the bound says that none is faster: "
        "zb-h1, interleaved, zb-v, gpipe"
    )


@pytest.mark.slow
def test_parallelizers_are_tried_alike() -> None:
    """Grid is one of them: the answer is no slower than its own."""
    both = replace(FAST, parallelizer=tried.AUTO)
    job = replace(JOB, schedule="1f1b")
    found = tried.plan(MODEL, CLUSTER, job, wishes=both, hwdb=HWDB).document
    grid = api.plan(MODEL, CLUSTER, job, wishes=FAST, hwdb=HWDB).document
    assert found.step_s <= grid.step_s * (1 + 1e-9)
    assert found.notes[0].startswith("tried: grid ")


def test_time_is_shared_and_an_interrupt_ends_all() -> None:
    """What is over for the whole is over for every share."""
    whole = Deadline(1000.0)
    share = whole.share(10.0)
    assert 0 < share.left_s() <= 10.0
    whole.interrupted = True
    assert share.over()


def test_without_a_plan_the_first_reason_is_told() -> None:
    """As under a schedule that was named."""
    named = replace(JOB, schedule="1f1b")
    with pytest.raises(InfeasibleError, match="fits no plan"):
        tried.plan(load_model("gpt3-175b"), CLUSTER, named, wishes=FAST, hwdb=HWDB)


def test_compare_shows_the_plan_that_plan_shows() -> None:
    """Interleaved, which the search alone does not compose: `compare` looks for it with the same search."""
    nodes = [
        {"count": 2, "gpu": "H200-SXM-141GB", "gpus": 8, "intra_link": "NVLink4", "nic_gbps": 25},
        {"count": 2, "gpu": "A10G", "gpus": 4, "intra_link": "PCIe4x16", "nic_gbps": 25},
    ]
    cluster, model = cluster_from_dict({"nodes": nodes}, HWDB, "slow links"), load_model("mixtral-8x7b")
    job = Job(128, 8192)
    (beside,) = compare_planners(model, cluster, job, ["tangram"], hwdb=HWDB)
    shown = tried.plan(model, cluster, job, wishes=SearchOptions(), hwdb=HWDB)
    assert beside.result is not None
    assert beside.result.forecast.plan == shown.forecast.plan
    assert shown.document.schedule == "interleaved"
    assert beside.result.document.lower_bound_step_s == shown.document.lower_bound_step_s

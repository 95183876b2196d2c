"""`plan --losses`: copies on few nodes each, and what the search hands over that lasts longer."""

from dataclasses import replace

import pytest

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import api
from tangram_sim.studies.copies import copies_side_by_side
from tangram_sim.studies.forecast import seconds_of
from tangram_sim.studies.liveput_plans import lasting, plan_for_losses, share_left
from tangram_sim.training.job import Job
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan

HWDB = Hwdb.load()
MODEL = load_model("gpt3-350m")
TWO = load_cluster("azure-c1-t4x4-v100x4", HWDB)
QUICK = SearchOptions(effort="quick", beside=False)


def _of(counts: tuple[int, ...], gpus: int = 2) -> Cluster:
    groups: list[NodeGroup] = []
    for group, count in zip(TWO.groups, counts, strict=True):
        groups.append(replace(group, count=count, node=replace(group.node, gpus=gpus)))
    return replace(TWO, groups=tuple(groups))


@pytest.mark.parametrize(("counts", "batch"), [((1, 1), 16), ((2, 4), 24), ((3, 1), 8)])
def test_copies_are_whole_pipelines_on_nodes_of_their_own(counts: tuple[int, int], batch: int) -> None:
    """They train the batch, all layers each, share no node, and are as many as nodes somewhere."""
    cluster, job = _of(counts), Job(batch, 1024, "fp16")
    made = list(copies_side_by_side(MODEL, cluster, job, HWDB, 0.0, Deadline()))
    assert made
    node_of = Placement(cluster, HWDB).node_of
    for plan in made:
        assert sum(pipeline.microbatch * pipeline.microbatches for pipeline in plan.pipelines) == batch
        for pipeline in plan.pipelines:
            assert pipeline.stages[0].embedding and pipeline.stages[-1].head
            blocks = [chunk for stage in pipeline.stages for chunk in stage.chunks]
            assert [start for start, _ in blocks] == [0, *(stop for _, stop in blocks[:-1])]
            assert blocks[-1][1] == MODEL.layers
        nodes = [
            {node_of[rank] for stage in pipeline.stages for rank in stage.ranks}
            for pipeline in plan.pipelines
        ]
        assert sum(map(len, nodes)) == len(set[int]().union(*nodes))
    assert max(len(plan.pipelines) for plan in made) > 1


@pytest.mark.parametrize("wishes", [QUICK, replace(QUICK, replicate=False)])
def test_the_liveput_shown_is_no_less_than_that_of_copies(wishes: SearchOptions) -> None:
    """Whichever plan is the fastest: a faster one never lowers it below that."""
    cluster, job = _of((2, 1)), Job(8, 1024, "fp16")
    fastest = api.plan(MODEL, cluster, job, wishes=lasting(wishes), hwdb=HWDB)
    shown = plan_for_losses(cluster, 1.0, MODEL, job, HWDB, lambda _: fastest).document.liveput
    assert shown is not None
    assert shown.liveput_tokens_per_s >= shown.fastest_liveput_tokens_per_s
    margin = fastest.document.memory_margin
    for plan in copies_side_by_side(MODEL, cluster, job, HWDB, margin, Deadline()):
        if lower_plan(plan, Lowering.of(plan, HWDB)).fullness() <= 1.0 - margin:
            speed = job.tokens / seconds_of(plan, HWDB)
            assert shown.liveput_tokens_per_s >= speed * share_left(plan, 1.0, HWDB) * (1 - 1e-9)


def test_a_search_for_losses_finds_the_same_fastest_plan_and_hands_over_more() -> None:
    """One stage over both groups is among them, slower or not: a node takes its own share of it alone."""
    cluster, job = _of((1, 1), 4), Job(16, 2048, "fp16")
    plain = api.plan(MODEL, cluster, job, wishes=QUICK, hwdb=HWDB)
    more = api.plan(MODEL, cluster, job, wishes=lasting(QUICK), hwdb=HWDB)
    assert more.step_s == plain.step_s and not plain.others
    over = [
        forecast.plan
        for forecast in (more.forecast, *more.others)
        if len(forecast.plan.pipelines[0].stages) == 1 and len(forecast.plan.pipelines[0].stages[0].parts) > 1
    ]
    assert over


def test_many_nodes_whose_copies_would_be_many_pipelines_are_no_error() -> None:
    """26 and 28 nodes are shared by two: each half is planned as copies of patterns, not as one pipeline."""
    cluster, job = _of((26, 28)), Job(64, 1024, "fp16")
    for plan in copies_side_by_side(MODEL, cluster, job, HWDB, 0.0, Deadline()):
        assert sum(pipeline.microbatch * pipeline.microbatches for pipeline in plan.pipelines) == 64

"""Metis as published: each of its six points is there, and moves a plan when mended alone."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.coarse.coarse_plan import CoarsePlan, ReplicaGroup, fits, step_s
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.peers.metis_published import (
    DEFECTS,
    MetisPublished,
    PublishedSearch,
    _by_shares,
)
from tangram_sim.planners.whole_cluster import Price
from tangram_sim.registry import planner
from tangram_sim.studies.comparison import compare_planners
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
JOB = Job(16, 2048, "fp16")


@pytest.fixture(scope="module")
def price() -> Price:
    return Price(load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", HWDB), JOB, HWDB)


def search(price: Price, mended: str = "") -> PublishedSearch:
    return PublishedSearch(price.profile, JOB.global_batch, 16, mended)


def test_outlines_use_every_gpu_and_pass_five_times_the_first_kinds_bytes(price: Price) -> None:
    own = search(price)
    found = list(own.outlines(Deadline()))
    assert found
    for outline in found[:50]:
        gpus = sum(team.replicas * team.tp for stage in outline.stages for team in stage)
        assert gpus == price.cluster.gpus
        first = outline.stages[0][0].kind
        for ((start, stop), stage), (wanted, room) in zip(
            zip(pairwise(outline.cuts), outline.stages, strict=True), own._demands(outline), strict=True
        ):
            row = price.profile.layers(first, stage[0].tp, stage[0].per_replica).bytes_with(1)
            assert wanted == pytest.approx(5 * (row[stop] - row[start]))
            assert wanted <= room


def test_the_memory_estimate_lets_plans_pass_that_do_not_fit_and_mending_it_does_not(price: Price) -> None:
    published = list(search(price).outlines(Deadline()))
    mended = list(search(price, "memory").outlines(Deadline()))
    assert not all(fits(outline, price.profile) for outline in published)
    assert mended and all(fits(outline, price.profile) for outline in mended)


def test_later_orders_of_kinds_are_costed_by_their_first_stage(price: Price) -> None:
    stages = ((ReplicaGroup(0, 4, 1, 4),), (ReplicaGroup(1, 4, 1, 4),))
    outline = CoarsePlan(4, 4, (0, 13, 26), stages)
    for mended in ("", "orders"):
        own = search(price, mended)
        alone = own.cost_s(replace(outline, cuts=(0, 13), stages=stages[:1]), later=False)
        whole = own.cost_s(outline, later=False)
        assert own.cost_s(outline, later=True) == (whole if mended else alone)
        assert alone < whole


def test_the_network_between_nodes_counts_as_fast_as_inside(price: Price) -> None:
    stages = ((ReplicaGroup(0, 4, 1, 4),), (ReplicaGroup(1, 4, 1, 4),))
    outline = CoarsePlan(4, 4, (0, 13, 26), stages)
    assert search(price).cost_s(outline, later=False) < step_s(outline, price.profile)
    assert search(price, "bandwidth").cost_s(outline, later=False) == step_s(outline, price.profile)


def test_layers_are_cut_by_shares_with_at_least_one_each() -> None:
    weights = [float(cut) for cut in range(11)]
    assert _by_shares([1.0, 1.0], weights) == (0, 5, 10)
    assert _by_shares([3.0, 1.0, 1.0], weights) == (0, 6, 8, 10)
    assert _by_shares([1e9, 1.0, 1.0], weights) == (0, 8, 9, 10)
    assert _by_shares([1.0] * 11, weights) is None


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_point_mended_alone_still_plans(price: Price, defect: str) -> None:
    plan = MetisPublished(defect, trusted=True).plan(price.model, price.cluster, JOB, price)
    assert plan.gpus_used == price.cluster.gpus
    price.lowered(plan)


def test_tensor_parallelism_may_span_nodes_unless_that_is_mended() -> None:
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x16", HWDB)
    price = Price(model, cluster, JOB, HWDB)

    def widest(mended: str) -> int:
        found = search(price, mended).outlines(Deadline())
        return max(team.tp for outline in found for stage in outline.stages for team in stage)

    assert widest("degrees") == 4
    assert widest("") > 4


def test_it_is_known_by_name_and_never_asked_by_default(price: Price) -> None:
    assert planner("metis-published") is MetisPublished
    stopped = Deadline(0.0)
    found = compare_planners(price.model, price.cluster, JOB, hwdb=HWDB, deadline=stopped)
    assert "metis-published" not in {planner_answer.planner for planner_answer in found}

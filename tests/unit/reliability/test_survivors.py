"""Liveput of plans: sampled over losses, held to the exact count; the rate decides what leads."""

import math
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.reliability.spot.liveput import replicas_left
from tangram_sim.reliability.survivors import (
    PipelineNodes,
    left_after,
    liveput_share,
    lost_with_each,
    poisson,
)
from tests.commands import tangram


def grid(pipelines: int, stages: int) -> tuple[PipelineNodes, ...]:
    """One node for every stage of every replica."""
    return (
        PipelineNodes(
            1.0, tuple(tuple(frozenset({d * stages + s}) for d in range(pipelines)) for s in range(stages))
        ),
    )


@pytest.mark.parametrize(("nodes", "pipelines", "stages"), [(8, 2, 3), (30, 2, 13), (12, 4, 3)])
def test_sampled_shares_are_the_exact_ones(nodes: int, pipelines: int, stages: int) -> None:
    found = left_after(grid(pipelines, stages), nodes, 4)
    for lost, share in enumerate(found):
        chances = replicas_left(nodes, pipelines, stages, lost)
        exact = sum(chance * left / pipelines for left, chance in enumerate(chances))
        assert share == pytest.approx(exact, abs=0.03)
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)


def test_losses_are_poisson_and_none_leave_everything() -> None:
    assert sum(poisson(2.0, 50)) == pytest.approx(1.0)
    assert poisson(2.0, 50)[1] == pytest.approx(2 * math.exp(-2))
    assert poisson(5.0, 2)[2] == pytest.approx(1 - 6 * math.exp(-5))
    assert liveput_share(grid(2, 2), 4, 0.0) == pytest.approx(1.0)


def test_a_node_that_holds_two_stages_breaks_one_replica_and_one_pipeline_of_two_half() -> None:
    shared = (PipelineNodes(1.0, ((frozenset({0}), frozenset({1})), (frozenset({0}), frozenset({1})))),)
    assert left_after(shared, 2, 1)[1] == pytest.approx(0.5)
    two = tuple(PipelineNodes(0.5, ((frozenset({place}),),)) for place in (0, 1))
    assert left_after(two, 2, 1)[1] == pytest.approx(0.5)


CLUSTER = """\
name: eight
nodes:
  - {count: 8, gpu: V100-PCIe-16GB, gpus: 1, intra_link: none, nic_gbps: 4}
"""


def asked(cluster: object, *more: object) -> Any:
    """The plan of gpt3-350m that is found at once."""
    found = tangram("plan", "gpt3-350m", cluster, "--global-batch", 16, "--time-limit", 0, "--json", *more)
    assert found.code == 0, found.err
    return found.json


def test_plans_are_ranked_by_what_losses_leave(tmp_path: Path) -> None:
    """Pipelines are fastest over slow links; with losses ahead replicas that need fewer nodes lead."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    none, many = (asked(tmp_path / "cluster.yaml", "--losses", rate) for rate in (0, 3))
    assert none["liveput"]["share_left"] == pytest.approx(1.0)
    assert many["step_s"] > none["step_s"]
    assert len(many["stages"]) < len(none["stages"])
    told = many["liveput"]
    assert told["liveput_tokens_per_s"] > told["fastest_liveput_tokens_per_s"]
    assert told["liveput_tokens_per_s"] == pytest.approx(told["share_left"] * many["tokens_per_s"])


def test_plans_for_losses_leave_the_memory_free_that_others_leave() -> None:
    whole = ("azure-c1-t4x4-v100x4", "--effort", "quick", "--time-limit", 600)  # no clock ends the search
    plain, none = asked(*whole), asked(*whole, "--losses", 0)
    assert none["step_s"] == plain["step_s"]
    assert none["memory_margin"] == plain["memory_margin"] > 0.0
    for stage in none["stages"]:
        assert stage["peak_memory_bytes"] <= (1 - none["memory_margin"]) * stage["memory_capacity_bytes"]


def test_losses_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    for more, said in (
        (("--losses", -1), "give a number, 0 or more"),
        (("--losses", 1, "--without", "n1"), "give one of"),
        (("--losses", 1, "--exclude", "g0", "--for", "any"), "does not know --exclude, --for"),
    ):
        found = tangram("plan", "gpt3-125m", tmp_path / "cluster.yaml", *more)
        assert found.code == 2
        assert said in found.err


def test_what_goes_with_each_node_alone_is_the_share_of_replicas_with_a_part_on_it() -> None:
    """Two replicas on nodes of their own, and a stage that both have on node 4; a second pipeline beside."""
    apart = PipelineNodes(0.75, ((frozenset({0}), frozenset({1})), (frozenset({2, 3}), frozenset({4}))))
    beside = PipelineNodes(0.25, ((frozenset({4}), frozenset({4})),))
    assert lost_with_each((apart, beside), range(6)) == pytest.approx((0.375, 0.375, 0.375, 0.375, 0.625, 0))

"""Slowdowns on a cluster: what each name means, rank by rank; factors multiply, in any order."""

from itertools import permutations
from typing import Any

import pytest

from tangram_sim.clusters import Cluster, GroupLimit, Network, NodeGroup
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.health import Slowdown
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.slowing import with_slowdowns

HWDB = Hwdb.load()
# Two boxes of four V100, one of four T4, one of eight A100: ranks 0 to 7, 8 to 11, 12 to 19.
GROUPS = tuple(
    NodeGroup(name, count, HWDB.node(node))
    for name, count, node in (("g0", 2, "p3.8xlarge"), ("g1", 1, "g4dn.12xlarge"), ("g2", 1, "DGX-A100-80GB"))
)
CLUSTER = Cluster("lab", GROUPS, Network(1.0, (GroupLimit((0, 1), 1e9, 5e-5),)))
STAGES = {(0, 0): (0, 1), (0, 1): (2, 3), (1, 0): (4,), (1, 1): (8, 9)}
V100, T4 = (HWDB.node(name).gpu.name for name in ("p3.8xlarge", "g4dn.12xlarge"))


@pytest.mark.parametrize(
    ("where", "ranks"),
    [
        ("n0", range(4)), ("n1", range(4, 8)), ("n3", range(12, 20)), ("n1.2", [6]), ("n3.7", [19]),
        ("r0", [0]), ("r19", [19]), ("g0", range(8)), ("g1", range(8, 12)), (V100, range(8)),
        (T4, range(8, 12)), ("stage 0", [0, 1, 4]), ("stage 1", [2, 3, 8, 9]),
        ("stage 1 replica 0", [2, 3]), ("stage 0 replica 1", [4]),
    ],
)  # fmt: skip
def test_a_name_means_just_these_ranks(where: str, ranks: Any) -> None:
    """Of compute and of memory; of the network the nodes that they are on."""
    factors = tuple((rank, 2.0) for rank in ranks)
    slow = with_slowdowns(CLUSTER, [Slowdown(where, 2.0, "compute")], STAGES)
    assert (slow.health.compute, slow.health.memory, slow.health.network) == (factors, (), ())
    slow = with_slowdowns(CLUSTER, [Slowdown(where, 2.0, "memory")], STAGES)
    assert (slow.health.compute, slow.health.memory, slow.health.network) == ((), factors, ())
    slow = with_slowdowns(CLUSTER, [Slowdown(where, 2.0, "network")], STAGES)
    first = CLUSTER.first_rank
    nodes = [node for node in range(4) if any(first[node] <= rank < first[node + 1] for rank in ranks)]
    assert slow.health.network == tuple((node, 2.0) for node in nodes)
    assert (slow.groups, slow.network) == (CLUSTER.groups, CLUSTER.network)


def test_factors_multiply_in_any_order_and_leave_no_trace_where_they_cancel() -> None:
    several = [
        Slowdown("n0", 2.0, "compute"), Slowdown("r1", 3.0, "compute"), Slowdown("r1", 1 / 6, "compute"),
        Slowdown("n0", 2.0, "network"), Slowdown("r2", 4.0, "network"), Slowdown("g0-g1", 2.0, "network"),
    ]  # fmt: skip
    found = {with_slowdowns(CLUSTER, order).health for order in permutations(several)}
    assert len(found) == 1
    (health,) = found
    assert health.compute == ((0, 2.0), (2, 2.0), (3, 2.0)) and health.memory == ()
    assert health.network == ((0, 8.0),)


@pytest.mark.parametrize(("where", "pair"), [("g0-g1", (0, 1)), ("g2-g0", (0, 2))])
def test_a_slow_link_is_one_more_limit_at_what_the_two_groups_share_over_the_factor(
    where: str, pair: tuple[int, int]
) -> None:
    rate, latency = CLUSTER.group_limit(*pair)
    slow = with_slowdowns(CLUSTER, [Slowdown(where, 4.0, "network")])
    assert slow.network.between == (*CLUSTER.network.between, GroupLimit(pair, rate / 4, latency))
    assert slow.group_limit(*pair) == (rate / 4, latency)
    assert slow.group_limit(1, 2) == CLUSTER.group_limit(1, 2)


@pytest.mark.parametrize(
    ("where", "what", "factor", "words"),
    [
        ("n4", "compute", 2.0, "there is no node 4; they are 0 to 3"),
        ("n0.4", "compute", 2.0, "there is no GPU 4; they are 0 to 3"),
        ("r20", "compute", 2.0, "there is no rank 20; they are 0 to 19"),
        ("stage 2", "compute", 2.0, "the plan has stages 0 to 1 and replicas 0 to 1"),
        ("stage 0 replica 2", "compute", 2.0, "the plan has stages 0 to 1 and replicas 0 to 1"),
        ("n0", "compute", 0.0, "a factor of 0"), ("n0", "compute", float("inf"), "a factor of inf"),
        ("g0-g1", "memory", 2.0, "a link has no memory"), ("g0-g0", "network", 2.0, "inside a group"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said(where: str, what: str, factor: float, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        with_slowdowns(CLUSTER, [Slowdown(where, factor, what)], STAGES)


def test_names_that_nobody_knows_are_answered_with_those_that_are() -> None:
    for where, what in (("n0", "heat"), ("g9-g0", "network"), ("a rack", "compute")):
        with pytest.raises(UnknownNameError):
            with_slowdowns(CLUSTER, [Slowdown(where, 2.0, what)])
    with pytest.raises(BadInputError, match="known of a plan only"):
        with_slowdowns(CLUSTER, [Slowdown("stage 0", 2.0, "compute")])

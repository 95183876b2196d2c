"""Roads between ranks against their definition: every pair of ranks sends alike, what fills first decides."""

from collections import defaultdict
from itertools import product
from random import Random

import pytest

from tangram_sim.clusters import Cluster, GroupLimit, Network, NodeGroup
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.ranks import Placement

HWDB = Hwdb.load()
SHARE = HWDB.network_efficiency.value
GBPS = 0.125e9


def cluster(random: Random) -> Cluster:
    """Three groups of small boxes, some limits between them, oversubscribed or not."""
    nodes = [HWDB.node(name) for name in random.sample(["p3.8xlarge", "g4dn.12xlarge", "DGX-A100-80GB"], 3)]
    groups = tuple(NodeGroup(f"g{k}", random.randint(1, 3), node) for k, node in enumerate(nodes))
    pairs = random.sample([(0, 1), (0, 2), (1, 2), (0, 0)], 2)
    limits = tuple(
        GroupLimit(pair, random.choice([2, 10, 90]) * GBPS, random.choice([0.0, 9e-5])) for pair in pairs
    )
    return Cluster("some", groups, Network(random.choice([1.0, 3.0]), limits))


@pytest.mark.parametrize("seed", range(40))
def test_a_road_carries_what_its_fullest_nic_or_limit_lets_through(seed: int) -> None:
    """One byte of each pair of ranks: seconds of NICs owned and of limits between groups; efficiencies."""
    random = Random(seed)
    where = cluster(random)
    placement = Placement(where, HWDB)
    ranks = random.sample(range(where.gpus), random.randint(2, min(12, where.gpus)))
    cut = random.randint(1, len(ranks) - 1)
    source, target = tuple(sorted(ranks[:cut])), tuple(sorted(ranks[cut:]))
    node_of, group_of = placement.node_of, where.node_group
    nodes = {node_of[rank] for rank in ranks}
    found, latency = placement.road(source, target)
    assert placement.same_domain(source, target) == (len(nodes) == 1)
    if len(nodes) == 1:
        link = where.groups[group_of[min(nodes)]].node.intra
        pairs = min(len(source), len(target))
        assert found == pytest.approx(link.bytes_per_s * HWDB.link_efficiency(link).value * pairs)
        assert latency == link.latency_s
        return

    def owned(side: tuple[int, ...]) -> float:
        boxes = [where.groups[group_of[node_of[rank]]].node for rank in side]
        return sum(node.nic_bytes_per_s / node.gpus for node in boxes)

    total = len(source) * len(target)
    seconds, between = [total / owned(source), total / owned(target)], defaultdict[tuple[int, int], int](int)
    lags = []
    for a, b in product(source, target):
        pair = group_of[node_of[a]], group_of[node_of[b]]
        between[pair] += 1
        lags.append(where.group_limit(*pair)[1])
    seconds += [count / where.group_limit(*pair)[0] for pair, count in between.items()]
    assert found == pytest.approx(total / max(seconds) * SHARE, rel=1e-12)
    assert latency == max(lags)
    assert placement.transfer_s(source, target, 3e9) == pytest.approx(3e9 / found + latency, rel=1e-12)
    assert placement.nic_share(source) == pytest.approx(owned(source) * SHARE)
    each = [
        placement.nic_share(tuple(r for r in source if node_of[r] == item))
        for item in {node_of[r] for r in source}
    ]
    assert placement.node_share(source) == pytest.approx(min(each))


@pytest.mark.parametrize("seed", range(10))
def test_limits_and_nics_deliver_their_share(seed: int) -> None:
    """Of all traffic between two groups, of all NICs of some nodes: what is stated, times the efficiency."""
    random = Random(seed)
    where = cluster(random)
    placement = Placement(where, HWDB)
    for a, b in product(range(3), repeat=2):
        stated = [
            group_limit.bytes_per_s
            for group_limit in where.network.between
            if sorted(group_limit.groups) == sorted((a, b))
        ]
        ups = [group.count * group.node.nic_bytes_per_s for group in where.groups]
        own = min(ups[a], ups[b]) / where.network.oversubscription if a != b else float("inf")
        assert placement.group_rate(a, b) == pytest.approx(min([own, *stated]) * SHARE)
    nodes = tuple(sorted(random.sample(range(len(where.node_group)), 2)))
    rates = [where.groups[where.node_group[node]].node.nic_bytes_per_s for node in nodes]
    assert placement.nic_rate(nodes) == pytest.approx(sum(rates) * SHARE)
    starts = placement.first_rank
    ranks = tuple(rank for node in nodes for rank in range(starts[node], starts[node + 1]))
    assert placement.nic_share(ranks) == pytest.approx(sum(rates) * SHARE)
    formed = placement.island(ranks)
    boxes = [where.groups[where.node_group[node]].node for node in nodes]
    assert formed.gpus == len(ranks) and formed.gpus_per_node * formed.nodes == len(ranks)
    assert formed.intra.bytes_per_s == min(node.intra.bytes_per_s for node in boxes)
    whole = [node.nic_bytes_per_s * formed.gpus_per_node / node.gpus for node in boxes]
    assert formed.nic_bytes_per_s == pytest.approx(min(whole))
    groups = sorted({where.node_group[node] for node in nodes})
    limits = [where.group_limit(a, b) for a, b in product(groups, repeat=2)]
    assert formed.network_bytes_per_s == min(rate for rate, _ in limits)
    assert formed.nic_latency_s == max(lag for _, lag in limits)

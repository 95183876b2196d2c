"""Islands: the three constraints on random clusters, names, worst-member figures, reasons, tolerances."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import UnknownNameError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, cluster_names, load_cluster
from tangram_sim.placement.cutting import NodeMetrics, Tolerances, cut, obstacle
from tangram_sim.placement.islands import find_islands
from tests.places import ROOT

HWDB = Hwdb.load()
TOLERANCES = Tolerances()


def metrics(compute, memory=None, intra=None, gpus=None) -> NodeMetrics:
    n = len(compute)
    return NodeMetrics(
        np.array([[value] for value in (gpus or [4] * n)], dtype=np.int64),
        np.array(compute, dtype=np.float64),
        np.array(memory or [80.0] * n, dtype=np.float64),
        np.array([[value] for value in (intra or [100.0] * n)], dtype=np.float64),
    )


def uniform(n: int, rate: float = 10.0) -> np.ndarray:
    return np.full((n, n), rate)


# the constraints, checked by their definition and not by the code under test


def breaks(m: NodeMetrics, e: np.ndarray, t: Tolerances, nodes: list[int]) -> bool:
    if len({tuple(m.shape[node]) for node in nodes}) > 1:
        return True
    columns = ((m.compute, t.compute), (m.memory, t.memory), *((link, t.intra) for link in m.intra.T))
    for column, allowed in columns:
        for a, b in itertools.combinations(nodes, 2):
            high, low = max(column[a], column[b]), min(column[a], column[b])
            if high > low * (1 + allowed) * (1 + 1e-9):
                return True
    outside = [node for node in range(len(e)) if node not in nodes]
    return any(e[a, b] < e[a, c] for a in nodes for b in nodes if a != b for c in outside)


@st.composite
def problems(draw, tied: bool | None = None) -> tuple[NodeMetrics, np.ndarray]:
    n = draw(st.integers(1, 7))
    tied = draw(st.booleans()) if tied is None else tied
    pairs = n * (n - 1) // 2
    if tied:
        rates = draw(st.lists(st.integers(1, 3), min_size=pairs, max_size=pairs))
    else:
        rates = draw(st.permutations(range(1, pairs + 1)))
    e = np.zeros((n, n))
    e[np.triu_indices(n, 1)] = rates
    e += e.T

    def column(*values: float) -> list[float]:
        return draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    m = metrics(
        column(100.0, 100.0, 96.0, 92.0, 90.0, 45.0, 0.0),
        column(80.0, 80.0, 80.0, 78.0, 40.0),
        column(100.0, 100.0, 100.0, 93.0, 20.0),
        column(4, 4, 4, 8),
    )
    return m, e


@settings(max_examples=300, deadline=None)
@given(problems())
def test_every_island_meets_the_three_constraints_and_no_two_could_be_one(problem):
    m, e = problem
    islands = cut(m, e, TOLERANCES)
    assert sorted(node for island in islands for node in island) == list(range(len(e)))
    for island in islands:
        assert not breaks(m, e, TOLERANCES, island)
    for one, other in itertools.combinations(islands, 2):
        assert breaks(m, e, TOLERANCES, one + other)


@settings(max_examples=200, deadline=None)
@given(problems(), st.data())
def test_the_obstacle_is_there_exactly_when_a_constraint_is_broken(problem, data):
    m, e = problem
    nodes = data.draw(st.lists(st.integers(0, len(e) - 1), min_size=1, unique=True))
    found = obstacle(m, e, TOLERANCES, nodes)
    assert (found is not None) == breaks(m, e, TOLERANCES, nodes)
    if found is not None:
        assert found.high > found.low


def partitions(nodes: list[int]) -> Iterator[list[list[int]]]:
    if not nodes:
        yield []
        return
    for rest in partitions(nodes[1:]):
        yield [[nodes[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [nodes[0], *rest[index]], *rest[index + 1 :]]


@settings(max_examples=60, deadline=None)
@given(problems(tied=False))
def test_without_ties_no_partition_has_fewer_islands(problem):
    m, e = problem
    if len(e) > 6:
        return
    broken: dict[tuple[int, ...], bool] = {}

    def legal(nodes: list[int]) -> bool:
        key = tuple(sorted(nodes))
        if key not in broken:
            broken[key] = breaks(m, e, TOLERANCES, list(key))
        return not broken[key]

    fewest = min(len(p) for p in partitions(list(range(len(e)))) if all(legal(island) for island in p))
    assert len(cut(m, e, TOLERANCES)) == fewest


@settings(max_examples=100, deadline=None)
@given(problems(tied=False), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(problem, random):
    m, e = problem
    order = list(range(len(e)))
    random.shuffle(order)
    shuffled = NodeMetrics(m.shape[order], m.compute[order], m.memory[order], m.intra[order])
    back = [
        sorted(order[node] for node in island)
        for island in cut(shuffled, e[np.ix_(order, order)], TOLERANCES)
    ]
    assert sorted(back) == cut(m, e, TOLERANCES)


# single laws


def test_the_tolerance_bounds_the_spread_of_the_whole_island_and_not_of_neighbours():
    """100, 92, 85 differ by less than 10 % from one to the next and by 18 % in all."""
    islands = cut(metrics([100.0, 92.0, 85.0]), uniform(3), TOLERANCES)
    assert islands == [[0, 1], [2]]


@pytest.mark.parametrize("column", ["compute", "memory", "intra"])
def test_a_spread_of_exactly_the_tolerance_is_allowed(column):
    allowed = getattr(TOLERANCES, column)
    figures = {"compute": [100.0] * 2, column: [100.0, 100.0 * (1 + allowed)]}
    assert cut(metrics(**figures), uniform(2), TOLERANCES) == [[0, 1]]
    figures[column][1] *= 1.001
    assert cut(metrics(**figures), uniform(2), TOLERANCES) == [[0], [1]]


def test_different_numbers_of_gpus_never_share_an_island():
    assert cut(metrics([100.0] * 3, gpus=[4, 8, 4]), uniform(3), TOLERANCES) == [[0, 2], [1]]


def test_equal_nodes_on_two_switches_are_two_islands_when_a_third_party_sits_on_one_of_them():
    """0, 1 and 2, 3 are equal; 4 is another kind behind the first switch, nearer to 0 than 2 is."""
    e = uniform(5, 1.0)
    for nodes in ((0, 1, 4), (2, 3)):
        e[np.ix_(nodes, nodes)] = 10.0
    assert cut(metrics([100.0] * 4 + [50.0]), e, TOLERANCES) == [[0, 1], [2, 3], [4]]
    # without the third party all four are one island: no link that leaves it is faster than its slowest
    assert cut(metrics([100.0] * 4), e[:4, :4], TOLERANCES) == [[0, 1, 2, 3]]


def test_equal_nodes_whose_faster_links_leave_to_another_kind_stay_single():
    e = np.array([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 9], [9, 9, 9, 0]], dtype=float)
    assert cut(metrics([100.0, 100.0, 50.0, 50.0]), e, TOLERANCES) == [[0], [1], [2, 3]]


def test_an_island_is_found_that_cannot_be_grown_node_by_node():
    """{0,1,2} is illegal (1 is nearer to 3), {0,1,3} too (0 is nearer to 2); all four are legal."""
    e = uniform(5, 0.5)
    e[:4, :4] = [[0, 9, 5, 1], [9, 0, 1, 5], [5, 1, 0, 1], [1, 5, 1, 0]]
    m = metrics([100.0] * 4 + [50.0])
    for grown in ([0, 1, 2], [0, 1, 3]):
        assert obstacle(m, e, TOLERANCES, grown).constraint == "network"
    assert cut(m, e, TOLERANCES) == [[0, 1, 2, 3], [4]]


def test_a_single_node_is_an_island():
    assert cut(metrics([0.0]), uniform(1), TOLERANCES) == [[0]]


# clusters


def cluster_of(*groups: dict[str, object], **network: object) -> Cluster:
    base = {"count": 2, "gpu": "T4", "gpus": 4, "intra_link": "PCIe3x16", "nic_gbps": 32}
    return cluster_from_dict({"nodes": [base | group for group in groups], "network": network}, HWDB)


def islands_of(
    cluster: Cluster, dtype: str = "fp16", tolerances: Tolerances = TOLERANCES
) -> tuple[Island, ...]:
    return find_islands(cluster, dtype, tolerances, HWDB)


@pytest.mark.parametrize("name", ["azure-c1", "azure-c2", "azure-c3"])
def test_the_papers_clusters_have_one_island_per_gpu_kind(name):
    cluster = load_cluster(name, HWDB)
    islands = islands_of(cluster)
    assert [island.name for island in islands] == [group.name for group in cluster.groups]
    assert [island.gpus for island in islands] == [g.count * g.node.gpus for g in cluster.groups]
    assert sum(island.gpus for island in islands) == cluster.gpus


@pytest.mark.parametrize("name", cluster_names(HWDB))
def test_half_or_double_tolerances_cut_every_shipped_cluster_alike(name):
    cluster = load_cluster(name, HWDB)
    expected = [island.node_indices for island in islands_of(cluster)]
    for factor in (0.5, 2.0):
        scaled = Tolerances(*(factor * getattr(TOLERANCES, key) for key in ("compute", "memory", "intra")))
        assert [island.node_indices for island in islands_of(cluster, tolerances=scaled)] == expected


def test_no_tolerance_and_a_huge_one_are_the_two_ends():
    cluster = cluster_of({"gpu": "A100-PCIe-80GB"}, {"gpu": "A800-PCIe-80GB"}, {"gpu": "T4"})
    assert [i.name for i in islands_of(cluster, tolerances=Tolerances(0, 0, 0))] == ["g0+g1", "g2"]
    assert [i.name for i in islands_of(cluster, tolerances=Tolerances(99, 99, 99))] == ["g0+g1+g2"]


def test_a_mixed_island_has_its_worst_members_figures():
    cluster = cluster_of(
        {"gpu": "H200-SXM-141GB", "intra_link": "NVLink4", "nic_gbps": 400, "nic_latency_us": 7},
        {"gpu": "GH200-144GB", "intra_link": "NVLink4", "nic_gbps": 384, "nic_latency_us": 20},
    )
    (island,) = islands_of(cluster, "bf16")
    members = [group.node.gpu for group in cluster.groups]
    assert island.name == "g0+g1"
    assert (island.nodes, island.groups, island.node_indices) == (4, (0, 1), (0, 1, 2, 3))
    assert island.gpu.memory_bytes == min(gpu.memory_bytes for gpu in members)
    assert island.gpu.memory_bytes_per_s == min(gpu.memory_bytes_per_s for gpu in members)
    for dtype, peak in island.gpu.peaks:
        assert peak == min(gpu.peak_flop_per_s(dtype) for gpu in members)
    assert (island.nic_bytes_per_s, island.nic_latency_s) == (48e9, 20e-6)
    assert island.network_bytes_per_s == 48e9
    assert {gpu.name for gpu in members} == set(island.gpu.name.split("+"))


def test_one_slow_nic_does_not_slow_an_island_of_fast_ones():
    """NICs 128 times apart: the slow node is an island of its own, and the reason says so."""
    cluster = cluster_of({"nic_gbps": 25}, {"nic_gbps": 3200})
    slow, fast = islands_of(cluster)
    assert (slow.nic_bytes_per_s, fast.nic_bytes_per_s) == (3.125e9, 400e9)
    assert "NIC 3.125 vs 400 GB/s" in slow.reason


def test_two_groups_of_one_kind_are_one_island_and_lists_no_gpu_twice():
    cluster = cluster_of({}, {"gpu": "L4"}, {})
    assert [(i.name, i.nodes, i.node_indices) for i in islands_of(cluster)] == [
        ("g0+g2", 4, (0, 1, 4, 5)),
        ("g1", 2, (2, 3)),
    ]


def test_nodes_that_differ_only_in_bridges_are_apart():
    cluster = cluster_of({"gpu": "RTX-A6000", "links": [[0, 1], [2, 3]]}, {"gpu": "RTX-A6000"})
    first, second = islands_of(cluster)
    assert first.bridge is not None
    assert second.bridge is None
    assert "intra-node" in first.reason


def test_nodes_in_and_out_of_a_wide_scale_up_domain_are_apart():
    tray = {"gpu": "GB200", "intra_link": "NVLink5", "nic_gbps": 1600}
    first, second = islands_of(cluster_of(tray | {"scale_up_nodes": 18, "count": 18}, tray), "bf16")
    assert (first.scale_up_nodes, second.scale_up_nodes) == (18, 1)
    assert "scale-up domain" in first.reason


def test_a_group_whose_nodes_have_their_faster_links_outside_is_cut_and_numbered():
    limits = [{"groups": [0, 0], "gbps": 1}]
    islands = islands_of(cluster_of({"count": 3}, {"gpu": "L4"}, between=limits))
    assert [island.name for island in islands] == ["g0.1", "g0.2", "g0.3", "g1"]
    assert [island.node_indices for island in islands] == [(0,), (1,), (2,), (3, 4)]
    assert "g1" in islands[0].reason
    assert "0.1" in islands[0].reason  # the slow link inside, GB/s, efficiency included


def test_racks_of_one_group_are_apart_when_others_are_nearer_than_the_next_rack():
    tray = {"count": 4, "gpu": "GB200", "intra_link": "NVLink5", "nic_gbps": 1600, "scale_up_nodes": 2}
    other = {"gpu": "H100-SXM5-80GB", "intra_link": "NVLink4", "nic_gbps": 1600}
    limits = [{"groups": [0, 0], "gbps": 100}]
    islands = islands_of(cluster_of(tray, other, between=limits), "bf16")
    assert [(island.name, island.node_indices) for island in islands] == [
        ("g0.1", (0, 1)),
        ("g0.2", (2, 3)),
        ("g1", (4, 5)),
    ]
    together = islands_of(cluster_of(tray, other), "bf16")
    assert [island.name for island in together] == ["g0", "g1"]


def test_a_reason_says_what_differs_with_both_numbers():
    t4, v100 = islands_of(load_cluster("azure-c1", HWDB))
    assert v100.reason.startswith("V100-PCIe-16GB: compute 61.6 vs 26 TFLOP/s of g0 (T4)")
    assert t4.reason.startswith("T4: compute 26 vs 61.6 TFLOP/s of g1 (V100-PCIe-16GB)")
    assert "2.37 times where 1.10 is allowed" in t4.reason
    (alone,) = islands_of(load_cluster("azure-c1-t4x16", HWDB))
    assert "alike" in alone.reason


def test_gpus_without_units_for_the_dtype_are_kept_as_islands():
    islands = islands_of(cluster_of({"gpu": "V100-SXM2-16GB"}, {"gpu": "A30"}), "bf16")
    assert [island.gpu.peak_flop_per_s("bf16") > 0 for island in islands] == [False, True]
    assert "without bound" in islands[0].reason


def test_an_unknown_number_type_is_named():
    cluster = load_cluster("dgx-a100-h100", HWDB)
    with pytest.raises(UnknownNameError, match="bf16"):
        islands_of(cluster, "bf61")


groups = st.fixed_dictionaries(
    {
        "count": st.integers(1, 4),
        "gpu": st.sampled_from(["T4", "A100-PCIe-80GB", "A800-PCIe-80GB", "H200-SXM-141GB", "GH200-144GB"]),
        "gpus": st.sampled_from([4, 4, 8]),
        "nic_gbps": st.sampled_from([25, 100]),
        "scale_up_nodes": st.sampled_from([1, 1, 2]),
    }
)


@st.composite
def clusters(draw) -> Cluster:
    chosen = draw(st.lists(groups, min_size=1, max_size=4))
    index = st.integers(0, len(chosen) - 1)
    limit = st.fixed_dictionaries(
        {"groups": st.tuples(index, index).map(list), "gbps": st.sampled_from([1, 10, 50])}
    )
    return cluster_of(*chosen, between=draw(st.lists(limit, max_size=3)))


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_islands_cover_every_node_once_and_carry_worst_figures_and_unique_names(cluster):
    islands = islands_of(cluster)
    assert sorted(node for i in islands for node in i.node_indices) == list(range(len(cluster.node_group)))
    assert len({island.name for island in islands}) == len(islands)
    for island in islands:
        assert island.nodes == len(island.node_indices)
        assert island.reason
        assert "could be one" not in island.reason
        for node in island.node_indices:
            member = cluster.groups[cluster.node_group[node]].node
            assert island.gpus_per_node == member.gpus
            assert island.gpu.memory_bytes <= member.gpu.memory_bytes
            assert island.gpu.peak_flop_per_s("fp16") <= member.gpu.peak_flop_per_s("fp16")
            assert island.intra.bytes_per_s <= member.intra.bytes_per_s
            assert island.nic_bytes_per_s <= member.nic_bytes_per_s
            assert island.nic_latency_s >= member.nic_latency_s


@settings(max_examples=60, deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_groups_in_the_file_only_changes_names(cluster, random):
    order = list(range(len(cluster.groups)))
    random.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    shuffled = Cluster(
        cluster.name,
        tuple(replace(cluster.groups[old], name=f"g{new}") for new, old in enumerate(order)),
        replace(
            cluster.network,
            between=tuple(
                replace(limit, groups=tuple(sorted(place[group] for group in limit.groups)))
                for limit in cluster.network.between
            ),
        ),
    )

    def up_to_mirror_images(islands: tuple[Island, ...]) -> list[tuple[str, int, float, float]]:
        return sorted((i.gpu.name, i.gpus, i.nic_bytes_per_s, i.network_bytes_per_s) for i in islands)

    assert up_to_mirror_images(islands_of(shuffled)) == up_to_mirror_images(islands_of(cluster))


def test_islands_are_the_same_under_any_hash_seed():
    code = (
        "from tangram_sim.hwdb import load_cluster; from tangram_sim.placement.islands import find_islands;"
        "print([find_islands(load_cluster(n), 'fp16') for n in ('azure-c3', 'lab-v100-a100-a6000')])"
    )
    root = str(ROOT)
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_a_cluster_of_thousands_of_nodes_is_cut_at_once():
    cluster = cluster_of({"count": 5000}, {"count": 5000, "gpu": "L4"})
    assert [island.nodes for island in islands_of(cluster)] == [5000, 5000]

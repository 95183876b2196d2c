"""Islands of whole clusters: kinds, reasons, names, and thousands of nodes."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import UnknownNameError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, cluster_names, load_cluster
from tangram_sim.placement.cutting import Tolerances
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tests.places import ROOT

TOLERANCES = Tolerances()


HWDB = Hwdb.load()


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


@pytest.mark.parametrize("trays", [1, 2])
def test_trays_of_several_racks_share_no_scale_up_domain(trays: int) -> None:
    """Groups are racks of their own: joined, as many trays share a domain as one group has in a rack."""
    rack = {
        "gpu": "GB200",
        "intra_link": "NVLink5",
        "nic_gbps": 1600,
        "scale_up_nodes": 18,
        "gpus": 4,
        "count": trays,
    }
    cluster = cluster_of(rack, rack)
    (joined,) = islands_of(cluster, "bf16")
    assert joined.nodes == 2 * trays
    assert joined.scale_up_nodes == trays
    assert joined.scale_up_nodes == Placement(cluster, HWDB).island(tuple(range(8 * trays))).scale_up_nodes


def test_the_fullest_rack_of_joined_trays_is_seated_first() -> None:
    """One tray, then two of another rack: a stage on two trays finds those that share a domain."""
    tray = {"gpu": "GB200", "intra_link": "NVLink5", "nic_gbps": 1600, "scale_up_nodes": 18, "gpus": 4}
    (joined,) = islands_of(cluster_of({**tray, "count": 1}, {**tray, "count": 2}), "bf16")
    assert joined.node_indices == (1, 2, 0)
    (level,) = islands_of(cluster_of({**tray, "count": 2}, {**tray, "count": 2}), "bf16")
    assert level.node_indices == (0, 1, 2, 3)


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

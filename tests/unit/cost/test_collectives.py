"""Collectives: closed forms against brute force, NCCL's rules, shipped rows, predictions of points."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.cost.collectives import (
    ALGORITHMS,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    group,
    reduce_scatter_s,
    send_receive_s,
)
from tangram_sim.errors import BadInputError, UnknownNameError
from tests.unit.cost.collectives import A100, H100, HWDB, V100, island, over, seconds


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_ring_is_its_steps_played_one_by_one(ranks):
    """Brute force: every rank hands a shard on in every step; start is a launch and a hop per step."""
    size, where = 1e9, over(island(gpus=ranks), ranks)
    path = where.ring
    sent = hops = 0.0
    for _ in range(2 * (ranks - 1)):
        sent += size / ranks
        hops += path.hop_s
    wire = float(np.asarray(sent / path.bytes_per_s).item())
    expected = path.base_s + hops + np.sqrt(path.fill_s * wire) + wire + size / ranks * path.copy_s_per_byte
    assert seconds(all_reduce_s, size, where, "ring") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_halving_doubling_sends_a_rings_bytes_in_fewer_steps(ranks):
    """Long messages take what a ring takes, short ones fewer hops (Thakur et al.)."""
    where = over(island(gpus=ranks), ranks)
    long = [seconds(all_reduce_s, 1e12, where, name) for name in ("ring", "halving_doubling")]
    assert long[0] == pytest.approx(long[1], rel=1e-4)
    short = [seconds(all_reduce_s, 1.0, where, name) for name in ("ring", "halving_doubling")]
    saved = (2 * (ranks - 1) - 2 * np.log2(ranks)) * where.ring.hop_s
    assert short[0] - short[1] == pytest.approx(saved, abs=1e-9)


def test_surplus_ranks_cost_halving_doubling_two_more_messages():
    """Five ranks are four and one that is folded in first."""
    four, five = over(island(gpus=4), 4), over(island(gpus=5), 5)
    long = [seconds(all_reduce_s, 1e12, where, "halving_doubling") for where in (four, five)]
    rate = float(np.asarray(four.ring.bytes_per_s).ravel()[0])
    assert long[1] - long[0] == pytest.approx(2e12 / rate, rel=0.02)


def test_two_nodes_exchange_a_tree_and_three_a_ring():
    """Between two nodes a tree moves S, a ring nearly 2S: so two nodes outrun their NICs."""
    for nodes, low, high in ((2, 1.02, 1.3), (4, 0.85, 1.0)):
        size = 16 * 2.0**30
        taken = seconds(all_reduce_s, size, over(island(nodes=nodes), 8 * nodes))
        ranks = 8 * nodes
        assert low < 2 * (ranks - 1) / ranks * size / taken / 400e9 < high


def test_the_switch_adds_up_for_five_ranks_and_more():
    """NVLS takes part where the link's switch can and enough ranks are there; A100's cannot."""
    four, eight = over(island(gpus=4), 4), over(island(), 8)
    assert four.switched is None
    assert eight.switched is not None
    assert over(island(gpu=A100, link=HWDB.link("NVLink3")), 8).switched is None
    size = 2.0**33
    assert seconds(all_reduce_s, size, eight) == seconds(all_reduce_s, size, eight, "in_switch")
    with pytest.raises(BadInputError, match="in_switch given; no switch"):
        all_reduce_s(size, over(island(gpu=A100, link=HWDB.link("NVLink3")), 8), "in_switch")


def test_mixed_compute_capability_turns_fast_paths_off():
    """No NVLS for groups of two chips; no LL128 below Hopper: never faster than either kind alone."""
    mixed = replace(H100, name=f"{H100.name}+{A100.name}")
    both, alone = over(island(nodes=2, gpu=mixed), 16), over(island(nodes=2), 16)
    assert both.switch is None
    assert alone.switch is not None
    for size in (2.0**12, 2.0**20, 2.0**30):
        assert seconds(all_reduce_s, size, both) >= seconds(all_reduce_s, size, alone)
    # Between 64 KiB and 4 MiB the missing protocol shows.
    nvlink3 = HWDB.link("NVLink3")
    old = replace(A100, name=f"{A100.name}+{V100.name}")
    pure, poor = (over(island(gpu=gpu, link=nvlink3), 4) for gpu in (A100, old))
    assert seconds(all_gather_s, 2.0**20, poor) > 1.1 * seconds(all_gather_s, 2.0**20, pure)


def test_a_pcie_box_loses_bandwidth_past_two_ranks():
    """RTX PRO 6000: 39, 26, 25 GB/s all-reduce bus bandwidth at 2, 4, 8 ranks."""
    gpu = HWDB.gpu("RTX-PRO-6000-Blackwell-Server")
    size = 2.0**28
    for ranks, measured in ((2, 39e9), (4, 26e9), (8, 25e9)):
        taken = seconds(all_reduce_s, size, over(island(gpus=8, gpu=gpu, link=HWDB.link("PCIe5x16")), ranks))
        assert 2 * (ranks - 1) / ranks * size / taken == pytest.approx(measured, rel=0.12)
    # Two ranks four apart have three such pairs beside them on the same bridges.
    where = island(gpus=8, gpu=gpu, link=HWDB.link("PCIe5x16"))
    assert seconds(all_reduce_s, size, over(where, 2, stride=4)) > seconds(all_reduce_s, size, over(where, 2))


def test_copies_through_host_memory_lose_nothing_past_two_ranks():
    """A share of the rate fitted on one link is not used with another link's rate: 4 T4s reach what 2 do."""
    where = island(gpus=4, gpu=HWDB.gpu("T4-16GB"), link=HWDB.link("PCIe-SHM"))
    size = 2.0**28
    bus = [2 * (n - 1) / n * size / seconds(all_reduce_s, size, over(where, n)) for n in (2, 4)]
    assert bus[1] == pytest.approx(bus[0], rel=0.02)
    assert bus[0] == pytest.approx(0.8718 * 3.79e9, rel=0.05)


def test_a_library_without_trees_reduces_round_a_ring():
    """Over one Ethernet port a tree would be faster; a database of rings only takes none."""
    where = replace(island(nodes=2, gpu=V100, link=HWDB.link("NVLink2")), nic_bytes_per_s=1.25e9)
    both = [group(where, np.array([16]), np.array([1]), hwdb) for hwdb in (HWDB, HWDB.with_rings_only())]
    size = 2.0**30
    free, rings = (all_reduce_s(size, found)[0] for found in both)
    assert rings == all_reduce_s(size, both[0], "ring")[0]
    assert free == all_reduce_s(size, both[0], "tree")[0]
    assert rings > 1.3 * free


def test_a_pair_on_a_mesh_has_one_link_of_seven():
    """MI300X: 47.7 GB/s between two GPUs, 312.9 among eight."""
    gpu, link, size = HWDB.gpu("MI300X"), HWDB.link("xGMI-MI300X"), 2.0**32
    for ranks, measured in ((2, 47.7e9), (8, 312.9e9)):
        taken = seconds(all_reduce_s, size, over(island(gpu=gpu, link=link), ranks))
        assert 2 * (ranks - 1) / ranks * size / taken == pytest.approx(measured, rel=0.1)


def test_skewed_experts_make_everyone_wait():
    """The fullest rank sets the time: twice the load, twice the wire."""
    where = over(island(), 8)
    assert seconds(all_to_all_s, 1e10, where, 2.0) == seconds(all_to_all_s, 2e10, where)
    assert seconds(all_to_all_s, 1e10, where, 1.0) < seconds(all_to_all_s, 1e10, where, 1.2)


@given(
    nodes=st.integers(1, 8),
    gpus=st.integers(1, 8),
    degree=st.integers(2, 64),
    size=st.floats(1.0, 1e11),
    name=st.sampled_from(ALGORITHMS),
)
@settings(max_examples=150, deadline=None)
def test_no_algorithm_beats_the_wire(nodes, gpus, degree, size, name):
    """Finite, not faster than the bytes any all-reduce must move, never faster for more of them."""
    ranks = min(degree, nodes * gpus)
    where = over(island(nodes, gpus), ranks)
    if ranks < 2 or (name == "in_switch" and where.switched is None):
        return
    taken = seconds(all_reduce_s, size, where, name)
    wire = (size if name in ("auto", "tree", "in_switch") else 2 * size * (ranks - 1) / ranks) / 450e9
    assert wire <= taken < np.inf
    assert seconds(all_reduce_s, size / 2, where, name) <= taken
    assert seconds(all_reduce_s, size, where) <= seconds(all_reduce_s, size, where, "ring")


def test_every_operation_answers_for_a_batch_of_layouts():
    """K layouts at once give what each gives alone."""
    where = island(nodes=4)  # five layouts of it
    ranks, stride = np.array([1, 2, 8, 16, 4]), np.array([1, 1, 1, 2, 8])
    batch = group(where, ranks, stride, HWDB)
    operations = (all_reduce_s, all_gather_s, reduce_scatter_s, all_to_all_s, broadcast_s, send_receive_s)
    for function in operations:
        together = function(1e8, batch)
        apart = [
            seconds(function, 1e8, over(where, int(n), int(d))) for n, d in zip(ranks, stride, strict=True)
        ]
        assert together == pytest.approx(apart, rel=1e-12)
        assert together[0] == 0


def test_unknown_algorithms_are_named():
    """The message lists what there is."""
    with pytest.raises(UnknownNameError, match="halving_doubling"):
        all_reduce_s(1.0, over(island(), 8), "rign")
    with pytest.raises(UnknownNameError, match="all-gather"):
        all_gather_s(1.0, over(island(), 8), "tree")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_long_message_between_two_ranks_takes_its_bytes_over_the_rate(nodes):
    """Inside a box the pairwise rate, between boxes what leaves one; a longer message never takes less."""
    where = over(island(nodes=nodes, gpus=8 // nodes), 8)
    rate = where.pairwise.bytes_per_s if nodes == 1 else where.outside_bytes_per_s
    wire = 1e13 / float(np.asarray(rate).ravel()[0])
    assert seconds(send_receive_s, 1e13, where) == pytest.approx(wire, rel=0.01)
    times = [seconds(send_receive_s, size, where) for size in (1.0, 1e3, 1e6, 1e9)]
    assert times == sorted(times) and times[0] > 0


def test_reduction_in_the_switch_begins_with_its_fifth_rank():
    """Fewer of a domain ring (NVIDIA/nccl, src/graph/tuning.cc): a choice of algorithm, not of physics."""
    size = 2.0**30
    for ranks in (4, 5):
        where = over(island(gpus=8), ranks)
        asked = seconds(all_reduce_s, size, where), seconds(all_reduce_s, size, where, "ring")
        assert (asked[0] < asked[1]) == (ranks == 5)

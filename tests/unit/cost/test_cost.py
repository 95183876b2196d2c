"""Physics of one op: closed forms of kernels and collectives, and laws they may not break."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Island, domain_block
from tangram_sim.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    group,
    reduce_scatter_s,
    transfer_s,
)
from tangram_sim.cost.device import Rates, capacities, device_rates
from tangram_sim.cost.kernels import (
    MISALIGNED,
    attention_flop,
    fused_attention_s,
    gemm_s,
    streaming_s,
    unfused_attention_s,
    visible_keys,
)
from tangram_sim.errors import InfeasibleError
from tangram_sim.precision import PRECISIONS
from tests.neutral import neutral_hwdb

HWDB = neutral_hwdb()
NVLINK, PCIE = HWDB.link("NVLink3"), HWDB.link("PCIe4x16")
BRIDGE = HWDB.link("NVLink3-bridge")
A100 = HWDB.gpu("A100-SXM4-80GB")
NVLINK_RATE = HWDB.collective("ring", NVLINK).bytes_per_s_of(NVLINK, 8)
PCIE_RATE = HWDB.collective("ring", PCIE).bytes_per_s_of(PCIE, 8)
BRIDGE_RATE = HWDB.collective("ring", BRIDGE).bytes_per_s_of(BRIDGE, 2)
NIC = 100e9
NIC_RATE = NIC * HWDB.network_efficiency.value
RATES = Rates(100e12, 50e12, 32.0, 1e12, 4e-6, 5e-6, True, 80e9, 1.0, 1.0, False)

counts = st.integers(1, 64)
sizes = st.floats(1.0, 1e11)


def island(nodes=1, gpus=8, link=NVLINK, **changes) -> Island:
    return Island("i", A100, nodes, gpus, link, changes.pop("nic", NIC), 10e-6, **changes)


def one_group(where: Island, ranks: int, stride: int = 1):
    return group(where, np.array([ranks]), np.array([stride]), HWDB)


def test_a_large_gemm_runs_at_the_effective_peak():
    """2mnk FLOP over the effective rate, and one launch."""
    expected = 2 * 8192**3 / RATES.gemm_flop_per_s + RATES.launch_s
    assert float(gemm_s(8192, 8192, 8192, RATES, operand_bytes=2, output_bytes=2)) == pytest.approx(expected)


def test_a_thin_gemm_is_bound_by_memory():
    """A matrix-vector product takes as long as reading the matrix."""
    moved = (1 * 8192 + 8192 * 8192) * 2 + 8192 * 2
    expected = moved / RATES.memory_bytes_per_s + RATES.launch_s
    assert float(gemm_s(1, 8192, 8192, RATES, operand_bytes=2, output_bytes=2)) == pytest.approx(expected)


def test_grouped_gemms_share_one_launch():
    """Experts run as one grouped kernel: `count` products cost one launch, not `count`."""
    item = float(gemm_s(512, 512, 512, RATES, operand_bytes=2, output_bytes=2)) - RATES.launch_s
    eight = float(gemm_s(512, 512, 512, RATES, operand_bytes=2, output_bytes=2, count=8))
    assert eight == pytest.approx(8 * item + RATES.launch_s)


def test_streaming_is_bytes_over_bandwidth():
    """An elementwise kernel is bound by memory whatever it computes."""
    assert float(streaming_s(1e9, RATES)) == pytest.approx(1e9 / RATES.memory_bytes_per_s + RATES.launch_s)


@given(m=counts, n=counts, k=counts, faster=st.floats(1, 10))
def test_a_faster_device_never_slows_a_kernel(m, n, k, faster):
    """More arithmetic or more memory bandwidth cannot lengthen a roofline."""
    size = [256 * value for value in (m, n, k)]
    now = gemm_s(*size, RATES, operand_bytes=2, output_bytes=2)
    for name in ("gemm_flop_per_s", "memory_bytes_per_s"):
        better = replace(RATES, **{name: getattr(RATES, name) * faster})
        assert gemm_s(*size, better, operand_bytes=2, output_bytes=2) <= now


@given(m=counts, n=counts, k=counts, more=counts)
def test_a_larger_gemm_is_never_faster(m, n, k, more):
    """Seconds grow with every dimension, and with the bytes of an operand (fp8 moves half of bf16)."""
    now = gemm_s(m, n, k, RATES, operand_bytes=1, output_bytes=2)
    for size in ((m + more, n, k), (m, n + more, k), (m, n, k + more)):
        assert gemm_s(*size, RATES, operand_bytes=1, output_bytes=2) >= now
    assert gemm_s(m, n, k, RATES, operand_bytes=2, output_bytes=2) >= now


@pytest.mark.parametrize("window", [0, 1, 7, 64, 100])
def test_visible_keys_match_counting_them(window):
    """The mean of keys under a causal (windowed) mask, counted token by token; the diagonal is half a key."""
    seq = 64
    seen = [min(query + 1, window or seq) for query in range(seq)]
    # The closed form is continuous: it counts half of the diagonal, as FLOP conventions do.
    limit = min(window or seq, seq)
    assert visible_keys(seq, window, causal=True) == pytest.approx(
        np.mean(seen) - 0.5 * limit / seq, abs=1e-9
    )
    assert visible_keys(seq, window, causal=False) == limit


def test_attention_flop_is_the_textbook_count():
    """4 s^2 h per sequence for both products (arXiv:2205.05198, appendix A), half under a causal mask."""
    seq, heads, dim = 2048, 16, 128
    assert (
        float(attention_flop(seq, visible_keys(seq, 0, False), heads, dim, dim)) == 4 * seq**2 * heads * dim
    )
    assert float(attention_flop(seq, visible_keys(seq, 0, True), heads, dim, dim)) == 2 * seq**2 * heads * dim


def test_unfused_attention_streams_its_scores():
    """Without a flash kernel the score matrix crosses memory, around two products: three kernels."""
    scores, streamed = 1e9, 8e9
    seconds = float(unfused_attention_s(scores, 128, 128, streamed, RATES))
    products = attention_flop(1, scores, 1, 128, 128) / RATES.attention_flop_per_s
    assert seconds == pytest.approx(products + streamed / RATES.memory_bytes_per_s + 3 * RATES.launch_s)


def test_an_exponential_counts_as_columns_of_both_products():
    """Heads of 64 under units for 64 columns an exponential: half of the arithmetic is exponentials."""
    rates = replace(RATES, exponent_columns=64.0)
    bare = replace(rates, exponent_columns=0.0)
    products = float(fused_attention_s(1e9, 64, 64, 0.0, bare)) - RATES.launch_s
    assert products == pytest.approx(attention_flop(1, 1e9, 1, 64, 64) / RATES.attention_flop_per_s)
    assert float(fused_attention_s(1e9, 64, 64, 0.0, rates)) - RATES.launch_s == pytest.approx(2 * products)


@pytest.mark.parametrize(("head", "as_wide_as"), [(80, 96), (96, 96), (100, 128)])
def test_fused_kernels_pad_heads(head: int, as_wide_as: int):
    """FlashAttention has kernels for multiples of 32 columns."""
    assert fused_attention_s(1e9, head, head, 0.0, RATES) == fused_attention_s(
        1e9, as_wide_as, as_wide_as, 0.0, RATES
    )


def test_unfused_heads_off_the_alignment_miss_the_matrix_units():
    """Heads of 150 columns (BigScience) against heads of 152."""
    rate = RATES.attention_flop_per_s
    aligned, off = (float(unfused_attention_s(1e9, head, head, 0.0, RATES)) for head in (152, 150))
    assert aligned - 3 * RATES.launch_s == pytest.approx(attention_flop(1, 1e9, 1, 152, 152) / rate)
    assert off - 3 * RATES.launch_s == pytest.approx(
        attention_flop(1, 1e9, 1, 150, 150) / (rate * MISALIGNED)
    )


def test_a_dtype_the_gpu_lacks_is_refused():
    """V100 has no bf16 units: never another dtype's peak instead."""
    with pytest.raises(InfeasibleError, match=r"bf16.*fp16"):
        device_rates(HWDB.gpu("V100-SXM2-16GB"), PRECISIONS["bf16"].types, HWDB)


def test_planned_memory_is_a_share_of_the_card_less_what_others_hold():
    """Driver and software stack take theirs from what the driver hands out, not from what is sold."""
    own = HWDB.efficiency(A100, "bf16")
    half = replace(own, usable_memory=own.usable_memory._replace(value=0.5))
    usable, planned = capacities(A100, half)
    assert usable == 0.5 * A100.memory_bytes
    assert usable - planned == half.reserved_bytes.value + half.workspace_bytes.value > 0


def test_rates_are_datasheet_times_efficiency():
    """No hidden factor between the tables and the kernels."""
    found = HWDB.efficiency(A100, "bf16")
    rates = device_rates(A100, PRECISIONS["bf16"].types, HWDB)
    assert rates.gemm_flop_per_s == A100.peak_flop_per_s("bf16") * found.gemm_efficiency.value
    assert rates.memory_bytes_per_s == A100.memory_bytes_per_s * found.memory_efficiency.value
    assert rates.usable_memory_bytes < 1.08 * A100.memory_bytes


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_bus_bandwidth_of_a_large_all_reduce_is_the_link_rate(ranks):
    """busbw = 2(n-1)/n x bytes / seconds tends to the link's reachable rate, less the copy of a shard."""
    size = 1e14
    over = one_group(island(gpus=ranks), ranks)
    moving = float(all_reduce_s(size, over)[0]) - size / ranks * over.ring.copy_s_per_byte
    assert 2 * (ranks - 1) / ranks * size / moving == pytest.approx(NVLINK_RATE, rel=1e-3)


@given(ranks=st.integers(1, 64), nodes=st.integers(1, 8), gpus=st.integers(1, 8), size=sizes)
@settings(max_examples=60)
def test_an_all_reduce_never_takes_more_than_its_two_halves(ranks, nodes, gpus, size):
    """One launch and the library's better algorithms; so ZeRO-1 never communicates less than plain dp."""
    over = one_group(island(nodes, gpus), min(ranks, nodes * gpus))
    halves = all_gather_s(size, over, "ring")[0] + reduce_scatter_s(size, over, "ring")[0]
    assert all_reduce_s(size, over)[0] <= halves


def test_one_rank_and_no_bytes_cost_nothing():
    """A degree of one leaves no op behind, neither bandwidth nor latency."""
    alone, pair = one_group(island(), 1), one_group(island(), 2)
    for collective in (all_gather_s, all_reduce_s, all_to_all_s):
        assert collective(1e9, alone)[0] == 0
        assert collective(0.0, pair)[0] == 0
    assert transfer_s(0.0, 1e9, 1e-5) == 0


def test_a_group_over_nodes_gets_the_nics_of_its_members():
    """All 16 GPUs of two nodes share both nodes' NICs; a group of one GPU per node gets one eighth."""
    two = island(nodes=2)
    assert one_group(two, 16).bytes_per_s[0] == pytest.approx(NIC_RATE)
    assert one_group(two, 2, stride=8).bytes_per_s[0] == pytest.approx(NIC_RATE / 8)
    assert one_group(two, 4, stride=4).bytes_per_s[0] == pytest.approx(NIC_RATE / 4)


def test_eight_groups_side_by_side_fill_the_nic_and_no_more():
    """The shares of all groups that cross at once add up to what the node has."""
    for stride, ranks in ((1, 16), (2, 8), (4, 4), (8, 2)):
        over = one_group(island(nodes=2), ranks, stride)
        assert over.bytes_per_s[0] * stride == pytest.approx(NIC_RATE)


def test_a_fast_network_does_not_lift_a_group_above_its_links():
    """Inside each node the ring still runs over the intra-node link."""
    assert one_group(island(nodes=2, link=PCIE, nic=1e12), 16).bytes_per_s[0] == pytest.approx(PCIE_RATE)


def test_a_limit_between_nodes_binds_the_nics():
    """An uplink slower than the NICs is what a crossing group gets."""
    slow = island(nodes=2, network_bytes_per_s=10e9)
    expected = 10e9 * HWDB.network_efficiency.value
    assert one_group(slow, 16).bytes_per_s[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gpus", "ranks", "stride", "fewest"),
    [
        (6, 4, 1, 2),
        (6, 6, 1, 6),
        (6, 12, 1, 6),
        (6, 3, 1, 3),
        (6, 9, 1, 3),
        (6, 3, 4, 1),
        (8, 16, 1, 8),
        (8, 4, 2, 4),
    ],
)
def test_straddling_groups_are_priced_at_their_worst(gpus, ranks, stride, fewest):
    """Groups of 4 on nodes of 6 split 4 | 2+2 | 4.

    The split one has 2 members on a side. Brute force beside.
    """
    where = island(nodes=12, gpus=gpus)
    span, worst = ranks * stride, ranks
    for first in range(0, gpus * 12 - span + 1, span):
        for offset in range(stride):
            members = [(first + offset + stride * index) // gpus for index in range(ranks)]
            worst = min(worst, *(members.count(node) for node in members))
    assert worst == fewest
    assert one_group(where, ranks, stride).inside[0] == fewest


def test_a_bridge_joins_pairs_only():
    """Two bridged GPUs use the bridge, four use the bus between the pairs, also for all-to-all."""
    bridged = island(gpus=4, link=PCIE, bridge=BRIDGE)
    pair, four = one_group(bridged, 2), one_group(bridged, 4)
    apart = one_group(bridged, 2, stride=2)  # ranks 0 and 2 are of different pairs
    assert pair.bytes_per_s[0] == pytest.approx(BRIDGE_RATE)
    assert four.bytes_per_s[0] == apart.bytes_per_s[0] == pytest.approx(PCIE_RATE)
    bridge = HWDB.collective("pairwise", BRIDGE)
    rate = bridge.bytes_per_s_of(BRIDGE, 2)
    fill = np.sqrt(bridge.fill_s * 5e8 / rate)
    copied = 5e8 / (bridge.copy_share * BRIDGE.bytes_per_s)
    expected = bridge.base_s + bridge.hop_s + fill + 5e8 / rate + copied
    assert all_to_all_s(1e9, pair)[0] == pytest.approx(expected)


def test_a_rack_wide_scale_up_domain_is_one_node():
    """In an NVL72 rack of 18 trays a group of 72 runs on NVLink; in 18 separate nodes on their NICs."""
    rack = island(nodes=18, gpus=4, scale_up_nodes=18)
    assert one_group(rack, 72).bytes_per_s[0] == pytest.approx(NVLINK_RATE)
    assert one_group(island(nodes=18, gpus=4), 72).bytes_per_s[0] == pytest.approx(NIC_RATE)


@pytest.mark.parametrize("ranks", [8, 16, 24, 32, 64])
def test_a_group_inside_one_rack_is_inside_it_whether_or_not_it_divides_72(ranks):
    """Nothing in a rack is outside it: groups of 16, 32 or 64 ranks of 64 or 72 GPUs run on NVLink."""
    for trays in (16, 18):
        rack = island(nodes=trays, gpus=4, scale_up_nodes=18)
        assert one_group(rack, ranks).inside[0] == ranks
        assert one_group(rack, ranks).bytes_per_s[0] == pytest.approx(NVLINK_RATE)


@pytest.mark.parametrize(("trays", "block"), [(32, 16), (256, 16), (36, 18), (54, 18), (28, 14), (37, 18)])
def test_jobs_over_several_racks_take_equal_blocks_of_them(trays, block):
    """128 GPUs take 64 of each rack's 72, so that 32 ranks stay inside one; 144 take all."""
    assert domain_block(trays, 18) == block
    racks = island(nodes=trays, gpus=4, scale_up_nodes=18)
    for ranks in (8, 32, 64):
        aligned = (4 * block) % ranks == 0
        assert (one_group(racks, ranks).inside[0] == ranks) == aligned
    assert one_group(racks, 4 * trays).inside[0] == np.gcd(4 * trays, 4 * block)


def test_a_group_leaving_a_rack_uses_one_nic_share_per_member():
    """18 members in each of two NVL72 racks own 18 of the rack's 72 NIC shares, not 18 whole trays' NICs."""
    racks = island(nodes=36, gpus=4, scale_up_nodes=18, nic=4 * 50e9)
    efficiency = HWDB.network_efficiency.value
    assert one_group(racks, 36, stride=4).bytes_per_s[0] == pytest.approx(
        min(18 * 50e9 * efficiency, NVLINK_RATE)
    )
    assert one_group(racks, 2, stride=72).bytes_per_s[0] == pytest.approx(50e9 * efficiency)


def test_all_to_all_leaves_the_node_at_one_nic_share():
    """16 ranks over two nodes send half of their bytes out, each through its eighth of the NIC."""
    over = one_group(island(nodes=2), 16)
    wire = 1e14 * 8 / 16 / (NIC_RATE / 8)
    assert all_to_all_s(1e14, over)[0] == pytest.approx(wire, rel=0.02)
    assert all_to_all_s(1e14, over, skew=1.5)[0] == pytest.approx(1.5 * wire, rel=0.02)


@given(
    nodes=st.integers(1, 6),
    gpus=st.integers(1, 8),
    degree=st.integers(1, 48),
    stride=st.integers(1, 8),
    size=sizes,
    faster=st.floats(1, 100),
)
@settings(max_examples=150)
def test_collectives_obey_the_laws(nodes, gpus, degree, stride, size, faster):
    """Finite, not negative; more bandwidth or fewer bytes are never slower."""
    now, ranks = island(nodes, gpus), max(1, min(degree, nodes * gpus // stride))
    over = one_group(now, ranks, stride)
    better = [
        one_group(island(nodes, gpus, nic=NIC * faster), ranks, stride),
        one_group(
            island(nodes, gpus, link=replace(NVLINK, bytes_per_s=NVLINK.bytes_per_s * faster)), ranks, stride
        ),
    ]
    for collective in (all_gather_s, all_reduce_s, all_to_all_s):
        seconds = collective(size, over)[0]
        assert 0 <= seconds < np.inf
        assert collective(size / 2, over)[0] <= seconds
        assert all(collective(size, other)[0] <= seconds for other in better)


def test_an_island_without_network_prices_crossing_groups_out():
    """No NIC stated: crossing takes for ever instead of dividing by zero."""
    assert 1e6 < all_reduce_s(1e9, one_group(island(nodes=2, nic=0.0), 16))[0] < np.inf

"""Seconds of one uncontended collective: bandwidth of the slowest member of its path, plus hop latencies.

Bandwidth terms are those of bandwidth-optimal ring algorithms (Thakur et al., IJHPCA 2005); latency is a
ring inside a scale-up domain and a tree between domains. Bus bandwidth of a group that leaves the
domain is bounded by the NICs its members own: `nic_bytes_per_s * ranks_inside / gpus_in_domain`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.hwdb import Hwdb


@dataclass(frozen=True, slots=True)
class Group:
    """Communication groups of K layouts: sizes, spans, and what their slowest path delivers. Arrays of K."""

    ranks: Floats
    inside: Floats  # ranks of the group within one scale-up domain
    bytes_per_s: Floats  # bus bandwidth, one direction
    latency_s: Floats  # of one trip around (ring inside, tree between)
    inside_bytes_per_s: Floats  # of one rank, to members in its scale-up domain
    outside_bytes_per_s: float  # network share of one rank


# Seconds one more rank adds to a ring inside a scale-up domain; the link's own latency is that of the least
# measured collective, launch included (NCCL's tuning.cc counts 0.6 us per NVLink hop).
HOP_S = 0.6e-6


def group(island: Island, ranks: NDArray[np.int64], stride: NDArray[np.int64], hwdb: Hwdb) -> Group:
    """Groups of `ranks` members spaced `stride` apart on `island`, for K layouts at once.

    Groups that do not tile the scale-up domain evenly straddle its borders: they are priced as crossing,
    with the fewest members that any of them can have on one side.
    """
    domain = island.gpus_per_node * min(island.scale_up_nodes, island.nodes)
    span = ranks * stride
    within = (span <= domain) & (domain % np.maximum(span, 1) == 0)
    # Groups start at multiples of their span, so a border cuts them at multiples of the common divisor.
    inside = np.clip(np.gcd(span, domain) // stride, 1, ranks).astype(np.float64)
    link_rate = island.intra.bytes_per_s * hwdb.link_efficiency(island.intra).value
    paired = np.zeros(len(ranks), dtype=bool)
    if island.bridge is not None:  # only groups of one bridged pair stay off the slower link
        paired = within & (span <= 2)
        bridge_rate = island.bridge.bytes_per_s * hwdb.link_efficiency(island.bridge).value
        scale_up = np.where(paired, bridge_rate, link_rate)
    else:
        scale_up = np.full(len(ranks), link_rate)
    network = network_rate(island, hwdb)
    crossing = network * inside / island.gpus_per_node
    outer = np.ceil(ranks / inside)
    start = np.where(inside > 1, island.intra.latency_s + HOP_S * (inside - 1), 0.0)
    latency = start + island.nic_latency_s * np.ceil(np.log2(np.maximum(outer, 1)))
    bandwidth = np.where(within, scale_up, np.where(inside > 1, np.minimum(scale_up, crossing), crossing))
    return Group(
        ranks=ranks.astype(np.float64),
        inside=inside,
        bytes_per_s=np.maximum(bandwidth, 1.0),
        latency_s=latency,
        inside_bytes_per_s=np.maximum(scale_up, 1.0),
        outside_bytes_per_s=max(network / island.gpus_per_node, 1.0),
    )


def network_rate(island: Island, hwdb: Hwdb) -> float:
    """Bytes/s one node of the island exchanges with the others: its NICs, uplinks, at the reachable share."""
    return min(island.nic_bytes_per_s, island.network_bytes_per_s) * hwdb.network_efficiency.value


def all_gather_s(total_bytes: Number, over: Group) -> Floats:
    """Seconds of an all-gather (or a reduce-scatter) whose full buffer is `total_bytes`; 0 for one rank."""
    share = (over.ranks - 1) / over.ranks
    return np.where(
        (over.ranks > 1) & (total_bytes > 0), share * total_bytes / over.bytes_per_s + over.latency_s, 0.0
    )


def all_reduce_s(total_bytes: Number, over: Group) -> Floats:
    """Seconds of an all-reduce: a reduce-scatter and an all-gather."""
    return 2.0 * all_gather_s(total_bytes, over)


def all_to_all_s(rank_bytes: Number, over: Group) -> Floats:
    """Seconds of a balanced all-to-all in which every rank holds `rank_bytes` to send.

    The part that stays inside the scale-up domain and the part that leaves run side by side.
    """
    inner = rank_bytes * (over.inside - 1) / over.ranks / over.inside_bytes_per_s
    outer = rank_bytes * (over.ranks - over.inside) / over.ranks / over.outside_bytes_per_s
    return np.where((over.ranks > 1) & (rank_bytes > 0), np.maximum(inner, outer) + over.latency_s, 0.0)


def ring_exchange_s(block_bytes: Number, over: Group) -> Floats:
    """Seconds to pass one block of `block_bytes` per rank around the whole group (ring attention)."""
    return np.where(
        (over.ranks > 1) & (block_bytes > 0),
        (over.ranks - 1) * block_bytes / over.bytes_per_s + over.latency_s,
        0.0,
    )


def transfer_s(total_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Seconds of a point-to-point transfer."""
    return latency_s + total_bytes / max(bytes_per_s, 1.0) if total_bytes > 0 else 0.0

"""Cost curves of collective algorithms: seconds as a function of bytes, with start, pipeline fill and rate.

`t(S) = start + sqrt(fill x slope x S) + slope x S`. The root is the cost of cutting a message into pieces
that overlap over the hops (the best number of pieces grows with the root of the size, Hockney's r_inf with a
hop per piece); it stands for NCCL's LL, LL128 and Simple protocols in one term. Why one curve and not three
lines: docs/models/collectives.md.
"""

from typing import NamedTuple

import numpy as np

from tangram_sim.cost.kernels import Floats, Number


class Curve(NamedTuple):
    """Cost curve of an algorithm: `S` bytes take `start + root sqrt(S) + slope S` seconds. Arrays of K."""

    start: Floats  # s
    root: Floats  # s per square root of a byte
    slope: Floats  # s/byte

    def seconds(self, total_bytes: Number) -> Floats:
        """Seconds of `total_bytes` (not negative)."""
        return np.asarray(self.start + self.root * np.sqrt(total_bytes) + self.slope * total_bytes)


class Path(NamedTuple):
    """Parameters of one communication pattern inside a scale-up domain. Arrays of K, or floats."""

    base_s: Number  # launch and first message
    hop_s: Number  # one more step
    fill_s: Number
    bytes_per_s: Number  # bus bandwidth of a long message
    copy_s_per_byte: Number  # copying one's own shard


class GroupNetwork(NamedTuple):
    """Parameters of a group's traffic between its scale-up domains. Arrays of K, or floats."""

    hop_s: Number  # one more step that crosses
    fill_s: Number
    bytes_per_s: Number  # of all ranks of the group in one domain together
    tree_share: Number = 1.0  # of that rate, what a tree reaches; tiny where the library takes none


# A chain inside the node that feeds a tree reaches less than a ring: NCCL's tuner counts 0.92 of it; three
# fabrics of 2 x 8 A100, whose NICs do not bound a tree, reach 0.80, 0.81 and 1.01.
TREE_SHARE = 0.87
# NVLSTree against NVLS inside one node: two kernels' worth of traffic share the switch.
SWITCH_TREE_SHARE = 0.9
# PAT (NCCL >= 2.23, one rank per node): steps overlap, ranks cost something each, three quarters of the rate
# (NVIDIA/nccl src/graph/tuning.cc).
PAT_HOP_SHARE, PAT_RANK_S, PAT_SHARE = 1.0 / 3.5, 2.8e-6, 0.75


def ring(ranks: Floats, domains: Floats, rounds: int, path: Path, network: GroupNetwork) -> Curve:
    """A ring over all ranks: all-gather or reduce-scatter with 1 round, all-reduce with 2.

    Each rank sends `rounds (n-1)/n S` bytes in `rounds (n-1)` steps, `rounds (m-1)` of which cross between
    the `m` domains (Thakur, Rabenseifner, Gropp, IJHPCA 2005; the split of steps is NCCL's).
    """
    steps, crossing = rounds * (ranks - 1), rounds * (domains - 1)
    rate = np.where(domains > 1, np.minimum(path.bytes_per_s, network.bytes_per_s), path.bytes_per_s)
    rate = np.where(domains == ranks, network.bytes_per_s, rate)
    fill = np.where(domains > 1, network.fill_s, path.fill_s)
    wire = steps / ranks / rate
    return Curve(
        path.base_s + (steps - crossing) * path.hop_s + crossing * network.hop_s,
        np.sqrt(fill * wire),
        wire + path.copy_s_per_byte / ranks,
    )


def tree(ranks: Floats, inside: Floats, domains: Floats, path: Path, network: GroupNetwork) -> Curve:
    """All-reduce over a double binary tree of domains, with a chain inside each domain (NCCL's Tree).

    Between two domains a tree moves S each way where a ring moves 2S(n-1)/n: this is why two nodes seem
    faster than their NICs. Over more domains it moves 2S.
    """
    levels = np.ceil(np.log2(np.maximum(domains, 1)))
    crossing = np.where(domains == 2, 1.0, 2.0) / (network.bytes_per_s * network.tree_share)
    chain = np.where(inside > 1, 2.0 * (ranks - 1) / ranks / (TREE_SHARE * path.bytes_per_s), 0.0)
    slope = np.maximum(np.where(domains > 1, crossing, 0.0), chain)
    return Curve(
        path.base_s + 2.0 * (inside - 1) * path.hop_s + 2.0 * levels * network.hop_s,
        np.sqrt(np.where(domains > 1, network.fill_s, path.fill_s) * slope),
        slope,
    )


def in_switch(domains: Floats, switch: Path, network: GroupNetwork) -> Curve:
    """All-reduce with reduction in the domain's switches (NVLS); a tree of domains beyond one (NVLSTree)."""
    several = domains > 1
    levels = np.ceil(np.log2(np.maximum(domains, 1)))
    inner = np.where(several, 1.0 / SWITCH_TREE_SHARE, 1.0) / switch.bytes_per_s
    crossing = np.where(several, np.where(domains == 2, 1.0, 2.0) / network.bytes_per_s, 0.0)
    slope = np.maximum(inner, crossing)
    return Curve(
        switch.base_s + 2.0 * levels * network.hop_s,
        np.sqrt(np.where(several, network.fill_s, switch.fill_s) * slope),
        slope,
    )


def halving_doubling(ranks: Floats, domains: Floats, rounds: int, path: Path, network: GroupNetwork) -> Curve:
    """Recursive halving (and doubling with 2 rounds): a ring's bytes in only log2(n) steps a round.

    Groups that are no power of two fold the surplus ranks in first: two more steps and 2S more bytes (Thakur,
    Rabenseifner, Gropp, IJHPCA 2005).
    """
    levels, outer = np.ceil(np.log2(ranks)), np.ceil(np.log2(np.maximum(domains, 1)))
    whole = np.exp2(np.floor(np.log2(ranks)))
    odd = whole != ranks
    flow = ring(ranks, domains, rounds, path, network)
    rate = np.where(domains > 1, np.minimum(path.bytes_per_s, network.bytes_per_s), path.bytes_per_s)
    step = np.where(domains > 1, network.hop_s, path.hop_s)
    folded = rounds * (whole - 1) / whole / rate + 2.0 / rate + path.copy_s_per_byte / ranks
    return Curve(
        path.base_s
        + rounds * ((levels - outer) * path.hop_s + outer * network.hop_s)
        + np.where(odd, 2 * step, 0),
        flow.root,
        np.where(odd, folded, flow.slope),
    )


def hierarchical(ranks: Floats, inside: Floats, domains: Floats, path: Path, network: GroupNetwork) -> Curve:
    """All-reduce as a reduce-scatter inside domains, an all-reduce of shards across, an all-gather."""
    item = np.ones_like(ranks)
    inner = ring(inside, item, 1, path, network)
    wire = 2.0 * (domains - 1) / domains / network.bytes_per_s
    return Curve(
        np.where(inside > 1, 2.0 * inner.start, path.base_s) + 2.0 * (domains - 1) * network.hop_s,
        np.where(inside > 1, 2.0 * inner.root, 0.0) + np.sqrt(network.fill_s * wire),
        np.where(inside > 1, 2.0 * inner.slope, 0.0) + wire,
    )


def pat(ranks: Floats, path: Path, network: GroupNetwork) -> Curve:
    """NCCL's parallel aggregated trees: log2(n) steps of an all-gather, one rank per domain."""
    wire = (ranks - 1) / ranks / (PAT_SHARE * np.asarray(network.bytes_per_s))
    start = path.base_s + np.ceil(np.log2(ranks)) * network.hop_s * PAT_HOP_SHARE + PAT_RANK_S * ranks
    return Curve(np.asarray(start), np.sqrt(network.fill_s * wire), wire + path.copy_s_per_byte / ranks)


def broadcast(ranks: Floats, domains: Floats, path: Path, network: GroupNetwork) -> Curve:
    """A pipelined ring from one rank to all others: S bytes over every link, n-1 steps."""
    steps, crossing = ranks - 1, domains - 1
    rate = np.where(domains > 1, np.minimum(path.bytes_per_s, network.bytes_per_s), path.bytes_per_s)
    rate = np.where(domains == ranks, network.bytes_per_s, rate)
    fill = np.where(domains > 1, network.fill_s, path.fill_s)
    return Curve(
        path.base_s + (steps - crossing) * path.hop_s + crossing * network.hop_s,
        np.sqrt(fill / rate),
        1.0 / rate,
    )

"""Where ranks sit: the island that the ranks of a stage form, and the road between two stages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

from tangram_sim.clusters import Cluster, Gpu, Island, Node
from tangram_sim.cost.collectives import transfer_s
from tangram_sim.hwdb import Hwdb


def worst_gpu(gpus: Sequence[Gpu]) -> Gpu:
    """The element-wise worst member; it keeps the names of all kinds, slowest memory first."""
    kinds = sorted(set(gpus), key=lambda gpu: (gpu.memory_bytes_per_s, gpu.name))
    if len(kinds) == 1:
        return kinds[0]
    dtypes = [dtype for dtype, _ in kinds[0].peaks if all(gpu.peak_flop_per_s(dtype) for gpu in kinds)]
    return Gpu(
        name="+".join(gpu.name for gpu in kinds),
        vendor=kinds[0].vendor,
        architecture=kinds[0].architecture,
        peaks=tuple((dtype, min(gpu.peak_flop_per_s(dtype) for gpu in kinds)) for dtype in dtypes),
        memory_bytes=min(gpu.memory_bytes for gpu in kinds),
        memory_bytes_per_s=min(gpu.memory_bytes_per_s for gpu in kinds),
        power_w=max(gpu.power_w for gpu in kinds),
        measured=all(gpu.measured for gpu in kinds),
    )


def _common(ranks: Mapping[tuple[int, int], int]) -> int:
    """Ranks of one scale-up domain when the ranks of a stage spread over several, so many in each.

    The first domain's, if the others are as full and only the last is less so; else the common divisor.
    """
    counts = [ranks[domain] for domain in sorted(ranks)]
    aligned = all(count == counts[0] for count in counts[:-1]) and counts[-1] <= counts[0]
    return counts[0] if aligned else gcd(*counts)


@dataclass
class Placement:
    """Ranks of one cluster, numbered node by node in file order; answers are kept."""

    cluster: Cluster
    hwdb: Hwdb
    _islands: dict[tuple[int, ...], Island] = field(default_factory=dict)
    _hops: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of every rank."""
        groups = self.cluster.groups
        nodes = self.cluster.node_group
        return tuple(node for node, group in enumerate(nodes) for _ in range(groups[group].node.gpus))

    @cached_property
    def first_rank(self) -> tuple[int, ...]:
        """The first rank of every node, and the number of ranks at the end."""
        ranks = [0]
        for group in self.cluster.node_group:
            ranks.append(ranks[-1] + self.cluster.groups[group].node.gpus)
        return tuple(ranks)

    def _node(self, node: int) -> Node:
        return self.cluster.groups[self.cluster.node_group[node]].node

    def island(self, ranks: tuple[int, ...]) -> Island:
        """The island that `ranks` form, at its worst member.

        Ranks that fill nodes unevenly are grouped by their greatest common share of a node, so that
        a stage over 8 + 4 GPUs is three places of 4: groups that cross are priced as crossing.
        """
        if ranks not in self._islands:
            self._islands[ranks] = self._form(ranks)
        return self._islands[ranks]

    def _form(self, ranks: tuple[int, ...]) -> Island:
        per_node = Counter(self.node_of[rank] for rank in ranks)
        share = gcd(*per_node.values())
        indices = tuple(sorted(per_node))
        nodes = [self._node(index) for index in indices]
        groups = tuple(sorted({self.cluster.node_group[index] for index in indices}))
        slowest = min(nodes, key=lambda node: (node.intra.bytes_per_s, node.intra.name))
        bridged = all(node.bridge is not None for node in nodes) and share > 1
        between = (
            min(self.cluster.group_limit(a, b)[0] for a in groups for b in groups if a <= b)
            if len(indices) > 1
            else float("inf")
        )
        return Island(
            name="+".join(self.cluster.groups[group].name for group in groups),
            gpu=worst_gpu([node.gpu for node in nodes]),
            nodes=len(ranks) // share,
            gpus_per_node=share,
            intra=slowest.intra,
            nic_bytes_per_s=min(node.nic_bytes_per_s * share / node.gpus for node in nodes),
            nic_latency_s=max(
                *(node.nic_latency_s for node in nodes),
                *(self.cluster.group_limit(a, b)[1] for a in groups for b in groups),
            ),
            network_bytes_per_s=between,
            scale_up_nodes=_common(Counter(self._domain(self.node_of[rank]) for rank in ranks)) // share,
            bridge=min((node.bridge for node in nodes if node.bridge), key=lambda link: link.bytes_per_s)
            if bridged
            else None,
            groups=groups,
            node_indices=indices,
        )

    def road(self, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[float, float]:
        """(bytes/s, latency s) between the ranks of two stages, all pairs of ranks sending side by side."""
        key = (source, target)
        if key not in self._hops:
            self._hops[key] = self._road(source, target)
        return self._hops[key]

    def _road(self, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[float, float]:
        sides = [Counter(self.node_of[rank] for rank in side) for side in (source, target)]
        domains = [{self._domain(node) for node in side} for side in sides]
        if len(domains[0] | domains[1]) == 1:
            intra = self._node(next(iter(sides[0]))).intra
            pairs = min(len(source), len(target))
            return intra.bytes_per_s * self.hwdb.link_efficiency(intra).value * pairs, intra.latency_s
        rates = [self._nics(side) for side in sides]
        groups = [{self.cluster.node_group[node] for node in side} for side in sides]
        limits = [self.cluster.group_limit(a, b) for a in groups[0] for b in groups[1]]
        latency = max(limit for _, limit in limits)
        return min(*rates, *(rate for rate, _ in limits)) * self.hwdb.network_efficiency.value, latency

    def _nics(self, side: Mapping[int, int]) -> float:
        """Bytes/s of the NICs that some ranks own, so many on each node."""
        return sum(
            self._node(node).nic_bytes_per_s * count / self._node(node).gpus for node, count in side.items()
        )

    def nic_share(self, ranks: tuple[int, ...]) -> float:
        """Bytes/s that some ranks move through their share of their nodes' NICs, one direction."""
        owned = self._nics(Counter(self.node_of[rank] for rank in ranks))
        return owned * self.hwdb.network_efficiency.value

    def _domain(self, node: int) -> tuple[int, int]:
        """The scale-up domain of a node: (group, number in the group)."""
        group = self.cluster.node_group[node]
        first = self.cluster.node_group.index(group)
        return group, (node - first) // self.cluster.groups[group].node.scale_up_nodes

    def same_domain(self, source: tuple[int, ...], target: tuple[int, ...]) -> bool:
        """Whether all these ranks sit in one scale-up domain."""
        return len({self._domain(self.node_of[rank]) for ranks in (source, target) for rank in ranks}) == 1

    def nic_rate(self, nodes: tuple[int, ...]) -> float:
        """Bytes/s that all NICs of some nodes move together, one direction."""
        return sum(self._node(node).nic_bytes_per_s for node in nodes) * self.hwdb.network_efficiency.value

    def transfer_s(self, source: tuple[int, ...], target: tuple[int, ...], total_bytes: float) -> float:
        """Seconds to hand `total_bytes` from one stage to the next."""
        rate, latency = self.road(source, target)
        return transfer_s(total_bytes, rate, latency)

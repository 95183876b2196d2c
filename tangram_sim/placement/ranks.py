"""Placement of ranks: the island that the ranks of a stage form, and bandwidth between two stages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, Gpu, Island, Node
from tangram_sim.cost.collectives import transfer_s
from tangram_sim.cost.paths import IslandPaths, path_finder, ring_finder
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.between import group_limits
from tangram_sim.topology import PathFinder


def worst_gpu(gpus: Sequence[Gpu]) -> Gpu:
    """The element-wise worst of the GPUs; its name joins those of all kinds, slowest memory first."""
    kinds = sorted(set(gpus), key=lambda gpu: (gpu.memory_bytes_per_s, gpu.name))
    if len(kinds) == 1:
        return kinds[0]
    dtypes = [dtype for dtype, _ in kinds[0].peaks if all(gpu.peak_flop_per_s(dtype) for gpu in kinds)]
    return Gpu(
        name="+".join(dict.fromkeys(gpu.name for gpu in kinds)),
        vendor=kinds[0].vendor,
        architecture=kinds[0].architecture,
        peaks=tuple((dtype, min(gpu.peak_flop_per_s(dtype) for gpu in kinds)) for dtype in dtypes),
        memory_bytes=min(gpu.memory_bytes for gpu in kinds),
        memory_bytes_per_s=min(gpu.memory_bytes_per_s for gpu in kinds),
        power_w=max(gpu.power_w for gpu in kinds),
        measured=all(gpu.measured for gpu in kinds),
    )


def _common(ranks: Mapping[tuple[int, int], int]) -> int:
    """Ranks of a stage in one scale-up domain, given their numbers in each domain. The first domain's number
    if all but the last have as many and the last no more; else the greatest common divisor."""
    counts = [ranks[domain] for domain in sorted(ranks)]
    aligned = all(count == counts[0] for count in counts[:-1]) and counts[-1] <= counts[0]
    return counts[0] if aligned else gcd(*counts)


@dataclass
class Placement:
    """Placement of one cluster's ranks, numbered node by node in file order; results are cached.

    Clusters that state a graph of links use it; others use closed forms of their node properties.
    """

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

    @property
    def first_rank(self) -> tuple[int, ...]:
        """The first rank of every node, and the number of ranks at the end."""
        return self.cluster.first_rank

    @cached_property
    def _finders(self) -> tuple[PathFinder, PathFinder] | None:
        """(path finder for single transfers, for collectives) if the cluster states its graph, else None."""
        if not self.cluster.wiring.full:
            return None
        return path_finder(self.cluster, self.hwdb), ring_finder(self.cluster, self.hwdb)

    @cached_property
    def _limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return group_limits(self.cluster)

    def _node(self, node: int) -> Node:
        return self.cluster.groups[self.cluster.node_group[node]].node

    def island(self, ranks: tuple[int, ...]) -> Island:
        """The island that `ranks` form, priced at its worst member.

        Ranks that fill nodes unevenly are grouped by the greatest common divisor of their numbers per node: 8
        + 4 GPUs count as three nodes of 4, and groups across these are priced as crossing nodes.
        """
        if ranks not in self._islands:
            self._islands[ranks] = self._form(ranks)
        return self._islands[ranks]

    def _form(self, ranks: tuple[int, ...]) -> Island:
        per_node = Counter(self.node_of[rank] for rank in ranks)
        share = gcd(*per_node.values())
        finders = self._finders
        indices = tuple(sorted(per_node))
        on_node: dict[int, list[int]] = {index: [] for index in indices}
        for rank in ranks:
            on_node[self.node_of[rank]].append(rank)
        nodes = [self._node(index) for index in indices]
        groups = tuple(sorted({self.cluster.node_group[index] for index in indices}))
        slowest = min(nodes, key=lambda node: (node.intra.bytes_per_s, node.intra.name))
        bridged = all(node.bridge is not None for node in nodes) and share > 1
        limits, lags = self._limits
        both = np.ix_(groups, groups)
        between = float(limits[both].min()) if len(indices) > 1 else float("inf")
        return Island(
            name="+".join(self.cluster.groups[group].name for group in groups),
            gpu=worst_gpu([self.cluster.gpu_of(node, own) for node, own in on_node.items()]),
            nodes=len(ranks) // share,
            gpus_per_node=share,
            intra=slowest.intra,
            nic_bytes_per_s=min(
                self.cluster.nic_of(index) * share / node.gpus
                for index, node in zip(indices, nodes, strict=True)
            ),
            nic_latency_s=max(
                *(node.nic_latency_s for node in nodes),
                float(lags[both].max()),
            ),
            network_bytes_per_s=between,
            scale_up_nodes=_common(Counter(self._domains[self.node_of[rank]] for rank in ranks)) // share,
            bridge=min((node.bridge for node in nodes if node.bridge), key=lambda link: link.bytes_per_s)
            if bridged
            else None,
            groups=groups,
            node_indices=indices,
            paths=finders
            and IslandPaths.of(
                finders[1], tuple(ranks[first : first + share] for first in range(0, len(ranks), share))
            ),
        )

    def road(self, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[float, float]:
        """(bytes/s, latency s) between the ranks of two stages, all pairs of ranks sending simultaneously."""
        key = (source, target)
        if key not in self._hops:
            self._hops[key] = self._road(source, target)
        return self._hops[key]

    def _road(self, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[float, float]:
        if self._finders is not None:
            found, latency = self._finders[0].road(source, target)
            return found.bytes_per_s, latency
        sides = [Counter(self.node_of[rank] for rank in side) for side in (source, target)]
        domains = [{self._domains[node] for node in side} for side in sides]
        if len(domains[0] | domains[1]) == 1:
            intra = self._node(next(iter(sides[0]))).intra
            pairs = min(len(source), len(target))
            return intra.bytes_per_s * self.hwdb.link_efficiency(intra).value * pairs, intra.latency_s
        rates = [self._nics(side) for side in sides]
        groups = [
            Counter(self.cluster.node_group[self.node_of[rank]] for rank in side) for side in (source, target)
        ]
        latency = 0.0
        for (a, sending), (b, receiving) in product(groups[0].items(), groups[1].items()):
            limit, delay = self.cluster.group_limit(a, b)
            # Both sides spread evenly over their ranks: what two groups exchange is their share of all.
            rates.append(limit * len(source) * len(target) / (sending * receiving))
            latency = max(latency, delay)
        return min(rates) * self.hwdb.network_efficiency.value, latency

    def _nics(self, side: Mapping[int, int]) -> float:
        """Bytes/s of the shares of NICs that belong to these ranks, given as numbers per node."""
        return sum(self.cluster.nic_of(node) * count / self._node(node).gpus for node, count in side.items())

    def nic_share(self, ranks: tuple[int, ...]) -> float:
        """Bytes/s that these ranks send through their shares of their nodes' NICs, one direction."""
        if self._finders is not None:
            finder, total = self._finders[0], 0.0
            for box, places in finder.topology.split(ranks).items():
                rest = set(range(finder.topology.first_rank[box + 1] - finder.topology.first_rank[box]))
                total += finder.exit_rate(box, places, beside=tuple(sorted(rest - set(places)))).bytes_per_s
            return total
        owned = self._nics(Counter(self.node_of[rank] for rank in ranks))
        return owned * self.hwdb.network_efficiency.value

    @cached_property
    def _domains(self) -> tuple[tuple[int, int], ...]:
        """The scale-up domain of every node: (group, number in the group)."""
        sizes = enumerate(self.cluster.groups)
        return tuple(
            (number, node // group.node.scale_up_nodes)
            for number, group in sizes
            for node in range(group.count)
        )

    def same_domain(self, source: tuple[int, ...], target: tuple[int, ...]) -> bool:
        """Whether all these ranks sit in one scale-up domain."""
        if self._finders is not None:
            box_of = self._finders[0].topology.box_of
            return len({box_of(rank) for ranks in (source, target) for rank in ranks}) == 1
        nodes = {self.node_of[rank] for ranks in (source, target) for rank in ranks}
        return len({self._domains[node] for node in nodes}) == 1

    def node_share(self, ranks: tuple[int, ...]) -> float:
        """Least bytes/s that the ranks of one node among `ranks` send through their share of its NICs."""
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(self.node_of[rank], []).append(rank)
        return min(self.nic_share(tuple(own)) for own in by_node.values())

    def group_rate(self, a: int, b: int) -> float:
        """Bytes/s shared by all traffic between two node groups; inf where nothing limits it."""
        if self._finders is None:
            return self.cluster.group_limit(a, b)[0] * self.hwdb.network_efficiency.value
        if a == b:
            return float("inf")
        members = self.cluster.node_group
        source, target = (
            [rank for rank, node in enumerate(self.node_of) if members[node] == group] for group in (a, b)
        )
        return self._finders[0].road(source, target, busy=False)[0].bytes_per_s

    def nic_rate(self, nodes: tuple[int, ...]) -> float:
        """Bytes/s of all NICs of these nodes together, one direction."""
        if self._finders is not None:
            return sum(self.nic_share(tuple(range(*self.first_rank[node : node + 2]))) for node in nodes)
        return sum(self.cluster.nic_of(node) for node in nodes) * self.hwdb.network_efficiency.value

    def transfer_s(self, source: tuple[int, ...], target: tuple[int, ...], total_bytes: float) -> float:
        """Seconds to send `total_bytes` from one stage to the next."""
        rate, latency = self.road(source, target)
        return transfer_s(total_bytes, rate, latency)

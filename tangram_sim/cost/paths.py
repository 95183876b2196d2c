"""Bandwidths of paths in a cluster's graph, with the link efficiencies of the hardware database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from tangram_sim.clusters import Cluster, Link, PathRates
from tangram_sim.cost.collectives.groups import network_parameters
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.topology import PathFinder, Reach, topology_of

# Of a PCIe slot, between a GPU and a NIC: nvbandwidth host to device moves 55.4 of 63.0 GB/s on H200 nodes
# (stas00/ml-engineering network/README.md). Kernels reach less between peers: rows of kind:pcie.
PCIE_DMA_SHARE = 0.88
# Groups whose paths differ that are looked at; more happen where every node has wires of its own.
MOST_LOOKED_AT = 32

Ranks = tuple[int, ...]
Places = tuple[Ranks, ...]  # ranks by node
# Of a group: (kind of box, places in it, fabric vertices) of every box.
_Look = tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]


def path_finder(cluster: Cluster, hwdb: Hwdb) -> PathFinder:
    """Bus bandwidth by algorithm, latencies and limits of groups of the cluster's ranks, from its graph.

    Raises BadInputError where the cluster states a graph that contradicts it.
    """

    def peer(link: str, kind: str) -> float:
        # Figures of host bridges and sockets are measured ones already.
        return 1.0 if kind == "host" else hwdb.link_efficiency(Link(link, kind, 0.0, 0.0)).value

    return PathFinder(topology_of(cluster), Reach(peer, PCIE_DMA_SHARE, hwdb.network_efficiency.value))


def ring_finder(cluster: Cluster, hwdb: Hwdb) -> PathFinder:
    """Like `path_finder`, with the efficiencies of ring collectives before copying (hwdb/collectives)."""
    by_link: dict[str, set[str]] = {}
    for group in cluster.groups:
        by_link.setdefault(group.node.intra.name, set()).add(group.node.gpu.name)

    def peer(link: str, kind: str) -> float:
        gpus = "+".join(sorted(by_link.get(link, ("*",))))
        found = None if kind == "host" else hwdb.collective("ring", Link(link, kind, 0.0, 0.0), gpus)
        return 1.0 if found is None else found.rate_share

    share = network_parameters(hwdb).rate_share
    return PathFinder(topology_of(cluster), Reach(peer, PCIE_DMA_SHARE, share))


@dataclass(frozen=True, slots=True)
class IslandPaths:
    """Bandwidths of groups of one island's ranks; `alternatives` are its possible places in the graph.

    An island in a planner's search stands for any of its nodes and GPUs, so the worst place counts.
    """

    finder: PathFinder = field(compare=False, repr=False)
    graph: int  # identity of the finder's topology
    alternatives: tuple[Places, ...]
    _kept: dict[tuple[int, int], PathRates] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, finder: PathFinder, places: Places) -> "IslandPaths":
        """Paths of an island whose ranks have fixed places."""
        return cls(finder, id(finder.topology), (places,))

    def part(self, nodes: int, gpus_per_node: int) -> "IslandPaths":
        """Paths of some nodes, or of some GPUs of each: all distinct aligned blocks are alternatives."""
        found: dict[_Look, Places] = {}
        for places in self.alternatives:
            for first in sorted({*range(0, len(places) - nodes + 1, nodes), len(places) - nodes}):
                block = places[first : first + nodes]
                for start in range(0, len(block[0]), gpus_per_node):
                    taken = tuple(place[start : start + gpus_per_node] for place in block)
                    if len(taken[-1]) == gpus_per_node:
                        found.setdefault(_look(self.finder, _flat(taken)), taken)
        return IslandPaths(self.finder, self.graph, tuple(found.values()))

    def rates(self, ranks: int, stride: int) -> PathRates:
        """The worst bandwidths of all groups of `ranks` members `stride` apart, at the worst place."""
        if (ranks, stride) not in self._kept:
            found = [_Groups(self.finder, _flat(places), ranks, stride).worst for places in self.alternatives]
            self._kept[ranks, stride] = _worst(found)
        return self._kept[ranks, stride]


def _flat(places: Places) -> Ranks:
    return tuple(rank for place in places for rank in place)


def _look(finder: PathFinder, ranks: Ranks) -> _Look:
    """Key of a group's paths: groups with equal keys have equal bandwidths."""
    topology = finder.topology
    return tuple(
        (topology.boxes[box], places, topology.attached[box]) for box, places in topology.split(ranks).items()
    )


def _worst(found: Sequence[PathRates]) -> PathRates:
    return PathRates(
        inside=min(path_rates.inside for path_rates in found),
        ring_bytes_per_s=min(path_rates.ring_bytes_per_s for path_rates in found),
        exchange_bytes_per_s=min(path_rates.exchange_bytes_per_s for path_rates in found),
        crossing_bytes_per_s=min(path_rates.crossing_bytes_per_s for path_rates in found),
        leaving_bytes_per_s=min(path_rates.leaving_bytes_per_s for path_rates in found),
        hop_inside_s=max(path_rates.hop_inside_s for path_rates in found),
        hop_outside_s=max(path_rates.hop_outside_s for path_rates in found),
    )


@dataclass(frozen=True)
class _Groups:
    """All groups of `size` members `stride` apart over `ranks`, which communicate at the same time."""

    finder: PathFinder
    ranks: Ranks
    size: int
    stride: int

    @cached_property
    def all(self) -> tuple[Ranks, ...]:
        """The groups; ranks that fill none are left out, a span beyond the end is cut there."""
        span, flat = min(self.size * self.stride, len(self.ranks)), self.ranks
        starts = range(0, len(flat) - span + 1, span)
        return tuple(
            flat[start + offset : start + span : self.stride]
            for start in starts
            for offset in range(min(self.stride, span))
        )

    @cached_property
    def worst(self) -> PathRates:
        """The worst rates among groups with different paths; groups without any path get a minimal rate."""
        looks: dict[object, tuple[Ranks, tuple[Ranks, ...]]] = {}
        for group in self.all:
            beside = tuple(self._beside(group))
            look = _look(self.finder, group), *sorted(_look(self.finder, other) for other in beside)
            looks.setdefault(look, (group, beside))
            if len(looks) >= MOST_LOOKED_AT:
                break
        return _worst([self._rates(group, beside) for group, beside in looks.values()])

    def _beside(self, group: Ranks) -> Iterator[Ranks]:
        """Yields the groups that share a box with `group` or, if it crosses boxes, all groups and other GPUs.
        With very many groups only those in the same boxes are counted."""
        boxes = self._boxes_of[group]
        crossing = len(boxes) > 1 and len(self.all) <= MOST_LOOKED_AT
        near = self.all if crossing else [other for box in sorted(boxes) for other in self._in_box[box]]
        yield from (other for other in dict.fromkeys(near) if other != group)
        if len(boxes) > 1:
            first, own = self.finder.topology.first_rank, set(self.ranks)
            rest = tuple(
                rank for box in sorted(boxes) for rank in range(first[box], first[box + 1]) if rank not in own
            )
            if rest:
                yield rest

    @cached_property
    def _boxes_of(self) -> dict[Ranks, frozenset[int]]:
        box_of = self.finder.topology.box_of
        return {group: frozenset(map(box_of, group)) for group in self.all}

    @cached_property
    def _in_box(self) -> dict[int, list[Ranks]]:
        found: dict[int, list[Ranks]] = {}
        for group, boxes in self._boxes_of.items():
            for box in boxes:
                found.setdefault(box, []).append(group)
        return found

    def _rates(self, group: Ranks, beside: tuple[Ranks, ...]) -> PathRates:
        size = len(group)
        if size < 2:
            return PathRates(
                inside=1,
                ring_bytes_per_s=inf,
                exchange_bytes_per_s=inf,
                crossing_bytes_per_s=inf,
                leaving_bytes_per_s=inf,
                hop_inside_s=0.0,
                hop_outside_s=0.0,
            )
        try:
            found = self.finder.group(group, beside)
            exchange = min(self._exchanges(group, beside), default=inf)
        except InfeasibleError:
            return PathRates(
                inside=1,
                ring_bytes_per_s=0.0,
                exchange_bytes_per_s=0.0,
                crossing_bytes_per_s=0.0,
                leaving_bytes_per_s=0.0,
                hop_inside_s=0.0,
                hop_outside_s=0.0,
            )
        return PathRates(
            inside=found.inside,
            ring_bytes_per_s=found.ring_inside.bytes_per_s,
            exchange_bytes_per_s=exchange,
            crossing_bytes_per_s=found.ring_outside.bytes_per_s,
            leaving_bytes_per_s=found.all_to_all.bytes_per_s * (size - found.inside) / size
            if found.boxes > 1
            else inf,
            hop_inside_s=found.hop_inside_s,
            hop_outside_s=found.hop_outside_s,
        )

    def _exchanges(self, group: Ranks, beside: tuple[Ranks, ...]) -> Iterator[float]:
        """Yields, for each box, the bytes/s that a member sends to the other members in the box."""
        first, split = self.finder.topology.first_rank, self.finder.topology.split
        others = [split(other) for other in beside]
        for box, places in split(group).items():
            if len(places) > 1:
                there = [[first[box] + place for place in other[box]] for other in others if box in other]
                alone = self.finder.group([first[box] + place for place in places], there)
                yield alone.all_to_all.bytes_per_s * (len(places) - 1) / len(places)

"""A tree of switches with GPUs or servers as leaves, as GenTree plans on; the tree of a cluster."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

from tangram_sim.clusters import Cluster
from tangram_sim.cost.genmodel import GenModelParameters
from tangram_sim.cost.paths import path_finder
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb

# Seconds one more rank adds to a ring inside a scale-up domain: 0.6 us per NVLink hop in NCCL's tuning.cc.
HOP_S = 0.6e-6


@dataclass(frozen=True)
class Tree:
    """A switch over `children`, or over `leaves` GPUs (one of the two).

    `at.alpha_s` is the latency of a round between its children, `at.beta_s_per_byte` applies to a leaf's
    link. For a child's link to this switch, the child's `up_s_per_byte` applies instead.
    """

    name: str
    at: GenModelParameters
    children: tuple["Tree", ...] = ()
    leaves: int = 0
    up_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        if bool(self.children) == bool(self.leaves):
            raise BadInputError(f"switch {self.name}: give children or a number of leaves above 0, not both")
        if self.leaves < 0 or not 0 <= self.up_s_per_byte < inf:
            raise BadInputError(
                f"switch {self.name}: leaves and uplink seconds per byte must be finite, 0 or more"
            )

    @cached_property
    def size(self) -> int:
        """Number of ranks below this switch."""
        return self.leaves or sum(child.size for child in self.children)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.at, self.children, self.leaves, self.up_s_per_byte))

    def __hash__(self) -> int:  # asked at every step of the planning, on trees of thousands
        return self._hash

    @cached_property
    def widest_leaf_s_per_byte(self) -> float:
        """Seconds per byte of the slowest link that leads to a leaf."""
        if self.leaves:
            return self.at.beta_s_per_byte
        return max(child.widest_leaf_s_per_byte for child in self.children)

    @cached_property
    def slowest_link_s_per_byte(self) -> float:
        """Seconds per byte of the slowest link below this switch, without its own uplink."""
        if self.leaves:
            return self.at.beta_s_per_byte
        return max(max(child.up_s_per_byte, child.slowest_link_s_per_byte) for child in self.children)

    @cached_property
    def worst(self) -> GenModelParameters:
        """The worst value of each parameter over this switch and all switches below."""
        found = self.at
        for child in dict.fromkeys(self.children):
            found = GenModelParameters(
                alpha_s=max(found.alpha_s, child.worst.alpha_s),
                beta_s_per_byte=max(found.beta_s_per_byte, child.worst.beta_s_per_byte),
                gamma_s_per_byte=max(found.gamma_s_per_byte, child.worst.gamma_s_per_byte),
                delta_s_per_byte=max(found.delta_s_per_byte, child.worst.delta_s_per_byte),
                epsilon_s_per_byte=max(found.epsilon_s_per_byte, child.worst.epsilon_s_per_byte),
                senders=min(found.senders, child.worst.senders),
                source=found.source,
            )
        return found

    @property
    def depth(self) -> int:
        """Number of levels of switches."""
        return 1 + max((child.depth for child in dict.fromkeys(self.children)), default=0)

    def uplinks(self, first: int = 0) -> Iterator[tuple[int, int, float]]:
        """Yields (first leaf, stop, seconds per byte) of every link between switches below this one."""
        for child in self.children:
            yield first, first + child.size, child.up_s_per_byte
            yield from child.uplinks(first)
            first += child.size

    def with_parameters(self, **changes: Any) -> "Tree":
        """This tree with some of GenModel's parameters replaced at every switch."""
        known: dict[Tree, Tree] = {}

        def changed(tree: "Tree") -> "Tree":
            if tree not in known:
                known[tree] = replace(
                    tree,
                    at=replace(tree.at, **changes),
                    children=tuple(changed(child) for child in tree.children),
                )
            return known[tree]

        return changed(self)


def tree_of(cluster: Cluster, hwdb: Hwdb) -> Tree:
    """The cluster as a tree: boxes of GPUs under leaf switches, these under a spine per group and the core.

    Rates are those of the graph's paths when all GPUs of a box communicate; a box's uplink is all its NICs.
    Gamma is zero (fits to NCCL drive it there), delta one pass over the slowest GPU's memory, epsilon zero:
    measured single-node points cannot identify incast. `Tree.with_parameters` sets others.
    """
    finder = path_finder(cluster, hwdb)
    topology = finder.topology
    gpus = {group.node.gpu for group in cluster.groups}
    delta = max(
        1 / (gpu.memory_bytes_per_s * hwdb.efficiency(gpu, gpu.peaks[0][0]).memory_efficiency.value)
        for gpu in gpus
    )
    source = "derived from the cluster's graph and hwdb efficiencies"
    made: dict[tuple[int, int], Tree] = {}
    below: dict[tuple[int, ...], list[Tree]] = {}
    for box, kind in enumerate(topology.boxes):
        if (kind, box if not topology.derived else 0) not in made:
            places = tuple(range(len(topology.kinds[kind].gpus)))
            ranks = range(topology.first_rank[box], topology.first_rank[box + 1])
            paths = finder.group(ranks)
            rate = paths.ring_inside.bytes_per_s
            up = 0.0
            if len(topology.boxes) > 1:
                exits = [finder.exit_rate(box, places, back) for back in (False, True)]
                up = 1 / min(rate.bytes_per_s for rate in exits)
            at = GenModelParameters(
                paths.hop_inside_s / 2 + HOP_S if len(places) > 1 else 0.0,
                1 / rate if rate < inf else up,
                delta_s_per_byte=delta,
                source=source,
            )
            made[kind, 0 if topology.derived else box] = Tree(
                f"box of {len(places)}", at, leaves=len(places), up_s_per_byte=up
            )
        below.setdefault(topology.attached[box], []).append(made[kind, 0 if topology.derived else box])
    if len(topology.boxes) == 1:
        return made[0, 0]
    latency = finder.group(range(topology.gpus)).hop_outside_s
    at = GenModelParameters(latency, 0.0, delta_s_per_byte=delta, source=source)
    leaves: dict[tuple[int, ...], Tree] = {}
    for attached, boxes in below.items():
        leaves[attached] = Tree(topology.fabric.names[attached[0]], at, tuple(boxes))
    if len(leaves) == 1:
        return next(iter(leaves.values()))
    return _joined(finder.uplinks(tuple(leaves)), leaves, at)


def _joined(
    uplinks: dict[tuple[int, ...], tuple[str, float, float]],
    leaves: dict[tuple[int, ...], Tree],
    at: GenModelParameters,
) -> Tree:
    """Boxes joined by a spine in each group that has several, and groups joined by the core."""
    groups: dict[str, list[tuple[Tree, float]]] = {}
    for key, (group, up, top) in uplinks.items():
        groups.setdefault(group, []).append((replace(leaves[key], up_s_per_byte=up), top))
    tops = []
    for name, members in groups.items():
        if len(members) == 1:
            tree, top = members[0]
            tops.append(replace(tree, up_s_per_byte=max(tree.up_s_per_byte, top)))
        else:
            tops.append(Tree(name, at, tuple(tree for tree, _ in members), up_s_per_byte=members[0][1]))
    return tops[0] if len(tops) == 1 else Tree("core", at, tuple(tops))

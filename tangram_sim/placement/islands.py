"""Islands of a cluster: node properties, the cut (`cutting`), and names and descriptions of the islands."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nsmallest

import numpy as np

from tangram_sim.clusters import Cluster, Gpu, Island, Link
from tangram_sim.cost.paths import IslandPaths, ring_finder
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.cutting import Floats, NodeMetrics, Obstacle, Tolerances, cut, obstacle
from tangram_sim.placement.ranks import Placement, worst_gpu
from tangram_sim.topology import PathFinder
from tangram_sim.units import GIGA, TERA, percent, show_rate

__all__ = ["DEFAULT_TOLERANCES", "Tolerances", "find_islands"]

DEFAULT_TOLERANCES = Tolerances()

_REASONS = 4  # neighbours that an island's reason compares it with


def find_islands(
    cluster: Cluster,
    dtype: str,
    tolerances: Tolerances = DEFAULT_TOLERANCES,
    hwdb: Hwdb | None = None,
    stack: str = "generic",
) -> tuple[Island, ...]:
    """Cut a cluster into the fewest islands that satisfy the three constraints of `cutting`.

    Compute is the peak of `dtype` (a column of gpus.csv) times the GEMM efficiency of the database; rates are
    datasheet rates times link efficiencies. GPUs without units for `dtype` have no compute and form islands
    of their own. Names: `g0` for a whole group, `g0+g1` for joined groups, `g0.1`, `g0.2` for pieces of one.
    Where the cluster states its graph, nodes are alike only if their parts of the graph are listed
    identically. `Island.reason` says why an island is not merged with others, with figures.
    """
    hwdb = hwdb or Hwdb.load()
    nodes = _Nodes(cluster, dtype, hwdb, stack)
    pieces = _pieces(nodes, tolerances)
    return tuple(
        _island(cluster, nodes, members, name, reason)
        for members, name, reason in zip(pieces.nodes, pieces.names, pieces.reasons, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Islands of a cluster: nodes in ascending order, name, and reason of each."""

    nodes: Sequence[Sequence[int]]
    names: Sequence[str]
    reasons: Sequence[str]


@lru_cache(maxsize=8)  # one answer asks several times: for the search, its notes, its bounds
def _pieces(nodes: "_Nodes", tolerances: Tolerances) -> _Pieces:
    """The cut of all nodes, islands in the order of their first nodes."""
    sample = nodes.sample(2)
    pieces = cut(nodes.metrics(sample), nodes.bandwidth(sample), tolerances)
    piece_of = {sample[node]: index for index, piece in enumerate(pieces) for node in piece}
    if any(len({piece_of[node] for node in block if node in piece_of}) > 1 for block in nodes.blocks):
        # Equal nodes have come apart: two of each do not stand for all of them.
        sample = list(range(nodes.count))
        pieces = cut(nodes.metrics(sample), nodes.bandwidth(sample), tolerances)
        full = [[sample[node] for node in piece] for piece in pieces]
    else:
        whole: list[list[int]] = [[] for _ in pieces]
        for block in nodes.blocks:
            whole[piece_of[block[0]]] += block
        full = [sorted(members) for members in whole]
    order = sorted(range(len(full)), key=lambda index: full[index])
    full, pieces = [full[index] for index in order], [pieces[index] for index in order]
    names = _names(nodes.cluster, full)
    reasons = _Reasons(nodes, sample, tolerances, pieces, names)
    return _Pieces(full, names, [reasons.of(index) for index in range(len(full))])


def finer_islands(
    cluster: Cluster, dtype: str, islands: Sequence[Island], hwdb: Hwdb, stack: str = "generic"
) -> tuple[Island, ...]:
    """The nodes of `islands` cut again without tolerances, so that all GPUs of an island are equal."""
    held = {node for island in islands for node in island.node_indices}
    cut_finer = tuple(
        island
        for island in find_islands(cluster, dtype, Tolerances(0.0, 0.0, 0.0), hwdb, stack)
        if held.issuperset(island.node_indices)
    )
    same = {frozenset(island.node_indices) for island in islands} == {
        frozenset(island.node_indices) for island in cut_finer
    }
    covered = sum(island.nodes for island in cut_finer) == len(held)
    return tuple(islands) if same or not covered else cut_finer


_NIC = 2  # column of the link metrics, behind the two kinds of links inside a node


class _Nodes:
    """The nodes of a cluster as input of a cut, in blocks of nodes that a cut cannot distinguish."""

    def __init__(self, cluster: Cluster, dtype: str, hwdb: Hwdb, stack: str) -> None:
        self.cluster, self.group = cluster, cluster.node_group
        self.count = len(self.group)
        rows = []
        for number, group in enumerate(self.group):
            node, gpu = cluster.groups[group].node, cluster.gpu_of(number)
            inner = _inner_links(node.intra, node.bridge, node.gpus)
            efficiency = hwdb.efficiency(node.gpu, dtype, stack).gemm_efficiency.value
            rates = [link.bytes_per_s * hwdb.link_efficiency(link).value for link in inner]
            # NICs count as links of the node: one slow NIC would slow every stage of a joined island.
            rates.append(cluster.nic_of(number))
            rows.append((gpu.peak_flop_per_s(dtype) * efficiency, node.gpu.memory_bytes, *rates))
        self.figures = np.array(rows)
        shapes = [(g.node.gpus, g.node.scale_up_nodes) for g in cluster.groups]
        self.finder: PathFinder | None = None
        self.ranks: list[tuple[int, ...]] = []
        self.forms = [0] * self.count
        if cluster.wiring.full:
            self.finder = ring_finder(cluster, hwdb)
            first = Placement(cluster, hwdb).first_rank
            self.ranks = [tuple(range(*first[node : node + 2])) for node in range(self.count)]
            self.forms = _forms(self.finder, self.ranks)
        self.shapes = np.array(
            [(*shapes[g], form) for g, form in zip(self.group, self.forms, strict=True)], dtype=np.int64
        )
        self.domain = self._domains()
        self.blocks = self._blocks()
        self._block_of = {node: index for index, block in enumerate(self.blocks) for node in block}
        self._between = _rates_between(cluster)
        self._inner = np.array([group.node.intra.bytes_per_s * group.node.gpus for group in cluster.groups])
        self._network_share = hwdb.network_efficiency.value
        self._inner_share = np.array([hwdb.link_efficiency(g.node.intra).value for g in cluster.groups])

        # All that the cut and its words rest on, of a database that other rows may have been read from.
        self._key = (
            cluster,
            self.figures.tobytes(),
            self.shapes.tobytes(),
            self._network_share,
            self._inner_share.tobytes(),
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nodes) and self._key == other._key

    def _domains(self) -> list[int]:
        """Number of the scale-up domain of every node; -1 for a node outside larger domains."""
        domains, base = [], 0
        for group in self.cluster.groups:
            size = group.node.scale_up_nodes
            domains += [base + position // size if size > 1 else -1 for position in range(group.count)]
            base += -(-group.count // size)
        return domains

    def most_in_a_domain(self, members: Sequence[int]) -> int:
        """The largest number of these nodes in one scale-up domain."""
        together = Counter(self.domain[node] for node in members)
        return max(1 if domain < 0 else count for domain, count in together.items())

    def by_domain(self, members: Sequence[int]) -> list[int]:
        """These nodes sorted by scale-up domain, fullest domain first, since stages take nodes in order."""
        together = Counter(self.domain[node] for node in members)

        def place(node: int) -> tuple[int, int, int]:
            domain = self.domain[node]
            return (0, -1, node) if domain < 0 else (-together[domain], domain, node)

        return sorted(members, key=place)

    def _blocks(self) -> list[list[int]]:
        """Indistinguishable nodes together: same group, scale-up domain, part of a stated graph, health."""
        blocks: dict[tuple[int, int, int, Gpu, float], list[int]] = {}
        for node in range(self.count):
            gpu, nics = self.cluster.gpu_of(node), self.cluster.nic_of(node)
            key = self.group[node], self.domain[node], self.forms[node], gpu, nics
            blocks.setdefault(key, []).append(node)
        return list(blocks.values())

    def sample(self, each: int) -> list[int]:
        """The first `each` nodes of every block."""
        return sorted(node for block in self.blocks for node in block[:each])

    def sample_of(self, members: Sequence[int]) -> list[int]:
        """The first two of these nodes in every block."""
        kept: dict[int, list[int]] = {}
        for node in members:
            own = kept.setdefault(self._block_of[node], [])
            if len(own) < 2:
                own.append(node)
        return [node for block in sorted(kept) for node in kept[block]]

    def metrics(self, nodes: Sequence[int]) -> NodeMetrics:
        """Metrics of these nodes, in the given order."""
        figures = self.figures[list(nodes)]
        return NodeMetrics(self.shapes[list(nodes)], figures[:, 0], figures[:, 1], figures[:, 2:])

    def bandwidth(self, nodes: Sequence[int], effective: bool = True) -> Floats:
        """(nodes, nodes) bytes/s between nodes: the scale-up link within a domain, else the network.

        `effective` multiplies datasheet rates by their efficiencies.
        """
        groups = np.array([self.group[node] for node in nodes])
        domains = np.array([self.domain[node] for node in nodes])
        between = self._between
        inner = self._inner
        if effective:
            between, inner = between * self._network_share, inner * self._inner_share
        shared = (domains[:, None] == domains) & (domains >= 0)
        outside = between[np.ix_(groups, groups)]
        if not self.cluster.health.is_full:
            nics = np.array([self.cluster.nic_of(node) for node in nodes])
            nics = nics * self._network_share if effective else nics
            outside = np.minimum(outside, np.minimum(nics[:, None], nics[None, :]))
        rates: Floats = np.where(shared, inner[groups][:, None], outside)
        return rates


def _rates_between(cluster: Cluster) -> Floats:
    """(groups, groups) bytes/s that a healthy node of one group can send to one of another."""
    nics = np.array([group.node.nic_bytes_per_s for group in cluster.groups])
    uplinks = nics * np.array([group.count for group in cluster.groups])
    rates: Floats = np.minimum.outer(uplinks, uplinks) / cluster.network.oversubscription
    np.fill_diagonal(rates, np.inf)  # a leaf switch: no uplink is crossed inside a group
    for limit in cluster.network.between:
        a, b = limit.groups
        rates[a, b] = rates[b, a] = min(rates[a, b], limit.bytes_per_s)
    reached: Floats = np.minimum(rates, np.minimum.outer(nics, nics))
    return reached


def _latency_between(cluster: Cluster, groups: Sequence[int]) -> float:
    """Largest latency in seconds between nodes of these groups."""
    own = [cluster.groups[group].node.nic_latency_s for group in groups]
    held = set(groups)
    stated = [limit.latency_s for limit in cluster.network.between if held.issuperset(limit.groups)]
    return max((*own, *stated))


def _forms(finder: PathFinder, ranks: Sequence[tuple[int, ...]]) -> list[int]:
    """A number per node, equal for nodes whose GPUs are in equal boxes of the graph."""
    known: dict[tuple[tuple[int, int], ...], int] = {}
    found = []
    for own in ranks:
        form = tuple(
            (finder.topology.boxes[box], len(places)) for box, places in finder.topology.split(own).items()
        )
        found.append(known.setdefault(form, len(known)))
    return found


def _inner_links(intra: Link, bridge: Link | None, gpus: int) -> tuple[Link, Link]:
    """(link between any two GPUs, link between the best-connected two); none for a single GPU."""
    if gpus == 1:
        return (_NO_LINK, _NO_LINK)
    return (intra, bridge or intra)


_NO_LINK = Link("none", "none", 0.0, 0.0)


def _names(cluster: Cluster, islands: Sequence[Sequence[int]]) -> list[str]:
    """Island names: `g0`, `g0+g1`, or `g0.1` where a group is cut; pieces are numbered in node order."""
    holders: dict[int, list[int]] = {}
    for index, members in enumerate(islands):
        for group in sorted({cluster.node_group[node] for node in members}):
            holders.setdefault(group, []).append(index)
    parts: list[list[str]] = [[] for _ in islands]
    for group in sorted(holders):
        name = cluster.groups[group].name
        for number, index in enumerate(holders[group], start=1):
            parts[index].append(name if len(holders[group]) == 1 else f"{name}.{number}")
    return ["+".join(part) for part in parts]


def _island(cluster: Cluster, nodes: _Nodes, members: Sequence[int], name: str, reason: str) -> Island:
    """The island of these nodes, every figure that of its worst member."""
    groups = tuple(sorted({cluster.node_group[node] for node in members}))
    kinds, members = [cluster.groups[group].node for group in groups], nodes.by_domain(members)
    bridges = [node.bridge for node in kinds if node.bridge is not None]
    sample = nodes.sample_of(members)
    rates = nodes.bandwidth(sample, effective=False)[np.triu_indices(len(sample), 1)]
    return Island(
        name=name,
        gpu=worst_gpu([cluster.gpu_of(node) for node in sample]),
        nodes=len(members),
        gpus_per_node=kinds[0].gpus,
        intra=_worst_link([node.intra for node in kinds]),
        nic_bytes_per_s=min(cluster.nic_of(node) for node in sample),
        nic_latency_s=_latency_between(cluster, groups),
        network_bytes_per_s=float(rates.min()) if len(members) > 1 else float("inf"),
        scale_up_nodes=nodes.most_in_a_domain(members),
        bridge=_worst_link(bridges) if len(bridges) == len(kinds) else None,
        groups=groups,
        node_indices=tuple(members),
        reason=reason,
        paths=IslandPaths.of(nodes.finder, tuple(nodes.ranks[node] for node in members))
        if nodes.finder
        else None,
    )


def _worst_link(links: Sequence[Link]) -> Link:
    """The slowest link, with the longest latency of all links."""
    slowest = min(links, key=lambda link: (link.bytes_per_s, link.name))
    return replace(slowest, latency_s=max(link.latency_s for link in links))


class _Reasons:
    """Texts of the reasons that separate islands; `pieces` index into `sample`, representative nodes."""

    def __init__(
        self,
        nodes: _Nodes,
        sample: Sequence[int],
        tolerances: Tolerances,
        pieces: Sequence[Sequence[int]],
        names: Sequence[str],
    ) -> None:
        self.tolerances, self.pieces, self.names = tolerances, pieces, names
        self.metrics, self.bandwidth = nodes.metrics(sample), nodes.bandwidth(sample)
        self.groups = [{nodes.group[sample[node]] for node in piece} for piece in pieces]
        self.gpus = [
            worst_gpu([nodes.cluster.groups[g].node.gpu for g in groups]).name for groups in self.groups
        ]

    def of(self, index: int) -> str:
        """Why island `index` cannot be merged with its neighbours, those that share a group with it first."""
        others = [other for other in range(len(self.pieces)) if other != index]
        if not others:
            allowed = self.tolerances
            spreads = f"compute within {percent(allowed.compute)}, memory within {percent(allowed.memory)}"
            links = f"intra-node and NIC bandwidth within {percent(allowed.intra)}"
            return f"all nodes are alike: {spreads}, {links}"
        nearest = nsmallest(
            _REASONS,
            others,
            lambda other: (not self.groups[other] & self.groups[index], abs(other - index), other),
        )
        words = [self._against(index, other) for other in nearest]
        more = f"; and {len(others) - _REASONS} more" if len(others) > _REASONS else ""
        return f"{self.gpus[index]}: {'; '.join(words)}{more}"

    def _against(self, index: int, other: int) -> str:
        mine, theirs = list(self.pieces[index]), list(self.pieces[other])
        clash = obstacle(self.metrics, self.bandwidth, self.tolerances, mine + theirs)
        of = f"{self.names[other]} ({self.gpus[other]})"
        if clash is None:  # cannot be after a cut; an empty reason would hide a mistake
            return f"could be one with {of}"
        if clash.constraint == "network":
            outside = next(place for place, piece in enumerate(self.pieces) if clash.outside in piece)
            return (
                f"one island with {of} would hold a link of {show_rate(clash.low)} while a faster one of "
                f"{show_rate(clash.high)} leaves it to {self.names[outside]}"
            )
        values = self._values(clash)
        own = clash.high if float(clash.high) in [float(values[node]) for node in mine] else clash.low
        far = clash.low if own == clash.high else clash.high
        if clash.constraint == "shape":
            if clash.column == 2:
                return f"its nodes' part of the stated graph differs from that of {of}"
            what = ("GPUs per node", "nodes per scale-up domain")[clash.column]
            return f"{what} {own:g} vs {far:g} of {of}"
        unit, name = {"compute": (TERA, "TFLOP/s"), "memory": (GIGA, "GB"), "intra": (GIGA, "GB/s")}[
            clash.constraint
        ]
        what = clash.constraint
        if clash.constraint == "intra":
            what = "NIC" if clash.column == _NIC else "intra-node"
        limit = 1 + getattr(self.tolerances, clash.constraint)
        factor = f"{clash.high / clash.low:.2f} times" if clash.low > 0 else "without bound"
        numbers = f"{what} {own / unit:.4g} vs {far / unit:.4g} {name} of {of}"
        return f"{numbers}, {factor} where {limit:.2f} is allowed"

    def _values(self, clash: Obstacle) -> Floats:
        if clash.constraint == "shape":
            return self.metrics.shape[:, clash.column].astype(np.float64)
        if clash.constraint == "intra":
            return self.metrics.intra[:, clash.column]
        return self.metrics.compute if clash.constraint == "compute" else self.metrics.memory

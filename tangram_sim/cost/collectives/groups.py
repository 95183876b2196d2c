"""Groups of ranks: sizes, spread over scale-up domains, and rates of the slowest part of their path.

Groups that span islands, GPU kinds or nodes are bounded by the slowest member and link, never an average.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island, Link, Paths, domain_block
from tangram_sim.cost.collectives import curves
from tangram_sim.cost.collectives.curves import Curve, GroupNetwork, Path
from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.collectives import CollectiveParameters

# NCCL reduces in the switch from this many ranks of a domain on (fewer: a ring is as fast).
SWITCH_RANKS = 5
# Compute capability: where it differs within a group, NCCL uses LL128 only if the lowest is Hopper's.
# Without that protocol messages of 64 KiB to 4 MiB fall between the other two: about twice the fill, by
# three-line fits to A100 with the LL128 line taken out (docs/models/collectives.md).
FILL_WITHOUT_LL128 = 2.0
LL128_WHEN_MIXED = frozenset({"Hopper", "Blackwell", "Blackwell Ultra"})
# GPUs of a full mesh: a rank has one link to each of the others, so a group of n uses n - 1 of them.
MESHES = {"xGMI-MI300X": 8, "xGMI-MI355X": 8, "xGMI-MI100": 4, "xGMI-MI210": 4}
# NICs of unstated rate, unconnected links: slow enough to be seen, not a division by zero.
LEAST_BYTES_PER_S = 1.0


@dataclass(frozen=True)
class Group:
    """Communication groups of K layouts: sizes, extents, and rates of their slowest path. Arrays of K."""

    ranks: Floats
    inside: Floats  # ranks of the group within one scale-up domain
    ring: Path
    pairwise: Path
    switch: Path | None  # reduction inside the switch, where there is such a switch
    network: GroupNetwork
    outside_bytes_per_s: Number  # network share of one rank

    @cached_property
    def domains(self) -> Floats:
        """Number of scale-up domains that the group spans."""
        return np.asarray(np.ceil(self.ranks / self.inside))

    @cached_property
    def bytes_per_s(self) -> Floats:
        """Bus bandwidth of a ring over the group, one direction."""
        inner, outer = self.ring.bytes_per_s, self.network.bytes_per_s
        crossing = np.where(self.inside > 1, np.minimum(inner, outer), outer)
        return np.asarray(np.where(self.domains > 1, crossing, inner), dtype=np.float64)

    @cached_property
    def _size(self) -> Floats:
        # Groups of one are priced as pairs, then set to zero: no logarithm or division of nothing.
        return np.maximum(self.ranks, 2.0)

    @cached_property
    def once(self) -> Curve:
        """Cost curve of an all-gather or reduce-scatter by ring."""
        return curves.ring(self._size, self.domains, 1, self.ring, self.network)

    @cached_property
    def aggregated(self) -> Curve | None:
        """Cost curve of an all-gather or reduce-scatter by PAT, for one rank per domain; None elsewhere."""
        alone = (self.domains == self.ranks) & (self.ranks > 2)
        if not alone.any():
            return None
        curve = curves.pat(self._size, self.ring, self.network)
        return curve._replace(start=np.where(alone, curve.start, np.inf))

    @cached_property
    def twice(self) -> Curve:
        """Cost curve of an all-reduce by ring, which takes two rounds."""
        return curves.ring(self._size, self.domains, 2, self.ring, self.network)

    @cached_property
    def treed(self) -> Curve | None:
        """Cost curve of an all-reduce by tree, for groups over several domains; None where there are none."""
        several = self.domains > 1
        if not several.any():
            return None
        curve = curves.tree(self._size, self.inside, self.domains, self.ring, self.network)
        return curve._replace(start=np.where(several, curve.start, np.inf))

    @cached_property
    def switched(self) -> Curve | None:
        """Cost curve of an all-reduce inside the switch; None where no group can use one."""
        if self.switch is None:
            return None
        # A pair per node is enough beyond one node: there the switch only feeds the tree.
        able = (self.inside >= SWITCH_RANKS) | ((self.domains > 1) & (self.inside > 1))
        if not able.any():
            return None
        curve = curves.in_switch(self.domains, self.switch, self.network)
        return curve._replace(start=np.where(able, curve.start, np.inf))


def group(island: Island, ranks: NDArray[np.int64], stride: NDArray[np.int64], hwdb: Hwdb) -> Group:
    """Groups of `ranks` members spaced `stride` apart on `island`, for K layouts at once.

    On an island of one scale-up domain a group is inside the domain. With several domains the job takes equal
    blocks (`domain_block`); groups that do not tile a block evenly straddle its borders: they are priced as
    crossing, with the fewest members that any of them can have on one side.
    """
    if island.paths is not None:
        return _by_paths(island, island.paths, ranks, stride, hwdb)
    domain = island.gpus_per_node * domain_block(island.nodes, island.scale_up_nodes)
    span = ranks * stride
    # Groups start at multiples of their span, so a border cuts them at multiples of the common divisor.
    within = ranks if island.nodes <= island.scale_up_nodes else np.gcd(span, domain) // stride
    inside = np.clip(within, 1, ranks).astype(np.float64)
    network = network_rate(island, hwdb)
    paired = None
    if island.bridge is not None:  # only groups of one bridged pair stay off the slower link
        paired = (span <= domain) & (domain % np.maximum(span, 1) == 0) & (span <= 2)
    return spanning(
        ranks.astype(np.float64),
        inside,
        (island.gpu.name, hwdb.architectures(island.gpu)),
        island.intra,
        hwdb,
        crossing_bytes_per_s=network * inside / island.gpus_per_node,
        share_bytes_per_s=network / island.gpus_per_node,
        hop_s=island.nic_latency_s,
        reach=np.minimum(span, domain).astype(np.float64),
        bridge=None if island.bridge is None or paired is None else (island.bridge, paired),
    )


def _by_paths(
    island: Island, paths: Paths, ranks: NDArray[np.int64], stride: NDArray[np.int64], hwdb: Hwdb
) -> Group:
    """Groups with the bandwidths of a stated graph; latencies remain those of the island's link."""
    found = [paths.rates(*pair) for pair in zip(ranks.tolist(), stride.tolist(), strict=True)]

    def column(name: str, otherwise: Floats | float) -> Floats:
        """A rate of every group; paths without limit, which the group does not use, get any finite value."""
        values = np.array([float(getattr(path_rates, name)) for path_rates in found])
        return np.maximum(np.where(np.isfinite(values), values, otherwise), LEAST_BYTES_PER_S)

    network, inside = network_rate(island, hwdb), np.array([float(path_rates.inside) for path_rates in found])
    paired = None if island.bridge is None else (island.bridge, (ranks * stride <= 2) & (inside == ranks))
    hop_s = np.array([path_rates.hop_outside_s or island.nic_latency_s for path_rates in found])
    base = spanning(
        ranks.astype(np.float64),
        inside,
        (island.gpu.name, hwdb.architectures(island.gpu)),
        island.intra,
        hwdb,
        crossing_bytes_per_s=column("crossing_bytes_per_s", network),
        share_bytes_per_s=column("leaving_bytes_per_s", network),
        hop_s=hop_s,
        bridge=paired,
    )
    whole = np.maximum(island.intra.bytes_per_s, LEAST_BYTES_PER_S) * np.ones(len(found))
    ring_share, pairwise_share = (
        _wanted(pattern, island.intra, island.gpu.name, hwdb).rate_share for pattern in ("ring", "pairwise")
    )
    ring = column("ring_bytes_per_s", whole)
    exchange = column("exchange_bytes_per_s", whole) * pairwise_share / ring_share
    # A step's own time is the link's as fitted; a detour over other links adds to it.
    detour_s = np.maximum([path_rates.hop_inside_s - island.intra.latency_s for path_rates in found], 0.0)
    switch = base.switch
    if switch is not None:  # the switch adds up as fast as its slowest member's links
        lost = np.minimum(ring / (whole * ring_share * mesh_share(island.intra, base.ranks)), 1.0)
        switch = switch._replace(bytes_per_s=switch.bytes_per_s * lost)
    return replace(
        base,
        ring=base.ring._replace(bytes_per_s=ring, hop_s=base.ring.hop_s + detour_s),
        pairwise=base.pairwise._replace(bytes_per_s=exchange),
        switch=switch,
    )


def spanning(
    ranks: Floats,
    inside: Floats,
    gpu: tuple[str, Iterable[str]],
    link: Link,
    hwdb: Hwdb,
    *,
    crossing_bytes_per_s: Floats | float,
    share_bytes_per_s: Floats | float,
    hop_s: Floats | float,
    nic: Link | None = None,
    bridge: tuple[Link, NDArray[np.bool_]] | None = None,
    reach: Floats | None = None,
) -> Group:
    """Groups of `ranks` members, `inside` of them in a scale-up domain on `link`. Arrays of K.

    `gpu` is (name of the members' kind, "A+B" if mixed; their architectures). `crossing_bytes_per_s` is the
    rate at which all members in one domain together send out of it, `share_bytes_per_s` that of one member,
    both as achieved; `hop_s` the latency of a step between domains. `bridge` is (link, mask of groups for
    which it replaces `link`); `reach` the number of GPUs of the domain spanned by the group together with
    groups of its kind that communicate at the same time (default: only itself).
    """
    name, architectures = gpu
    among = frozenset(architectures)
    starved = len(among) > 1 and not among <= LL128_WHEN_MIXED
    fill = FILL_WITHOUT_LL128 if starved else 1.0
    wide = inside if reach is None else reach
    ring = _path("ring", link, name, (inside, wide), hwdb, fill)
    pairwise = _path("pairwise", link, name, (inside, wide), hwdb)
    if bridge is not None:
        pair, where = bridge
        ring = _either(where, _path("ring", pair, name, (inside, wide), hwdb, fill), ring)
        pairwise = _either(where, _path("pairwise", pair, name, (inside, wide), hwdb), pairwise)
    # In-switch reduction wants one kind of chip: NCCL turns it off for mixed compute capability.
    found = hwdb.collective("in_switch", link, name) if len(among) == 1 else None
    switch = None
    if found is not None:
        rate = max(found.rate_share * link.bytes_per_s, LEAST_BYTES_PER_S)
        switch = Path(found.base_s, 0.0, found.fill_s, rate, 0.0)
    between = network_parameters(hwdb, nic)
    return Group(
        ranks=ranks,
        inside=inside,
        ring=ring,
        pairwise=pairwise,
        switch=switch,
        network=GroupNetwork(
            hop_s,
            between.fill_s,
            np.maximum(crossing_bytes_per_s, LEAST_BYTES_PER_S),
            between.tree_share,
        ),
        outside_bytes_per_s=np.maximum(share_bytes_per_s, LEAST_BYTES_PER_S),
    )


def mesh_share(link: Link, ranks: Floats | float) -> Floats | float:
    """Share of a GPU's link rate that a group of `ranks` can use: 1 except on a mesh."""
    mesh = MESHES.get(link.name)
    return 1.0 if mesh is None else np.minimum((np.asarray(ranks) - 1.0) / (mesh - 1.0), 1.0)


def network_parameters(hwdb: Hwdb, nic: Link | None = None) -> CollectiveParameters:
    """Collective parameters of a class of NICs; by default those of networks in general."""
    return _wanted("network", nic or Link("network", "network", 0.0, 0.0), "*", hwdb)


def network_rate(island: Island, hwdb: Hwdb) -> float:
    """Bytes/s that one node of the island exchanges with the others: NICs or uplinks, times efficiency."""
    return min(island.nic_bytes_per_s, island.network_bytes_per_s) * network_parameters(hwdb).rate_share


def _wanted(pattern: str, link: Link, gpu: str, hwdb: Hwdb) -> CollectiveParameters:
    found = hwdb.collective(pattern, link, gpu)
    if found is None:
        raise BadInputError(
            f"no row of collectives for {pattern} on link {link.name!r}; collectives/ needs one for link *"
        )
    return found


def _path(
    pattern: str, link: Link, gpu: str, extent: tuple[Floats, Floats], hwdb: Hwdb, fill: float = 1.0
) -> Path:
    """Parameters of `pattern` on `link`; `extent` is (ranks in a domain, GPUs spanned). Arrays of K."""
    ranks, reach = extent
    found = _wanted(pattern, link, gpu, hwdb)
    pair, more = (max(found.bytes_per_s_of(link, size), LEAST_BYTES_PER_S) for size in (2, 3))
    rate = np.where(reach > 2, more, pair)
    copy = found.copy_share * link.bytes_per_s
    rate = np.maximum(rate * mesh_share(link, np.maximum(ranks, 2.0)), LEAST_BYTES_PER_S)
    return Path(found.base_s, found.hop_s, found.fill_s * fill, rate, 1.0 / copy if copy > 0 else 0.0)


def _either(where: NDArray[np.bool_], one: Path, other: Path) -> Path:
    return Path(*(np.where(where, first, second) for first, second in zip(one, other, strict=True)))

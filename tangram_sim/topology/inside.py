"""Rates of paths inside one box: among the members of a group, and from them to the NICs.

A ring over several channels moves at most the bytes per second of the minimum cut between two members (each
channel crosses every cut), and on meshes of equal links edge-disjoint rings reach that. Members relay, other
GPUs do not. PCIe is used where scale-up links do not connect all members.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from tangram_sim.errors import InfeasibleError
from tangram_sim.topology.graph import Box
from tangram_sim.topology.maxflow import max_flow

Places = tuple[int, ...]  # GPUs of a box by their place in it
_SOURCE, _SINK = -1, -2


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes per second of one direction, and a description of what limits it."""

    bytes_per_s: float
    limited_by: str

    def least(self, other: "Rate") -> "Rate":
        """The lower of two rates; the first one if they are equal."""
        return other if other.bytes_per_s < self.bytes_per_s else self


@dataclass(frozen=True)
class Reach:
    """Efficiency of links: the share of a link's rate that transfers achieve."""

    peer: Callable[[str, str], float]  # (link class, kind) -> share, between GPUs
    dma: float  # of PCIe, between a GPU and a NIC
    network: float


@dataclass(frozen=True, slots=True)
class Exit:
    """Rate of a group's members through the NICs of their box, and its distribution over the ports."""

    rate: Rate
    shares: tuple[tuple[int, float], ...]  # (port, share of the group's traffic)


@dataclass(frozen=True)
class BoxPaths:
    """Rates and routes in one kind of box; results are cached."""

    box: Box
    reach: Reach

    def ring(self, members: Places, others: tuple[Places, ...] = ()) -> Rate:
        """Bus bandwidth of a ring over `members` while the groups `others` run the same collective."""
        return _ring(self, members, others)

    def exit(self, members: Places, others: tuple[Places, ...] = (), back: bool = False) -> Exit:
        """Rate at which `members` send (or with `back` receive) through NICs while `others` do so too."""
        return _exit(self, members, others, back)

    def between(self, sources: Places, targets: Places) -> Rate:
        """Rate from `sources` to `targets`, all sending at the same time."""
        return _between(self, sources, targets)

    def route(self, source: int, target: int, members: Places) -> tuple[tuple[int, bool], ...]:
        """(edge, whether it is crossed from b to a) along the shortest path; members may relay."""
        edges, relays = self.used(members)
        return _routes(self.box, source, edges, relays)[self.box.gpus[target]]

    def latency_s(self, source: int, target: int, members: Places) -> float:
        """Seconds of latency along the shortest path."""
        return sum(self.box.edges[edge].latency_s for edge, _ in self.route(source, target, members))

    def used(self, members: Places) -> tuple[frozenset[int], frozenset[int]]:
        """(edges, vertices) that traffic among `members` may take. Raises InfeasibleError if unconnected."""
        return _used(self, members)

    def capacity(self, edge: int, back: bool) -> float:
        """Bytes/s of peer traffic over an edge in one direction."""
        found = self.box.edges[edge]
        return (found.back_bytes_per_s if back else found.bytes_per_s) * self.reach.peer(
            found.link, found.kind
        )


def _allowed(box: Box, members: Places) -> frozenset[int]:
    kept = {box.gpus[place] for place in members}
    return frozenset(v for v, kind in enumerate(box.kinds) if kind not in ("gpu", "nic") or v in kept)


def _among(box: Box, edges: frozenset[int], vertices: frozenset[int]) -> frozenset[int]:
    return frozenset(e for e in edges if box.edges[e].a in vertices and box.edges[e].b in vertices)


@lru_cache(maxsize=4096)
def _used(paths: BoxPaths, members: Places) -> tuple[frozenset[int], frozenset[int]]:
    box, vertices = paths.box, _allowed(paths.box, members)
    wanted = {box.gpus[place] for place in members}
    for edges in (box.scale_up_edges, box.scale_up_edges | box.host_edges):
        kept = _among(box, edges, vertices)
        if wanted <= box.reachable(box.gpus[members[0]], kept):
            return kept, vertices
    reached = box.reachable(box.gpus[members[0]], kept)
    lost = ", ".join(box.names[vertex] for vertex in sorted(wanted - reached)[:4])
    raise InfeasibleError(
        f"no path joins {box.names[box.gpus[members[0]]]} to {lost} inside their node; add the missing links"
    )


def _sharers(paths: BoxPaths, edge: int, others: tuple[Places, ...]) -> int:
    """Number of groups, this one included, that need an edge to connect members on both its sides."""
    box, side = paths.box, paths.box.near_side.get(edge)
    if side is None:
        return 1
    count = 1
    for other in others:
        there = {box.gpus[place] for place in other}
        if there & side and there - side and edge in paths.used(other)[0]:
            count += 1
    return count


def _islets(paths: BoxPaths, members: Places) -> dict[int, set[int]]:
    """Host bridge -> parts of the group (each connected by scale-up links) with a GPU below it."""
    box = paths.box
    scale = _among(box, box.scale_up_edges, _allowed(box, members))
    found: dict[int, set[int]] = {}
    for place in members:
        part = min(box.reachable(box.gpus[place], scale))
        host = _host_of(box, box.gpus[place])
        if host >= 0:
            found.setdefault(host, set()).add(part)
    return found


def _host_of(box: Box, gpu: int) -> int:
    """The nearest host bridge of a GPU; -1 where it has none."""
    seen, ahead = {gpu}, [gpu]
    while ahead:
        following = []
        for vertex in ahead:
            for edge, other in box.neighbours[vertex]:
                if edge in box.host_edges and other not in seen and box.kinds[other] != "gpu":
                    if box.kinds[other] == "host":
                        return other
                    seen.add(other)
                    following.append(other)
        ahead = following
    return -1


@lru_cache(maxsize=65536)
def _ring(paths: BoxPaths, members: Places, others: tuple[Places, ...]) -> Rate:
    if len(members) < 2:
        return Rate(inf, "")
    box = paths.box
    edges, vertices = paths.used(members)
    arcs: dict[tuple[int, int], float] = {}
    for edge in edges:
        a, b = box.edges[edge].a, box.edges[edge].b
        share = 1.0 / _sharers(paths, edge, others)
        arcs[a, b] = arcs.get((a, b), 0.0) + paths.capacity(edge, back=False) * share
        arcs[b, a] = arcs.get((b, a), 0.0) + paths.capacity(edge, back=True) * share
    gpus = [box.gpus[place] for place in members]
    found = _host_limit(paths, members, others, edges)
    for cut in _cuts(box, arcs, gpus, vertices):
        if cut[0] < found.bytes_per_s:
            crossing = sorted(e for e in edges if (box.edges[e].a in cut[1]) != (box.edges[e].b in cut[1]))
            more = f" and {len(crossing) - 1} more" if len(crossing) > 1 else ""
            found = Rate(cut[0], f"{box.edge_name(crossing[0])}{more}")
    return found


def _cuts(
    box: Box, arcs: dict[tuple[int, int], float], gpus: Sequence[int], vertices: frozenset[int]
) -> list[tuple[float, frozenset[int]]]:
    """(bytes/s, source side) of minimum cuts between the first member and every other one, both ways."""
    switches = [vertex for vertex in vertices if box.kinds[vertex] == "nvswitch"]
    if len(switches) == 1 and all(switches[0] in arc for arc in arcs):  # a star: each member's own link
        hub = switches[0]
        least = [(min(arcs[gpu, hub], arcs[hub, gpu]), frozenset((gpu,))) for gpu in gpus]
        return [min(least, key=lambda cut: cut[0])]
    even = all(abs(rate - arcs[b, a]) <= 1e-12 * rate for (a, b), rate in arcs.items())
    found = []
    for other in gpus[1:]:
        found.append(max_flow(arcs, gpus[0], other))
        if not even:
            found.append(max_flow(arcs, other, gpus[0]))
    return found


def _host_limit(paths: BoxPaths, members: Places, others: tuple[Places, ...], edges: frozenset[int]) -> Rate:
    """Limit of the host bridges' peer traffic: every part below sends a ring's traffic up and receives it."""
    found = Rate(inf, "")
    if edges <= paths.box.scale_up_edges:
        return found
    crossing = [group for group in others if not paths.used(group)[0] <= paths.box.scale_up_edges]
    parts = [_islets(paths, group) for group in (members, *crossing) if len(group) > 1]
    for host, limit in paths.box.limits:
        if len(parts[0].get(host, ())) + (len(parts[0]) > 1) > 1:
            many = sum(len(part.get(host, ())) for part in parts)
            found = found.least(
                Rate(limit / max(many, 1), f"{paths.box.names[host]} (peer traffic of its devices)")
            )
    return found


def _near_ports(box: Box, gpu: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(port, edges on the path) of the NICs nearest to a GPU over PCIe."""
    ports: dict[int, list[int]] = {}
    for index, port in enumerate(box.ports):
        ports.setdefault(port.nic, []).append(index)
    came: dict[int, tuple[int, ...]] = {gpu: ()}
    ahead = [gpu]
    while ahead:
        following = []
        for vertex in ahead:
            for edge, other in box.neighbours[vertex]:
                if other not in came and edge in box.host_edges and box.kinds[other] != "gpu":
                    came[other] = (*came[vertex], edge)
                    following.append(other)
        near = [vertex for vertex in following if vertex in ports]
        if near:
            return tuple((index, came[vertex]) for vertex in near for index in ports[vertex])
        ahead = following
    return ()


@lru_cache(maxsize=4096)
def _ways_out(box: Box, members: Places) -> tuple[tuple[int, tuple[tuple[int, tuple[int, ...]], ...]], ...]:
    """(GPU, nearest ports) of members that have any. Raises InfeasibleError if none has."""
    ways = tuple((box.gpus[place], _near_ports(box, box.gpus[place])) for place in members)
    found = tuple((gpu, near) for gpu, near in ways if near)
    if not found:
        names = ", ".join(box.names[box.gpus[place]] for place in members[:4])
        raise InfeasibleError(f"no path joins {names} to a NIC of their node; add the missing links")
    return found


@lru_cache(maxsize=65536)
def _exit(paths: BoxPaths, members: Places, others: tuple[Places, ...], back: bool) -> Exit:
    box, reach = paths.box, paths.reach
    own: dict[tuple[str, int], int] = {}
    everyone: dict[tuple[str, int], int] = {}
    for group in (members, *others):
        for _, near in _ways_out(box, group):
            used = {("port", port) for port, _ in near} | {("edge", edge) for _, way in near for edge in way}
            for key in used:
                everyone[key] = everyone.get(key, 0) + 1
                if group is members:
                    own[key] = own.get(key, 0) + 1
    arcs: dict[tuple[int, int], float] = {}
    room: dict[int, float] = {}
    for gpu, near in _ways_out(box, members):
        arcs[_SOURCE, gpu] = inf
        for index, way in near:
            vertex = gpu
            for edge in way:
                found = box.edges[edge]
                forth = found.a == vertex
                other = found.b if forth else found.a
                rate = found.bytes_per_s if forth != back else found.back_bytes_per_s
                share = own["edge", edge] / everyone["edge", edge]
                arcs[vertex, other] = rate * reach.dma * share
                vertex = other
            port = box.ports[index]
            share = own["port", index] / everyone["port", index]
            room[index] = (port.back_bytes_per_s if back else port.bytes_per_s) * reach.network * share
    for index, rate in room.items():
        nic = box.ports[index].nic
        arcs[nic, _SINK] = arcs.get((nic, _SINK), 0.0) + rate
    total, side = max_flow(arcs, _SOURCE, _SINK)
    names = sorted(
        "NIC" if head == _SINK else f"{box.names[tail]} - {box.names[head]}"
        for tail, head in arcs
        if tail in side and head not in side
    )
    nics = names.count("NIC")
    words = [f"{nics} NICs" if nics > 1 else "1 NIC"] if nics else []
    words += [name for name in names if name != "NIC"][:1]
    summed = sum(room.values())
    shares = tuple((index, rate / summed) for index, rate in sorted(room.items()))
    return Exit(Rate(total, " and ".join(words)), shares)


@lru_cache(maxsize=65536)
def _between(paths: BoxPaths, sources: Places, targets: Places) -> Rate:
    box = paths.box
    edges, _ = paths.used(tuple(sorted({*sources, *targets})))
    arcs: dict[tuple[int, int], float] = {}
    for edge in edges:
        a, b = box.edges[edge].a, box.edges[edge].b
        arcs[a, b] = arcs.get((a, b), 0.0) + paths.capacity(edge, back=False)
        arcs[b, a] = arcs.get((b, a), 0.0) + paths.capacity(edge, back=True)
    arcs |= {(_SOURCE, box.gpus[place]): inf for place in sources}
    arcs |= {(box.gpus[place], _SINK): inf for place in targets}
    total, side = max_flow(arcs, _SOURCE, _SINK)
    crossing = sorted(e for e in edges if (box.edges[e].a in side) != (box.edges[e].b in side))
    found = Rate(total, box.edge_name(crossing[0]) if crossing else "")
    if not edges <= box.scale_up_edges and any(e in box.host_edges for e in crossing):
        hosts = {_host_of(box, box.gpus[place]) for place in sources}
        limits = [limit for host, limit in box.limits if host in hosts]
        if limits:
            found = found.least(Rate(sum(limits), "host bridges (peer traffic of their devices)"))
    return found


@lru_cache(maxsize=65536)
def _routes(
    box: Box, source: int, edges: frozenset[int], relays: frozenset[int]
) -> dict[int, tuple[tuple[int, bool], ...]]:
    """Shortest paths from one GPU to all vertices, as (edge, whether crossed from b to a)."""
    came: dict[int, tuple[tuple[int, bool], ...]] = {box.gpus[source]: ()}
    ahead = [box.gpus[source]]
    while ahead:
        following = []
        for vertex in ahead:
            for edge, other in box.neighbours[vertex]:
                if edge in edges and other in relays and other not in came:
                    came[other] = (*came[vertex], (edge, box.edges[edge].b == vertex))
                    following.append(other)
        ahead = following
    return came

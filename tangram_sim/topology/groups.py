"""Communication of groups of ranks on the graph: bus bandwidth by algorithm, latencies, limiting edge.

Groups that communicate at once share edges, NICs and uplinks. Boxes that are identical and hold the same
members are evaluated once; between boxes, flows are summed per edge of the fabric.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from tangram_sim.errors import InfeasibleError
from tangram_sim.topology.graph import Topology
from tangram_sim.topology.inside import BoxPaths, Places, Rate, Reach

__all__ = ["GroupPaths", "PathFinder", "Rate", "Reach"]

Ranks = tuple[int, ...]
_Way = tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """Rates of a group's slowest paths while other groups share them, in bytes/s, one direction."""

    ranks: int
    boxes: int  # scale-up domains it spans
    inside: int  # fewest members in one of them
    ring: Rate  # bus bandwidth of rings over all channels: least of the two below
    ring_inside: Rate  # among the members of one box; infinite where no box holds two
    ring_outside: Rate  # out of and into one box, over NICs and fabric; infinite within a box
    tree: Rate  # bus bandwidth of a double tree between boxes, chains inside
    all_to_all: Rate  # bytes that each rank holds over the seconds to exchange them
    hop_inside_s: float  # latency of the longest step of the ring inside a box; 0 without such steps
    hop_outside_s: float  # of the longest step between boxes


@dataclass
class PathFinder:
    """Computes rates and latencies on one topology; group results are cached."""

    topology: Topology
    reach: Reach
    _kept: dict[tuple[Ranks, tuple[Ranks, ...]], GroupPaths] = field(default_factory=dict)
    _ways: dict[tuple[int, int], _Way] = field(default_factory=dict)
    _paths: list[BoxPaths] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._paths = [BoxPaths(box, self.reach) for box in self.topology.kinds]

    def group(self, ranks: Iterable[int], beside: Iterable[Sequence[int]] = ()) -> GroupPaths:
        """Paths of the ring in rank order (and of tree and all-to-all) over `ranks`.

        `beside` are other groups that run the same collective at the same time. Raises InfeasibleError when
        no path joins the ranks or a rank does not exist.
        """
        members = tuple(sorted(set(ranks)))
        others = tuple(tuple(sorted(set(other))) for other in beside)
        others = tuple(other for other in others if other and other != members)
        if (members, others) not in self._kept:
            for group in (members, *others):
                self._known(group)
            self._kept[members, others] = self._group(members, others)
        return self._kept[members, others]

    def road(self, source: Iterable[int], target: Iterable[int], busy: bool = True) -> tuple[Rate, float]:
        """(rate, latency s) from one set of ranks to another, all pairs sending at the same time.

        With `busy`, the other GPUs of each box use its NICs at the same time.
        """
        sides = tuple(sorted(set(source))), tuple(sorted(set(target)))
        for side in sides:
            self._known(side)
        split = [self.topology.split(side) for side in sides]
        if len({*split[0], *split[1]}) == 1:
            ((box, sources),), targets = split[0].items(), next(iter(split[1].values()))
            paths = self._of(box)
            everyone = tuple(sorted({*sources, *targets}))
            return (
                self._named(paths.between(sources, targets), box),
                paths.latency_s(sources[0], targets[0], everyone),
            )
        return self._between_boxes(split[0], split[1], busy)

    def halves(self) -> Rate:
        """Rate from the first half of the boxes (of the GPUs, in a single box) to the other half."""
        boxes = len(self.topology.boxes)
        border = self.topology.first_rank[boxes // 2] if boxes > 1 else self.topology.gpus // 2
        if not border:
            return Rate(0.0, "")
        return self.road(range(border), range(border, self.topology.gpus), busy=False)[0]

    def exit_rate(self, box: int, places: Places, back: bool = False, beside: Places = ()) -> Rate:
        """Rate at which GPUs of a box send (or receive) through its NICs while those in `beside` do."""
        return self._named(self._of(box).exit(places, (beside,) if beside else (), back).rate, box)

    def uplinks(self, leaves: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[str, float, float]]:
        """Uplinks of the given sets of leaves, which boxes are plugged into.

        (vertex above, seconds per byte to it, seconds per byte from there to the top); the last is 0 for a
        set that needs only one step.
        """
        found, fabric = {}, self.topology.fabric
        first = leaves[0]
        for item in leaves:
            other = next(leaf for leaf in leaves if leaf != item) if item == first else first
            rates: list[list[float]] = []
            name = ""
            for a, b in zip(sorted(set(item)), sorted(set(other)) * len(set(item)), strict=False):
                half = list(self._way(a, b))
                if not half:  # both plugged into one leaf
                    continue
                up = half[: max(len(half) // 2, 1)]
                name = name or self._above(item[0], up[0])
                for step, (edge, _) in enumerate(up):
                    if len(rates) <= step:
                        rates.append([])
                    rates[step].append(
                        min(fabric.edges[edge].bytes_per_s, fabric.edges[edge].back_bytes_per_s)
                        * self.reach.network
                    )
            # Steps that all leaves of the set share (one uplink) count once.
            if not rates:
                found[item] = (fabric.names[item[0]], 0.0, 0.0)
                continue
            shared = [sum(rates[0]), *(min(step) for step in rates[1:])]
            found[item] = (name, 1 / shared[0], max((1 / rate for rate in shared[1:]), default=0.0))
        return found

    def _above(self, leaf: int, step: tuple[int, bool]) -> str:
        edge = self.topology.fabric.edges[step[0]]
        return self.topology.fabric.names[edge.b if edge.a == leaf else edge.a]

    def _known(self, ranks: Ranks) -> None:
        if not ranks or ranks[0] < 0 or ranks[-1] >= self.topology.gpus:
            given = ranks[-1] if ranks else "no rank"
            raise InfeasibleError(
                f"{given} given; ranks of {self.topology.name} are 0 to {self.topology.gpus - 1}"
            )

    def _of(self, box: int) -> BoxPaths:
        return self._paths[self.topology.boxes[box]]

    def _named(self, rate: Rate, box: int) -> Rate:
        return (
            Rate(rate.bytes_per_s, f"{self.topology.labels[box]}: {rate.limited_by}")
            if rate.limited_by
            else rate
        )

    def _group(self, members: Ranks, others: tuple[Ranks, ...]) -> GroupPaths:
        mine = self.topology.split(members)
        beside = [self.topology.split(other) for other in others]
        n, boxes = len(members), len(mine)
        inside, outside, hop_in = Rate(inf, ""), Rate(inf, ""), 0.0
        exchange = 0.0  # seconds per byte that a rank holds
        slowest = ""
        seen: set[tuple[int, Places, tuple[Places, ...]]] = set()
        for box, places in mine.items():
            there = tuple(sorted(other[box] for other in beside if box in other))
            if (self.topology.boxes[box], places, there) in seen:
                continue
            seen.add((self.topology.boxes[box], places, there))
            paths = self._of(box)
            inside = inside.least(self._named(paths.ring(places, there), box))
            if len(places) > 1:
                steps = zip(places, (*places[1:], places[0]), strict=True)
                hop_in = max(hop_in, *(paths.latency_s(a, b, places) for a, b in steps))
                seconds, what = _exchange(paths, places, there, n)
                if seconds > exchange:
                    exchange, slowest = seconds, f"{self.topology.labels[box]}: {what}"
            if boxes > 1:
                for back in (False, True):
                    rate = self._named(paths.exit(places, there, back).rate, box)
                    outside = outside.least(rate)
                    seconds = (
                        len(places) * (n - len(places)) / n / rate.bytes_per_s if rate.bytes_per_s else inf
                    )
                    if seconds > exchange:
                        exchange, slowest = seconds, rate.limited_by
        hop_out = 0.0
        if boxes > 1:
            rings = [self._ring_flows(group) for group in (mine, *beside) if len(group) > 1]
            loads = sum(rings[1:], Counter(rings[0]))
            fabric, hop_out = self._fabric(rings[0], loads), self._hop(mine)
            outside = outside.least(fabric).least(self._stated_inside(mine, beside))
            seconds, what = self._exchange_outside(mine, beside, n)
            if seconds > exchange:
                exchange, slowest = seconds, what
        ring = inside.least(outside)
        share = max(n - 1, 1) / n  # a rank alone sends nothing: its rates stay infinite
        tree = Rate(inside.bytes_per_s * share, inside.limited_by)
        if boxes > 1:
            # A double tree moves 2 S (d-1)/d through the NICs of each of d boxes, a ring 2 S (n-1)/n.
            tree = tree.least(Rate(outside.bytes_per_s * share / ((boxes - 1) / boxes), outside.limited_by))
        return GroupPaths(
            ranks=n,
            boxes=boxes,
            inside=min(len(places) for places in mine.values()),
            ring=ring,
            ring_inside=inside,
            ring_outside=outside,
            tree=tree,
            all_to_all=Rate(1 / exchange if exchange else inf, slowest),
            hop_inside_s=hop_in,
            hop_outside_s=hop_out,
        )

    # between boxes

    def _spread(self, box: int, places: Places) -> list[tuple[int, float]]:
        """(fabric vertex, share of the group's traffic) for the ports that the members use."""
        leaves = self.topology.attached[box]
        return [(leaves[port], share) for port, share in self._of(box).exit(places).shares]

    def _flows(self, a: int, mine: Places, b: int, theirs: Places) -> Counter[tuple[int, int]]:
        """Shares of the traffic between two boxes by (leaf, leaf): the k-th port sends to the k-th port."""
        found: Counter[tuple[int, int]] = Counter()
        outs, ins = self._spread(a, mine), self._spread(b, theirs)
        for index, (leaf, share) in enumerate(outs):
            found[leaf, ins[index % len(ins)][0]] += share  # type: ignore[assignment]  # Counter of floats
        return found

    def _ring_flows(self, split: dict[int, Places]) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        boxes = sorted(split)
        for a, b in zip(boxes, (*boxes[1:], boxes[0]), strict=True):
            found.update(self._flows(a, split[a], b, split[b]))
        return found

    def _way(self, a: int, b: int) -> _Way:
        """(edge, whether it is crossed from b to a) along the shortest path through the fabric."""
        if (a, b) not in self._ways:
            fabric = self.topology.fabric
            came: dict[int, _Way] = {a: ()}
            ahead = [a]
            while ahead and b not in came:
                following = []
                for vertex in ahead:
                    for edge, other in fabric.neighbours[vertex]:
                        if other not in came:
                            came[other] = (*came[vertex], (edge, fabric.edges[edge].b == vertex))
                            following.append(other)
                ahead = following
            if b not in came:
                raise InfeasibleError(
                    f"no path joins {fabric.names[a]} to {fabric.names[b]}; add the missing edges"
                )
            self._ways[a, b] = came[b]
        return self._ways[a, b]

    def _loads(self, flows: Counter[tuple[int, int]]) -> Counter[tuple[int, bool]]:
        found: Counter[tuple[int, bool]] = Counter()
        for (a, b), share in flows.items():
            for crossed in self._way(a, b):
                found[crossed] += share
        return found

    def _fabric(self, mine: Counter[tuple[int, int]], everyone: Counter[tuple[int, int]]) -> Rate:
        """Rate left to this group on the fabric edges that it shares with all others."""
        found, fabric = Rate(inf, ""), self.topology.fabric
        total = self._loads(everyone)
        for edge, back in self._loads(mine):
            fabric_edge = fabric.edges[edge]
            rate = (fabric_edge.back_bytes_per_s if back else fabric_edge.bytes_per_s) * self.reach.network
            found = found.least(Rate(rate / total[edge, back], fabric.edge_name(edge)))
        return found

    def _stated_inside(self, mine: dict[int, Places], beside: Sequence[dict[int, Places]]) -> Rate:
        """Rate limit stated for traffic of one box with its neighbours under the same leaf."""
        found = Rate(inf, "")
        if self.topology.fabric.inside:
            for box, places in mine.items():
                groups = 1 + sum(box in other for other in beside)
                for leaf, _ in self._spread(box, places):
                    limit, _ = self.topology.fabric.inside.get(leaf, (inf, 0.0))
                    name = self.topology.fabric.names[leaf]
                    found = found.least(Rate(limit * self.reach.network / groups, f"{name} (stated limit)"))
        return found

    def _hop(self, split: dict[int, Places]) -> float:
        """Seconds of latency of the longest step between neighbours in the ring of boxes."""
        boxes = sorted(split)
        return max(self._latency(a, b) for a, b in zip(boxes, (*boxes[1:], boxes[0]), strict=True))

    def _latency(self, a: int, b: int) -> float:
        fabric, (leaf_a, leaf_b) = self.topology.fabric, (self.topology.attached[box][0] for box in (a, b))
        ends = sum(self._of(box).box.ports[0].latency_s for box in (a, b))
        extra = fabric.inside.get(leaf_a, (inf, 0.0))[1] if leaf_a == leaf_b else 0.0
        return ends + extra + sum(fabric.edges[edge].latency_s for edge, _ in self._way(leaf_a, leaf_b))

    def _exchange_outside(
        self, mine: dict[int, Places], beside: Sequence[dict[int, Places]], n: int
    ) -> tuple[float, str]:
        """(seconds per byte of an all-to-all on its slowest fabric edge, name of that edge)."""
        loads: Counter[tuple[int, bool]] = Counter()
        own: set[tuple[int, bool]] = set()
        for number, split in enumerate((mine, *beside)):
            # Boxes plugged in alike are one: how many members they have together.
            alike: dict[tuple[int, ...], tuple[int, int, Places]] = {}
            for box, places in split.items():
                key = self.topology.attached[box]
                before = alike.get(key, (0, box, places))
                alike[key] = (before[0] + len(places), before[1], before[2])
            for a, box_a, places_a in alike.values():
                for b, box_b, places_b in alike.values():
                    if box_a == box_b:
                        continue
                    flows = self._flows(box_a, places_a, box_b, places_b)
                    for crossed, share in self._loads(flows).items():
                        loads[crossed] += share * a * b / n  # type: ignore[assignment]  # Counter of floats
                        if not number:
                            own.add(crossed)
        worst, what, fabric = 0.0, "", self.topology.fabric
        for edge, back in own:
            fabric_edge = fabric.edges[edge]
            rate = (fabric_edge.back_bytes_per_s if back else fabric_edge.bytes_per_s) * self.reach.network
            if loads[edge, back] / rate > worst:
                worst, what = loads[edge, back] / rate, fabric.edge_name(edge)
        return worst, what

    def _between_boxes(
        self, sources: dict[int, Places], targets: dict[int, Places], busy: bool
    ) -> tuple[Rate, float]:
        sides: list[dict[int, float]] = []
        total = Rate(inf, "")
        for split, back in ((sources, False), (targets, True)):
            rates = {}
            names = []
            for box, places in split.items():
                rest = tuple(p for p in range(len(self._of(box).box.gpus)) if p not in places)
                found = self._of(box).exit(places, (rest,) if busy and rest else (), back)
                rates[box] = found.rate.bytes_per_s
                names.append(self._named(found.rate, box).limited_by)
            sides.append(rates)
            total = total.least(Rate(sum(rates.values()), names[0] + (", ..." if len(names) > 1 else "")))
        flows: Counter[tuple[int, int]] = Counter()
        latency = 0.0
        sums = [sum(rates.values()) or 1.0 for rates in sides]
        for a, rate_a in sides[0].items():
            for b, rate_b in sides[1].items():
                if a != b:
                    weight = rate_a / sums[0] * rate_b / sums[1]
                    for pair, share in self._flows(a, sources[a], b, targets[b]).items():
                        flows[pair] += share * weight  # type: ignore[assignment]  # Counter of floats
                    latency = max(latency, self._latency(a, b))
        total = total.least(self._fabric(flows, flows))
        if any(a == b for a, b in flows):
            total = total.least(self._stated_inside({**sources, **targets}, ()))
        return total, latency


def _exchange(paths: BoxPaths, members: Places, others: tuple[Places, ...], n: int) -> tuple[float, str]:
    """(seconds per byte held by a rank, slowest edge) of the part of an all-to-all inside a box."""
    groups = [group for group in (members, *others) if len(group) > 1]
    loads: Counter[tuple[int, bool]] = Counter()
    turned: Counter[int] = Counter()
    own: set[tuple[int, bool]] = set()
    box = paths.box
    limits = dict(box.limits)
    for group in groups:
        for a in group:
            for b in group:
                if a == b:
                    continue
                way = paths.route(a, b, group)
                loads.update(way)
                if group is members:
                    own.update(way)
                # Turned around where it comes up to the first host bridge on its way.
                heads = (box.edges[edge].a if back else box.edges[edge].b for edge, back in way)
                host = next((vertex for vertex in heads if vertex in limits), -1)
                if host >= 0:
                    turned[host] += 1
    worst, what = 0.0, ""
    for edge, back in sorted(own):
        seconds = loads[edge, back] / n / paths.capacity(edge, back)
        if seconds > worst:
            worst, what = seconds, box.edge_name(edge)
    for host, flows in turned.items():
        if flows / n / limits[host] > worst:
            worst, what = flows / n / limits[host], f"{box.names[host]} (peer traffic of its devices)"
    return worst, what

"""Transfers of state between two plans: bytes by pair of nodes, and their seconds on a network."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from tangram_sim.reliability.state import SAME, Interval, StateMap, length, missing


@dataclass(frozen=True, slots=True)
class Moves:
    """Bytes to transfer: between live nodes by (source, target), and from a checkpoint by target."""

    between: Mapping[tuple[int, int], float]
    from_checkpoint: Mapping[int, float]
    kept_bytes: float  # needed and already there

    @property
    def fetched_bytes(self) -> float:
        """Bytes that cross the network between nodes."""
        return sum(self.between.values())

    @property
    def restored_bytes(self) -> float:
        """Bytes that only a checkpoint still has."""
        return sum(self.from_checkpoint.values())

    def sent_bytes(self) -> dict[int, float]:
        """Bytes that each node sends."""
        found: dict[int, float] = {}
        for (source, _), size in self.between.items():
            found[source] = found.get(source, 0.0) + size
        return found


def moves(old: StateMap, new: StateMap, lost: Set[int] = frozenset(), spread: bool = True) -> Moves:
    """Bytes that each node needs under `new` and does not hold under `old`, by where they come from.

    Both maps name the same nodes. With `spread`, bytes come from all live copies in equal parts; without,
    from the first live copy, as through one node that gathers and distributes.
    """
    between: dict[tuple[int, int], float] = {}
    restored: dict[int, float] = {}
    kept = 0.0
    for section, start, stop in new.segments((old,)):
        size = new.run_bytes(section, start, stop)
        if size <= 0:
            continue
        needed = new.at(section, start, stop)
        if not needed:
            continue
        held = {node: have for node, have in old.at(section, start, stop).items() if node not in lost}
        for target, want in needed.items():
            short = missing(want, held.get(target, ()))
            kept += size * (length(want) - length(short))
            for low, high in _pieces(short, held):
                middle = (low + high) / 2
                sources = [node for node, have in held.items() if any(a <= middle < b for a, b in have)]
                if not sources:
                    restored[target] = restored.get(target, 0.0) + size * (high - low)
                    continue
                used = sources if spread else sources[:1]
                for source in used:
                    pair = (source, target)
                    between[pair] = between.get(pair, 0.0) + size * (high - low) / len(used)
    return Moves(between, restored, kept)


def _pieces(short: Sequence[Interval], held: Mapping[int, Sequence[Interval]]) -> list[Interval]:
    """The intervals of `short`, cut at every start and end of an interval in `held`."""
    edges = sorted({edge for have in held.values() for interval in have for edge in interval})
    found = []
    for low, high in short:
        at = low
        for edge in edges:
            if at + SAME < edge < high - SAME:
                found.append((at, edge))
                at = edge
        found.append((at, high))
    return found


def transfer_seconds(
    found: Moves,
    rate_of: Callable[[int, int], float],
    nic_of: Callable[[int], float],
    restore_rate: float = 0.0,
) -> float:
    """Seconds until all transfers have completed, simulated as flows with max-min fair shares of the NICs.

    `rate_of` is what one node can send another, `nic_of` what a node can send or receive in all, bytes/s;
    `restore_rate` is what a node reads from a checkpoint, in parallel with the transfers (0: as its NIC).
    """
    flows = {pair: size for pair, size in found.between.items() if size > 0}
    elapsed = 0.0
    while flows:
        rates = _fair_rates(flows, rate_of, nic_of)
        step = min(size / rates[pair] for pair, size in flows.items())
        elapsed += step
        flows = {
            pair: size - rates[pair] * step
            for pair, size in flows.items()
            if size - rates[pair] * step > 1e-9 * found.between[pair]
        }
    restored = max(
        (size / (restore_rate or nic_of(node)) for node, size in found.from_checkpoint.items()), default=0.0
    )
    return max(elapsed, restored)


def _fair_rates(
    flows: Mapping[tuple[int, int], float],
    rate_of: Callable[[int, int], float],
    nic_of: Callable[[int], float],
) -> dict[tuple[int, int], float]:
    """Max-min fair rates, bytes/s, of flows between nodes; sends share a NIC, and receives share it."""
    left: dict[tuple[str, int], float] = {}
    users: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for pair in flows:
        for port in (("out", pair[0]), ("in", pair[1])):
            left.setdefault(port, nic_of(port[1]))
            users.setdefault(port, []).append(pair)
    rates: dict[tuple[int, int], float] = {}
    while len(rates) < len(flows):
        share = {
            port: left[port] / count
            for port, pairs in users.items()
            if (count := sum(pair not in rates for pair in pairs))
        }
        port = min(share, key=lambda name: (share[name], name))
        capped = [pair for pair in flows if pair not in rates and rate_of(*pair) <= share[port]]
        chosen = capped or [pair for pair in users[port] if pair not in rates]
        for pair in chosen:
            rate = min(rate_of(*pair), share[port])
            rates[pair] = rate
            left[("out", pair[0])] -= rate
            left[("in", pair[1])] -= rate
    return rates


def assign(old: StateMap, new: StateMap, kind_of: Mapping[int, str], live: Sequence[int]) -> dict[int, int]:
    """The live node for each place of the new plan, chosen so that the fewest bytes move.

    `new` names places; `kind_of` gives the GPU kind of a place (key -1 - place) and of a node, which must
    agree. Solved as an assignment problem over the bytes of each place's share that each node already has.
    """
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    places = list(new.nodes)
    row = {place: index for index, place in enumerate(places)}
    column = {node: index for index, node in enumerate(live)}
    gain = np.zeros((len(places), len(live)))
    for section, start, stop in new.segments((old,)):
        size = new.run_bytes(section, start, stop)
        if size <= 0:
            continue
        held = old.at(section, start, stop)
        for place, want in new.at(section, start, stop).items():
            for node in column.keys() & held.keys():
                gain[row[place], column[node]] += size * (length(want) - length(missing(want, held[node])))
    scale = gain.sum() + 1.0
    for place in places:
        for node in live:
            if kind_of[-1 - place] != kind_of[node]:
                gain[row[place], column[node]] = -scale
    rows, columns = linear_sum_assignment(gain, maximize=True)
    return {places[a]: live[b] for a, b in zip(rows.tolist(), columns.tolist(), strict=True)}

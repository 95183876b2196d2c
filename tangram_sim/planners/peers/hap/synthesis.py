"""Best-first search for the cheapest distributed program of a graph under given shares.

A state is the number of operations computed and the set of properties still live: (tensor, relation). Steps
apply the rules of the next operation, with the collectives that its inputs need; since costs do not depend on
the order of independent steps, computing in graph order loses nothing. States are expanded in the order of
cost so far plus a lower bound on the remaining cost (A*; the published code's estimate is 0), so the first
complete program is the cheapest. A state is dropped if all its properties are live in a cheaper one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise, product

from tangram_sim.planners.peers.hap.graph import Operation, last_uses
from tangram_sim.planners.peers.hap.machine import DeviceLoad, Machine, bill_of_conversion, bill_of_rule
from tangram_sim.planners.peers.hap.rules import (
    BATCH,
    FEATURES,
    SEQUENCE,
    WHOLE,
    ProgramSpace,
    Rule,
    conversion,
    rules_of,
)

Property = tuple[int, str]  # (tensor, relation)
Route = tuple[str, ...]  # relations of a tensor, from a live one to the one that is needed

_BETWEEN = (WHOLE, BATCH, SEQUENCE, FEATURES)


@dataclass(frozen=True)
class OperationChoice:
    """The rule of one operation, and the conversions that bring its inputs into the relations it needs."""

    rule: Rule
    routes: tuple[tuple[int, Route], ...]  # (tensor, route) of every conversion


@dataclass(frozen=True)
class SynthesizedProgram:
    """A distributed program: one choice for each operation."""

    ops: tuple[Operation, ...]
    choices: tuple[OperationChoice, ...]
    largest: float = 0.0  # share that its collectives are padded to, or grouped for; 0: padded

    def bill(self, machine: Machine) -> DeviceLoad:
        """Load of the program on every device: FLOP, bytes and transfers."""
        classes = len(machine.speeds)
        total = DeviceLoad([0.0] * classes, [0.0] * classes)
        for op, choice in zip(self.ops, self.choices, strict=True):
            total.add(
                bill_of_rule(op, choice.rule, [self.ops[item] for item in op.inputs], machine, self.largest)
            )
            for tensor, route in choice.routes:
                total.add(bill_of_conversion(self.ops[tensor], _collectives(route), machine, self.largest))
        return total

    def families(self) -> tuple[str, ...]:
        """Family of every block, from its operations with weights."""
        found: dict[int, str] = {}
        for op, choice in zip(self.ops, self.choices, strict=True):
            if choice.rule.family:
                found[op.block] = choice.rule.family
        return tuple(found[block] for block in sorted(found))


def spliced(first: SynthesizedProgram, second: SynthesizedProgram, block: int) -> SynthesizedProgram:
    """The first program up to a block, the second one from that block on.

    Both programs must pass activations from block to block in the same relation.
    """
    pairs = zip(first.ops, first.choices, second.choices, strict=True)
    choices = tuple(b if op.block >= block else a for op, a, b in pairs)
    return SynthesizedProgram(first.ops, choices, first.largest)


def _collectives(route: Route) -> list[str]:
    return [name for a, b in pairwise(route) for name in conversion(a, b) or ()]


Expansion = tuple[float, frozenset[Property], str, OperationChoice]  # tensors relative to the operation


class Synthesizer:
    """Searches one graph on one machine; the expansions of identical operations are cached."""

    def __init__(
        self, ops: Sequence[Operation], machine: Machine, shares: Sequence[float], space: ProgramSpace
    ) -> None:
        self.ops, self.machine, self.shares, self.space = tuple(ops), machine, tuple(shares), space
        self._last = last_uses(ops)
        self._known: dict[tuple[object, ...], list[Expansion]] = {}
        self._costs: dict[tuple[object, ...], float] = {}

    def best(self, limit: float = float("inf")) -> SynthesizedProgram | None:
        """The cheapest program; None where the rules allow none, or none costs at most `limit` seconds."""
        ops, ahead = self.ops, self._ahead()
        start: tuple[int, frozenset[Property], str] = (0, frozenset(), "")
        reached = {start: 0.0}
        came: dict[
            tuple[int, frozenset[Property], str], tuple[tuple[int, frozenset[Property], str], OperationChoice]
        ] = {}
        heap: list[tuple[float, int, tuple[int, frozenset[Property], str]]] = [(ahead[0], 0, start)]
        pushed = 0
        done: dict[tuple[int, str], list[frozenset[Property]]] = {}
        while heap:
            _, _, state = heappop(heap)
            place, live, family = state
            cheaper = done.setdefault((place, family), [])
            if any(live <= other for other in cheaper):  # no dearer, and all that is live here is live there
                continue
            cheaper.append(live)
            if place == len(ops):
                return self._program(state, came)
            for extra, left, chosen, choice in self._expansions(place, live, family):
                following = (place + 1, frozenset((place + t, r) for t, r in left), chosen)
                cost = reached[state] + extra
                if cost + ahead[place + 1] <= limit and cost < reached.get(following, float("inf")):
                    reached[following] = cost
                    came[following] = state, choice
                    pushed += 1
                    heappush(heap, (cost + ahead[place + 1], pushed, following))
        return None

    def _program(
        self,
        state: tuple[int, frozenset[Property], str],
        came: dict[
            tuple[int, frozenset[Property], str], tuple[tuple[int, frozenset[Property], str], OperationChoice]
        ],
    ) -> SynthesizedProgram:
        choices = list[OperationChoice]()
        while state in came:
            state, choice = came[state]
            routes = tuple((state[0] + tensor, route) for tensor, route in choice.routes)
            choices.append(OperationChoice(choice.rule, routes))
        return SynthesizedProgram(self.ops, tuple(reversed(choices)), max(self.shares))

    def _ahead(self) -> list[float]:
        """For each position, a lower bound in seconds on all operations from there on, no collectives."""
        found = [0.0] * (len(self.ops) + 1)
        for place in range(len(self.ops) - 1, -1, -1):
            rules = rules_of(self.ops[place].kind, len(self.ops[place].inputs), self.space)
            least = min((self._rule_cost(place, rule) for rule in rules), default=0.0)
            found[place] = found[place + 1] + least
        return found

    def _expansions(self, place: int, live: frozenset[Property], family: str) -> list[Expansion]:
        """Ways to compute the operation at `place` from live properties; tensors are relative to `place`."""
        op, last = self.ops[place], self._last
        near = tuple(sorted((t - place, r, last[t] - place) for t, r in live))
        held = "" if self._opens(place) else family
        key = (
            *(op.kind, op.flop, op.output_bytes, op.weight_bytes, op.gradient_bytes, op.speed),
            *(tuple(source - place for source in op.inputs), last[place] - place, self._opens(place + 1)),
            *(held, near),
        )
        if key not in self._known:
            self._known[key] = list(self._expand(place, live, held))
        return self._known[key]

    def _opens(self, place: int) -> bool:
        """Whether the operation may choose its family: the first of a block, or any without `by_block`."""
        ops = self.ops
        return not self.space.by_block or place in (0, len(ops)) or ops[place].block != ops[place - 1].block

    def _expand(self, place: int, live: frozenset[Property], held: str) -> Iterator[Expansion]:
        op, last = self.ops[place], self._last
        closes = self._opens(place + 1)
        for rule in rules_of(op.kind, len(op.inputs), self.space):
            if held and rule.family and rule.family != held:
                continue
            chosen = "" if closes else rule.family or held
            computed = self._rule_cost(place, rule)
            needs = dict.fromkeys(zip(op.inputs, rule.needs, strict=True))
            ways = [self._routes(tensor, need, live, last[tensor] > place) for tensor, need in needs]
            for routes in product(*ways):
                cost, kept = computed, set(live)
                conversions = []
                for (tensor, _), route in zip(needs, routes, strict=True):
                    if len(route) > 1:
                        cost += self._conversion_cost(tensor, route)
                        conversions.append((tensor - place, route))
                    kept |= {(tensor, relation) for relation in route}
                if last[place] > place:
                    kept.add((place, rule.gives))
                left = frozenset((t - place, r) for t, r in kept if last[t] > place)
                yield cost, left, chosen, OperationChoice(rule, tuple(conversions))

    def _routes(self, tensor: int, need: str, live: frozenset[Property], again: bool) -> list[Route]:
        """Routes by which a tensor gets the relation `need`: `(need,)` if the tensor has it already, else one
        conversion, or two through another relation. Intermediate relations stay live; for a tensor that is
        not read `again` only the cheapest route is returned."""
        there = sorted(relation for item, relation in live if item == tensor)
        if need in there:
            return [(need,)]
        ways: list[Route] = [(source, need) for source in there if conversion(source, need) is not None]
        for source in there:
            for between in _BETWEEN:
                if between not in there and between != need:
                    first, second = conversion(source, between), conversion(between, need)
                    if first is not None and second is not None:
                        ways.append((source, between, need))
        if again or not ways:
            return ways
        return [min(ways, key=lambda way: self._conversion_cost(tensor, way))]

    def _rule_cost(self, place: int, rule: Rule) -> float:
        op = self.ops[place]
        inputs = [self.ops[item] for item in op.inputs]
        sizes = tuple(operation.output_bytes for operation in inputs)
        key = (rule, op.flop, op.output_bytes, op.weight_bytes, op.gradient_bytes, op.speed, sizes)
        if key not in self._costs:
            bill = bill_of_rule(op, rule, inputs, self.machine, max(self.shares))
            self._costs[key] = bill.seconds(self.machine, self.shares)
        return self._costs[key]

    def _conversion_cost(self, tensor: int, route: Route) -> float:
        key = (self.ops[tensor].output_bytes, route)
        if key not in self._costs:
            bill = bill_of_conversion(self.ops[tensor], _collectives(route), self.machine, max(self.shares))
            self._costs[key] = bill.seconds(self.machine, self.shares)
        return self._costs[key]

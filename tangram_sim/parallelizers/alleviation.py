"""Iterative bottleneck alleviation: from a configuration, moves that relieve its worst stage, several deep.

Liu et al., "Aceso: Efficient Parallel DNN Training through Iterative Bottleneck Alleviation", EuroSys 2024.
The search is independent of transformers: a `SearchSpace` says what a configuration costs, which stages are
its bottlenecks, and which moves relieve one. Formulation: docs/models/parallelizers.md.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

C = TypeVar("C", bound=Hashable)

# (what is missing to fit, seconds), compared in that order: what fits beats what does not.
Cost = tuple[float, float]

_NEAR = 1.2  # configurations up to this factor above the best are taken up again


class SearchSpace(Protocol[C]):
    """Search space of the alleviation. Configurations are hashable; equal ones are visited once."""

    def cost(self, config: C) -> Cost:
        """(bytes missing to fit memory, 0 where it fits; seconds of a step)."""

    def bottlenecks(self, config: C) -> Sequence[int]:
        """Stage numbers by urgency: the fullest first while memory is short, else the slowest first."""

    def groups(self, config: C, stage: int) -> Iterable[Sequence[tuple[str, C]]]:
        """Moves (primitive, configuration) that may relieve a stage, the most promising group first."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search; the first one reached ends it."""

    trials: int = 100
    evaluations: int = 10_000  # configurations looked at
    hops: int = 7  # moves of one trial
    beam: int = 3  # configurations of a group from which the next hop is tried
    patience: int = 100  # trials in a row without improvement: early stopping


@dataclass(frozen=True, slots=True)
class AdoptedMove(Generic[C]):
    """One move of an adopted trial."""

    stage: int
    primitive: str
    config: C
    cost: Cost


@dataclass
class Alleviated(Generic[C]):
    """The best configuration, the trials that led to it, and the number of configurations evaluated."""

    best: C
    cost: Cost
    evaluations: int = 0
    trials: list[tuple[AdoptedMove[C], ...]] = field(default_factory=list)


def alleviate(space: SearchSpace[C], start: C, budget: Budget) -> Alleviated[C]:
    """Search from `start`; the result is never worse than `start`. Deterministic."""
    return _Search(space, start, budget).run()


class _Search(Generic[C]):
    def __init__(self, space: SearchSpace[C], start: C, budget: Budget) -> None:
        self.space, self.budget = space, budget
        self.found: Alleviated[C] = Alleviated(start, space.cost(start), 1)
        self.costs: dict[C, Cost] = {start: self.found.cost}
        self.visited: set[C] = set()  # hopped from
        self.explored: set[C] = set()  # trials started from

    def run(self) -> Alleviated[C]:
        config, idle = self.found.best, 0
        for _ in range(self.budget.trials):
            trail = self._trial(config)
            self.explored.add(config)
            if trail:
                self.found.best, self.found.cost = trail[-1].config, trail[-1].cost
                self.found.trials.append(trail)
                config, idle = self.found.best, 0
                continue
            idle += 1
            again = self._near()
            if again is None or idle >= self.budget.patience or self._spent():
                break
            config = again
        return self.found

    def _spent(self) -> bool:
        return self.found.evaluations >= self.budget.evaluations

    def _near(self) -> C | None:
        """The best configuration close to the best one from which no trial has started, if any."""
        short, seconds = self.found.cost
        near = [
            (cost, config)
            for config, cost in self.costs.items()
            if config not in self.explored and cost[0] <= short and cost[1] < _NEAR * seconds
        ]
        return min(near, key=lambda item: item[0])[1] if near else None

    def _trial(self, config: C) -> tuple[AdoptedMove[C], ...]:
        self.visited.discard(config)
        for stage in self.space.bottlenecks(config):
            trail = self._hop(config, stage, ())
            if trail:
                return trail
            self.visited.discard(config)
        return ()

    def _hop(self, config: C, stage: int, trail: tuple[AdoptedMove[C], ...]) -> tuple[AdoptedMove[C], ...]:
        """Moves from `config` that lead to a cost below the best; empty where none is found."""
        if len(trail) >= self.budget.hops or config in self.visited or self._spent():
            return ()
        self.visited.add(config)
        for group in self.space.groups(config, stage):
            steps: dict[C, AdoptedMove[C]] = {}
            for primitive, moved in group:
                if moved not in self.visited and moved not in steps:
                    steps[moved] = AdoptedMove(stage, primitive, moved, self._cost(moved))
            ranked = sorted(steps.values(), key=lambda step: step.cost)
            if ranked and ranked[0].cost < self.found.cost:
                return (*trail, ranked[0])
            for step in ranked[: self.budget.beam]:
                deeper = self._hop(step.config, self.space.bottlenecks(step.config)[0], (*trail, step))
                if deeper:
                    return deeper
        return ()

    def _cost(self, config: C) -> Cost:
        if config not in self.costs:
            self.costs[config] = self.space.cost(config)
            self.found.evaluations += 1
        return self.costs[config]

"""What composition gives: a complete pipeline of partial plans, each at its place."""

from dataclasses import dataclass

from tangram_sim.training.plan import PartialPlan


@dataclass(frozen=True, slots=True)
class Placed:
    """One partial plan at its place: atoms [start, stop) on an island."""

    kind: int
    start: int
    stop: int
    partial: PartialPlan


@dataclass(frozen=True, slots=True)
class Composed:
    """A complete pipeline, front to back, with its value under the composition's objective."""

    objective_s: float
    places: tuple[Placed, ...]
    microbatch: int
    microbatches: int

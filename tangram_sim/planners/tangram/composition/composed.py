"""Result types of composition: a complete pipeline, and its partial plans with the atoms of each."""

from dataclasses import dataclass

from tangram_sim.training.plan import PartialPlan


@dataclass(frozen=True, slots=True)
class Placed:
    """A partial plan in a pipeline: atoms [start, stop) on island number `kind`."""

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

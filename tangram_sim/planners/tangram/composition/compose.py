"""Composition: partial plans into one work-balanced pipeline, exactly, under a closed objective.

The objective of 1F1B is G + (M - 1) x slowest, where G is the time of one microbatch through the pipeline
or, if larger, until the last stage has synchronised its gradients (docs/models/composition.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.planners.tangram.enumeration.table import PartialPlanTable
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


def compose_table(
    table: PartialPlanTable,
    counts: Sequence[int],
    hop_s: NDArray[np.float64],
    work: NDArray[np.float64],
    limit_s: float = float("inf"),
    keep: int = 128,
    one_by_one: bool = False,
    tolerance_s: float = 0.0,
    most_work: int = 1 << 62,
) -> list[Composed]:
    """Pipelines for one microbatch size with an objective below `limit_s`, best first, `keep` at most.

    The first is optimal under the objective among all pipelines of the table; the others are the best
    non-dominated ones, for re-ranking by simulation. `counts` are the nodes (units) of each kind,
    `hop_s` (kinds, kinds) the transfers between neighbours (inf where an order is forbidden; joint kinds
    behind the others), `work` (atoms + 1) a prefix sum over atoms of any positive measure of work.
    `one_by_one`: only pipelines that use up one kind before they begin the next; so many fewer counts that
    wide copies can be searched. `tolerance_s`: what every stage may add to the best objective, for fewer
    labels. None where `most_work` comparisons did not do.
    """
    if not len(table.floats):
        return []
    from tangram_sim.planners.tangram.enumeration.kernels import compose

    repeats = float(table.microbatches - 1)
    floats, ints, complete = compose(
        table.slice_class,
        table.option_ptr,
        table.floats,
        table.ints,
        np.asarray(counts, dtype=np.int64),
        np.array(table.joint, dtype=np.int64).reshape(-1, len(counts)),
        hop_s,
        work,
        table.whole_depth,
        repeats,
        limit_s,
        tolerance_s,
        one_by_one,
        most_work,
    )
    values = floats[complete, 1] + repeats * floats[complete, 2]
    order = np.argsort(values, kind="stable")[:keep]
    return [_composed(table, float(values[position]), int(complete[position]), ints) for position in order]


def _composed(table: PartialPlanTable, value: float, label: int, ints: NDArray[np.int64]) -> Composed:
    """Follow a label from the front of the pipeline to its back."""
    start = 0
    places: list[Placed] = []
    while ints[label, 3] >= 0:
        option = int(ints[label, 3])
        partial = table.partials[option]
        stop = start + partial.stop - partial.start
        places.append(Placed(int(table.ints[option, 0]), start, stop, partial))
        label, start = int(ints[label, 2]), stop
    return Composed(value, tuple(places), table.microbatch, table.microbatches)

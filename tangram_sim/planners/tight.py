"""The search's own bound: a time that no single pipeline of priced partial plans can beat when it is played.

Stage i of a 1F1B or GPipe pipeline computes M t_i in all. Before it starts, the first microbatch has passed
forward through the stages in front; after its last backward, that microbatch still has to pass back through
them. So every played step lasts at least

    max over i of  M t_i + sum over j < i of t_j

The least of this over all pipelines of a table comes from the composition's recursion (docs/models/bound.md).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.planners.compose import compose_table
from tangram_sim.planners.enumerate import Table

_INSTANT = 1e-12  # a positive pace: the recursion divides by it


def pipeline_bound_s(
    table: Table,
    counts: Sequence[int],
    work: NDArray[np.float64],
    order_s: NDArray[np.float64],
    limit_s: float,
) -> float:
    """Seconds that every pipeline of `table` takes at least when played; at most `limit_s`.

    `order_s` (kinds, kinds) is inf where an order is forbidden. Zero for a schedule that moves weight
    gradients about: there a stage may work while the stages in front still pass the last microbatch.
    """
    if table.whole_depth:
        return 0.0
    if not len(table.floats):
        return limit_s
    busy = np.array(
        [
            # Boundaries inside a partial plan may move when it is refined: only the mean stays.
            table.microbatches
            * sum(stage.forward_s + stage.backward_s for stage in partial.stages)
            / len(partial.stages)
            for partial in table.partials
        ]
    )
    floats = np.column_stack([np.full(len(busy), _INSTANT), np.zeros(len(busy)), table.floats[:, 1], busy])
    relaxed = replace(table, floats=np.ascontiguousarray(floats), microbatches=1)
    hops = np.where(np.isinf(order_s), np.inf, 0.0)
    found = compose_table(relaxed, counts, hops, work, limit_s, keep=1)
    return found[0].objective_s if found else limit_s

"""Grouping slow ranks: tensor-parallel groups of ranks of similar speed."""

from collections.abc import Sequence

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray


def regroup(slowness: Sequence[float], size: int) -> tuple[tuple[int, ...], ...]:
    """Groups of `size` ranks of similar speed, slowest first, since a group runs at its slowest rank.

    Sorted and cut into runs (as Malleus does, arXiv 2410.13333): no other grouping has a faster k-th slowest
    group, for any k. Raises `BadInputError` where the number of ranks is not a multiple of `size`.
    """
    if size < 1 or len(slowness) % size:
        raise BadInputError(f"{len(slowness)} ranks cannot be cut into groups of {size}; give a divisor")
    order = sorted(range(len(slowness)), key=lambda rank: -slowness[rank])
    return tuple(tuple(order[at : at + size]) for at in range(0, len(order), size))


def regrouped_paces(slowness: FloatArray, tp: int, workers_per_node: int = 0) -> FloatArray:
    """Slowdown of every worker after regrouping, [dp, stages], assuming one slow rank in each slow worker.

    Ranks are exchanged within a node: `workers_per_node` consecutive workers, counted by replica in a stage
    (0: all workers). Slow groups go to the first replicas, so that few replicas are slow.
    """
    dp, stages = slowness.shape
    cells = [(replica, stage) for stage in range(stages) for replica in range(dp)]
    size = workers_per_node or len(cells)
    found = np.ones_like(slowness)
    for first in range(0, len(cells), size):
        own = cells[first : first + size]
        ranks = [x for cell in own for x in (float(slowness[cell]), *[1.0] * (tp - 1))]
        paces = [max(ranks[rank] for rank in group) for group in regroup(ranks, tp)]
        for cell, pace in zip(sorted(own), paces, strict=True):
            found[cell] = pace
    return found

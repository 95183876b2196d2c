"""Putting slow ranks together: tensor-parallel groups of ranks alike, slow links where little travels."""

from collections.abc import Sequence

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray


def regroup(slowness: Sequence[float], size: int) -> tuple[tuple[int, ...], ...]:
    """Groups of `size` ranks, slowest first: a group runs at its slowest rank, so ranks alike go together.

    Sorted and cut into runs (as Malleus does, arXiv 2410.13333): no other grouping has a faster k-th slowest
    group, for any k. Raises `BadInputError` where groups do not share the ranks evenly.
    """
    if size < 1 or len(slowness) % size:
        raise BadInputError(f"{len(slowness)} ranks cannot be cut into groups of {size}; give a divisor")
    order = sorted(range(len(slowness)), key=lambda rank: -slowness[rank])
    return tuple(tuple(order[at : at + size]) for at in range(0, len(order), size))


def regrouped_paces(slowness: FloatArray, tp: int, workers_per_node: int = 0) -> FloatArray:
    """How slow every worker is after regrouping, [dp, stages], of one slow rank in each slow worker.

    Ranks are exchanged among the workers of one node, of which `workers_per_node` follow each other replica
    by replica within a stage (0: among all). Slow groups go to the first replicas, so that they meet there.
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

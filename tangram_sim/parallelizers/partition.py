"""Cuts of an inner pipeline: balanced by a weight per atom, and between two such partitions.

Galvatron-BMW (arXiv:2307.02031) searches partitions between the memory-balanced and the time-balanced one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from tangram_sim.cost.kernels import Floats

Cuts = tuple[int, ...]
_MOST_VISITED = 64


def balanced(weights: Sequence[Floats], start: int) -> Cuts:
    """Boundaries that make the heaviest stage as light as possible; exact.

    `weights[i]` are the atoms' weights when they stand in stage `i` (memory weighs more in front). The
    boundaries count from `start`, and no stage is empty. There must be at least as many atoms as stages.
    """
    depth, atoms = len(weights), len(weights[0])
    sums = [np.concatenate([[0.0], np.cumsum(weight)]) for weight in weights]
    best = sums[0].copy()  # of atoms [0, j) in the first stages
    chosen = []
    for stage in range(1, depth):
        above = np.maximum(best[:, None], sums[stage][None, :] - sums[stage][:, None])
        places = np.arange(atoms + 1)
        empty = (places[:, None] >= places[None, :]) | (places[:, None] < stage)
        above[empty] = np.inf
        chosen.append(above.argmin(axis=0))
        best = above.min(axis=0)
    cuts = [atoms]
    for before in reversed(chosen):
        cuts.append(int(before[cuts[-1]]))
    return tuple(start + cut for cut in (0, *reversed(cuts)))


def between(
    low: Cuts, high: Cuts, evaluate: Callable[[Cuts], tuple[float, Sequence[float]] | None]
) -> tuple[Cuts, float] | None:
    """(best partition, cost) on a walk from `low` and `high` towards each other; None when nothing fits.

    `evaluate` gives (cost, seconds of each stage), None where a stage does not fit. From each partition the
    slowest stage gives away its first or last atom, as long as every boundary stays between the two ends and
    the slowest stage becomes faster. Both ends are evaluated, so the result is no worse than either.
    """
    best: tuple[Cuts, float] | None = None
    queue, seen = deque([low, high]), {low, high}
    while queue and len(seen) <= _MOST_VISITED:
        cuts = queue.popleft()
        found = evaluate(cuts)
        if found is None:
            continue
        cost, seconds = found
        if best is None or cost < best[1]:
            best = (cuts, cost)
        slowest = max(range(len(seconds)), key=lambda stage: seconds[stage])
        for boundary, move in ((slowest, 1), (slowest + 1, -1)):
            moved = (*cuts[:boundary], cuts[boundary] + move, *cuts[boundary + 1 :])
            inside = 0 < boundary < len(cuts) - 1 and (
                min(low[boundary], high[boundary]) <= moved[boundary] <= max(low[boundary], high[boundary])
            )
            if not inside or moved in seen or any(a >= b for a, b in pairwise(moved)):
                continue
            after = evaluate(moved)
            if after is not None and max(after[1]) < max(seconds):
                seen.add(moved)
                queue.append(moved)
    return best

"""Cuts of a slice into the stages of an inner pipeline."""

import numpy as np

from tangram_sim.training.stage.pricing import Pricer


def balanced_cuts(pricer: Pricer, start: int, stop: int, depth: int) -> tuple[int, ...]:
    """Boundaries that cut atoms [start, stop) into `depth` runs with the fastest possible slowest run.

    Uses the first layout's times. Boundaries include start and stop; fewer runs when there are fewer atoms.
    """
    depth = min(depth, stop - start)
    if depth == 1:
        return (start, stop)
    from tangram_sim.parallelizers.kernels import balanced

    weights = np.ascontiguousarray(pricer.atom_seconds[start:stop])
    return tuple((start + balanced(weights, depth)).tolist())

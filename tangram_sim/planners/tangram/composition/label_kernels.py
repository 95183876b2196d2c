"""Compiled look-ups in the table of labels that the exact composition leaves behind."""

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit

Ints = NDArray[np.int64]


@njit(cache=True)
def complete_labels(first: Ints, last: Ints) -> Ints:
    """Labels that place every atom, by state."""
    found = np.empty((last[0] - first[0]).sum(), np.int64)
    position = 0
    for used in range(first.shape[1]):
        for label in range(first[0, used], last[0, used]):
            found[position] = label
            position += 1
    return found

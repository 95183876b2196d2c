"""Compiled loops of the enumeration: dominated partial plans."""

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit(cache=True)
def undominated(pointers: Ints, floats: Floats, ints: Ints, most: Ints, ends: Ints) -> NDArray[np.bool_]:
    """Mask of options to keep: those not dominated by one of the same class and kind with no more nodes.

    Stages behind count only up to what fits behind the class (`most`). `ends`: copies of a tied weight whose
    gradients are reduced with the model's other end; fewer are better. Of equal options the first is kept.
    """
    kept = np.ones(len(floats), np.bool_)
    for group in range(len(pointers) - 1):
        for mine in range(pointers[group], pointers[group + 1]):
            behind = min(ints[mine, 3], most[group])
            for other in range(pointers[group], pointers[group + 1]):
                if other == mine or not kept[other] or ints[other, 0] != ints[mine, 0]:
                    continue
                if ints[other, 1] > ints[mine, 1] or ints[other, 2] > ints[mine, 2]:
                    continue
                if min(ints[other, 3], most[group]) < behind or ends[other] > ends[mine]:
                    continue
                if (
                    floats[other, 0] <= floats[mine, 0]
                    and floats[other, 1] <= floats[mine, 1]
                    and floats[other, 2] <= floats[mine, 2]
                    and floats[other, 3] <= floats[mine, 3]
                ):
                    kept[mine] = False
                    break
    return kept

"""Division of the columns of a layer's matrices over the ranks of a tensor-parallel group."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats, Number


@dataclass(frozen=True, slots=True, eq=False)
class Sharding:
    """One rank's share of a matrix: `degree` ranks divide it, `share` is this rank's size over an even share.

    Both are numbers, or arrays with one entry per layout. Shares of all ranks of a group have the mean 1: a
    rank that is half as fast as the others may take 0.5 of an even share.
    """

    degree: float | Floats | NDArray[np.int64]
    share: Number = 1.0

    def width(self, columns: Number) -> Floats:
        """This rank's part of `columns` (heads, neurons, vocabulary entries)."""
        return cast("Floats", columns / self.degree * self.share)

    def whole(self, columns: Number) -> Floats:
        """This rank's part of `columns`, at least one: key/value heads, which are replicated if too few."""
        held: Floats = np.maximum(self.width(columns), 1.0)
        return held

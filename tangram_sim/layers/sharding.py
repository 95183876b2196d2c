"""How the columns of a layer's matrices are cut over the ranks of a tensor-parallel group."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats, Number


@dataclass(frozen=True, slots=True, eq=False)
class Sharding:
    """One rank's cut: `degree` ranks share every matrix, `share` is what this one takes of an even cut.

    Both are numbers, or arrays with one entry per layout. Shares of all ranks of a group have the mean 1: a
    rank that is half as fast as the others may take 0.5 of an even cut.
    """

    degree: float | Floats | NDArray[np.int64]
    share: Number = 1.0

    def width(self, columns: Number) -> Floats:
        """Columns on this rank of so many in all (heads, neurons, entries of the vocabulary)."""
        return cast("Floats", columns / self.degree * self.share)

    def whole(self, columns: Number) -> Floats:
        """Columns on this rank of matrices of which a rank holds at least one: key/value heads."""
        held: Floats = np.maximum(self.width(columns), 1.0)
        return held

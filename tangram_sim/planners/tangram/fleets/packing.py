"""Small linear programs of packing type, by a warm-started simplex method.

The master program of a fleet has a row for every island and is solved some twenty times with only the worths
changed: every solution starts at the vertex of the previous one. That takes microseconds; loading a general
solver takes as long as planning a small fleet.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROUNDOFF = 1e-9  # of the largest worth: reduced worths below are none
_PATIENT = 50  # pivots by the largest reduced worth; after them by the first, which never goes in circles


@dataclass(frozen=True, slots=True)
class Packing:
    """Solution of a packing program: total worth, amount of every column, dual price of each row."""

    worth: float
    taken: NDArray[np.float64]
    prices: NDArray[np.float64]


class PackingProgram:
    """Linear program: maximise the worth of columns that use `used[row, column]` of each row, within `room`.

    `used` and `room` are not negative, so that taking nothing is feasible. Every column uses some row.
    """

    def __init__(self, used: NDArray[np.float64], room: NDArray[np.float64]) -> None:
        rows = len(room)
        self._room = room
        self._columns = np.concatenate([used, np.eye(rows)], axis=1)  # what is left of a row is one, too
        self._count = used.shape[1]
        self._basis = np.arange(self._count, self._count + rows)

    def best(self, worths: NDArray[np.float64]) -> Packing:
        """The optimal packing for these worths of the columns; starts from the previous solution."""
        worth = np.concatenate([worths, np.zeros(len(self._room))])
        least = _ROUNDOFF * max(float(np.abs(worths).max(initial=0.0)), 1e-300)
        pivots = 0
        while True:
            inverse = np.linalg.inv(self._columns[:, self._basis])
            held = np.maximum(inverse @ self._room, 0.0)
            prices = worth[self._basis] @ inverse
            reduced = worth - prices @ self._columns
            reduced[self._basis] = 0.0
            better = np.flatnonzero(reduced > least)
            if not len(better):
                break
            entering = better[np.argmax(reduced[better])] if pivots < _PATIENT else better[0]
            self._basis[self._leaving(inverse @ self._columns[:, entering], held)] = entering
            pivots += 1
        taken = np.zeros(len(worth))
        taken[self._basis] = held
        taken = taken[: self._count]
        return Packing(float(worths @ taken), taken, np.maximum(prices, 0.0))

    def _leaving(self, slope: NDArray[np.float64], held: NDArray[np.float64]) -> int:
        """Position in the basis that reaches zero first; ties go to the lowest column number."""
        shrinks = np.flatnonzero(slope > _ROUNDOFF * np.abs(slope).max())
        ratios = held[shrinks] / slope[shrinks]
        first = shrinks[ratios <= ratios.min() * (1 + _ROUNDOFF)]
        return int(first[np.argmin(self._basis[first])])

"""The inverse of `in_flight`: the most stages behind a stage, given the activation sets that it can hold."""

from bisect import bisect_right
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tangram_sim.training.plan import UNLIMITED
from tangram_sim.training.schedules.named import holds_whole_depth, in_flight

Counts = npt.NDArray[np.int64]


class HeldSets:
    """Peak activation sets of a stage with one chunk, by the number of stages behind it.

    The number never falls with more stages behind, so the most stages behind that fit are looked up in a
    table, which grows on demand.
    """

    def __init__(self, schedule: str, microbatches: int) -> None:
        self.schedule, self.microbatches = schedule, microbatches
        self.everywhere = in_flight(schedule, UNLIMITED - 1, UNLIMITED, 1, microbatches)
        self._sets = [in_flight(schedule, 0, 1, 1, microbatches)]

    def most_behind(self, limit: int, beside: int) -> int:
        """The most stages behind, apart from `beside` others, with which `limit` activation sets suffice.

        UNLIMITED: any number; -1: not even with the `beside` others alone.
        """
        if limit >= self.everywhere:
            return UNLIMITED
        self._reach(limit)
        return max(bisect_right(self._sets, limit) - 1 - beside, -1)

    def most_behind_each(self, limits: Counts, beside: int) -> Counts:
        """`most_behind` for an array of limits."""
        bounded = limits < self.everywhere
        self._reach(int(limits[bounded].max(initial=0)))
        behind = np.searchsorted(self._sets, limits, side="right") - 1 - beside
        return np.where(bounded, np.maximum(behind, -1), UNLIMITED)

    def _reach(self, limit: int) -> None:
        while self._sets[-1] <= limit:
            behind = len(self._sets)
            self._sets.append(in_flight(self.schedule, behind, behind + 1, 1, self.microbatches))


@lru_cache(maxsize=256)
def holding(schedule: str, microbatches: int) -> HeldSets:
    """The (cached) peak activation sets of stages under a schedule with `microbatches` microbatches."""
    return HeldSets(schedule, microbatches)


def counted_beside(schedule: str, depth: int) -> tuple[int, ...]:
    """For each of `depth` inner stages, how many of the other inner stages count as behind it."""
    last, whole = depth - 1, holds_whole_depth(schedule)
    return tuple(last if whole else last - place for place in range(depth))

"""Schedules with two chunks per stage in a V: stage s holds positions s and 2 S - 1 - s.

The last stage computes the middle of the model, the first stage both ends: a microbatch goes down the
pipeline and comes back up, and every stage holds the same number of activations.
"""

from abc import abstractmethod
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import IntArray
from tangram_sim.training.schedules.base import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Schedule,
    ScheduleOrder,
    join_stages,
    positive_shape,
)

OLDEST = (-1, -1)  # in a list of passes: the weight gradient that waits longest, of either chunk


class PassQueue:
    """The passes of one stage in the order in which they were added, each the next microbatch of a chunk."""

    def __init__(self, microbatches: int) -> None:
        self.microbatches = microbatches
        self.listed: list[tuple[int, int, int]] = []  # (kind, microbatch, chunk)
        self._next = [[0, 0] for _ in (FORWARD, BACKWARD, WEIGHT)]

    def left(self, kind: int, chunk: int) -> bool:
        """Whether the chunk has a pass of this kind left; a weight gradient only after its backward."""
        done = self._next[kind][chunk]
        return done < (self._next[BACKWARD][chunk] if kind == WEIGHT else self.microbatches)

    def add(self, kind: int, chunk: int) -> None:
        """Add the next pass of the chunk, if there is one."""
        if self.left(kind, chunk):
            self.listed.append((kind, self._next[kind][chunk], chunk))
            self._next[kind][chunk] += 1

    def oldest_weight(self) -> None:
        """Add the pending weight gradient with the earliest backward, if there is one."""
        for kind, microbatch, chunk in self.listed:
            if kind == BACKWARD and microbatch == self._next[WEIGHT][chunk]:
                self.add(WEIGHT, chunk)
                return

    def finish(self) -> None:
        """Add the remaining weight gradients, chunks alternating; the schedule adds all other passes."""
        while self.left(WEIGHT, 0) or self.left(WEIGHT, 1):
            for chunk in (1, 0):
                self.add(WEIGHT, chunk)


class VShape(Schedule):
    """Two chunks per stage in a V, the backward split into input and weight gradients."""

    splits_backward = True
    chunks = (2, 2)

    def place(self, stage: int, chunk: int, stages: int) -> int:
        """Position: down the stages with the first chunk, up again with the second."""
        return stage if chunk == 0 else 2 * stages - 1 - stage

    def order(self, stages: int, microbatches: int, chunks: int = 2) -> ScheduleOrder:
        """The order of passes. Raises `BadInputError` unless there are two chunks."""
        positive_shape(self.name, stages, microbatches, chunks)
        if chunks != 2:
            raise BadInputError(f"schedule {self.name!r} runs two chunks per stage, got {chunks}; give 2.")
        rows = [self._rows(stage, stages, microbatches) for stage in range(stages)]
        return join_stages(stages, microbatches, 2, True, rows, self.places(stages, 2).place)

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:  # noqa: ARG002 - interface
        """Peak activation sets of one chunk, counted over the stage's order."""
        kind = self._rows(depth - 1 - behind, depth, microbatches)[0]
        return int(np.cumsum((kind == FORWARD).astype(np.int64) - (kind == WEIGHT)).max(initial=0))

    def _rows(self, stage: int, stages: int, microbatches: int) -> IntArray:
        return _listed(type(self), stage, stages, microbatches)

    @abstractmethod
    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[tuple[int, int]]:
        """(kind, chunk) of each pass in order, or OLDEST for the oldest pending weight gradient."""


@lru_cache(maxsize=512)
def _listed(schedule: type[VShape], stage: int, stages: int, microbatches: int) -> IntArray:
    """The passes of one stage, [3, passes]; weight gradients that `passes` leaves out come at the end."""
    found = PassQueue(microbatches)
    for item in schedule().passes(stage, stages, microbatches):
        if item == OLDEST:
            found.oldest_weight()
        else:
            found.add(*item)
    found.finish()
    return np.array(found.listed, np.int32).T

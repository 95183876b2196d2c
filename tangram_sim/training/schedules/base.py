"""Types of a pipeline schedule: the order of passes on each stage, and the interface of schedules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import IntArray, column

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
SEND_FORWARD, SEND_BACKWARD = 3, 4  # what passes hand to neighbours; not part of an order
PASS_NAMES = ("F", "B", "W")


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one microbatch through one chunk: "F" forward, "B" backward, "W" weight gradient."""

    kind: str
    microbatch: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Positions of chunks in the pipeline of all chunks, from the embedding on: `place` [stages, chunks]."""

    place: IntArray

    @property
    def stage_of(self) -> IntArray:
        """The stage of each position, [stages * chunks]."""
        stages, chunks = self.place.shape
        found = np.empty(stages * chunks, np.int32)
        found[self.place.ravel()] = np.repeat(np.arange(stages, dtype=np.int32), chunks)
        return column(found, np.int32)

    @property
    def wraps(self) -> bool:
        """Whether activations are sent from the last stage directly to the first."""
        stages, chunks = self.place.shape
        after = self.place[-1] + 1
        return stages > 1 and chunks > 1 and bool(np.isin(after[:-1], self.place[0, 1:]).any())

    @property
    def ends_together(self) -> bool:
        """Whether one stage holds both embedding and head."""
        return bool(self.stage_of[0] == self.stage_of[-1])


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleOrder:
    """The passes of every stage in program order, as arrays: stage s runs rows stage_ptr[s]:stage_ptr[s + 1].

    `kind` is FORWARD, BACKWARD or WEIGHT. With `splits_backward`, B is the gradient of the input only and W a
    separate pass after it; otherwise B is both and there is no W. `place` [stages, chunks] is the position of
    each chunk in the pipeline of all chunks (None: in rounds): layers run through positions 0, 1, 2, ...
    """

    stages: int
    microbatches: int
    chunks: int
    splits_backward: bool
    stage_ptr: IntArray
    kind: IntArray
    microbatch: IntArray
    chunk: IntArray
    place: IntArray | None = None

    @property
    def places(self) -> "Places":
        """Places of all chunks in the pipeline, from the embedding on."""
        return Places(rounds(self.stages, self.chunks) if self.place is None else self.place)

    def stage(self, stage: int) -> tuple[Pass, ...]:
        """The passes of one stage, for display."""
        rows = slice(int(self.stage_ptr[stage]), int(self.stage_ptr[stage + 1]))
        columns = (self.kind[rows].tolist(), self.microbatch[rows].tolist(), self.chunk[rows].tolist())
        return tuple(Pass(PASS_NAMES[kind], m, c) for kind, m, c in zip(*columns, strict=True))

    def peak_in_flight(self, stage: int) -> int:
        """Peak number of activation sets that a stage holds, in microbatches of one chunk, over its order.

        A set is allocated by F and released by B, or by W where the backward is split: the inputs of the
        layers, nearly all of the activations, are needed for the weight gradient.
        """
        kind = self.kind[self.stage_ptr[stage] : self.stage_ptr[stage + 1]]
        release = WEIGHT if self.splits_backward else BACKWARD
        return int(np.cumsum((kind == FORWARD).astype(np.int64) - (kind == release)).max(initial=0))


class Schedule(ABC):
    """A pipeline schedule. Implementations are stateless; `check_order` checks their orders."""

    name: str
    splits_backward: bool = False
    chunks: tuple[int, int] = (1, 1)  # the least and the most chunks of a stage
    whole_rounds: bool = False  # microbatches must be a multiple of the stages

    def place(self, stage: int, chunk: int, stages: int) -> int:
        """Position of a chunk in the pipeline of all chunks, from the embedding on; by default in rounds."""
        return chunk * stages + stage

    def places(self, stages: int, chunks: int) -> Places:
        """Positions of all chunks."""
        found = [[self.place(stage, chunk, stages) for chunk in range(chunks)] for stage in range(stages)]
        return Places(column(np.array(found, np.int32), np.int32))

    @abstractmethod
    def order(self, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        """The order of passes. Raises a `TangramError` for a shape this schedule cannot run."""

    @abstractmethod
    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:
        """Peak number of activation sets held by the stage with `behind` stages behind it.

        Counted as `ScheduleOrder.peak_in_flight` counts.
        """


def positive_shape(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    """Raise BadInputError for counts below one."""
    for name, count in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if count < 1:
            raise BadInputError(f"schedule {schedule!r}: {name} is {count}; give 1 or more.")


def one_chunk_only(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    """Raise BadInputError unless there is one chunk per stage, for schedules that support no more."""
    positive_shape(schedule, stages, microbatches, chunks)
    if chunks != 1:
        raise BadInputError(
            f"schedule {schedule!r} runs one chunk per stage, got {chunks}; use 1 or schedule 'interleaved'."
        )


def rounds(stages: int, chunks: int) -> IntArray:
    """Positions of chunks placed in rounds over the stages, [stages, chunks]."""
    found = np.arange(stages * chunks, dtype=np.int32).reshape(chunks, stages).T
    return column(found, np.int32)


def join_stages(
    stages: int,
    microbatches: int,
    chunks: int,
    splits_backward: bool,
    rows: Sequence[npt.NDArray[np.int32]],
    place: IntArray | None = None,
) -> ScheduleOrder:
    """The order from one array [3, passes] of (kind, microbatch, chunk) per stage."""
    stage_ptr = np.zeros(stages + 1, np.int32)
    stage_ptr[1:] = np.cumsum([row.shape[1] for row in rows])
    table = np.concatenate(rows, axis=1)
    kind, microbatch, chunk = (column(table[i], np.int32) for i in range(3))
    ptr = column(stage_ptr, np.int32)
    return ScheduleOrder(
        stages,
        microbatches,
        chunks,
        splits_backward,
        stage_ptr=ptr,
        kind=kind,
        microbatch=microbatch,
        chunk=chunk,
        place=place,
    )


def warmup_then_alternate(forwards: IntArray, backwards: IntArray, warmup: int) -> IntArray:
    """Interleave two equally long pass lists [3, n]: `warmup` F, then F and B in turn, then the rest of B.

    The steady part runs a forward first, so warmup + 1 sets are held at its peak.
    """
    n = forwards.shape[1]
    warmup = min(warmup, n)
    merged = np.empty((3, 2 * n), np.int32)
    steady = n - warmup
    merged[:, :warmup] = forwards[:, :warmup]
    merged[:, warmup : warmup + 2 * steady : 2] = forwards[:, warmup:]
    merged[:, warmup + 1 : warmup + 2 * steady : 2] = backwards[:, :steady]
    merged[:, warmup + 2 * steady :] = backwards[:, steady:]
    return merged


def passes(kind: int, microbatch: npt.ArrayLike, chunk: npt.ArrayLike = 0) -> IntArray:
    """A pass list [3, n] of one kind."""
    microbatches = np.asarray(microbatch, np.int32)
    rows = np.empty((3, len(microbatches)), np.int32)
    rows[0], rows[1], rows[2] = kind, microbatches, chunk
    return rows


def check_order(order: ScheduleOrder) -> None:
    """Check an order of any schedule: each stage has each pass once, F before B before W.

    Raises `BadInputError` naming the stage. Cyclic waits between stages are found when the order is turned
    into a step.
    """
    kinds = 3 if order.splits_backward else 2
    expected = kinds * order.chunks * order.microbatches
    for stage in range(order.stages):
        rows = slice(int(order.stage_ptr[stage]), int(order.stage_ptr[stage + 1]))
        kind, microbatch, chunk = order.kind[rows], order.microbatch[rows], order.chunk[rows]
        inside = (kind >= 0) & (kind < kinds) & (microbatch >= 0) & (microbatch < order.microbatches)
        inside &= (chunk >= 0) & (chunk < order.chunks)
        if len(kind) != expected or not inside.all():
            raise BadInputError(
                f"schedule order: stage {stage} lists {len(kind)} passes, {int(inside.sum())} in range; "
                f"list each of its {expected} passes ({'/'.join(PASS_NAMES[:kinds])} x microbatch x chunk) "
                "once."
            )
        place = np.full((kinds, order.microbatches * order.chunks), -1, np.int64)
        place[kind, microbatch * order.chunks + chunk] = np.arange(expected)
        if (place < 0).any():
            raise BadInputError(
                f"schedule order: stage {stage} repeats a pass and misses another; list each once."
            )
        if (place != np.sort(place, axis=0)).any():
            raise BadInputError(
                f"schedule order: stage {stage} runs a backward before what it needs; order F, B, W."
            )

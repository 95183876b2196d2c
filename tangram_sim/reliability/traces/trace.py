"""A step trace: when every operation of every rank started and how long it took, over some measured steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray, IntArray
from tangram_sim.reliability.traces.kinds import CODES, KINDS

# Profilers round starts and ends apart: passes of one stream overlap by microseconds in sound traces.
OVERLAP_S = 1e-3
_LONG = np.int64


@dataclass(frozen=True, slots=True)
class Omission:
    """Steps that were left out, and why."""

    reason: str
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StepTrace:
    """Measured operations of `steps`: the same `n` operations in each, in the order of the first step's dp 0.

    Columns have length n; times are [steps, n], seconds from the start of their step.
    """

    steps: tuple[int, ...]
    dp: int
    stages: int
    rank_dp: IntArray
    rank_stage: IntArray
    kind: IntArray  # into `KINDS`
    seq: IntArray  # microbatch, 0 for kinds that run once a step
    start_s: FloatArray
    duration_s: FloatArray
    omissions: tuple[Omission, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def end_s(self) -> FloatArray:
        """End of every operation, seconds [steps, n]."""
        return np.asarray(self.start_s + self.duration_s, dtype=np.float64)

    @property
    def measured_s(self) -> FloatArray:
        """Measured seconds of every step, [steps]: up to the end of its last operation."""
        return np.asarray(self.end_s.max(axis=1), dtype=np.float64)

    @property
    def microbatches(self) -> int:
        """Number of microbatches in a step."""
        return int(self.seq[self.kind == CODES["F"]].max()) + 1

    def of_kind(self, code: str) -> npt.NDArray[np.bool_]:
        """Mask of the operations of this kind, [n]."""
        return np.asarray(self.kind == CODES[code], dtype=np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class TraceRows:
    """Rows of a trace as they were read: one operation each, in any order; equal lengths, times in
    seconds.
    """

    step: npt.NDArray[np.int64]
    dp: npt.NDArray[np.int64]
    stage: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]
    start_s: FloatArray
    duration_s: FloatArray

    def where(self, keep: npt.NDArray[np.bool_]) -> "TraceRows":
        """The rows selected by a mask [rows]."""
        return TraceRows(
            step=self.step[keep],
            dp=self.dp[keep],
            stage=self.stage[keep],
            kind=self.kind[keep],
            seq=self.seq[keep],
            start_s=self.start_s[keep],
            duration_s=self.duration_s[keep],
        )


def assemble(rows: TraceRows, name: str) -> StepTrace:
    """The trace of these rows; steps that cannot be replayed are omitted and recorded in its omissions.

    Raises `BadInputError`, naming `name`, where a rank is missing throughout, where no step is complete, or
    where the operations do not form a pipeline's step.
    """
    if not len(rows.step):
        raise BadInputError(
            f"{name}: no operation in it; give one row per operation (step, dp, stage, op, ...)."
        )
    dp, stages = _ranks(rows, name)
    omissions: list[Omission] = []
    unreadable = ~np.isfinite(rows.start_s + rows.duration_s)
    rows = _drop(rows, unreadable, "starts or durations are no finite numbers", omissions)
    backward = (rows.start_s < 0) | (rows.duration_s < 0)
    rows = _drop(rows, backward, "a clock runs backward: starts or durations below zero", omissions)
    idle = ~np.isin(rows.step, rows.step[rows.duration_s > 0])
    rows = _drop(rows, idle, "no operation takes any time", omissions)
    if not len(rows.step):
        raise BadInputError(f"{name}: no step can be replayed: {_told(omissions)}.")
    key = ((rows.dp * stages + rows.stage) * len(KINDS) + rows.kind) * (
        rows.seq.max(initial=0) + 1
    ) + rows.seq
    order = np.lexsort((key, rows.step))
    steps, first = np.unique(rows.step[order], return_index=True)
    sets = np.split(key[order], first[1:])
    usual = _usual(sets)
    doubled = [bool((np.diff(keys) == 0).any()) for keys in sets]
    whole = [len(keys) == len(usual) and bool((keys == usual).all()) for keys in sets]
    _note(
        steps,
        [w or d for w, d in zip(whole, doubled, strict=True)],
        "operations are missing or surplus",
        omissions,
    )
    _note(steps, [not d for d in doubled], "an operation is there twice", omissions)
    kept = [index for index, fine in enumerate(whole) if fine and not doubled[index]]
    if not kept:
        raise BadInputError(f"{name}: no step can be replayed: {_told(omissions)}.")
    at = np.stack([np.split(order, first[1:])[index] for index in kept])
    trace = _ordered(rows, at, tuple(int(steps[index]) for index in kept), dp, stages, tuple(omissions))
    _check_program(trace, name)
    return _without_overlaps(trace, name)


def _ranks(rows: TraceRows, name: str) -> tuple[int, int]:
    dp, stages = int(rows.dp.max()) + 1, int(rows.stage.max()) + 1
    if min(rows.dp.min(), rows.stage.min(), rows.seq.min()) < 0:
        raise BadInputError(
            f"{name}: dp, stage and seq count from 0; the least are {rows.dp.min()}, "
            f"{rows.stage.min()} and {rows.seq.min()}."
        )
    there = np.zeros((dp, stages), dtype=np.bool_)
    there[rows.dp, rows.stage] = True
    missing = [f"(dp {d}, stage {s})" for d, s in np.argwhere(~there).tolist()]
    if missing:
        raise BadInputError(
            f"{name}: no operation of {len(missing)} of {dp * stages} ranks: {', '.join(missing[:4])}"
            f"{' ...' if len(missing) > 4 else ''}. A replay needs every rank of the {dp} x {stages} "
            f"grid; merge "
            "their files into one trace."
        )
    return dp, stages


def _drop(rows: TraceRows, bad: npt.NDArray[np.bool_], reason: str, omissions: list[Omission]) -> TraceRows:
    """The rows of all steps without a `bad` row; the other steps are added to `omissions`."""
    steps = np.unique(rows.step[bad])
    if not len(steps):
        return rows
    omissions.append(Omission(reason, tuple(steps.tolist())))
    return rows.where(~np.isin(rows.step, steps))


def _usual(sets: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """The most frequent set of operations over steps; of equally frequent ones the largest."""
    if not sets or not len(sets[0]):
        return np.zeros(0, _LONG)
    counted: dict[bytes, int] = {}
    for keys in sets:
        counted[keys.tobytes()] = counted.get(keys.tobytes(), 0) + 1
    return np.frombuffer(max(counted, key=lambda keys: (counted[keys], len(keys))), dtype=_LONG)


def _note(steps: npt.NDArray[np.int64], fine: Sequence[bool], reason: str, omissions: list[Omission]) -> None:
    wrong = tuple(int(step) for step, good in zip(steps, fine, strict=True) if not good)
    if wrong:
        omissions.append(Omission(reason, wrong))


def _told(omissions: Sequence[Omission]) -> str:
    return "; ".join(
        f"{o.reason} in {len(o.steps)} step{'s' if len(o.steps) > 1 else ''} (step {o.steps[0]})"
        for o in omissions
    )


def _ordered(
    rows: TraceRows,
    at: npt.NDArray[np.int64],
    steps: tuple[int, ...],
    dp: int,
    stages: int,
    omissions: tuple[Omission, ...],
) -> StepTrace:
    """The trace in the order in which dp 0 of the first step ran; `at` [steps, n]: row numbers by key."""
    first = at[0]
    started: dict[tuple[int, int, int], float] = {
        (int(rows.stage[row]), int(rows.kind[row]), int(rows.seq[row])): float(rows.start_s[row])
        for row in first.tolist()
        if rows.dp[row] == 0
    }
    unknown = np.inf  # an operation that only other replicas run comes last; the replay names it
    when = np.array(
        [
            started.get((int(rows.stage[r]), int(rows.kind[r]), int(rows.seq[r])), unknown)
            for r in first.tolist()
        ]
    )
    order = np.lexsort((rows.kind[first], when, rows.stage[first], rows.dp[first]))
    columns = first[order]
    return StepTrace(
        steps=steps,
        dp=dp,
        stages=stages,
        rank_dp=rows.dp[columns].astype(np.int32),
        rank_stage=rows.stage[columns].astype(np.int32),
        kind=rows.kind[columns].astype(np.int32),
        seq=rows.seq[columns].astype(np.int32),
        start_s=rows.start_s[at[:, order]],
        duration_s=rows.duration_s[at[:, order]],
        omissions=omissions,
    )


def _check_program(trace: StepTrace, name: str) -> None:
    """Raise `BadInputError` unless replicas run one program with both passes of all microbatches."""
    for stage in range(trace.stages):
        programs = [
            [(int(k), int(q)) for k, q in zip(trace.kind[here], trace.seq[here], strict=True)]
            for here in (
                (trace.rank_stage == stage) & (trace.rank_dp == replica) for replica in range(trace.dp)
            )
        ]
        for replica, program in enumerate(programs):
            if program != programs[0]:
                odd = sorted(set(program) ^ set(programs[0]))[0]
                raise BadInputError(
                    f"{name}: dp {replica} runs other operations on stage {stage} than dp 0, first "
                    f"{KINDS[odd[0]].code} {odd[1]}; all replicas must run the same program."
                )
        forwards = [q for k, q in programs[0] if k == CODES["F"]]
        backwards = [q for k, q in programs[0] if k == CODES["B"]]
        if (
            not forwards
            or sorted(forwards) != sorted(backwards)
            or sorted(forwards) != list(range(len(forwards)))
        ):
            raise BadInputError(
                f"{name}: stage {stage} runs forward passes {sorted(forwards)[:6]} and backward passes "
                f"{sorted(backwards)[:6]}; every microbatch from 0 on must run both once."
            )


def _without_overlaps(trace: StepTrace, name: str) -> StepTrace:
    """The trace without steps in which two passes of one rank overlap, which one stream cannot have run."""
    passes = np.flatnonzero(trace.of_kind("F") | trace.of_kind("B"))
    rank = trace.rank_dp[passes].astype(_LONG) * trace.stages + trace.rank_stage[passes]
    bad = np.zeros(len(trace.steps), dtype=np.bool_)
    for index in range(len(trace.steps)):
        start, end = trace.start_s[index, passes], trace.end_s[index, passes]
        order = np.lexsort((start, rank))
        same = rank[order][1:] == rank[order][:-1]
        bad[index] = bool((same & (start[order][1:] < end[order][:-1] - OVERLAP_S)).any())
    if not bad.any():
        return trace
    omission = Omission(
        "passes of one rank overlap", tuple(s for s, b in zip(trace.steps, bad, strict=True) if b)
    )
    if bad.all():
        raise BadInputError(
            f"{name}: no step can be replayed: {_told((*trace.omissions, omission))}. A rank computes one "
            f"pass at a "
            "time; give the trace of its compute stream only."
        )
    return replace(
        trace,
        steps=tuple(s for s, b in zip(trace.steps, bad, strict=True) if not b),
        start_s=trace.start_s[~bad],
        duration_s=trace.duration_s[~bad],
        omissions=(*trace.omissions, omission),
    )

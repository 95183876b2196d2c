"""The step template: one pipeline step as an op graph whose durations are gathered from per-stage times."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray, IntArray, OpGraph, column, op_graph
from tangram_sim.sim.fast import makespans
from tangram_sim.training.schedules.base import (
    BACKWARD,
    FORWARD,
    SEND_BACKWARD,
    WEIGHT,
    Places,
    ScheduleOrder,
    check_order,
)
from tangram_sim.training.schedules.named import schedule_named

SYNC, TIED, OPTIMIZER = 5, 6, 7
KINDS = ("F", "B", "W", "SEND_F", "SEND_B", "SYNC", "TIED", "OPTIMIZER")
OP_WORDS = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradients",
    "SEND_F": "activations to the next stage",
    "SEND_B": "gradients to the stage before",
    "SYNC": "gradient synchronisation",
    "TIED": "tied embeddings",
    "OPTIMIZER": "optimizer",
}


@dataclass(frozen=True, slots=True, eq=False)
class StageTimes:
    """Seconds of all parts of a step, by stage (S) and chunk (V); arrays may be one-dimensional where V = 1.

    Boundary b lies between stage b and stage (b + 1) % S. Its last entry is the wrap-around of the
    interleaved schedule; other schedules ignore it. `send_forward_s` is for transfers to the next stage,
    `send_backward_s` to the previous: activations and gradients, except where chunks lie in a V.
    """

    forward_s: FloatArray  # [S, V]
    backward_input_s: FloatArray  # [S, V], recomputation included
    backward_weight_s: FloatArray  # [S, V]; added to B where the schedule does not split the backward
    send_forward_s: FloatArray  # [S], over boundary b from stage b to b + 1
    send_backward_s: FloatArray  # [S], over boundary b from stage b + 1 to b
    sync_s: FloatArray  # [S], the tail of gradient synchronisation that no backward hides
    optimizer_s: FloatArray  # [S]
    last_backward_extra_s: FloatArray | None = None  # [S], how much gradient sync slows the last backward
    tied_s: float = 0.0  # all-reduce of tied embeddings between first and last stage

    def blocking(self, places: Places) -> "StageTimes":
        """These times for stages that compute nothing while they send: a pass ends when that has arrived.

        `places` says where the chunks of the stages stand in the pipeline of all chunks.
        """
        stages, chunks = places.place.shape
        forward, backward = (
            times.reshape(stages, chunks).copy() for times in (self.forward_s, self.backward_input_s)
        )
        order = np.argsort(places.place, axis=None)
        for (one, chunk), (after, chunk_after) in pairwise(divmod(int(item), chunks) for item in order):
            if one == after:
                continue
            # Of two stages each is next to the other: within a chunk the way leads on or back, else around.
            onward = after == (one + 1) % stages and (stages > 2 or after > one or chunk != chunk_after)
            ahead, behind = self.send_forward_s, self.send_backward_s
            there, back = (ahead[one], behind[one]) if onward else (behind[after], ahead[after])
            forward[one, chunk] += there
            backward[after, chunk_after] += back
        none = np.zeros_like(self.send_forward_s)
        return replace(
            self, forward_s=forward, backward_input_s=backward, send_forward_s=none, send_backward_s=none
        )

    @classmethod
    def equal(
        cls,
        stages: int,
        chunks: int = 1,
        *,
        forward_s: float,
        backward_input_s: float,
        backward_weight_s: float,
        send_s: float = 0.0,
        sync_s: float = 0.0,
        optimizer_s: float = 0.0,
    ) -> "StageTimes":
        """Times of `stages` equal stages; `forward_s` and the backward are the seconds of one chunk."""
        return cls(
            forward_s=np.full((stages, chunks), forward_s),
            backward_input_s=np.full((stages, chunks), backward_input_s),
            backward_weight_s=np.full((stages, chunks), backward_weight_s),
            send_forward_s=np.full(stages, send_s),
            send_backward_s=np.full(stages, send_s),
            sync_s=np.full(stages, sync_s),
            optimizer_s=np.full(stages, optimizer_s),
        )


@dataclass(frozen=True, slots=True)
class StepLabel:
    """Names step ops: "F3.1" is the forward of microbatch 3 through chunk 1."""

    kind: IntArray
    microbatch: IntArray
    chunk: IntArray
    chunks: int

    def __call__(self, index: int) -> str:
        """The name of op `index`."""
        name = KINDS[self.kind[index]]
        if self.kind[index] >= SYNC:
            return name
        return f"{name}{self.microbatch[index]}" + (f".{self.chunk[index]}" if self.chunks > 1 else "")


@dataclass(frozen=True, slots=True, eq=False)
class StepTemplate:
    """The structure of a step; everything but durations. Shared between plans, hence read-only.

    Resources: per stage "compute", "send forward", "send backward" and "sync", and one for tied embeddings.
    Devices are the stages. `slot` says where in the table of `slots` times an op's duration comes from:
    two ops of one slot last equally long.
    """

    graph: OpGraph  # durations are zero
    order: ScheduleOrder
    tied: bool
    stage: IntArray  # [n]; of a send, the sender's
    microbatch: IntArray  # [n], -1 for ops of the whole step
    chunk: IntArray  # [n], -1 for ops of the whole step
    slot: IntArray  # [n]
    slots: int

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.order.stages

    def durations(self, times: StageTimes) -> FloatArray:
        """Seconds of every op, [n]: a batch of plans is a stack of these. `BadInputError` for a wrong shape.

        Additional time of the last microbatch is added to the passes that compute weight gradients: W where
        the schedule has them, else B; divided evenly between several chunks.
        """
        return self.table(times)[self.slot]

    def table(self, times: StageTimes) -> FloatArray:
        """The times by slot, [slots]."""
        stages, chunks = self.order.stages, self.order.chunks
        places = stages * chunks
        try:
            forward, given, weight = (
                np.asarray(values, np.float64).reshape(places)
                for values in (times.forward_s, times.backward_input_s, times.backward_weight_s)
            )
            backward = given if self.order.splits_backward else given + weight
            last_backward, last_weight = backward, weight
            if times.last_backward_extra_s is not None:
                extra = np.repeat(
                    np.asarray(times.last_backward_extra_s, np.float64).reshape(stages) / chunks, chunks
                )
                if self.order.splits_backward:
                    last_weight = weight + extra
                else:
                    last_backward = backward + extra
            rest = [
                np.asarray(values, np.float64).reshape(stages)
                for values in (times.send_forward_s, times.send_backward_s, times.sync_s, times.optimizer_s)
            ]
        except ValueError as error:
            raise BadInputError(
                f"stage times do not fit a step of {stages} stages and {chunks} chunks ({error}); give "
                f"passes as [{stages}, {chunks}] and sends, sync, optimizer and extra as [{stages}]."
            ) from error
        return np.concatenate((forward, backward, last_backward, weight, last_weight, *rest, [times.tied_s]))

    def with_durations(self, times: StageTimes) -> OpGraph:
        """The step as an op graph that an engine can simulate."""
        return self.graph.with_durations(self.durations(times))

    def with_memory(self, static_bytes: npt.ArrayLike, activation_bytes: npt.ArrayLike) -> OpGraph:
        """The graph with memory: `static_bytes` [S] from the start, `activation_bytes` [S] or [S, V] per
        pass.

        Those of one microbatch through one chunk are taken when F starts and released when B ends, or W where
        the backward is split.
        """
        stages, chunks = self.order.stages, self.order.chunks
        static = np.asarray(static_bytes, np.float64)
        activation = np.asarray(activation_bytes, np.float64)
        if activation.shape == (stages,):
            activation = np.repeat(activation, chunks).reshape(stages, chunks)
        if static.shape != (stages,) or activation.shape != (stages, chunks):
            raise BadInputError(
                f"step memory: static {static.shape} and activations {activation.shape} do not fit {stages} "
                f"stages and {chunks} chunks; give static as [{stages}], activations as [{stages}] or "
                f"[{stages}, {chunks}]."
            )
        kind = self.graph.kind
        held = activation[self.stage, np.maximum(self.chunk, 0)]
        release = WEIGHT if self.order.splits_backward else BACKWARD
        return replace(
            self.graph,
            memory_initial_bytes=column(static, np.float64),
            memory_start_bytes=column(np.where(kind == FORWARD, held, 0.0), np.float64),
            memory_end_bytes=column(np.where(kind == release, -held, 0.0), np.float64),
        )


# Templates stay while all of them have so many ops at most, some 60 bytes each; the last used ones longest.
_KEPT_OPS = 1_500_000
templates: OrderedDict[tuple[object, ...], "StepTemplate"] = OrderedDict()


def step_template(
    schedule: str, stages: int, microbatches: int, chunks: int = 1, *, tied: bool = False
) -> StepTemplate:
    """The template of a step, cached; `tied` adds the all-reduce of embeddings on first and last stage.

    Raises a `TangramError` where the schedule is unknown or cannot run this shape.
    """
    key = schedule, stages, microbatches, chunks, tied
    found = templates.pop(key, None)
    if found is None:
        found = lower_order(schedule_named(schedule).order(stages, microbatches, chunks), tied=tied)
        kept = len(found.graph) + sum(len(template.graph) for template in templates.values())
        while templates and kept > _KEPT_OPS:
            kept -= len(templates.popitem(last=False)[1].graph)
    templates[key] = found  # at the end: the others go first
    return found


def lower_order(order: ScheduleOrder, *, tied: bool = False) -> StepTemplate:
    """The template of a step with any schedule's order: passes and sends, then sync and optimizer per stage.

    Raises `BadInputError` where the order violates the rules for schedules or stages wait for each other in a
    cycle.
    """
    check_order(order)
    stages, chunks = order.stages, order.chunks
    passes = len(order.kind)
    stage_of = order.places.stage_of
    sends = 2 * order.microbatches * int(np.count_nonzero(stage_of[1:] != stage_of[:-1]))
    tied = tied and not order.places.ends_together
    n = passes + sends + 2 * stages + tied
    rows = np.full((4, n), -1, np.int32)
    waits = np.full(n, -1, np.int32)
    _merge(order, rows, waits, passes + sends)

    first_tail = passes + sends
    compute = np.flatnonzero(rows[0, :first_tail] <= WEIGHT)
    last = np.full(stages, -1, np.int32)
    last[rows[1, compute]] = compute  # of repeated indices the last assignment holds
    sync = np.arange(first_tail, first_tail + stages, dtype=np.int32)
    rows[0, sync], rows[1, sync], waits[sync] = SYNC, np.arange(stages), last
    if tied:
        rows[0, first_tail + stages], rows[1, first_tail + stages] = TIED, 0
    optimizer = np.arange(n - stages, n, dtype=np.int32)
    rows[0, optimizer], rows[1, optimizer], waits[optimizer] = OPTIMIZER, np.arange(stages), sync

    pred_ptr, pred = _predecessors(waits, sync, optimizer, tied)
    kind, stage, microbatch, chunk = (column(row, np.int32) for row in rows)
    slot, slots = _slots(order, kind, stage, microbatch, chunk)
    graph = op_graph(
        kind=kind,
        kinds=KINDS,
        resource=_RESOURCE_OF_KIND[kind] * stages + np.where(kind == TIED, 0, stage),
        resources=_resource_names(stages),
        pred_ptr=pred_ptr,
        pred=pred,
        duration_s=np.zeros(n),
        device=np.where((kind <= WEIGHT) | (kind == OPTIMIZER), stage, -1),
        devices=tuple(f"stage {s}" for s in range(stages)),
        label=StepLabel(kind, microbatch, chunk, chunks),
    )
    return StepTemplate(graph, order, tied, stage, microbatch, chunk, slot=slot, slots=slots)


# Compute stream, forward link, backward link, sync stream, tied: blocks of `stages` resources each.
_RESOURCE_OF_KIND = np.array([0, 0, 0, 1, 2, 3, 4, 0], np.int32)


def _resource_names(stages: int) -> tuple[str, ...]:
    tracks = ("compute", "send forward", "send backward", "sync")
    return (
        *(f"stage {s}/{track}" for track in tracks for s in range(stages)),
        "first and last stage/tied embeddings",
    )


def _merge(order: ScheduleOrder, rows: IntArray, waits: IntArray, expected: int) -> None:
    from tangram_sim.training.schedules.kernels import merge_stages

    cursor = order.stage_ptr[:-1].astype(np.int32)
    arrived = np.full((2, order.stages * order.chunks, order.microbatches), -1, np.int32)
    given = (order.stage_ptr, order.kind, order.microbatch, order.chunk)
    # A plug-in's arrays may be of any integer type.
    ptr, kind, microbatch, chunk = (column(values, np.int32) for values in given)
    count = merge_stages(
        order.stages,
        order.chunks,
        place_of=column(order.places.place, np.int32),
        stage_of=order.places.stage_of,
        stage_ptr=ptr,
        order_kind=kind,
        order_microbatch=microbatch,
        order_chunk=chunk,
        cursor=cursor,
        arrived=arrived,
        rows=rows,
        waits=waits,
    )
    if count < expected:
        stuck = int(np.flatnonzero(cursor < order.stage_ptr[1:])[0])
        waiting = order.stage(stuck)[cursor[stuck] - order.stage_ptr[stuck]]
        raise BadInputError(
            f"schedule order: stages wait in a circle; stage {stuck} waits before {waiting} for "
            "a pass that comes after it elsewhere. Order the passes so that every wait ends."
        )


def _predecessors(
    waits: IntArray, sync: IntArray, optimizer: IntArray, tied: bool
) -> tuple[IntArray, IntArray]:
    """CSR predecessors: each op's one wait; tied embeddings follow both syncs, precede both optimizers."""
    owner = np.flatnonzero(waits >= 0)
    pred = waits[owner]
    if tied:
        embedding = sync[-1] + 1
        owner = np.concatenate((owner, [embedding, embedding, optimizer[0], optimizer[-1]]))
        pred = np.concatenate((pred, [sync[0], sync[-1], embedding, embedding]))
        order = np.argsort(owner, kind="stable")
        owner, pred = owner[order], pred[order]
    ptr = np.zeros(len(waits) + 1, np.int32)
    ptr[1:] = np.cumsum(np.bincount(owner, minlength=len(waits)))
    return ptr, pred.astype(np.int32)


def _slots(
    order: ScheduleOrder, kind: IntArray, stage: IntArray, microbatch: IntArray, chunk: IntArray
) -> tuple[IntArray, int]:
    """Each op's row in `StepTemplate.table`: five blocks by (stage, chunk), four by stage, tied."""
    stages, chunks = order.stages, order.chunks
    places = stages * chunks
    by_stage = 5 * places
    # In the order of KINDS; the last microbatch's B and W have blocks of their own, one further on.
    start = np.concatenate((np.array([0, 1, 3]) * places, by_stage + np.array([0, 1, 2, 4, 3]) * stages))
    within = np.where(kind <= WEIGHT, stage * chunks + chunk, stage)
    # What stage s sends to the one before crosses the boundary before it.
    within = np.where(kind == SEND_BACKWARD, (stage - 1) % stages, within)
    within = np.where(kind == TIED, 0, within)
    last = ((kind == BACKWARD) | (kind == WEIGHT)) & (microbatch == order.microbatches - 1)
    return column(start[kind] + within + last * places, np.int32), by_stage + 4 * stages + 1


def play_steps(template: StepTemplate, durations: FloatArray) -> FloatArray:
    """Simulated seconds [K] of K steps of one template; durations [K, n] are from `template.durations`."""
    return makespans(template.graph, durations)

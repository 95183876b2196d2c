"""Rules for every pipeline schedule, built in or from a plug-in: `check_schedule`, to call from a test."""

from collections.abc import Sequence

from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.training.plan import UNLIMITED
from tangram_sim.training.schedules.base import Schedule
from tangram_sim.training.schedules.step import lower_order

STAGES = (1, 2, 3, 5)
MICROBATCHES = (1, 2, 3, 4, 6, 10)


def check_schedule(
    schedule: Schedule, stages: Sequence[int] = STAGES, microbatches: Sequence[int] = MICROBATCHES
) -> None:
    """Test a schedule on small pipelines; raises `BadInputError` that names the violated rule.

    On every shape that its flags allow: each stage lists each pass once, F before B before W; stages do not
    wait for each other in a cycle; positions number all chunks; `in_flight` is the peak of the order; equal
    calls give equal orders. A shape that its flags forbid raises a `TangramError`.
    """
    if not getattr(schedule, "name", ""):
        raise BadInputError(f"{type(schedule).__name__} has no name: give it one, as users will type it")
    least, most = schedule.chunks
    if not 1 <= least <= most:
        raise BadInputError(f"schedule {schedule.name!r}: chunks {least} to {most}; give 1 <= least <= most")
    shapes = ((s, m, c) for s in stages for m in microbatches for c in {least, min(most, least + 1)})
    for depth, passes, chunks in shapes:
        what = f"schedule {schedule.name!r}, {depth} stages, {passes} microbatches, {chunks} chunks"
        if schedule.whole_rounds and passes % depth:
            _check_refusal(schedule, depth, passes, chunks, what)
        elif depth > 1 or least == 1:  # a single stage needs no chunks
            _check_shape(schedule, depth, passes, chunks, what)
    if most == 1:
        _check_refusal(schedule, 2, 2, 2, f"schedule {schedule.name!r}, 2 chunks")
        _check_growth(schedule, max(microbatches))


def _check_shape(schedule: Schedule, depth: int, passes: int, chunks: int, what: str) -> None:
    order = schedule.order(depth, passes, chunks)
    if (order.stages, order.microbatches, order.chunks) != (depth, passes, chunks):
        raise BadInputError(f"{what}: the order is of another shape; build it from what was asked")
    if order.splits_backward != schedule.splits_backward:
        raise BadInputError(f"{what}: the order's splits_backward is not the schedule's")
    place = schedule.places(depth, chunks).place
    if sorted(place.ravel().tolist()) != list(range(depth * chunks)):
        raise BadInputError(f"{what}: place() must number all chunks once each, from 0")
    if (order.places.place != place).any():
        raise BadInputError(f"{what}: the order's places are not place()'s; hand it self.places(...).place")
    lower_order(order)
    for stage in range(depth):
        said = schedule.in_flight(depth - 1 - stage, depth, chunks, passes)
        held = order.peak_in_flight(stage)
        if said != held:
            raise BadInputError(f"{what}: in_flight says {said} for stage {stage}, its order holds {held}")
    again = schedule.order(depth, passes, chunks)
    if any((getattr(order, name) != getattr(again, name)).any() for name in ("kind", "microbatch", "chunk")):
        raise BadInputError(f"{what}: asked twice, it gave two orders; let it depend on its arguments alone")


def _check_growth(schedule: Schedule, microbatches: int) -> None:
    held = [schedule.in_flight(behind, behind + 1, 1, microbatches) for behind in range(2 * microbatches)]
    held.append(schedule.in_flight(UNLIMITED - 1, UNLIMITED, 1, microbatches))
    if held != sorted(held):
        raise BadInputError(
            f"schedule {schedule.name!r}: in_flight falls as stages come behind ({held}); search relies on "
            "its growth, and asks for depths without end: answer by a formula"
        )


def _check_refusal(schedule: Schedule, depth: int, passes: int, chunks: int, what: str) -> None:
    try:
        schedule.order(depth, passes, chunks)
    except TangramError:
        return
    raise BadInputError(f"{what}: its flags forbid this, so order() must raise a TangramError")

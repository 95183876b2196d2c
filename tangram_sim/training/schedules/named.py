"""The schedules by name: the built-in ones, and those that installed packages register."""

from functools import lru_cache

from tangram_sim import registry
from tangram_sim.errors import TangramError, unknown_name
from tangram_sim.training.schedules.base import Schedule
from tangram_sim.training.schedules.dualpipe_v import DualPipeV
from tangram_sim.training.schedules.gpipe import GPipe
from tangram_sim.training.schedules.interleaved import Interleaved
from tangram_sim.training.schedules.one_f_one_b import OneFOneB
from tangram_sim.training.schedules.zb_v import ZeroBubbleV
from tangram_sim.training.schedules.zero_bubble import ZeroBubbleH1

SCHEDULES: dict[str, Schedule] = {
    s.name: s for s in (OneFOneB(), GPipe(), Interleaved(), ZeroBubbleH1(), ZeroBubbleV(), DualPipeV())
}


def schedule_names() -> tuple[str, ...]:
    """Every schedule a job may name: the built-in ones first, then those of other packages, sorted."""
    return (*SCHEDULES, *(name for name in registry.names(registry.SCHEDULES) if name not in SCHEDULES))


@lru_cache(maxsize=128)  # asked for with every layout that is priced
def schedule_named(name: str) -> Schedule:
    """The schedule called `name`.

    Raises `UnknownNameError` with the nearest names, and `TangramError` where a package's schedule cannot be
    loaded, is not a `Schedule`, or has another name than it is registered under.
    """
    if name in SCHEDULES:
        return SCHEDULES[name]
    if name not in schedule_names():
        raise unknown_name("schedule", name, schedule_names())
    kind = registry.load(registry.SCHEDULES, name)
    if not (isinstance(kind, type) and issubclass(kind, Schedule)):
        raise TangramError(f"schedule {name!r} is {kind!r}: register a subclass of {Schedule.__name__}")
    found = kind()
    if found.name != name:
        raise TangramError(f"schedule {name!r} calls itself {found.name!r}: register it by its own name")
    return found


def holds_whole_depth(schedule: str) -> bool:
    """Whether a stage's activation sets depend on pipeline depth rather than on the stages behind it."""
    named = schedule_named(schedule)
    return named.chunks == (1, 1) and named.in_flight(0, 2, 1, 2) > named.in_flight(0, 1, 1, 2)


def puts_off_weights(schedule: str) -> bool:
    """Whether weight gradients are separate, delayed passes; pipeline time formulas then do not apply."""
    return schedule_named(schedule).splits_backward


def chunked(schedule: str) -> bool:
    """Whether a stage holds several chunks under the schedule."""
    return schedule_named(schedule).chunks[0] > 1


def in_flight(schedule: str, behind: int, depth: int, chunks: int, microbatches: int) -> int:
    """Peak activation sets held by the stage with `behind` stages behind it in a pipeline of `depth`.

    One set is one microbatch through one chunk. ZB-H1 holds a set until its weight gradient, and GPipe holds
    one set where there is one stage, so both need `depth`.
    """
    return schedule_named(schedule).in_flight(behind, depth, chunks, microbatches)

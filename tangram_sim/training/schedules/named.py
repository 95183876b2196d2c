"""The schedules by name."""

from tangram_sim.errors import unknown_name
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


def schedule_named(name: str) -> Schedule:
    """The schedule called `name`; raises `UnknownNameError` with the nearest names."""
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def holds_whole_depth(schedule: str) -> bool:
    """Whether stages hold as many microbatches as the pipeline is deep, however many stand behind them."""
    named = schedule_named(schedule)
    return named.chunks == (1, 1) and named.in_flight(0, 2, 1, 2) > named.in_flight(0, 1, 1, 2)


def chunked(schedule: str) -> bool:
    """Whether a stage holds several chunks under the schedule."""
    return schedule_named(schedule).chunks[0] > 1


def in_flight(schedule: str, behind: int, depth: int, chunks: int, microbatches: int) -> int:
    """Activation sets held at peak by the stage with `behind` stages behind it in a pipeline of `depth`.

    One set is one microbatch through one chunk. ZB-H1 holds a set until its weight gradient, hence needs
    `depth`.
    """
    return schedule_named(schedule).in_flight(behind, depth, chunks, microbatches)

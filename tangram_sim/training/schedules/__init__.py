"""Pipeline schedules by name: the order of microbatches on each stage, and templates of whole steps."""

from tangram_sim.training.schedules.base import Pass, Schedule, ScheduleOrder, check_order
from tangram_sim.training.schedules.contract import check_schedule
from tangram_sim.training.schedules.holding import counted_beside, holding
from tangram_sim.training.schedules.named import (
    SCHEDULES,
    chunked,
    holds_whole_depth,
    in_flight,
    puts_off_weights,
    schedule_named,
    schedule_names,
)
from tangram_sim.training.schedules.step import (
    StageTimes,
    StepTemplate,
    lower_order,
    play_steps,
    step_template,
)

__all__ = [
    "SCHEDULES",
    "Pass",
    "Schedule",
    "ScheduleOrder",
    "StageTimes",
    "StepTemplate",
    "check_order",
    "check_schedule",
    "chunked",
    "counted_beside",
    "holding",
    "holds_whole_depth",
    "in_flight",
    "lower_order",
    "play_steps",
    "puts_off_weights",
    "schedule_named",
    "schedule_names",
    "step_template",
]

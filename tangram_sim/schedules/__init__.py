"""Pipeline schedules by name: the order of microbatches on each stage, and the template of a whole step."""

from tangram_sim.schedules.base import Pass, Schedule, ScheduleOrder, check_order
from tangram_sim.schedules.named import SCHEDULES, holds_whole_depth, in_flight, schedule_named
from tangram_sim.schedules.step import StageTimes, StepTemplate, lower_order, step_template

__all__ = [
    "SCHEDULES",
    "Pass",
    "Schedule",
    "ScheduleOrder",
    "StageTimes",
    "StepTemplate",
    "check_order",
    "holds_whole_depth",
    "in_flight",
    "lower_order",
    "schedule_named",
    "step_template",
]

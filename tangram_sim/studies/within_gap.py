"""Search efforts in turn, from quick on, until the plan is proven to be within a gap of the best one."""

from collections.abc import Callable
from dataclasses import replace

from tangram_sim.errors import BadInputError
from tangram_sim.findings import Severity, declare
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import EFFORTS
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies.results import Result

GAP_PROVEN = declare(
    "gap-proven",
    Severity.NOTE,
    "gap: {effort} effort proves the plan within {gap:percent1} of the best one ({asked:percent1} asked for)",
)
GAP_OPEN = declare(
    "gap-open",
    Severity.WARNING,
    "gap: {gap:percent1} is open after {effort} effort, {asked:percent1} asked for: {why}",
)
MOST_GAP = 10.0
_BOUNDS = ("lower_bound_step_s", "lower_bound_covers", "work_bound_step_s", "pipeline_bound_step_s")


def plan_within_gap(
    planned: Callable[[SearchOptions], Result], options: SearchOptions, gap: float, deadline: Deadline
) -> Result:
    """The fastest plan of the efforts up to the first one whose step is within `gap` of the lower bound.

    Efforts run in their order, quick first, and each looks for the lower bound as well; a later effort never
    makes the answer slower. A finding says which effort sufficed, or what is open. Raises `BadInputError` for
    a gap that is no share, and what `planned` raises where no effort has a plan.
    """
    if not 0 <= gap <= MOST_GAP:
        raise BadInputError(f"`gap={gap:g}`: give a share of the step above the lower bound, e.g. 0.05 or 5%")
    effort, *further = EFFORTS
    best = bounded = planned(replace(options, effort=effort))
    while further and not _is_within(gap, best, bounded) and not deadline.over():
        effort = further.pop(0)
        found = planned(replace(options, effort=effort))
        best = min(best, found, key=lambda result: result.step_s)
        bounded = max(bounded, found, key=lambda result: result.document.lower_bound_step_s)
    reached = best.step_s / bounded.document.lower_bound_step_s - 1
    if reached <= gap:
        told = GAP_PROVEN(effort=effort, gap=reached, asked=gap)
    else:
        why = (
            deadline.why()
            if deadline.over()
            else "no effort is left; `fleet_bound=` looks longer for the bound"
        )
        told = GAP_OPEN(effort=effort, gap=reached, asked=gap, why=why)
    document = best.document.with_fields(**{name: getattr(bounded.document, name) for name in _BOUNDS})
    return replace(best, document=document.with_findings([told, *document.findings]))


def _is_within(gap: float, best: Result, bounded: Result) -> bool:
    return best.step_s <= bounded.document.lower_bound_step_s * (1 + gap)

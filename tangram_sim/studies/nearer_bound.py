"""The bound on fleets in a plan's document, where it is nearer than what the search has proven."""

from dataclasses import replace

from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.fleets.fleet_bound import FleetBound, uncovered
from tangram_sim.planners.tangram.fleets.stage_rows import questions
from tangram_sim.studies.documents import FLEETS, SHARDED_FLEETS, PlanDocument
from tangram_sim.training.plan import Plan


def bring_nearer(
    written: PlanDocument, plan: Plan, hwdb: Hwdb, wishes: SearchOptions, deadline: Deadline
) -> None:
    """Give the document of `plan` the bound on fleets, where its own leaves something to say.

    Asked for (`fleet_bound=`) it takes as long as it needs, and a note says why there is none.
    """
    spend = budget(wishes.effort).bound
    if wishes.fleet_bound:
        spend = spend.asked
    elif not wishes.beside or written.step_s <= written.lower_bound_step_s * spend.worth:
        return
    if plan.cluster.gpus >= spend.many_gpus:
        spend = replace(spend, work=2 * spend.work)
    if questions(plan.model, plan.cluster) > spend.most:
        return
    why = uncovered(plan) or (deadline.over() and "for the time limit") or ""
    if why:
        if wishes.fleet_bound:
            written.notes.append(f"no bound on fleets was found: {why}")
        return
    sharded = any(
        run.layout.zero_stage > 1
        for pipeline in plan.pipelines
        for stage in pipeline.stages
        for part in stage.parts
        for run in part.layouts
    )
    found = FleetBound(plan.model, plan.cluster, plan.job, hwdb, spend, sharded)
    least_s = found.between(written.lower_bound_step_s, written.step_s, deadline)
    if least_s > written.lower_bound_step_s:
        written.lower_bound_step_s = least_s
        written.lower_bound_covers = SHARDED_FLEETS if sharded else FLEETS

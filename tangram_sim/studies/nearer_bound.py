"""Lower bounds on the step, and what each covers: every plan, single pipelines, fleets of pipelines."""

from dataclasses import dataclass, replace

from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.fleets.fleet_bound import BOUNDS, FleetBound, uncovered
from tangram_sim.planners.tangram.fleets.stage_rows import questions
from tangram_sim.studies.documents import FLEETS, SHARDED_FLEETS, SINGLE_PIPELINES
from tangram_sim.studies.forecast import Forecast

_WORTH = 1.05  # a step so much longer than what is proven anyway: else no bound on fleets is looked for
# On so many GPUs and more twice as much work: the search takes longer there, and little else is proven.
_MANY_GPUS = 1000

NO_FLEET_BOUND = declare("no-bound-on-fleets", Severity.NOTE, "no bound on fleets was found: {why}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds on a step, seconds: `nearest_s` is the tightest, `covers` the plans that it bounds."""

    every_plan_s: float
    pipeline_s: float  # on single pipelines; 0: not known
    nearest_s: float
    covers: str

    def of_pipelines(self, step_s: float, *, alone: bool) -> "Bounds":
        """The bounds after a plan of `step_s` is found; `alone`: a single pipeline of the kind bounded.

        `step_s` caps the bound, since refined cuts may be slightly faster than what the search bounds.
        """
        if not self.pipeline_s:
            return self
        least_s = max(self.pipeline_s, self.every_plan_s)
        if not alone:
            return replace(self, pipeline_s=least_s)
        least_s = min(least_s, step_s)
        return replace(self, pipeline_s=least_s, nearest_s=least_s, covers=SINGLE_PIPELINES)


def tightened(
    bounds: Bounds, best: Forecast, hwdb: Hwdb, wishes: SearchOptions, deadline: Deadline
) -> tuple[Bounds, list[Finding]]:
    """(bounds, tightened by the one on fleets of pipelines; why there is none, if requested).

    If requested (`fleet_bound=`) the bound takes as long as it needs; else it is skipped at small gaps.
    """
    spend, plan = BOUNDS[wishes.effort], best.plan
    if wishes.fleet_bound:
        spend = spend.asked
    elif not wishes.beside or best.step_s <= bounds.nearest_s * _WORTH:
        return bounds, []
    if plan.cluster.gpus >= _MANY_GPUS:
        spend = replace(spend, work=2 * spend.work)
    if questions(plan.model, plan.cluster) > spend.most:
        return bounds, []
    why = uncovered(plan) or (deadline.over() and "for the time limit") or ""
    if why:
        return bounds, [NO_FLEET_BOUND(why=why)] if wishes.fleet_bound else []
    sharded = any(run.layout.zero_stage > 1 for part in plan.parts for run in part.layouts)
    found = FleetBound(plan.model, plan.cluster, plan.job, hwdb, spend, sharded)
    least_s = found.between(bounds.nearest_s, best.step_s, deadline)
    if least_s > bounds.nearest_s:
        bounds = replace(bounds, nearest_s=least_s, covers=SHARDED_FLEETS if sharded else FLEETS)
    return bounds, []

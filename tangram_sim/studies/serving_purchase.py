"""What budgets buy for a service: good tokens a second against dollars an hour (a Pareto front)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.studies.documents import VersionedAnswer
from tangram_sim.studies.serving_model_plan import plan_service
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_question import GOODPUT, ServiceGoal
from tangram_sim.studies.serving_whatif import (
    NO_TIME,
    ServiceCandidateDocument,
    candidate,
    cheapest_tokens,
    good_rps,
)
from tangram_sim.studies.time_limit import TimeLimit


class BudgetDocument(ServiceCandidateDocument):
    """What one budget buys."""

    budget_usd_per_hour: float


class ServePurchaseDocument(VersionedAnswer):
    """Output of `tangram serve purchase --json`: a plan for each budget, from the least to the greatest."""

    front: list[BudgetDocument]
    cheapest_tokens: float | None = Field(
        None, description="the budget whose good tokens cost least, USD an hour"
    )
    notes: list[str] = Field([])
    planning_cpu_s: float


def purchase_serving(
    models: Mapping[str, Model],
    offers: Offers,
    budgets: Sequence[float],
    workload: Workload,
    hwdb: Hwdb,
    goal: ServiceGoal,
    time_limit_s: float | None = None,
) -> ServePurchaseDocument:
    """Every budget (USD an hour) planned for the most requests within the objective, and replayed.

    A budget may also rent what a smaller one does, so none is worth less. Raises BadInputError.
    """
    if not budgets or not all(0 < item < float("inf") for item in budgets):
        raise BadInputError("`budgets`: one or more are wanted, USD an hour, each above 0")
    begun, front = time.process_time(), list[BudgetDocument]()
    best: ServePlanDocument | None = None
    last: ServiceCandidateDocument | None = None
    limit = TimeLimit(time_limit_s)
    for budget in sorted(set(budgets)):
        name = f"{budget:g} USD/h"
        if front and limit.over():
            told = ServiceCandidateDocument(name=name, status="stopped", reason=NO_TIME, usd_per_hour=0.0)
            front.append(BudgetDocument(**told.model_dump(), budget_usd_per_hour=budget))
            continue
        try:
            plan = plan_service(
                models,
                offers,
                workload,
                hwdb,
                replace(goal, objective=GOODPUT, budget_usd_per_hour=budget),
                time_limit_s=limit.left_s(len(set(budgets)) - len(front)),
            )
        except InfeasibleError as error:
            told = ServiceCandidateDocument(
                name=name, status="infeasible", reason=str(error), usd_per_hour=0.0
            )
        else:
            if best is None or good_rps(plan) > good_rps(best):
                best = plan
            usd = best.cost_per_hour
            told = candidate(name, best, usd, last)
            last = told if told.good_rps > 0 else last
        front.append(BudgetDocument(**told.model_dump(), budget_usd_per_hour=budget))
    least = cheapest_tokens(front)
    return ServePurchaseDocument(
        front=front,
        cheapest_tokens=None if least is None else least.budget_usd_per_hour,
        notes=list(offers.notes),
        planning_cpu_s=time.process_time() - begun,
    )

"""Service plans by budget: good tokens per second against dollars per hour (a Pareto front)."""

import time
from collections.abc import Mapping, Sequence

from pydantic import Field

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.deadline import Deadline
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.studies.candidate_loop import judged_in_turn
from tangram_sim.studies.documents import VersionedAnswer
from tangram_sim.studies.serving_question import ServiceGoal
from tangram_sim.studies.serving_whatif import (
    OfferedService,
    RentableFleet,
    ServiceCandidateDocument,
    candidate,
    cheapest_tokens,
)


class BudgetDocument(ServiceCandidateDocument):
    """The plan for one budget."""

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
    """The plan with the most good requests per second for every budget (USD per hour), simulated.

    A larger budget may also take a smaller one's plan, so its value is never lower. Raises BadInputError.
    """
    if not budgets or not all(0 < item < float("inf") for item in budgets):
        raise BadInputError("`budgets`: one or more are wanted, USD an hour, each above 0")
    begun, front = time.process_time(), list[BudgetDocument]()
    last: ServiceCandidateDocument | None = None
    fleets = [(f"{budget:g} USD/h", RentableFleet(offers, budget)) for budget in sorted(set(budgets))]
    judge = OfferedService(models, workload, hwdb, goal)
    for item in judged_in_turn(fleets, judge, Deadline.of(time_limit_s)):
        told = candidate(item, 0.0 if item.found is None else item.found.cost_per_hour, last)
        last = told if told.good_rps > 0 else last
        budget = item.subject.budget_usd_per_hour
        front.append(BudgetDocument(**told.model_dump(), budget_usd_per_hour=budget or 0.0))
    least = cheapest_tokens(front)
    return ServePurchaseDocument(
        front=front,
        cheapest_tokens=None if least is None else least.budget_usd_per_hour,
        notes=list(offers.notes),
        planning_cpu_s=time.process_time() - begun,
    )

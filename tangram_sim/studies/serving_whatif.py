"""What more GPUs would do for a service: requests a second within the objective, dollars a million tokens."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import Field

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import gpu_rent, rent_note
from tangram_sim.models import Model
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import GpuOffer
from tangram_sim.studies.documents import Document, VersionedAnswer
from tangram_sim.studies.serving_model_plan import plan_service
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_question import GOODPUT, ServiceGoal
from tangram_sim.studies.time_limit import TimeLimit
from tangram_sim.units import HOUR_S, MEGA

Candidate = TypeVar("Candidate", bound="ServiceCandidateDocument")
_NOW = "the fleet as it is"
NO_TIME = "not planned: the time limit was over"


@dataclass(frozen=True, slots=True)
class GpuPurchase:
    """So many GPUs more of a kind; a price of 0 is that of the fleet's offers."""

    gpu: str
    count: int
    usd_per_hour: float = 0.0


class ServiceCandidateDocument(Document):
    """What a fleet achieves with a purchase, or with what a budget rents, planned and then simulated."""

    name: str
    status: str
    reason: str = ""
    good_rps: float = Field(0.0, description="requests a second that keep the objective, as replayed")
    good_output_tok_s: float = 0.0
    usd_per_hour: float | None = Field(
        description="of all GPUs there, busy or not; of a budget, of what is rented; null: a price is missing"
    )
    usd_per_million_tokens: float | None = Field(None, description="output tokens of good requests")
    more_tokens_per_usd: float | None = Field(
        None,
        description="output tokens more for each dollar more than the fleet as it is, or the budget before",
    )
    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    gpus_used: dict[str, int] = Field({})
    site_w: float | None = Field(
        None, description="mean watts of the replicas in use with their hosts, times PUE; null: not known"
    )
    joules_per_output_token: float | None = Field(None, description="of the GPUs in use, hosts apart")


class ServeWhatIfDocument(VersionedAnswer):
    """Output of `tangram serve what-if --json`; the first candidate is the fleet as it is."""

    candidates: list[ServiceCandidateDocument]
    notes: list[str] = Field([])
    planning_cpu_s: float


def what_if_serving(
    models: Mapping[str, Model],
    offers: Offers,
    purchases: Mapping[str, Sequence[GpuPurchase]],
    workload: Workload,
    hwdb: Hwdb,
    goal: ServiceGoal,
    time_limit_s: float | None = None,
) -> ServeWhatIfDocument:
    """The fleet as it is and with every purchase, each planned for goodput. Raises BadInputError.

    All GPUs are there to be used, so there is no budget; a candidate that cannot serve says why.
    """
    for gpu in offers.gpus:
        if gpu.available == float("inf"):
            raise BadInputError(f"fleet: how many {gpu.name} are there? Give `available`")
    begun, found = time.process_time(), list[ServiceCandidateDocument]()
    there = {gpu.name for gpu in offers.gpus}
    rents = {
        purchase.gpu: gpu_rent(hwdb, purchase.gpu)
        for purchase in itertools.chain(*purchases.values())
        if purchase.gpu not in there and not purchase.usd_per_hour
    }
    purchases = {
        name: [
            replace(purchase, usd_per_hour=purchase.usd_per_hour or rents.get(purchase.gpu, (0.0, ""))[0])
            for purchase in bought
        ]
        for name, bought in purchases.items()
    }
    now: ServePlanDocument | None = None
    whole = replace(goal, objective=GOODPUT, budget_usd_per_hour=None)
    limit = TimeLimit(time_limit_s)
    for name, bought in {_NOW: (), **purchases}.items():
        fleet = with_purchase(offers, bought)
        paid = sum(gpu.usd_per_hour * gpu.available for gpu in fleet.gpus)
        usd = None if fleet.unpriced else paid
        if found and limit.over():
            found.append(
                ServiceCandidateDocument(name=name, status="stopped", reason=NO_TIME, usd_per_hour=usd)
            )
            continue
        left_s = limit.left_s(1 + len(purchases) - len(found))
        try:
            plan = plan_service(models, fleet, workload, hwdb, whole, time_limit_s=left_s)
        except InfeasibleError as error:
            found.append(
                ServiceCandidateDocument(name=name, status="infeasible", reason=str(error), usd_per_hour=usd)
            )
            continue
        if name == _NOW:
            now = plan
        elif now is not None and good_rps(plan) < good_rps(now):
            plan = now  # what was bought may stand idle: it makes nothing worse
        found.append(candidate(name, plan, usd, found[0] if found else None))
    notes = [*offers.notes, *(rent_note(gpu, usd, source) for gpu, (usd, source) in rents.items() if usd)]
    return ServeWhatIfDocument(candidates=found, notes=notes, planning_cpu_s=time.process_time() - begun)


def with_purchase(offers: Offers, bought: Sequence[GpuPurchase]) -> Offers:
    """The offers with more GPUs of some kinds. Raises BadInputError for a kind without a price."""
    gpus = {gpu.name: gpu for gpu in offers.gpus}
    for one in bought:
        there = gpus.get(one.gpu, GpuOffer(one.gpu, one.usd_per_hour, 0))
        if not there.priced:
            raise BadInputError(
                f"what do the {one.gpu} that are there cost? No price is known; give `price={one.gpu}=2.5`"
            )
        usd = one.usd_per_hour or there.usd_per_hour
        if not usd > 0:
            raise BadInputError(
                f"{one.gpu} is not in the fleet: say what it costs, `price={one.gpu}=2.5` an hour"
            )
        # What is there already keeps its price: a purchase at another one is their mean.
        total = there.available + one.count
        mean = (there.usd_per_hour * there.available + usd * one.count) / total
        gpus[one.gpu] = replace(there, usd_per_hour=mean, available=total)
    return replace(offers, gpus=tuple(gpus.values()))


def good_rps(plan: ServePlanDocument) -> float:
    """Requests a second that keep the objective in the plan's replay."""
    return plan.replay.played * plan.replay.good_share if plan.replay is not None else 0.0


def candidate(
    name: str, plan: ServePlanDocument, usd: float | None, now: ServiceCandidateDocument | None
) -> ServiceCandidateDocument:
    """The figures of a plan at `usd` an hour (None: not known), and its gain over `now` per dollar."""
    replay = plan.replay
    if replay is None:
        return ServiceCandidateDocument(name=name, status=plan.status, reason=plan.reason, usd_per_hour=usd)
    requests = sum(one.amount for one in plan.types)
    tokens = sum(one.amount * one.output_tokens for one in plan.types) / requests
    kept = good_rps(plan)
    rate = kept * tokens
    more = None
    before = None if now is None else now.usd_per_hour
    if now is not None and usd is not None and before is not None and usd > before:
        more = (rate - now.good_output_tok_s) * HOUR_S / (usd - before)
    return ServiceCandidateDocument(
        name=name,
        status=plan.status,
        good_rps=kept,
        good_output_tok_s=rate,
        usd_per_hour=usd,
        usd_per_million_tokens=usd / (rate * HOUR_S) * MEGA if rate > 0 and usd is not None else None,
        more_tokens_per_usd=more,
        ttft_p99_s=replay.ttft_p99_s,
        tpot_p99_s=replay.tpot_p99_s,
        gpus_used=plan.gpus_used,
        site_w=None if plan.energy is None else plan.energy.site_w,
        joules_per_output_token=None if plan.energy is None else plan.energy.joules_per_output_token,
    )


def cheapest_tokens(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate whose good tokens cost least; None where none serves at a known price."""
    priced = [one for one in candidates if one.usd_per_million_tokens is not None]
    return min(priced, key=lambda one: one.usd_per_million_tokens or 0.0, default=None)

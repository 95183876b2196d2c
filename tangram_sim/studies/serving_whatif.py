"""What more GPUs gain for a service: requests per second within the objective, dollars per million tokens."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from pydantic import Field

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import gpu_rent, rent_note
from tangram_sim.models import Model
from tangram_sim.planners.deadline import Deadline
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import GpuOffer
from tangram_sim.studies.candidate_loop import CandidateJudge, Judged, Subject, judged_in_turn
from tangram_sim.studies.documents import Document, VersionedAnswer
from tangram_sim.studies.serving_model_plan import plan_service
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_question import GOODPUT, ServiceGoal
from tangram_sim.units import HOUR_S, MEGA

Candidate = TypeVar("Candidate", bound="ServiceCandidateDocument")
_NOW = "the fleet as it is"


@dataclass(frozen=True, slots=True)
class GpuPurchase:
    """`count` more GPUs of a kind; a price of 0 means that of the fleet's offers."""

    gpu: str
    count: int
    usd_per_hour: float = 0.0


class ServiceCandidateDocument(Document):
    """Planned and simulated service on a fleet with a purchase, or on what a budget rents."""

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


@dataclass(frozen=True, slots=True)
class RentableFleet:
    """GPUs that a service may use within a budget in USD per hour; None: all GPUs are paid for anyway."""

    offers: Offers
    budget_usd_per_hour: float | None = None


@dataclass(frozen=True)
class OfferedService(CandidateJudge[RentableFleet, ServePlanDocument]):
    """Judge of services on offered GPUs: the most requests per second that meet the objective is best."""

    models: Mapping[str, Model]
    workload: Workload
    hwdb: Hwdb
    goal: ServiceGoal

    def planned(self, subject: RentableFleet, deadline: Deadline) -> ServePlanDocument:
        """The plan with the most good requests per second, simulated."""
        return plan_service(
            self.models,
            subject.offers,
            self.workload,
            self.hwdb,
            replace(self.goal, objective=GOODPUT, budget_usd_per_hour=subject.budget_usd_per_hour),
            time_limit_s=deadline.turn_s(),
        )

    def best_of(
        self, subject: RentableFleet, found: ServePlanDocument, held: Sequence[ServePlanDocument]
    ) -> ServePlanDocument:
        """The plan with the most good requests; of equals its own or, with a budget, the smaller's."""
        plans = (found, *held) if subject.budget_usd_per_hour is None else (*held, found)
        return max(plans, key=good_rps)

    def value(self, found: ServePlanDocument) -> float:
        """Good requests a second."""
        return good_rps(found)

    def includes(self, subject: RentableFleet, other: RentableFleet) -> bool:
        """Whether `other` has no more GPUs of any kind and no larger budget than `subject`."""
        there = {gpu.name: gpu.available for gpu in subject.offers.gpus}
        return (subject.budget_usd_per_hour or inf) >= (other.budget_usd_per_hour or inf) and all(
            there.get(gpu.name, 0) >= gpu.available for gpu in other.offers.gpus
        )


def what_if_serving(
    models: Mapping[str, Model],
    offers: Offers,
    purchases: Mapping[str, Sequence[GpuPurchase]],
    workload: Workload,
    hwdb: Hwdb,
    goal: ServiceGoal,
    time_limit_s: float | None = None,
) -> ServeWhatIfDocument:
    """The fleet unchanged and with every purchase, each planned for goodput. Raises BadInputError.

    All GPUs may be used, without a budget; a candidate that cannot serve states why.
    """
    for gpu in offers.gpus:
        if gpu.available == inf:
            raise BadInputError(f"fleet: how many {gpu.name} are there? Give `available`")
    begun, there = time.process_time(), {gpu.name for gpu in offers.gpus}
    rents = {
        purchase.gpu: gpu_rent(hwdb, purchase.gpu)
        for purchase in itertools.chain(*purchases.values())
        if purchase.gpu not in there and not purchase.usd_per_hour
    }
    fleets = [(_NOW, RentableFleet(offers))]
    for name, bought in purchases.items():
        priced = [
            replace(purchase, usd_per_hour=purchase.usd_per_hour or rents.get(purchase.gpu, (0.0, ""))[0])
            for purchase in bought
        ]
        fleets.append((name, RentableFleet(with_purchase(offers, priced))))
    judged = judged_in_turn(fleets, OfferedService(models, workload, hwdb, goal), Deadline.of(time_limit_s))
    notes = [*offers.notes, *(rent_note(gpu, usd, source) for gpu, (usd, source) in rents.items() if usd)]
    return ServeWhatIfDocument(
        candidates=beside_first(judged, lambda fleet: _all_usd_per_hour(fleet.offers)),
        notes=notes,
        planning_cpu_s=time.process_time() - begun,
    )


def _all_usd_per_hour(offers: Offers) -> float | None:
    """USD an hour of all GPUs on offer; None where a price is missing."""
    return None if offers.unpriced else sum(gpu.usd_per_hour * gpu.available for gpu in offers.gpus)


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
    judged: Judged[Subject, ServePlanDocument], usd: float | None, now: ServiceCandidateDocument | None
) -> ServiceCandidateDocument:
    """The figures of a candidate at `usd` an hour (None: not known), and its gain over `now` per dollar."""
    plan = judged.found
    if plan is None or plan.replay is None:
        status, reason = (judged.status, judged.reason) if plan is None else (plan.status, plan.reason)
        return ServiceCandidateDocument(name=judged.name, status=status, reason=reason, usd_per_hour=usd)
    requests = sum(one.amount for one in plan.types)
    tokens = sum(one.amount * one.output_tokens for one in plan.types) / requests
    kept = good_rps(plan)
    rate = kept * tokens
    more = None
    before = None if now is None else now.usd_per_hour
    if now is not None and usd is not None and before is not None and usd > before:
        more = (rate - now.good_output_tok_s) * HOUR_S / (usd - before)
    return ServiceCandidateDocument(
        name=judged.name,
        status=plan.status,
        good_rps=kept,
        good_output_tok_s=rate,
        usd_per_hour=usd,
        usd_per_million_tokens=usd / (rate * HOUR_S) * MEGA if rate > 0 and usd is not None else None,
        more_tokens_per_usd=more,
        ttft_p99_s=plan.replay.ttft_p99_s,
        tpot_p99_s=plan.replay.tpot_p99_s,
        gpus_used=plan.gpus_used,
        site_w=None if plan.energy is None else plan.energy.site_w,
        joules_per_output_token=None if plan.energy is None else plan.energy.joules_per_output_token,
    )


def beside_first(
    judged: Iterable[Judged[Subject, ServePlanDocument]], usd: Callable[[Subject], float | None]
) -> list[ServiceCandidateDocument]:
    """Results of candidates at their `usd` per hour; gains are relative to the first."""
    found = list[ServiceCandidateDocument]()
    for item in judged:
        found.append(candidate(item, usd(item.subject), found[0] if found else None))
    return found


def cheapest_tokens(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate whose good tokens cost least; None where none serves at a known price."""
    priced = [one for one in candidates if one.usd_per_million_tokens is not None]
    return min(priced, key=lambda one: one.usd_per_million_tokens or 0.0, default=None)

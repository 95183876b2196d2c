"""The question for service planners: offers, requests by model and type, limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.fields import described, fact, stated
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.deployment import Speculation
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Floats, Ints, Workload
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import OfferPricer, PricedConfiguration, offer_document
from tangram_sim.serving_planners.peers import candidates
from tangram_sim.serving_planners.problem import NODE, WHOLE, RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_workload import request_types

# Configurations with their throughputs, and those refused with the reason.
PricedOffers = tuple[list[PricedConfiguration], dict[str, str]]
MAKESPAN, COST, GOODPUT = OBJECTIVES = ("makespan", "cost", "goodput")


@dataclass(frozen=True, slots=True)
class PlanScenario:
    """A case a plan must tolerate: lost GPU kinds or any one `node` lost, more requests, or other prices.

    Without what is `lost` the plan must serve `coverage` of `rate_factor` times the requests, and stay within
    the budget at `price_factors` (kind, factor on its price).
    """

    name: str
    lost: tuple[str, ...] = ()
    coverage: float = 1.0
    rate_factor: float = 1.0
    price_factors: tuple[tuple[str, float], ...] = ()

    def on(self, hwdb: Hwdb) -> "PlanScenario":
        """The scenario with GPU kinds spelled as in the database. Raises UnknownNameError."""
        return replace(
            self,
            lost=tuple(kind if kind == NODE else hwdb.gpu(kind).name for kind in self.lost),
            price_factors=tuple((hwdb.gpu(kind).name, factor) for kind, factor in self.price_factors),
        )

    def document(self) -> dict[str, Any]:
        """This scenario as an entry of `scenarios` in a problem file."""
        return {
            "name": self.name,
            "lost": list(self.lost),
            "coverage": self.coverage,
            "rate_factor": self.rate_factor,
            "price_factor": dict(self.price_factors),
        }


@dataclass(frozen=True, slots=True)
class EnergyTerms:
    """Watts per GPU (0: the board's limit), power usage effectiveness, grams of CO2 equivalent per kWh (0:
    not stated)."""

    power_cap_w: float = 0.0
    pue: float = 1.0
    carbon_g_per_kwh: float = 0.0


@described
@dataclass(frozen=True)
class ServiceGoal:
    """The objective of a plan and its limits.

    `makespan`: all requests arrive at once and are finished as soon as possible. `cost`: the workload's rate,
    as cheaply as possible. `goodput`: as many requests per second of the workload's mix as the budget allows.
    For the last two, replicas are busy at most the share `utilisation` of the time. The plan must also hold
    in each of the `scenarios`.
    """

    objective: str = fact(MAKESPAN, "makespan, cost or goodput.")
    budget_usd_per_hour: float | None = fact(None, "The most to spend; None: no limit.", "USD/h")
    slo: Slo = field(default_factory=Slo, metadata=stated("Most seconds to the first token and per token."))
    engine: str = fact("vllm", "vllm, sglang or trtllm.")
    precision: str = fact("bf16", "Number format of the weights.")
    utilisation: float = fact(0.8, "How busy replicas may be at a rate.", "a share")
    scenarios: tuple[PlanScenario, ...] = fact((), "What the plan must also bear.")
    link_gb_per_s: float | None = fact(None, "From replicas that prefill to such that decode.", "GB/s")
    speculations: tuple[Speculation, ...] = fact((), "Draft tokens that replicas may check, beside none.")
    energy: EnergyTerms = field(
        default_factory=EnergyTerms, metadata=stated("Power cap, PUE, carbon intensity.")
    )

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise unknown_name("objective", self.objective, OBJECTIVES)
        if self.link_gb_per_s is not None and self.objective == MAKESPAN:
            raise BadInputError(
                "a link between prefill and decode belongs to a rate: use objective cost or goodput"
            )
        if self.speculations and self.objective == MAKESPAN:
            raise BadInputError("`drafts=` belongs to a rate: use objective cost or goodput")


@dataclass(frozen=True, slots=True)
class AskedType:
    """A request type: mean tokens, number of requests (or requests per second), and model.

    The model is named in an answer only where there are several.
    """

    input_tokens: float
    output_tokens: float
    amount: float
    model: str = ""


@described
@dataclass(frozen=True)
class ServiceQuestion:
    """The planning question: models, offered GPUs, and the requests sorted into types."""

    models: Mapping[str, Model] = field(metadata=stated("Models by the names that requests call them."))
    offers: Offers = field(metadata=stated("GPUs that may be used, with prices."))
    workload: Workload = field(metadata=stated("The requests."))
    goal: ServiceGoal = field(metadata=stated("Objective and limits: a `ServiceGoal`."))
    place: Ints = field(metadata=stated("Type of every request.", "a number of `types`"))
    types: tuple[AskedType, ...] = field(metadata=stated("Types of request: mean tokens, how many."))

    @classmethod
    def of(
        cls, models: Mapping[str, Model], offers: Offers, workload: Workload, goal: ServiceGoal
    ) -> "ServiceQuestion":
        """The question; requests without a model are assigned to all in turn. Raises BadInputError."""
        goal = replace(
            goal, engine=offers.engine or goal.engine, precision=offers.precision or goal.precision
        )
        if goal.objective != MAKESPAN and workload.rate_rps <= 0:
            raise BadInputError(f"objective {goal.objective}: all requests come at once; a rate is wanted")
        workload = _owned(workload, tuple(models))
        place = np.zeros(len(workload), dtype=np.int64)
        types: list[AskedType] = []
        unit = workload.rate_rps / len(workload) if goal.objective != MAKESPAN else 1.0
        for number, name in enumerate(workload.models or tuple(models)):
            mine = np.flatnonzero(workload.model == number) if workload.models else np.arange(len(workload))
            cells, shapes = request_types(workload, mine)
            place[mine] = len(types) + cells
            counts = np.bincount(cells, minlength=len(shapes)).tolist()
            types += [
                AskedType(isl, osl, unit * count, name)
                for count, (isl, osl) in zip(counts, shapes, strict=True)
            ]
        return cls(models, offers, workload, goal, place, tuple(types))

    @property
    def several(self) -> bool:
        """Whether there is more than one model."""
        return len(self.models) > 1

    @property
    def amounts(self) -> Floats:
        """Requests, or requests a second, of every type."""
        return np.array([asked_type.amount for asked_type in self.types])

    def priced(self, planner: str, hwdb: Hwdb) -> PricedOffers:
        """The configurations that a planner may use. Raises InfeasibleError for none."""
        found: list[PricedConfiguration] = []
        refused: dict[str, str] = {}
        if self.several and self.goal.link_gb_per_s is not None:
            raise BadInputError("prefill and decode apart are planned for one model at a time")
        if self.several and planner == "hexgen":
            raise BadInputError(
                "planner hexgen cuts a pool into groups for one model; ask it for one at a time"
            )
        for name, model in self.models.items():
            mine = [w for w, asked_type in enumerate(self.types) if asked_type.model == name]
            loads = Load.of(
                np.array([self.types[w].input_tokens for w in mine]),
                np.array([self.types[w].output_tokens for w in mine]),
            )
            goal = self.goal
            shares = self.amounts[mine] / self.amounts[mine].sum()
            mix = shares if goal.objective == MAKESPAN else None
            pricer = OfferPricer(
                model,
                hwdb,
                goal.engine,
                goal.precision,
                loads,
                goal.slo,
                mix=mix,
                power_cap_w=goal.energy.power_cap_w,
            )
            own = candidates(
                planner,
                pricer,
                self.offers.gpus,
                shares,
                goal.budget_usd_per_hour,
                apart=goal.link_gb_per_s is not None,
                speculations=goal.speculations,
            )
            head = f"{name} on " if self.several else ""
            refused |= {head + item: reason for item, reason in pricer.refused.items()}
            if not own:
                reasons = "; ".join(f"{item}: {reason}" for item, reason in list(pricer.refused.items())[:3])
                slow = (
                    f"none answers even one request within TTFT {goal.slo.ttft_s:g} s and TPOT "
                    f"{goal.slo.tpot_s:g} s; give a looser `slo=` or faster GPUs"
                )
                raise InfeasibleError(
                    f"no replica of {model.name} on these GPUs serves any type of request: {reasons or slow}"
                )
            for configuration in own:
                rps = np.zeros(len(self.types))
                rps[mine] = configuration.rps
                found.append(
                    replace(
                        configuration, name=head + configuration.name, rps=tuple(rps.tolist()), model=name
                    )
                )
        return found, refused

    def rental(self, priced: Sequence[PricedConfiguration]) -> RentalProblem:
        """The question as a problem with the throughputs of these configurations."""
        found, _ = read_problem(self.problem(priced), "the offers")
        assert isinstance(found, RentalProblem)
        return replace(
            found,
            configurations=tuple(
                replace(configuration, of_batch=known.of_batch)
                for configuration, known in zip(found.configurations, priced, strict=True)
            ),
        )

    def problem(self, priced: Sequence[PricedConfiguration]) -> dict[str, Any]:
        """The question in the format of PROBLEM.json, with the throughputs of these configurations."""
        goal = self.goal
        # Of goodput the replicas stay below their throughput, too: so much less each.
        share = goal.utilisation if goal.objective == GOODPUT else 1.0
        data: dict[str, Any] = {
            "kind": COST if goal.objective == COST else MAKESPAN,
            "gpus": offer_document(self.offers.gpus),
            "configurations": [
                {
                    "name": configuration.name,
                    "model": configuration.model,
                    "gpus": configuration.gpus,
                    "throughput": [share * rps for rps in configuration.rps],
                    "most": configuration.most,
                    "role": configuration.role,
                }
                for configuration in priced
            ],
            "workload": [
                {
                    "rate" if goal.objective == COST else "requests": asked_type.amount,
                    "isl": asked_type.input_tokens,
                    "osl": asked_type.output_tokens,
                    "model": asked_type.model,
                    "kv_bytes": moved,
                }
                for asked_type, moved in zip(self.types, _moved_bytes(priced, len(self.types)), strict=True)
            ],
        }
        if any(configuration.role != WHOLE for configuration in priced):
            data["link_gb_per_s"] = goal.link_gb_per_s
        if goal.budget_usd_per_hour is not None:
            data["budget_per_hour"] = goal.budget_usd_per_hour
        if goal.objective == COST:
            data["utilisation"] = goal.utilisation
        data["scenarios"] = [scenario.document() for scenario in goal.scenarios]
        return data


def _moved_bytes(priced: Sequence[PricedConfiguration], types: int) -> tuple[float, ...]:
    """KV-cache bytes of each type sent from prefill to decode; 0 if no replica does one alone."""
    return next(
        (configuration.kv_bytes for configuration in priced if configuration.kv_bytes), (0.0,) * types
    )


def _owned(workload: Workload, models: tuple[str, ...]) -> Workload:
    """The workload with models assigned to requests: the only model, or in turn where requests name none."""
    if len(models) == 1:
        return replace(workload, models=())
    if not workload.models:
        dealt = workload.of_models(models, np.arange(len(workload)) % len(models))
        words = f"the requests name no model: each of the {len(models)} gets its turn, equal parts of the mix"
        return replace(dealt, notes=(*dealt.notes, words))
    for name in workload.models:
        if name not in models:
            raise unknown_name("model of a request", name, models)
    for name in models:
        if name not in workload.models:
            raise BadInputError(f"no request is for {name}; requests are for {', '.join(workload.models)}")
    return workload

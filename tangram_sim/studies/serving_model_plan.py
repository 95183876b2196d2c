"""Plans of a service for a model on GPUs on offer: priced by the cost layer, replayed before shown."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any

import numpy as np

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Floats, Ints, Workload
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import (
    OfferPricer,
    PricedConfiguration,
    offer_document,
)
from tangram_sim.serving_planners.peers import candidates
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import (
    PlannedTypeDocument,
    PlayedPlanDocument,
    ServePlanDocument,
    plan_problem,
)
from tangram_sim.studies.serving_simulation import simulate_service
from tangram_sim.studies.serving_workload import request_types

OBJECTIVES = ("makespan", "cost", "goodput")
_Z90 = 1.6449  # of a 90 % interval
_ATTEMPTS = 4  # plans of a batch, each after a replay of the last
_NEARER = 0.02  # error of a replay that needs no other plan


def plan_service(
    model: Model,
    model_name: str,
    offers: Offers,
    workload: Workload,
    hwdb: Hwdb,
    *,
    objective: str = "makespan",
    budget_usd_per_hour: float | None = None,
    slo: Slo | None = None,
    engine: str = "vllm",
    precision: str = "bf16",
    utilisation: float = 0.8,
    time_limit_s: float | None = None,
    planner: str = "milp",
) -> ServePlanDocument:
    """GPUs, replicas and shares for a workload, and what the simulator makes of them.

    `makespan`: all requests at once, as soon as possible. `cost`: the workload's rate, as cheaply as
    possible. `goodput`: as many requests a second of the workload's mix as the budget carries. In both
    replicas are busy at most `utilisation` of the time. Throughputs keep the objective on latency on average.
    `model_name` is what the fleet of the answer calls the model, `planner` one of `planner_names`.
    """
    begun = time.process_time()
    engine, precision = offers.engine or engine, offers.precision or precision
    place, shapes = request_types(workload)
    amounts = np.bincount(place, minlength=len(shapes)).astype(np.float64)
    rated = objective != "makespan"
    if rated:
        if workload.rate_rps <= 0:
            raise BadInputError(
                f"objective {objective}: all requests come at once; a rate is wanted: --rate R"
            )
        amounts *= workload.rate_rps / len(workload)
    loads = Load.of(np.array([isl for isl, _ in shapes]), np.array([osl for _, osl in shapes]))
    pricer = OfferPricer(model, hwdb, engine, precision, loads, slo or Slo())
    priced = candidates(planner, pricer, offers.gpus, amounts / amounts.sum(), budget_usd_per_hour)
    if not priced:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(pricer.refused.items())[:3])
        raise InfeasibleError(
            f"no replica of {model.name} on these GPUs serves any type of request: {reasons}"
        )
    question = _Question(
        offers, workload, place, amounts, shapes, objective, budget_usd_per_hour, utilisation
    )
    found = _planned(question, priced, time_limit_s)
    found.types = [
        PlannedTypeDocument(input_tokens=isl, output_tokens=osl, amount=amount)
        for amount, (isl, osl) in zip(amounts.tolist(), shapes, strict=True)
    ]
    if found.status != "infeasible":
        served = {"model": model_name, "engine": engine, "precision": precision}
        found = _corrected(found, question, priced, served, hwdb, slo or Slo(), time_limit_s)
        fit = CalibrationTable.load(hwdb).fit(engine, "", model.name, precision)
        _add_interval(found, exp(_Z90 * fit.residuals["residual_output_tok_s"]))
    found.assumptions |= {
        "planner": planner,
        "engine": engine,
        "precision": precision,
        "throughputs": "of the cost layer, each type alone, as many at once as seats and --slo allow",
        "configurations": len(priced),
        "configurations_refused": pricer.refused,
    }
    if objective == "goodput":
        _as_goodput(found, float(amounts.sum()), utilisation)
    found.planning_cpu_s = time.process_time() - begun
    return found


@dataclass(frozen=True)
class _Question:
    """What is to be planned: the requests by type, and the limits."""

    offers: Offers
    workload: Workload
    place: Ints  # type of every request
    amounts: Floats  # of every type
    shapes: list[tuple[float, float]]
    objective: str
    budget_usd_per_hour: float | None
    utilisation: float

    def problem(self, priced: Sequence[PricedConfiguration]) -> dict[str, Any]:
        """The question as a problem with given throughputs."""
        # Of goodput the replicas stay below their throughput, too: so much less each.
        share = self.utilisation if self.objective == "goodput" else 1.0
        data: dict[str, Any] = {
            "kind": "cost" if self.objective == "cost" else "makespan",
            "gpus": offer_document(self.offers.gpus),
            "configurations": [
                {
                    "name": one.name,
                    "gpus": one.gpus,
                    "throughput": [share * rps for rps in one.rps],
                    "most": one.most,
                }
                for one in priced
            ],
            "workload": [
                {"rate" if self.objective == "cost" else "requests": amount, "isl": isl, "osl": osl}
                for amount, (isl, osl) in zip(self.amounts.tolist(), self.shapes, strict=True)
            ],
        }
        if self.budget_usd_per_hour is not None:
            data["budget_per_hour"] = self.budget_usd_per_hour
        if self.objective == "cost":
            data["utilisation"] = self.utilisation
        return data


def _planned(
    question: _Question, priced: Sequence[PricedConfiguration], time_limit_s: float | None
) -> ServePlanDocument:
    problem, _ = read_problem(question.problem(priced), "the offers")
    return plan_problem(problem, time_limit_s)


def _corrected(
    found: ServePlanDocument,
    question: _Question,
    priced: list[PricedConfiguration],
    served: dict[str, str],
    hwdb: Hwdb,
    slo: Slo,
    time_limit_s: float | None,
) -> ServePlanDocument:
    """The plan with its replay; of a batch, planned again with the throughputs that the replay showed.

    A batch ends with replicas that run empty, which steady throughputs do not know: a configuration's are
    scaled by promised over played time. Of the plans tried the one with the least played makespan is taken.
    """
    best: ServePlanDocument | None = None
    rates, types = list(priced), found.types
    for attempt in range(_ATTEMPTS):
        found.types = types
        found.fleet = _fleet(found, rates, served)
        found.replay, ends = _replayed(found, question, hwdb, slo)
        if question.objective != "makespan":
            return found
        if attempt:
            found.assumptions["corrected"] = f"throughputs scaled by {attempt} replays of the batch"
        if best is None or _better(found.replay, best.replay):
            best = found
        if abs(found.replay.error) < _NEARER:
            break
        factor = {name: found.replay.promised / end for name, end in ends.items() if end > 0}
        rates = [replace(one, rps=tuple(rps * factor.get(one.name, 1.0) for rps in one.rps)) for one in rates]
        found = _planned(question, rates, time_limit_s)
    return best or found


def _add_interval(found: ServePlanDocument, factor: float) -> None:
    """90 % of the makespan, as wide as the throughputs are uncertain together."""
    if found.makespan_s is not None:
        found.interval = (found.makespan_s / factor, found.makespan_s * factor)


def _better(one: PlayedPlanDocument, other: PlayedPlanDocument | None) -> bool:
    """Whether a plan is played clearly sooner, or as soon and nearer to its promise."""
    if other is None or one.played < other.played * (1 - _NEARER):
        return True
    return one.played <= other.played * (1 + _NEARER) and abs(one.error) < abs(other.error)


def _fleet(
    found: ServePlanDocument, priced: Sequence[PricedConfiguration], served: dict[str, str]
) -> dict[str, Any]:
    """The plan as a fleet file; `served`: its model, engine and precision."""
    known = {one.name: one for one in priced}
    return {
        **served,
        "types": [[one.input_tokens, one.output_tokens] for one in found.types],
        "replicas": [
            {
                "name": used.configuration,
                "count": used.count,
                "stages": [
                    {"gpu": kind, "tp": tp, "layers": layers}
                    for kind, tp, layers in known[used.configuration].stages
                ],
                "usd_per_hour": used.cost_per_hour,
                "shares": found.shares[used.configuration],
            }
            for used in found.replicas
        ],
    }


def _replayed(
    found: ServePlanDocument, question: _Question, hwdb: Hwdb, slo: Slo
) -> tuple[PlayedPlanDocument, dict[str, float]]:
    """(the plan under the simulator, when the last replica of each configuration was through).

    A batch comes all at once, other workloads arrive at the promised rate.
    """
    fleet, workload = read_fleet(found.fleet, hwdb), question.workload
    if question.objective == "makespan":
        played = replace(workload, arrival_s=np.zeros(len(workload)))
        promised = float(found.makespan_s or 0.0)
    elif question.objective == "cost":
        played, promised = workload, workload.rate_rps
    else:
        promised = float(found.throughput_rps or 0.0)
        played = replace(workload, arrival_s=workload.arrival_s * (workload.rate_rps / promised))
    run, after = simulate_service(fleet, played, router="weighted", slo=slo, types=question.place)
    value = run.duration_s if question.objective == "makespan" else run.throughput_rps
    if run.overloaded:
        found.notes.append(f"replayed: {run.notes[-1]}")
    ends: dict[str, float] = {}
    for place, one in enumerate(after.instances):
        name = one.given.name.partition(": ")[2]
        finish = after.ledger.finish_s[after.instance == place]
        ends[name] = max(ends.get(name, 0.0), float(np.nanmax(finish)) if len(finish) else 0.0)
    told = PlayedPlanDocument(
        promised=promised,
        played=value,
        error=value / promised - 1.0,
        good_share=run.good_share,
        ttft_p99_s=run.ttft_s.p99,
        tpot_p99_s=run.tpot_s.p99,
        simulate_cpu_s=run.simulate_cpu_s,
    )
    return told, ends


def _as_goodput(found: ServePlanDocument, rate_rps: float, utilisation: float) -> None:
    """Makespans of one second's requests as requests a second."""
    found.objective = "goodput"
    found.assumptions |= {
        "utilisation": utilisation,
        "makespan_s": "the time for the requests that the workload brings in one second",
    }
    for rival in found.rivals:
        rival.value = None if rival.value is None else rate_rps / rival.value
    if found.bound:
        found.bound = rate_rps / found.bound
    for lever in found.levers.values():
        lever.value = None if lever.value is None else rate_rps / lever.value
    if found.interval:
        found.interval = (rate_rps / found.interval[1], rate_rps / found.interval[0])

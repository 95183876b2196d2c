"""Simulate a service plan in each scenario that it must tolerate."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.workload import Ints, Workload
from tangram_sim.serving_planners.offers import PricedConfiguration
from tangram_sim.serving_planners.problem import MAKESPAN as BATCH
from tangram_sim.serving_planners.problem import NODE
from tangram_sim.studies.serving_plan import PlayedScenarioDocument, ServePlanDocument, plan_problem
from tangram_sim.studies.serving_plan_fleet import fleet_document
from tangram_sim.studies.serving_plan_replay import play_fleet
from tangram_sim.studies.serving_question import COST, MAKESPAN, PlanScenario, ServiceQuestion

_SHARES_S = 2.0  # seconds to share out the requests over what is left


def with_scenario_replays(
    found: ServePlanDocument, question: ServiceQuestion, priced: Sequence[PricedConfiguration], hwdb: Hwdb
) -> ServePlanDocument:
    """The plan with a simulation of every scenario of its goal: replicas on lost kinds are gone.

    Requests are distributed again over the remaining replicas, in the amount that the scenario states: a
    batch must finish within the plan's makespan, otherwise requests arrive at that part of the rate. Where
    the remaining replicas cannot serve them, a note replaces the simulation. If any one node is lost, the
    node whose loss leaves the least capacity is taken.
    """
    told, notes = list[PlayedScenarioDocument](), list[str]()
    for scenario in question.goal.scenarios:
        losses = [dict(host.replicas) for host in found.hosts] if NODE in scenario.lost else [{}]
        outcomes = [(lost, *_after(found, priced, scenario, lost, question)) for lost in losses]
        lost, left, shared = max(outcomes, key=lambda outcome: _batch_s(outcome[2]))
        if shared is None or shared.status == "infeasible":
            why = shared.reason if shared is not None else "no replica is left"
            notes.append(f"not replayed in {scenario.name}: {why}")
            continue
        share = scenario.coverage * scenario.rate_factor
        fleet = fleet_document(shared, left, question)
        if question.goal.objective == MAKESPAN:
            promised = float(found.makespan_s or 0.0)
            workload, types = _part(question.workload, question.place, share)
        else:
            rate = question.workload.rate_rps
            whole = rate if question.goal.objective == COST else float(found.throughput_rps or 0.0)
            promised, workload, types = whole * share, question.workload, question.place
        played = play_fleet(fleet, question, workload, types, promised, hwdb)
        told.append(
            PlayedScenarioDocument(
                **played.model_dump(),
                name=scenario.name,
                replicas=sum(replica.most or 0 for replica in left),
                lost=lost,
            )
        )
    return found.with_fields(scenario_replays=told, notes=[*found.notes, *notes])


def _after(
    found: ServePlanDocument,
    priced: Sequence[PricedConfiguration],
    scenario: PlanScenario,
    lost: Mapping[str, int],
    question: ServiceQuestion,
) -> tuple[list[PricedConfiguration], ServePlanDocument | None]:
    """(configurations with their remaining replicas, how requests are distributed over them).

    Replicas on a lost kind are gone, and those `lost` with a node, a number by configuration.
    """
    known = {configuration.name: configuration for configuration in priced}
    left = [
        replace(known[used.configuration], most=used.count - lost.get(used.configuration, 0))
        for used in found.replicas
        if used.count > lost.get(used.configuration, 0)
        and not set(known[used.configuration].gpus) & set(scenario.lost)
    ]
    return left, _shared_out(left, question) if left else None


def _batch_s(shared: ServePlanDocument | None) -> float:
    """Seconds that replicas take for all requests; inf where they cannot serve them."""
    return inf if shared is None or shared.makespan_s is None else shared.makespan_s


def _shared_out(left: Sequence[PricedConfiguration], question: ServiceQuestion) -> ServePlanDocument:
    """A plan with at most these replicas that distributes the requests as evenly as possible."""
    problem = replace(
        question.rental(left),
        objective=BATCH,
        budget_usd_per_hour=inf,
        utilisation=1.0,
        scenarios=(),
    )
    return plan_problem(problem, _SHARES_S, beside=False)


def _part(workload: Workload, types: Ints, share: float) -> tuple[Workload, Ints]:
    """(requests, their types) for `share` of a batch, above 1 more than all, drawn evenly."""
    count = max(1, round(len(workload) * share))
    chosen = (np.arange(count) / share).astype(np.int64) % len(workload)
    return workload.chosen(chosen), types[chosen]

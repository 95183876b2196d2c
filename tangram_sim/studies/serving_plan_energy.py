"""Watts and joules per token of a service plan, each replica under its share of the requests."""

from collections.abc import Sequence
from dataclasses import replace
from math import hypot

import numpy as np

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load, open_loop
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.energy import CappedStepCost, ReplicaPower, capped, replica_power
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.workload import Floats
from tangram_sim.serving_planners.offers import OfferPricer, PricedConfiguration
from tangram_sim.serving_planners.problem import DECODE, PREFILL
from tangram_sim.studies.serving_answer import interval
from tangram_sim.studies.serving_plan import PlanEnergyDocument, ServePlanDocument
from tangram_sim.studies.serving_power import SLOWER_IS_DEARER
from tangram_sim.studies.serving_question import COST, MAKESPAN, ServiceQuestion
from tangram_sim.units import DAY_S, JOULES_PER_KWH


def with_energy(
    found: ServePlanDocument,
    question: ServiceQuestion,
    priced: Sequence[PricedConfiguration],
    hwdb: Hwdb,
    speed_spread: float,
) -> ServePlanDocument:
    """The plan with watts and joules per token; a note where a power limit is unknown.

    `speed_spread`: standard deviation of log tokens/s, since a slower batch uses more energy. Raises
    InfeasibleError where a replica cannot be held to the power cap.
    """
    goal, known = question.goal, {one.name: one for one in priced}
    rates = question.amounts if goal.objective == COST else question.amounts / (found.makespan_s or 1.0)
    powers: list[tuple[int, ReplicaPower]] = []
    for used in found.replicas:
        one = known[used.configuration]
        if not all(hwdb.gpu(kind).power_w for kind in one.gpus):
            unknown = f"watts are not known: the power limit of {', '.join(one.gpus)} is not in the database"
            return found.with_fields(notes=[*found.notes, unknown])
        own = np.array(found.shares[used.configuration]) * rates / used.count
        powers.append((used.count, _power(one, own, question, hwdb)))
    watts = sum(count * float(one.gpu_w[0]) for count, one in powers)
    host_w = sum(count * one.host_w for count, one in powers)
    most_w = sum(count * one.most_w for count, one in powers)
    tokens = float(rates @ np.array([one.output_tokens for one in question.types]))
    sigma = max(one.sigma for _, one in powers)
    late = 0.0 if goal.objective == COST else SLOWER_IS_DEARER * speed_spread
    site_w = (watts + host_w) * goal.energy.pue
    kwh = site_w * (found.makespan_s or 0.0 if goal.objective == MAKESPAN else DAY_S) / JOULES_PER_KWH
    low, high = interval(watts, sigma)
    least, greatest = interval(watts / tokens, hypot(sigma, late))
    intensity = goal.energy.carbon_g_per_kwh
    energy = PlanEnergyDocument(
        gpu_w=watts,
        host_w=host_w,
        site_w=site_w,
        joules_per_output_token=watts / tokens,
        site_joules_per_output_token=site_w / tokens,
        kwh=kwh,
        kg_co2e=kwh * intensity / 1e3 if intensity else None,
        intervals={
            "gpu_w": (low, min(high, most_w)),
            "joules_per_output_token": (least, greatest),
        },
        basis="; ".join(dict.fromkeys(one.basis for _, one in powers)),
    )
    return found.with_fields(energy=energy)


def _power(one: PricedConfiguration, rates: Floats, question: ServiceQuestion, hwdb: Hwdb) -> ReplicaPower:
    """Mean watts of a replica that serves `rates` requests per second of each type.

    All types count as one type of their mean lengths: work is nearly linear in prompt and output tokens.
    """
    goal = question.goal
    name = one.model or next(iter(question.models))
    pricer = OfferPricer(
        question.models[name],
        hwdb,
        goal.engine,
        goal.precision,
        Load.of(1.0, 1.0),
        goal.slo,
        speculation=one.speculation,
    )
    deployment = pricer.deployment(one.stages, attention_dp=one.attention_dp, ep=one.ep)
    fit = CalibrationTable.load(hwdb).fit_of(deployment)
    cost = capped(LayerStepCost(deployment, hwdb, fit), goal.energy.power_cap_w)
    rate = float(rates.sum())
    weights = rates / rate if rate > 0 else np.full(len(rates), 1.0 / len(rates))
    isl = float(weights @ np.array([kind.input_tokens for kind in question.types]))
    osl = float(weights @ np.array([kind.output_tokens for kind in question.types]))
    load = Load.of(isl, osl)
    if one.role == PREFILL:
        load = Load.of(isl, 1.0)
    elif one.role == DECODE:  # the cache of the prompt came over the link
        load = Load.of(isl, osl, isl - 1.0)
    steady = open_loop(cost, deployment, kv_capacity(deployment, hwdb, fit), load, max(rate, 1e-9))
    if isinstance(cost, CappedStepCost):
        cost.check(load, steady.running)
    return replica_power(cost, load, replace(steady, request_rate=np.minimum(steady.request_rate, rate)))

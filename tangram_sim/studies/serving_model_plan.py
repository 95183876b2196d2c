"""Service plans for models on offered GPUs: priced by the cost layer and simulated."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, inf

from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.deadline import Deadline
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.answer import PROVEN
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import MOST_STAGES, PricedConfiguration
from tangram_sim.serving_planners.problem import WHOLE
from tangram_sim.studies.serving_plan import (
    PlayedPlanDocument,
    ServePlanDocument,
    plan_problem,
)
from tangram_sim.studies.serving_plan_energy import with_energy
from tangram_sim.studies.serving_plan_fleet import fleet_document
from tangram_sim.studies.serving_plan_replay import replayed
from tangram_sim.studies.serving_question import (
    COST,
    GOODPUT,
    MAKESPAN,
    PricedOffers,
    ServiceGoal,
    ServiceQuestion,
)
from tangram_sim.studies.serving_scenarios import with_scenario_replays
from tangram_sim.units import percent

_Z90 = 1.6449  # of a 90 % interval
# Plans tried from each of the starts, by their number, each after a replay of the last.
_ATTEMPTS = {1: (4,), 2: (3, 3), 3: (3, 3, 3), 4: (3, 3, 3, 3)}
_DERATED = 0.88  # of their throughput replicas are planned with after a replay that broke the objective


def plan_service(
    models: Mapping[str, Model],
    offers: Offers,
    workload: Workload,
    hwdb: Hwdb,
    goal: ServiceGoal,
    *,
    time_limit_s: float | None = None,
    planner: str = "milp",
    priced: PricedOffers | None = None,
) -> ServePlanDocument:
    """GPUs, replicas and shares of requests for a workload, with a simulation of the plan.

    `models` by the names used in the answer's fleet; with several, requests name theirs or are assigned in
    turn. `planner` is one of `planner_names`. Throughputs are those that meet the latency objective on
    average; for a request rate the plan is derated until 99 % of the simulated requests meet it.
    `time_limit_s` covers everything: after it the simulated plan is returned without comparisons.
    Configurations already `priced`, on offers with no less of any kind, are not priced again. Raises
    InfeasibleError.
    """
    begun, limit = time.process_time(), Deadline.of(time_limit_s)
    question = ServiceQuestion.of(models, offers, workload, goal)
    configurations, refused = priced or question.priced(planner, hwdb)
    goal = question.goal
    if goal.objective == MAKESPAN:
        found = _batch(question, configurations, hwdb, limit.turn_s())
    else:
        found = _best_played(question, configurations, hwdb, limit)
    if found.status != "infeasible":
        found = with_scenario_replays(found, question, configurations, hwdb)
        spread = _spread(found, models, goal, CalibrationTable.load(hwdb))
        found = found.with_fields(interval=_interval(found.makespan_s, exp(_Z90 * spread)))
        found = with_energy(found, question, configurations, hwdb, spread)
    told = (*offers.notes, *question.workload.notes)
    notes = [*found.notes, *(note for note in told if note not in found.notes)]
    assumptions = found.assumptions | {
        "planner": planner,
        "engine": goal.engine,
        "precision": goal.precision,
        "throughputs": "of the cost layer, each type alone, as many at once as seats and `slo=` allow"
        + ("; of these the share that a batch of its length reaches" * (goal.objective == MAKESPAN)),
        "configurations": len(configurations),
        "configurations_refused": refused,
    }
    found = found.with_fields(notes=notes, assumptions=assumptions)
    if goal.objective == GOODPUT:
        found = _as_goodput(found, float(question.amounts.sum()), goal.utilisation)
    return found.with_fields(planning_cpu_s=time.process_time() - begun)


def _planned(
    question: ServiceQuestion,
    priced: Sequence[PricedConfiguration],
    time_limit_s: float | None,
    *,
    beside: bool = False,
) -> ServePlanDocument:
    found = plan_problem(question.rental(priced), time_limit_s, beside=beside)
    types = [
        asked_type if question.several else replace(asked_type, model="") for asked_type in question.types
    ]
    return found.with_fields(types=types)


def _batch(
    question: ServiceQuestion,
    priced: Sequence[PricedConfiguration],
    hwdb: Hwdb,
    time_limit_s: float | None,
) -> ServePlanDocument:
    """The plan of a batch, with comparisons, simulated."""
    found = _planned(question, priced, time_limit_s, beside=True)
    if found.status == "infeasible":
        return found
    return replayed(found.with_fields(fleet=fleet_document(found, priced, question)), question, hwdb)


def _best_played(
    question: ServiceQuestion,
    priced: Sequence[PricedConfiguration],
    hwdb: Hwdb,
    limit: Deadline,
) -> ServePlanDocument:
    """Of the plans that several starts lead to, the one that does best in the simulator, with comparisons.

    Latencies' tails are worse the more stages there are, and iterations with prompts yield no drafts, which
    no mean says: plans without many stages and plans without drafts are tried, too; and, over a link, plans
    of replicas that do one half of each request. No plan of any start is better than the bound, at the
    throughputs that each start was kept with.
    """
    whole = [configuration for configuration in priced if configuration.role == WHOLE]
    short = [configuration for configuration in whole if len(configuration.stages) < MOST_STAGES]
    starts = [whole, short] if 0 < len(short) < len(whole) else [whole]
    plain = [configuration for configuration in whole if configuration.speculation is None]
    starts += [plain] if 0 < len(plain) < len(whole) else []
    if len(whole) < len(priced):
        starts.append([configuration for configuration in priced if configuration.role != WHOLE])
    best: ServePlanDocument | None = None
    tried: list[Sequence[PricedConfiguration]] = []  # with the throughputs that each start was kept with
    bounds: list[float | None] = []
    of_best = 0
    for start, attempts in zip(starts, _ATTEMPTS[len(starts)], strict=True):
        told, rates = _replayed_until_kept(question, start, attempts, hwdb, limit)
        tried.append(rates)
        bounds.append(told.bound if told is not None else None)
        if told is not None and (best is None or _preferred(told, best, question.goal)):
            best, of_best = told, len(tried) - 1
        if best is not None and limit.over():
            return _bounded(best, bounds, question.goal)
    beside = _planned(question, tried[of_best], limit.turn_s(), beside=True)
    apart = len(whole) < len(priced)
    if best is None:
        return _planned(question, tried[-1], limit.turn_s(), beside=True) if apart else beside
    best = _bounded(best.with_fields(rivals=beside.rivals, levers=beside.levers), bounds, question.goal)
    if apart:
        other = tried[0] if of_best == len(starts) - 1 else tried[-1]
        best = _compared_also(best, _planned(question, other, limit.turn_s(), beside=True), question.goal)
        how = {"prefill and decode": "apart" if other is tried[0] else "together"}
        best = best.with_fields(assumptions=best.assumptions | how)
    return best


def _value(found: ServePlanDocument, goal: ServiceGoal) -> float:
    """What the objective makes least: USD/h or seconds."""
    return (found.cost_per_hour if goal.objective == COST else found.makespan_s) or 0.0


def _bounded(best: ServePlanDocument, bounds: Sequence[float | None], goal: ServiceGoal) -> ServePlanDocument:
    """The plan with the least of the bounds: its own may be of few of the configurations."""
    least = min((bound for bound in bounds if bound is not None), default=inf)
    if best.bound is None or least >= (1.0 - PROVEN) * best.bound:
        return best
    gap = 1.0 - least / _value(best, goal)
    return best.with_fields(bound=least, gap=gap, status="optimal" if gap <= PROVEN else "feasible")


def _compared_also(best: ServePlanDocument, other: ServePlanDocument, goal: ServiceGoal) -> ServePlanDocument:
    """The plan with rivals and levers of another set of configurations where they are better."""
    value = _value(best, goal)
    others = {(item.gpu, item.capped): item for item in other.rivals}
    rivals = [
        min(
            (item, others.get((item.gpu, item.capped), item)),
            key=lambda rival: inf if rival.value is None else rival.value,
        )
        for item in best.rivals
    ]
    levers = dict(best.levers)
    for name, lever in best.levers.items():
        found = other.levers[name].value if name in other.levers else None
        if found is not None and (lever.value is None or found < lever.value):
            levers[name] = lever.with_fields(value=found, worth=found / value - 1.0)
    return best.with_fields(rivals=rivals, levers=levers)


def _replayed_until_kept(
    question: ServiceQuestion,
    rates: Sequence[PricedConfiguration],
    attempts: int,
    hwdb: Hwdb,
    limit: Deadline,
) -> tuple[ServePlanDocument | None, Sequence[PricedConfiguration]]:
    """(the simulated plan, None if there is none; the throughputs that it was planned with).

    Means that meet the objective may leave a tail that does not: all throughputs are derated until the tail
    does. If none does, the plan with the most good requests is taken.
    """
    best: ServePlanDocument | None = None
    best_rates, slo = rates, question.goal.slo
    for attempt in range(attempts):
        found = _planned(question, rates, limit.turn_s())
        if found.status == "infeasible":
            break
        found = replayed(found.with_fields(fleet=fleet_document(found, rates, question)), question, hwdb)
        if attempt:
            how = {"derated": f"throughputs times {_DERATED**attempt:.3g}, for the latencies' tail"}
            found = found.with_fields(assumptions=found.assumptions | how)
        if best is None or _better(found.replay, best.replay, slo):
            best, best_rates = found, rates
        if _keeps(found.replay, slo) or limit.over():
            break
        rates = [replace(rate, rps=tuple(rps * _DERATED for rps in rate.rps)) for rate in rates]
    if best is None:
        return None, rates
    if best.replay is not None and not _keeps(best.replay, slo):
        misses = (
            f"{percent(best.replay.good_share, 1)} of the replayed requests keep the objective, no plan "
            f"tried reaches 99 %; p99: TTFT {best.replay.ttft_p99_s:.3g} s, "
            f"TPOT {best.replay.tpot_p99_s:.3g} s"
        )
        best = best.with_fields(notes=[*best.notes, misses])
    return best, best_rates


def _keeps(replay: PlayedPlanDocument | None, slo: Slo) -> bool:
    """Whether the queue does not grow and the 99th percentiles of the replay are within the objective."""
    if replay is None or replay.verdict:
        return False
    return replay.ttft_p99_s <= slo.ttft_s and replay.tpot_p99_s <= slo.tpot_s


def _preferred(serve_plan: ServePlanDocument, other: ServePlanDocument, goal: ServiceGoal) -> bool:
    """Whether one plan is better than another: cheaper for objective `cost`, else better when simulated."""
    if serve_plan.replay is None or other.replay is None:
        return serve_plan.replay is not None
    if goal.objective == COST and _keeps(serve_plan.replay, goal.slo) and _keeps(other.replay, goal.slo):
        return (serve_plan.cost_per_hour or 0.0) < (other.cost_per_hour or 0.0)
    return _better(serve_plan.replay, other.replay, goal.slo)


def _better(one: PlayedPlanDocument | None, other: PlayedPlanDocument | None, slo: Slo) -> bool:
    """Whether plan `one` simulates better: its tail meets the objective, then by good requests/s."""
    if one is None or other is None:
        return other is None
    kept, before = _keeps(one, slo), _keeps(other, slo)
    more = one.played * one.good_share > other.played * other.good_share
    return kept if kept != before else more


def _spread(
    found: ServePlanDocument, models: Mapping[str, Model], goal: ServiceGoal, table: CalibrationTable
) -> float:
    """Standard deviation of log tokens/s, the largest over the GPU kinds and models used.

    For a batch that of bursts: all its requests come at once.
    """
    residual = "residual_burst_output_tok_s" if goal.objective == MAKESPAN else "residual_output_tok_s"
    used = sorted({gpu for replica in found.replicas if replica.count for gpu in replica.gpus})
    return max(
        table.fit(goal.engine, model=model.name, precision=goal.precision, gpu=gpu).residuals[residual]
        for gpu in used
        for model in models.values()
    )


def _interval(makespan_s: float | None, factor: float) -> tuple[float, float] | None:
    """The 90 % interval of a makespan, seconds; its ends are a `factor` below and above it."""
    return None if makespan_s is None else (makespan_s / factor, makespan_s * factor)


def _as_goodput(found: ServePlanDocument, rate_rps: float, utilisation: float) -> ServePlanDocument:
    """The plan with its makespans, for the requests of one second, converted to rates in requests/s."""

    def rate(makespan_s: float | None) -> float | None:
        return makespan_s and rate_rps / makespan_s

    interval = found.interval and (rate_rps / found.interval[1], rate_rps / found.interval[0])
    return found.with_fields(
        objective="goodput",
        assumptions=found.assumptions
        | {
            "utilisation": utilisation,
            "makespan_s": "the time for the requests that the workload brings in one second",
        },
        rivals=[rival.with_fields(value=rate(rival.value)) for rival in found.rivals],
        bound=rate(found.bound),
        levers={name: lever.with_fields(value=rate(lever.value)) for name, lever in found.levers.items()},
        interval=interval,
    )

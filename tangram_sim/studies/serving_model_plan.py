"""Plans of a service for models on GPUs on offer: priced by the cost layer, replayed before shown."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, isclose
from typing import Any

from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.answer import PROVEN
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import MOST_STAGES, PricedConfiguration
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import (
    PlannedTypeDocument,
    PlayedPlanDocument,
    ServePlanDocument,
    plan_problem,
)
from tangram_sim.studies.serving_plan_replay import replayed
from tangram_sim.studies.serving_question import (
    COST,
    GOODPUT,
    MAKESPAN,
    PricedOffers,
    ServiceGoal,
    ServiceQuestion,
)

_Z90 = 1.6449  # of a 90 % interval
_STAY = 0.25  # of the shortest makespan that a request of a batch may decode
# Plans tried from each of one or two starts, each after a replay of the last.
_ATTEMPTS = {1: (4,), 2: (3, 3)}
_AGAIN = 2  # times that shares over the replicas of a batch are planned again
_NEARER = 0.02  # error of a replay that needs no other plan
_FAR = 0.1  # error of a replay that is said aloud
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
    """GPUs, replicas and shares for a workload, and what the simulator makes of them.

    `models` by the names that the fleet of the answer calls them; of several, requests name theirs or are
    dealt to all in turn. `planner` is one of `planner_names`. Throughputs keep the objective on latency on
    average; of a rate the plan is derated until 99 % of the replayed requests keep it.
    Configurations `priced` already, on offers that have no less of any kind, are not priced again.
    Raises InfeasibleError.
    """
    begun = time.process_time()
    question = ServiceQuestion.of(models, offers, workload, goal)
    configurations, refused = priced or question.priced(planner, hwdb)
    starts = [configurations]
    if goal.objective == MAKESPAN and (least_s := question.shortest_s(configurations)) > 0:
        # A batch is no steady load: seats whose requests would still run when it is through are not filled.
        starts.insert(0, question.priced(planner, hwdb, _STAY * least_s)[0])
    elif goal.objective != MAKESPAN:
        # Latencies' tails are worse the more stages there are, which no mean says: plans without many, too.
        short = [one for one in configurations if len(one.stages) < MOST_STAGES]
        starts += [short] if 0 < len(short) < len(configurations) else []
    goal = question.goal
    found = _best_played(question, starts, hwdb, time_limit_s)
    if found.status != "infeasible":
        table = CalibrationTable.load(hwdb)
        used = {gpu for one in found.replicas if one.count for gpu in one.gpus}
        fits = [table.fit(goal.engine, gpu=gpu) for gpu in sorted(used)]
        _add_interval(found, exp(_Z90 * max(fit.residuals["residual_output_tok_s"] for fit in fits)))
    found.notes += [note for note in question.workload.notes if note not in found.notes]
    found.assumptions |= {
        "planner": planner,
        "engine": goal.engine,
        "precision": goal.precision,
        "throughputs": "of the cost layer, each type alone, as many at once as seats and `slo=` allow",
        "configurations": len(configurations),
        "configurations_refused": refused,
    }
    if goal.objective == GOODPUT:
        _as_goodput(found, float(question.amounts.sum()), goal.utilisation)
    found.planning_cpu_s = time.process_time() - begun
    return found


def _planned(
    question: ServiceQuestion,
    priced: Sequence[PricedConfiguration],
    time_limit_s: float | None,
    *,
    beside: bool = False,
) -> ServePlanDocument:
    problem, _ = read_problem(question.problem(priced), "the offers")
    found = plan_problem(problem, time_limit_s, beside=beside)
    found.types = [
        PlannedTypeDocument(
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            amount=one.amount,
            model=one.model if question.several else "",
        )
        for one in question.types
    ]
    return found


def _best_played(
    question: ServiceQuestion,
    starts: Sequence[Sequence[PricedConfiguration]],
    hwdb: Hwdb,
    time_limit_s: float | None,
) -> ServePlanDocument:
    """Of the plans that each start leads to, the one that does best in the simulator, with comparisons.

    A start is a list of configurations with throughputs to plan with; the last has them all, in steady state
    where it is of a batch.
    """
    best: ServePlanDocument | None = None
    batch = question.goal.objective == MAKESPAN
    best_rates = starts[0]
    for start, attempts in zip(starts, _ATTEMPTS[len(starts)], strict=True):
        told, rates = _replayed_until_kept(question, start, attempts, hwdb, time_limit_s)
        if told is not None and (best is None or _preferred(told, best, question.goal)):
            best, best_rates = told, rates
    # Replays choose the plan of a batch; what it promises, and others do, are steady throughputs as priced.
    priced = starts[-1]
    whole = _planned(question, priced if batch else best_rates, time_limit_s, beside=True)
    if best is None:
        return whole
    if batch:
        best = _as_priced(_shares_again(best, question, best_rates, hwdb), whole, priced)
        if best.replay is not None and best.replay.error > _FAR:
            best.notes.append(
                f"the batch is short: replicas fill and empty for most of it, so that it is played "
                f"{best.replay.error:.0%} longer than steady throughputs promise; plan with the played time"
            )
    best.rivals, best.levers = whole.rivals, whole.levers
    return best


def _as_priced(
    found: ServePlanDocument, whole: ServePlanDocument, priced: Sequence[PricedConfiguration]
) -> ServePlanDocument:
    """A batch's plan with makespan, bound and gap under the throughputs as priced, as `whole` has them.

    A replay held against throughputs that it corrected itself could only agree.
    """
    rps = {one.name: one.rps for one in priced}
    requests = [one.amount for one in found.types]
    makespan_s = max(
        sum(
            amount * share / rate
            for amount, share, rate in zip(
                requests, found.shares[used.configuration], rps[used.configuration], strict=True
            )
            if share > 0
        )
        / used.count
        for used in found.replicas
        if used.count
    )
    if whole.makespan_s and isclose(makespan_s, whole.makespan_s, rel_tol=1e-9):
        makespan_s = whole.makespan_s  # the same plan, but for the order of summing
    bound_s = min(whole.bound or 0.0, makespan_s)
    gap = 1.0 - bound_s / makespan_s
    replay = found.replay
    return found.model_copy(
        update={
            "makespan_s": makespan_s,
            "throughput_rps": sum(requests) / makespan_s,
            "bound": bound_s,
            "gap": gap,
            "status": "optimal" if gap <= PROVEN else "feasible",
            "replay": replay
            and replay.model_copy(update={"promised": makespan_s, "error": replay.played / makespan_s - 1.0}),
        }
    )


def _shares_again(
    best: ServePlanDocument, question: ServiceQuestion, rates: Sequence[PricedConfiguration], hwdb: Hwdb
) -> ServePlanDocument:
    """The same replicas of a batch, shares and makespan planned again with throughputs of the replay."""
    known = {one.name: one for one in rates}
    counts = {one.configuration: one.count for one in best.replicas}
    mine = [replace(known[name], most=count) for name, count in counts.items()]
    found = best
    for _ in range(_AGAIN):
        if found.replay is None or abs(found.replay.error) < _NEARER:
            break
        _, ends = replayed(found, question, hwdb)
        factor = {name: found.replay.promised / end for name, end in ends.items() if end > 0}
        mine = [replace(one, rps=tuple(rps * factor.get(one.name, 1.0) for rps in one.rps)) for one in mine]
        told = _planned(question, mine, None)
        if {one.configuration: one.count for one in told.replicas} != counts:
            break
        told.fleet = fleet_document(told, mine, question)
        told.replay, _ = replayed(told, question, hwdb)
        told.assumptions["corrected"] = "throughputs as the replay of these replicas showed them"
        if best.replay is not None and _better(told.replay, best.replay, None):
            best = told
        found = told
    return best


def _replayed_until_kept(
    question: ServiceQuestion,
    rates: Sequence[PricedConfiguration],
    attempts: int,
    hwdb: Hwdb,
    time_limit_s: float | None,
) -> tuple[ServePlanDocument | None, Sequence[PricedConfiguration]]:
    """(the plan with its replay, None where there is none; the throughputs that it was planned with).

    It is planned again with what the replay showed. A batch ends with replicas that run empty, which steady
    throughputs do not know: a configuration's are scaled by promised over played time. Of the plans tried the
    one with the least played makespan is taken. Of a rate, a mean that keeps the objective leaves a tail that
    does not: all throughputs are derated until the tail does, too; of plans that never do, the one with the
    most good requests is taken.
    """
    best: ServePlanDocument | None = None
    best_rates, slo = rates, question.goal.slo
    batch = question.goal.objective == MAKESPAN
    for attempt in range(attempts):
        found = _planned(question, rates, time_limit_s)
        if found.status == "infeasible":
            break
        found.fleet = fleet_document(found, rates, question)
        found.replay, ends = replayed(found, question, hwdb)
        if attempt and batch:
            found.assumptions["corrected"] = f"throughputs scaled by {attempt} replays of the batch"
        elif attempt:
            found.assumptions["derated"] = (
                f"throughputs times {_DERATED**attempt:.3g}, for the latencies' tail"
            )
        if best is None or _better(found.replay, best.replay, None if batch else slo):
            best, best_rates = found, rates
        kept = abs(found.replay.error) < _NEARER if batch else _keeps(found.replay, slo)
        if kept:
            break
        factor = {name: found.replay.promised / end for name, end in ends.items() if end > 0}
        rates = [
            replace(
                one,
                rps=tuple(rps * (factor.get(one.name, 1.0) if batch else _DERATED) for rps in one.rps),
            )
            for one in rates
        ]
    if best is None:
        return None, rates
    if not batch and best.replay is not None and not _keeps(best.replay, slo):
        best.notes.append(
            f"{best.replay.good_share:.1%} of the replayed requests keep the objective, no plan tried "
            f"reaches 99 %; p99: TTFT {best.replay.ttft_p99_s:.3g} s, TPOT {best.replay.tpot_p99_s:.3g} s"
        )
    return best, best_rates


def _keeps(replay: PlayedPlanDocument, slo: Slo) -> bool:
    """Whether the 99th percentiles of the replay are within the objective."""
    return replay.ttft_p99_s <= slo.ttft_s and replay.tpot_p99_s <= slo.tpot_s


def _preferred(one: ServePlanDocument, other: ServePlanDocument, goal: ServiceGoal) -> bool:
    """Whether one plan is better than another: cheaper for objective `cost`, else better when simulated."""
    if one.replay is None or other.replay is None:
        return one.replay is not None
    if goal.objective == COST and _keeps(one.replay, goal.slo) and _keeps(other.replay, goal.slo):
        return (one.cost_per_hour or 0.0) < (other.cost_per_hour or 0.0)
    return _better(one.replay, other.replay, None if goal.objective == MAKESPAN else goal.slo)


def _better(one: PlayedPlanDocument, other: PlayedPlanDocument | None, slo: Slo | None) -> bool:
    """Whether a plan is played better; without `slo` it is of a batch.

    A batch that is through sooner; a rate whose tail keeps the objective before
    one whose tail does not, then with more good requests a second.
    """
    if other is None:
        return True
    if slo is not None:
        kept, before = _keeps(one, slo), _keeps(other, slo)
        more = one.played * one.good_share > other.played * other.good_share
        return kept if kept != before else more
    return one.played < other.played


def _add_interval(found: ServePlanDocument, factor: float) -> None:
    """Set the 90 % interval of the makespan; its ends are a `factor` below and above the makespan."""
    if found.makespan_s is not None:
        found.interval = (found.makespan_s / factor, found.makespan_s * factor)


def fleet_document(
    found: ServePlanDocument, priced: Sequence[PricedConfiguration], question: ServiceQuestion
) -> dict[str, Any]:
    """The plan in the format of a fleet file, for `tangram serve simulate`."""
    known = {one.name: one for one in priced}
    only = {} if question.several else {"model": next(iter(question.models))}
    return {
        **only,
        "engine": question.goal.engine,
        "precision": question.goal.precision,
        "types": [
            [one.input_tokens, one.output_tokens, *([one.model] if question.several else [])]
            for one in question.types
        ],
        "replicas": [
            {
                "name": used.configuration,
                **({"model": known[used.configuration].model} if question.several else {}),
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


def _as_goodput(found: ServePlanDocument, rate_rps: float, utilisation: float) -> None:
    """Turn the makespans for the requests of one second into rates, requests/s, in place."""
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

"""Simulate a service plan and compare the result with what the plan promises."""

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.fleet import PlayedService
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.workload import Ints, Workload
from tangram_sim.studies.serving_plan import PlayedPlanDocument, ServePlanDocument
from tangram_sim.studies.serving_question import COST, MAKESPAN, ServiceQuestion
from tangram_sim.studies.serving_simulation import simulate_service

_STAYS = 5.0  # a rate is played for so many times as long as a request stays; requests come again if need be
_MOST_PLAYED = 30_000  # requests


def replayed(found: ServePlanDocument, question: ServiceQuestion, hwdb: Hwdb) -> ServePlanDocument:
    """The plan with its simulation: a batch all at once, else the workload at the promised rate."""
    workload = question.workload
    objective = question.goal.objective
    if objective == MAKESPAN:
        promised = float(found.makespan_s or 0.0)
    elif objective == COST:
        promised = workload.rate_rps
    else:
        promised = float(found.throughput_rps or 0.0)
    replay = play_fleet(found.fleet, question, workload, question.place, promised, hwdb)
    return found.with_fields(replay=replay)


def play_fleet(
    fleet: dict[str, Any] | None,
    question: ServiceQuestion,
    workload: Workload,
    types: Ints,
    promised: float,
    hwdb: Hwdb,
) -> PlayedPlanDocument:
    """A fleet of the question as simulated.

    The requests of a batch come all at once, and `promised` are seconds. Others arrive at the rate
    `promised`, for several times as long as one request takes; what counts is the rate at which requests
    finish meanwhile.
    """
    built = read_fleet(fleet, hwdb)
    batch = question.goal.objective == MAKESPAN
    arrival_s = np.zeros(len(workload)) if batch else workload.arrival_s * (workload.rate_rps / promised)
    played = replace(workload, arrival_s=arrival_s)
    slo = question.goal.slo
    run, after = simulate_service(built, played, router="weighted", slo=slo, types=types)
    if not batch and played.span_s > 0:
        # Before replicas have filled, latencies are those of an empty service.
        times = min(ceil(_STAYS * run.e2e_s.p90 / played.span_s), _MOST_PLAYED // len(played))
        if times > 1:
            more, kinds = played.repeated(times), np.tile(types, times)
            run, after = simulate_service(built, more, router="weighted", slo=slo, types=kinds)
    value = run.duration_s if batch else promised * carried_share(after, run.duration_s)
    return PlayedPlanDocument(
        promised=promised,
        played=value,
        error=value / promised - 1.0,
        good_share=run.good_share,
        ttft_p99_s=run.ttft_s.p99,
        tpot_p99_s=run.tpot_s.p99,
        simulate_cpu_s=run.simulate_cpu_s,
        verdict=run.verdict,
    )


def carried_share(after: PlayedService, duration_s: float) -> float:
    """The share of the arriving requests that the replicas keep up with, 0 to 1.

    Arrivals take a span S, the whole run `duration_s`. Replicas that keep up finish within one service time
    of the last arrival; the longer the run lasts beyond that, the smaller the share S / (duration_s - service
    time).
    """
    arrival = after.workload.arrival_s
    span = float(arrival[-1] - arrival[0])
    served = after.ledger.finish_s - after.ledger.start_s
    last = float(np.nanmax(served)) if np.isfinite(served).any() else 0.0
    return span / max(span, duration_s - last) if span > 0 else 1.0

"""A service plan in the simulator: what it makes of the promise."""

from dataclasses import replace
from math import ceil

import numpy as np

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.fleet import PlayedService
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.studies.serving_plan import PlayedPlanDocument, ServePlanDocument
from tangram_sim.studies.serving_question import COST, MAKESPAN, ServiceQuestion
from tangram_sim.studies.serving_simulation import simulate_service

_STAYS = 5.0  # a rate is played for so many times as long as a request stays; requests come again if need be
_MOST_PLAYED = 30_000  # requests


def replayed(found: ServePlanDocument, question: ServiceQuestion, hwdb: Hwdb) -> PlayedPlanDocument:
    """The plan as simulated.

    The requests of a batch come all at once; other workloads arrive at the rate that the plan promises, for
    several times as long as one request takes, and what counts is the rate at which requests finish
    meanwhile.
    """
    fleet, workload = read_fleet(found.fleet, hwdb), question.workload
    objective = question.goal.objective
    if objective == MAKESPAN:
        played = replace(workload, arrival_s=np.zeros(len(workload)))
        promised = float(found.makespan_s or 0.0)
    elif objective == COST:
        played, promised = workload, workload.rate_rps
    else:
        promised = float(found.throughput_rps or 0.0)
        played = replace(workload, arrival_s=workload.arrival_s * (workload.rate_rps / promised))
    run, after = simulate_service(
        fleet, played, router="weighted", slo=question.goal.slo, types=question.place
    )
    if objective != MAKESPAN and played.span_s > 0:
        # Before replicas have filled, latencies are those of an empty service.
        times = min(ceil(_STAYS * run.e2e_s.p90 / played.span_s), _MOST_PLAYED // len(played))
        if times > 1:
            run, after = simulate_service(
                fleet,
                played.repeated(times),
                router="weighted",
                slo=question.goal.slo,
                types=np.tile(question.place, times),
            )
    value = run.duration_s if objective == MAKESPAN else promised * carried_share(after, run.duration_s)
    if run.overloaded:
        found.notes.append(f"replayed: {run.notes[-1]}")
    return PlayedPlanDocument(
        promised=promised,
        played=value,
        error=value / promised - 1.0,
        good_share=run.good_share,
        ttft_p99_s=run.ttft_s.p99,
        tpot_p99_s=run.tpot_s.p99,
        simulate_cpu_s=run.simulate_cpu_s,
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

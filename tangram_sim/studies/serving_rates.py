"""Rates at which a replica serves requests within an objective: the greatest as played, and a bound."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

import numpy as np

from tangram_sim.serving.fleet import FleetReplica, play
from tangram_sim.serving.outcome import ServiceOutcome, Slo
from tangram_sim.serving.router import RoundRobin
from tangram_sim.serving.workload import Ints, Workload

GOOD = 0.99  # share of the requests that must keep the objective
_CLOSE = 1.004  # ratio of the ends of a bisection where it stops
_STAYS = 4.0  # as long as a good request stays at most, requests are played at least
_LONGEST_TPOT_S = 0.1  # that is counted for that
_MOST_PLAYED = 20_000  # requests


def greatest_rate(keeps: Callable[[float], bool], start: float, floor: float = 0.0) -> float:
    """The greatest rate (requests/s) that `keeps` says yes to, to .4 %; 0.0 where it says no to all.

    From `start` on it is doubled or halved, then bisected. Above a `floor` that it does not reach: 0.0.
    """
    if floor and not keeps(floor):
        return 0.0
    low = high = floor or start
    if floor or keeps(low):
        while keeps(high := 2.0 * low):
            low = high
    else:
        while high > start / 1024 and not keeps(low := high / 2.0):
            high = low
        if high <= start / 1024:
            return 0.0
    while high / low > _CLOSE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def at_rate(workload: Workload, rate_rps: float, slo: Slo) -> Workload:
    """The same requests, arriving as they do but at another mean rate; again and again if that is too short.

    Before replicas have filled, latencies are those of an empty service.
    """
    found = replace(workload, arrival_s=workload.arrival_s * (workload.rate_rps / rate_rps))
    stay_s = slo.ttft_s + float(workload.output_tokens.mean()) * min(slo.tpot_s, _LONGEST_TPOT_S)
    times = min(ceil(_STAYS * stay_s / found.span_s), _MOST_PLAYED // len(found))
    return found.repeated(times) if times > 1 else found


def replica_keeps(fleet_replica: FleetReplica, workload: Workload, slo: Slo) -> Callable[[float], bool]:
    """Whether a replica alone serves the requests at a rate so that 99 % keep the objective."""

    def keeps(rate_rps: float) -> bool:
        played = at_rate(workload, rate_rps, slo)
        return ServiceOutcome(play([fleet_replica], played, RoundRobin())).good(slo) >= GOOD * len(played)

    return keeps


def busy_rate(replica: FleetReplica, workload: Workload, slo: Slo) -> float:
    """Requests/s of a replica that never idles, where a mean time per token keeps the objective.

    Prompts come one by one between decodes, or packed into every iteration, whichever takes less.
    """
    table, rules = replica.table, replica.rules
    isl, osl = float(workload.input_tokens.mean()), float(workload.output_tokens.mean())
    context = isl + osl / 2.0
    room = min(rules.seats, rules.blocks * rules.block_tokens / context)
    b: Ints = np.arange(1, ceil(max(room, 1.0)) + 1)
    contexts = np.asarray(b * context, dtype=np.float64)
    step = table.decode_steps_s(b, contexts)
    prompt = np.interp(isl, table.row_knots, table.rows_s) - table.rows_s[0]
    tpot = step + b / osl * max(prompt, 0.0)
    if rules.mixed:
        rows = b / osl * isl
        tpot = np.minimum(tpot, table.mixed_steps_s(rows, rows * isl / 2.0, b, contexts))
    return float((b / (osl * tpot))[tpot <= slo.tpot_s].max(initial=0.0))

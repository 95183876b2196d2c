"""Simulate a workload on a fleet: the run as one document, with a verdict on overload."""

import math
import time
from collections import Counter

import numpy as np
from pydantic import Field

from tangram_sim.serving.disaggregated import play_disaggregated
from tangram_sim.serving.fleet import FAST, RESUME, PlayedService, Progress, play
from tangram_sim.serving.fleet_file import ServiceFleet
from tangram_sim.serving.outcome import ServiceOutcome, Slo, Spread, spread
from tangram_sim.serving.router import Router, named_router
from tangram_sim.serving.workload import Floats, Ints, Workload
from tangram_sim.studies.documents import Document
from tangram_sim.studies.serving_answer import ServicePredictionDocument
from tangram_sim.studies.serving_requests import asking, beyond_context, nearest_types
from tangram_sim.units import HOUR_S

_SLOWER = 1.1  # times as long as before a token takes while a queue grows
_OVERLOADED = 0.1  # of all requests still there when the last one arrives, and growing


class RequestCountsDocument(Document):
    """Counts of requests by outcome: arrived = completed + failed + running."""

    arrived: int
    completed: int
    failed: int
    running: int = Field(0, description="not through when the run ended")
    preemptions: int
    failed_by_reason: dict[str, int] = Field({})


class TokenCountsDocument(Document):
    """Tokens of the completed requests, and how many were computed again or found in a cache."""

    prompt: int
    output: int
    recomputed: int = Field(description="worked on and lost again, by preemption or with an instance")
    cached: int
    processed: int = Field(description="worked on in all iterations")


class KvDocument(Document):
    """KV blocks of all instances; `peak_share` is the greatest share that an instance had in use."""

    capacity_blocks: int
    peak_blocks: int
    peak_share: float


class LittleDocument(Document):
    """Both sides of Little's law, in request-seconds; they must be equal."""

    area: float
    sojourn: float


class InstanceDocument(Document):
    """A replica during one of the periods in which it was up."""

    name: str
    up_s: float
    requests: int = Field(description="that ended here")
    output_tokens: int
    busy_share: float = Field(description="of the time it was up")
    peak_blocks: int
    capacity_blocks: int
    cost_usd: float


class ServeSimulationDocument(ServicePredictionDocument):
    """Output of `tangram serve simulate --json`: times in seconds, rates per second."""

    engine: str
    router: str
    clients: int = Field(0, description="in flight at all times, each waiting for its answer; 0: arrivals")
    requests: RequestCountsDocument
    duration_s: float = Field(description="from the first arrival to the last finish")
    offered_rps: float = Field(description="arrivals a second; 0 where all come at once")
    throughput_rps: float
    goodput_rps: float = Field(description="requests within the objective; all of them where none is given")
    good_share: float = Field(description="of the requests that arrived")
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    queue_s: Spread
    tokens: TokenCountsDocument
    kv: KvDocument
    little: LittleDocument
    cost_usd: float
    usd_per_million_good_tokens: float | None
    replicas: list[InstanceDocument]
    events: int
    simulate_cpu_s: float


def simulate_service(
    fleet: ServiceFleet,
    workload: Workload,
    *,
    router: str = "round_robin",
    engine: str = FAST,
    on_loss: str = RESUME,
    lag_s: float = 0.0,
    slo: Slo | None = None,
    seed: int = 0,
    types: Ints | None = None,
    progress: Progress | None = None,
) -> tuple[ServeSimulationDocument, PlayedService]:
    """Simulate `workload` on `fleet`; `types`: each request's type, for the shares of router `weighted`."""
    begun = time.process_time()
    workload = asking(workload, fleet)
    if types is None:
        types = nearest_types(workload, fleet.types)
    kinds = types.tolist()
    place = 0
    shares: dict[int, tuple[float, ...]] = {}
    for fleet_replica in fleet.everyone:
        for _ in fleet_replica.presences:
            shares[place] = fleet.shares.get(fleet_replica.name, ())
            place += 1
    if not any(shares.values()):
        shares = {}

    def make(work: Workload) -> Router:
        return named_router(router, work, shares, kinds, seed)

    def make_decode(work: Workload, requests: Ints) -> Router:
        first = sum(len(fleet_replica.presences) for fleet_replica in fleet.prefill)
        own = {place - first: share for place, share in shares.items() if place >= first}
        return named_router(router, work, own, types[requests].tolist(), seed)

    if fleet.link is not None:
        played = play_disaggregated(
            fleet.prefill,
            fleet.decode,
            fleet.link,
            workload,
            make,
            decode_router=make_decode,
            engine=engine,
            on_loss=on_loss,
            lag_s=lag_s,
            progress=progress,
        )
    else:
        played = play(
            fleet.replicas,
            workload,
            make(workload),
            engine=engine,
            on_loss=on_loss,
            lag_s=lag_s,
            progress=progress,
        )
    document = describe_run(played, engine, router, slo or Slo())
    document = document.with_fields(
        assumptions={**document.assumptions, **fleet.assumptions},
        notes=[*document.notes, *beyond_context(workload, fleet)],
        simulate_cpu_s=time.process_time() - begun,
    )
    return document, played


def describe_run(played: PlayedService, engine: str, router: str, slo: Slo) -> ServeSimulationDocument:
    """The document of a run: counts, latencies, rates, memory and cost."""
    outcome, work, ledger = ServiceOutcome(played), played.workload, played.ledger
    served, arrived = outcome.served, len(work)
    output = int(work.output_tokens[served].sum())
    late = (outcome.ttft_s > slo.ttft_s) | (outcome.several & (outcome.tpot_s > slo.tpot_s))
    good_tokens = int(work.output_tokens[served][~late].sum())
    cost, area = outcome.cost_usd, outcome.little()
    good = outcome.good(slo)
    verdict = _verdict(outcome)
    capacity = [instance.given.rules.blocks for instance in played.instances]
    peaks = [instance.player.peak_blocks for instance in played.instances]
    return ServeSimulationDocument(
        engine=engine,
        router=router,
        requests=RequestCountsDocument(
            arrived=arrived,
            completed=len(served),
            failed=len(played.failed),
            running=arrived - len(served) - len(played.failed),
            preemptions=int(ledger.preemptions.sum()),
            failed_by_reason=dict(sorted(Counter(played.failed.values()).items())),
        ),
        duration_s=outcome.duration_s,
        offered_rps=work.rate_rps,
        throughput_rps=outcome.rate(len(served)),
        output_tok_s=outcome.rate(output),
        goodput_rps=outcome.rate(good),
        good_share=good / arrived,
        ttft_s=spread(outcome.ttft_s),
        tpot_s=spread(outcome.tpot_s[outcome.several]),
        e2e_s=spread(outcome.e2e_s),
        queue_s=spread(outcome.queue_s),
        tokens=TokenCountsDocument(
            prompt=int(work.input_tokens[served].sum()),
            output=output,
            recomputed=int(ledger.wasted.sum()),
            cached=int(ledger.cached[served].sum()),
            processed=sum(instance.player.processed_tokens for instance in played.instances),
        ),
        kv=KvDocument(
            capacity_blocks=sum(capacity),
            peak_blocks=max(peaks, default=0),
            peak_share=max((peak / whole for peak, whole in zip(peaks, capacity, strict=True)), default=0.0),
        ),
        little=LittleDocument(area=area[0], sojourn=area[1]),
        cost_usd=cost,
        usd_per_million_output_tokens=cost / output * 1e6 if cost and output else None,
        usd_per_million_good_tokens=cost / good_tokens * 1e6 if cost and good_tokens else None,
        overloaded=bool(verdict),
        verdict=verdict,
        replicas=[
            _instance(outcome, place, capacity[place], peaks[place]) for place in range(len(played.instances))
        ],
        notes=list(work.notes),
        assumptions={"on_waiting": "FCFS; a blocked head of the queue blocks those behind it"},
        events=sum(instance.player.events for instance in played.instances),
        simulate_cpu_s=0.0,
    )


def _instance(outcome: ServiceOutcome, place: int, capacity: int, peak: int) -> InstanceDocument:
    played = outcome.played
    instance, up_s = played.instances[place], outcome.up_s(place)
    mine = outcome.served[played.instance[outcome.served] == place]
    return InstanceDocument(
        name=instance.given.name,
        up_s=up_s,
        requests=len(mine),
        output_tokens=int(played.workload.output_tokens[mine].sum()),
        busy_share=instance.player.busy_s / up_s if up_s > 0 else 0.0,
        peak_blocks=peak,
        capacity_blocks=capacity,
        cost_usd=up_s * instance.given.usd_per_hour / HOUR_S,
    )


def _verdict(outcome: ServiceOutcome) -> str:
    """By how much requests arrived faster than they finished, in words; empty if they did not."""
    work = outcome.played.workload
    if work.span_s <= 0 or len(outcome.served) < 20:
        return ""
    finish = np.sort(outcome.played.ledger.finish_s[outcome.served])
    last = float(work.arrival_s[-1])
    middle = float(work.arrival_s[0]) + 0.5 * work.span_s

    def inside(moment_s: float) -> int:
        return int((work.arrival_s <= moment_s).sum() - np.searchsorted(finish, moment_s, side="right"))

    at_middle, at_end = inside(middle), inside(last)
    # Where the load is carried, more may be inside at the end than at the middle, too, by chance (Poisson).
    by_chance = 2.0 * math.sqrt(2.0 * at_middle)
    if at_end < _OVERLOADED * len(work) or at_end - at_middle <= max(0.2 * at_middle, by_chance):
        return ""
    # Where no request takes longer than those before it, so many more came by chance.
    quarters = np.array_split(outcome.e2e_s / work.output_tokens[outcome.served], 4)
    if np.median(quarters[3]) <= _SLOWER * np.median(quarters[1]):
        return ""
    if _came_at_once(work, finish, at_end):
        return ""
    # What is finished while the queue is full: between the first and the last quarter of all answers. While
    # requests still come that may not be so yet, since prompts go before outputs.
    quarter, rest = len(finish) // 4, len(finish) - 1 - len(finish) // 4
    carried = (rest - quarter) / max(1e-9, float(finish[rest] - finish[quarter]))
    if carried >= work.rate_rps:
        carried = max(1e-9, work.rate_rps - (at_end - at_middle) / (last - middle))
    grown = work.rate_rps - carried
    return (
        f"cannot keep up: serves {carried:.4g} of {work.rate_rps:.4g} requests/s; the queue grows by "
        f"{grown:.3g} a second; {work.rate_rps / carried:.2f} times the replicas keep up"
    )


def _came_at_once(work: Workload, finish_s: Floats, at_end: int) -> bool:
    """Whether the queue at the last arrival is a cluster of requests that are finished as fast as all come.

    Counted are those finished (at the sorted times `finish_s`) from the last moment with half as many inside
    until half of them are gone again.
    """
    arrived = np.arange(1, len(work) + 1)
    few = np.flatnonzero(arrived - np.searchsorted(finish_s, work.arrival_s, side="right") < at_end / 2)
    begun_s = float(work.arrival_s[few[-1] if len(few) else 0])
    gone = int(np.searchsorted(finish_s, work.arrival_s[-1], side="right")) + at_end // 2
    finished = finish_s[: gone + 1]
    done = len(finished) - int(np.searchsorted(finished, begun_s, side="right"))
    return done >= work.rate_rps * (float(finished[-1]) - begun_s)

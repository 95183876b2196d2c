"""Closed-loop load: each client sends its next request after the answer to its last one."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.serving.fleet import ALWAYS, FAST, FleetReplica, Instance, PlayedService, players_of
from tangram_sim.serving.replica import RequestLedger
from tangram_sim.serving.workload import Workload

TOO_LONG_HERE = "longer than the KV memory of its client's replica"


def play_clients(
    fleet: Sequence[FleetReplica],
    workload: Workload,
    clients: int,
    *,
    pause_s: float = 0.0,
    engine: str = FAST,
) -> PlayedService:
    """Simulate the workload's requests in their order, with `clients` requests in flight at all times.

    As benchmarks with a maximum concurrency do: all clients begin at once, and each sends its next request
    `pause_s` after the answer to its last. Clients stay with their replica and are spread evenly. Arrival
    times are a result: the returned workload has them, in their order. Raises BadInputError for replicas that
    come and go, several models, and fewer clients than replicas.
    """
    if (
        any(fleet_replica.presences != ALWAYS for fleet_replica in fleet)
        or len({fleet_replica.model for fleet_replica in fleet}) > 1
    ):
        raise BadInputError("clients who wait need replicas of one model that are always there")
    if clients < len(fleet):
        raise BadInputError(f"{clients} clients for {len(fleet)} replicas: each replica needs one at least")
    ledger = RequestLedger.empty(len(workload))
    make, write = players_of(engine, workload, ledger)
    instances = [
        Instance(fleet_replica, fleet_replica.presences[0], make(fleet_replica)) for fleet_replica in fleet
    ]
    failed: dict[int, str] = {}
    place = np.arange(len(workload)) % len(fleet)
    longest = workload.input_tokens + workload.output_tokens - 1
    for number, instance in enumerate(instances):
        mine = np.flatnonzero(place == number)
        fits = np.array([instance.holds(int(tokens)) for tokens in longest[mine]], dtype=np.bool_)
        failed |= dict.fromkeys(mine[~fits].tolist(), TOO_LONG_HERE)
        able, server_s = mine[fits], instance.given.table.request_s
        first = clients // len(fleet) + (number < clients % len(fleet))
        instance.player.push_all(able[:first], np.full(len(able[:first]), server_s))
        instance.player.hold(able[first:], pause_s + server_s)
        instance.player.advance(inf)
    write()
    return _in_order(workload, ledger, place, failed, instances)


def _in_order(
    workload: Workload,
    ledger: RequestLedger,
    place: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    failed: dict[int, str],
    instances: list[Instance],
) -> PlayedService:
    """The run with its requests in order of arrival; failed requests count as arrived at time 0."""
    server_s = np.array([item.given.table.request_s for item in instances])
    arrival_s = np.maximum(np.nan_to_num(ledger.ready_s - server_s[place]), 0.0)
    order = np.argsort(arrival_s, kind="stable")
    columns = ("input_tokens", "output_tokens", "prefix", "prefix_tokens", "keeps", "cached_tokens")
    came = replace(
        workload,
        arrival_s=arrival_s[order],
        **{name: getattr(workload, name)[order] for name in columns},
        model=workload.model[order] if workload.models else workload.model,
    )
    found = ledger.of(order)
    instance = np.where(np.isnan(found.finish_s), -1, place[order])
    reasons = {k: failed[int(request)] for k, request in enumerate(order) if int(request) in failed}
    end_s = float(np.nanmax(found.finish_s, initial=0.0))
    return PlayedService(came, found, instance, reasons, instances, end_s)

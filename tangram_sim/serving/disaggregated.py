"""Separate replicas for prefill and decode: prompts first, then their KV over a link, then outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tangram_sim.serving.fleet import FAST, RESUME, FleetReplica, Instance, PlayedService, Progress, play
from tangram_sim.serving.router import Router
from tangram_sim.serving.shared_link import arrivals_over
from tangram_sim.serving.workload import Ints, Workload


@dataclass(frozen=True, slots=True)
class KvLink:
    """The link from prefill to decode replicas, shared by all transfers; KV bytes per prompt token."""

    bytes_per_s: float
    latency_s: float
    kv_bytes_per_token: float


def play_disaggregated(
    prefill: Sequence[FleetReplica],
    decode: Sequence[FleetReplica],
    link: KvLink,
    workload: Workload,
    router: Callable[[Workload], Router],
    *,
    decode_router: Callable[[Workload, Ints], Router] | None = None,
    engine: str = FAST,
    on_loss: str = RESUME,
    lag_s: float = 0.0,
    progress: Progress | None = None,
) -> PlayedService:
    """Simulate the workload on two pools; `router` makes one router for each.

    `decode_router` makes the decode pool's router instead, from the pool's workload and the numbers of its
    requests in the whole workload, in the order in which their caches arrive.

    A prefill replica delivers the first token and frees the blocks of the prompt (they are staged for
    sending); the decode replica begins when the prompt's KV has arrived. The result lists the prefill pool's
    instances, then the decode pool's; a request's instance is where it ended.
    """
    first = replace(workload, output_tokens=np.ones_like(workload.output_tokens))
    playing = partial(play, engine=engine, on_loss=on_loss, lag_s=lag_s, progress=progress)
    begun = playing(prefill, first, router(first))
    onward = np.flatnonzero(~np.isnan(begun.ledger.finish_s) & (workload.output_tokens > 1))
    tokens = workload.input_tokens[onward]
    arrived_s = arrivals_over(
        begun.ledger.finish_s[onward],
        link.kv_bytes_per_token * tokens.astype(np.float64),
        link.bytes_per_s,
        link.latency_s,
    )
    order = np.argsort(arrived_s, kind="stable")
    onward = onward[order]
    then = Workload(
        arrival_s=arrived_s[order],
        input_tokens=workload.input_tokens[onward],
        output_tokens=workload.output_tokens[onward],
        prefix=np.full(len(onward), -1, dtype=np.int64),
        prefix_tokens=np.zeros(len(onward), dtype=np.int64),
        keeps=np.zeros(len(onward), dtype=np.bool_),
        cached_tokens=np.zeros(len(onward), dtype=np.int64),
        models=workload.models,
        model=workload.model[onward] if workload.models else workload.model,
    )
    book = begun.ledger.of(onward)
    book.finish_s[:] = np.nan
    book.imported[:] = True
    onward_router = router(then) if decode_router is None else decode_router(then, onward)
    ended = playing(decode, then, onward_router, ledger=book)
    whole = begun.ledger
    whole.enter(onward, book)
    instance = begun.instance
    instance[onward] = np.where(ended.instance >= 0, ended.instance + len(begun.instances), -1)
    failed = begun.failed | {int(onward[k]): reason for k, reason in ended.failed.items()}
    instances: list[Instance] = [*begun.instances, *ended.instances]
    return PlayedService(workload, whole, instance, failed, instances, max(begun.end_s, ended.end_s))

"""Configurations of a model on offered GPUs, with throughputs from the cost layer.

A replica is one pipeline: tensor parallelism inside a node, one to three stages on equal or unequal GPUs at
one degree, with layers divided by the GPUs' abilities. Replicas that do not fit memory are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from itertools import combinations_with_replacement
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.serving.batch_times import batch_curve, steady_shares
from tangram_sim.serving.build import gpu_island, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load, closed_loop, greatest_throughput, seats
from tangram_sim.serving.costs import LayerStepCost, filled_graph
from tangram_sim.serving.deployment import Deployment, ReplicaStage, Speculation
from tangram_sim.serving.energy import capped
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.stepcost import KvCapacities, KvCapacity
from tangram_sim.serving.workload import Floats
from tangram_sim.serving_planners.pipelines import PricedBatch, batches
from tangram_sim.serving_planners.problem import WHOLE

Stages = Sequence[tuple[str, int, int]]  # kind, tensor-parallel degree, layers
_ROUNDS = 12  # of the bisection for the most requests at once under an objective: to 1 in 4,000
MOST_STAGES, MOST_GPUS = 3, 16  # of a replica
MOST_CHOICES = 2500  # of stages at one depth, before layers are cut
_CUTS = (0.0, 0.5, 1.0)  # between layers by memory and layers by bandwidth


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """A kind of GPU to rent: its price, the number available, and GPUs per node.

    Where no price is known or required, `priced` is false and `usd_per_hour` is almost 0.
    """

    name: str
    usd_per_hour: float
    available: float = inf
    gpus_per_node: int = 8
    priced: bool = True
    lost_together: int = 0  # GPUs of the largest node, where nodes differ; 0: all hold `gpus_per_node`


@dataclass(frozen=True)
class PricedConfiguration:
    """A replica: its stages as (kind, tp, layers), its GPUs, and requests/s of each type alone."""

    name: str
    stages: tuple[tuple[str, int, int], ...]
    gpus: dict[str, int]
    rps: tuple[float, ...]
    most: int | None = None  # replicas of it; None: any number
    model: str = ""  # which it serves, by the name it was asked for
    of_batch: tuple[float, ...] = ()  # share of `rps` in a batch of BATCH_SECONDS each; (): no batch
    role: str = WHOLE
    kv_bytes: tuple[float, ...] = ()  # of each type, that pass from prefill to decode; (): whole requests
    attention_dp: int = 1  # groups of tp ranks with requests of their own
    ep: int = 1  # ranks over which routed experts are spread
    speculation: Speculation | None = None


@dataclass
class OfferPricer:
    """Prices configurations of one model under one engine and latency objective.

    With `mix`, the shares of the types among the requests of a batch, configurations that are priced together
    also get the share of their throughput that they reach in a batch.
    """

    model: Model
    hwdb: Hwdb
    engine: str
    precision: str
    loads: Load
    slo: Slo
    mix: Floats | None = None
    power_cap_w: float = 0.0  # of each GPU; 0: the board's own limit
    speculation: Speculation | None = None  # of all replicas
    refused: dict[str, str] = field(default_factory=dict)  # configurations that do not fit, and why

    def __post_init__(self) -> None:
        self._calibration = CalibrationTable.load(self.hwdb)

    def deployment(self, stages: Stages, *, attention_dp: int = 1, ep: int = 1) -> Deployment:
        """The deployment with these stages; engine defaults are those for the first stage's GPU."""
        cut, first = [], 0
        for kind, tp, layers in stages:
            island = gpu_island(kind, tp * attention_dp, self.hwdb)
            cut.append(ReplicaStage(island, first, first + layers, tp))
            first += layers
        engine = engine_defaults(self.hwdb, self.engine, cut[0].island.gpu)
        precision = precision_of(self.precision, self.model)
        return Deployment(
            self.model, tuple(cut), precision, engine, ep, attention_dp, speculation=self.speculation
        )

    def priced(self, stages: Stages) -> PricedConfiguration | None:
        """A configuration with its throughputs; None where it does not fit memory (why: see `refused`)."""
        try:
            rps = self.throughput(self.deployment(stages))
        except InfeasibleError as error:
            self.refused[name_of(stages)] = str(error)
            return None
        return configuration_of(stages, tuple(rps.tolist()))

    def throughput(self, deployment: Deployment) -> Floats:
        """Requests/s of each type alone, at the most concurrency that meets the objective; 0: none does."""
        fit = self._calibration.fit_of(deployment)
        capacity = kv_capacity(deployment, self.hwdb, fit)
        cost = capped(LayerStepCost(deployment, self.hwdb, fit), self.power_cap_w)
        return kept_throughput(cost, deployment, capacity, self.loads, self.slo)

    def batches(self, pipelines: Sequence[Stages]) -> list[PricedBatch]:
        """The pipelines that fit, in groups to be priced together; reasons for the others go to `refused`."""
        deployments = [self.deployment(pipeline) for pipeline in pipelines]
        found, refused = batches(deployments, self.hwdb, self._calibration, self.power_cap_w)
        self.refused |= {name_of(pipelines[number]): reason for number, reason in refused.items()}
        return found

    def priced_together(self, pipelines: Sequence[Stages]) -> list[PricedConfiguration]:
        """Configurations with throughputs of the pipelines that fit; reasons of others go to `refused`."""
        found: dict[int, PricedConfiguration] = {}
        types = len(self.loads.isl)
        for batch in self.batches(pipelines):
            size = len(batch.numbers)
            loads = self.loads.repeated(size)
            rps = kept_throughput(
                batch.cost, batch.cost.deployment, batch.capacity(types), loads, self.slo
            ).reshape(size, types)
            shares = self._of_batch(batch, rps)
            for number, row, share in zip(batch.numbers.tolist(), rps.tolist(), shares, strict=True):
                found[number] = replace(
                    configuration_of(pipelines[number], tuple(row)), of_batch=tuple(share)
                )
        return [found[number] for number in sorted(found)]

    def _of_batch(self, batch: PricedBatch, rps: Floats) -> list[list[float]]:
        """Shares of steady throughput of each pipeline in batches of BATCH_SECONDS; empty without `mix`."""
        shares: list[list[float]] = [[] for _ in rps]
        if self.mix is None:
            return shares
        mixes = np.where(rps > 0, self.mix, 0.0)
        able = np.flatnonzero(mixes.any(axis=1))
        if not len(able):
            return shares
        mixes[mixes.sum(axis=1) == 0] = self.mix
        mixes = mixes / mixes.sum(axis=1, keepdims=True)
        curve = batch_curve(batch.cost, batch.cost.deployment, batch.capacity(1), self.loads, mixes)
        found = steady_shares(curve, mixes, rps).tolist()
        return [found[row] if row in able else [] for row in range(len(shares))]


def kept_throughput(
    cost: LayerStepCost,
    deployment: Deployment,
    capacity: KvCapacity | KvCapacities,
    loads: Load,
    slo: Slo,
) -> Floats:
    """Requests/s of each load alone, at the highest concurrency that meets the objective; 0: none does.

    Or at the largest such concurrency that fills a CUDA graph, if that is faster. Never more than without an
    objective, where iterations full of prompts count, too.
    """
    room = seats(deployment, capacity, loads)
    full = greatest_throughput(cost, deployment, capacity, loads)
    stays = loads.osl * np.maximum(full.tpot_s, packed_s(cost, deployment, loads, full.running))
    most = np.where(room >= 1, full.running / stays, 0.0)
    if slo == Slo():
        return most

    def kept(clients: Floats) -> tuple[NDArray[np.bool_], Floats]:
        # Under an objective few run at once, and bring few prompts together.
        steady = closed_loop(cost, deployment, capacity, loads, clients)
        keeps = (steady.tpot_s <= slo.tpot_s) & (steady.ttft_s <= slo.ttft_s)
        return keeps, steady.running / (loads.osl * steady.tpot_s)

    low, high = np.ones_like(room), np.maximum(room, 1.0)
    possible, rate = kept(low)
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        good, found = kept(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
        rate = np.where(good, found, rate)
    ranks = deployment.attention_dp * deployment.pp
    good, found = kept(np.maximum(ranks * filled_graph(low / ranks), 1.0))
    rate = np.where(good, np.maximum(rate, found), rate)
    return np.where(possible & (room >= 1), np.minimum(rate, most), 0.0)


def packed_s(cost: LayerStepCost, deployment: Deployment, loads: Load, running: Floats) -> Floats:
    """Seconds a token of iterations that decode and work on new prompts; 0 for engines that do not mix them.

    In each iteration `running` requests yield a token (with drafts: some) and running / osl of them a token
    finish, to be replaced by requests whose prompts come along. One prompt adds little to decodes that wait
    for weights to be read from memory, many keep the GPU computing.
    """
    if deployment.engine.prefill != "mixed":
        return np.zeros_like(running)
    tokens = deployment.speculation.tokens if deployment.speculation else 1.0
    prompts = running * tokens / loads.osl
    step_s = cost.step_s(prompts * loads.rows, prompts * loads.scores, running, running * loads.context)
    return np.asarray(step_s / tokens)


def name_of(stages: Stages) -> str:
    """Name of a replica: kind and degree of its stages, with layers where there are several stages."""
    told = " ({} layers)" if len(stages) > 1 else ""
    return " + ".join(f"{kind} tp{tp}{told.format(layers)}" for kind, tp, layers in stages)


def configuration_of(stages: Stages, rps: tuple[float, ...]) -> PricedConfiguration:
    """The configuration with these stages and requests/s of each type."""
    gpus: dict[str, int] = {}
    for kind, tp, _ in stages:
        gpus[kind] = gpus.get(kind, 0) + tp
    return PricedConfiguration(name_of(stages), tuple(stages), gpus, rps)


def configurations(pricer: OfferPricer, offers: Sequence[GpuOffer]) -> list[PricedConfiguration]:
    """Every replica of up to three stages on any kinds that finishes requests of some type."""
    priced = pricer.priced_together(pipelines(pricer, offers))
    return [configuration for configuration in priced if any(configuration.rps)]


def pipelines(pricer: OfferPricer, offers: Sequence[GpuOffer]) -> list[Stages]:
    """Every choice of one to three stages within a replica's GPUs, each with a few cuts of the layers.

    All stages have one degree, since engines support no others. Where there are too many choices, three
    stages use at most two kinds, or are left out.
    """
    model, kinds = pricer.model, {offer.name: offer for offer in offers}
    single = [(offer.name, tp) for offer in offers for tp in tensor_degrees(offer, model)]
    found: list[Stages] = []
    for depth in range(1, min(MOST_STAGES, model.layers) + 1):
        chosen = [
            stages
            for stages in combinations_with_replacement(single, depth)
            if sum(tp for _, tp in stages) <= MOST_GPUS
            and len({tp for _, tp in stages}) == 1
            and all(
                sum(tp for name, tp in stages if name == kind) <= kinds[kind].available
                for kind in {name for name, _ in stages}
            )
        ]
        if len(chosen) > MOST_CHOICES:
            chosen = [stages for stages in chosen if len({name for name, _ in stages}) < MOST_STAGES]
        if len(chosen) <= MOST_CHOICES:
            found += [cut for stages in chosen for cut in _cuts(pricer, stages)]
    return found


def tensor_degrees(offer: GpuOffer, model: Model) -> list[int]:
    """Tensor-parallel degrees for the model within a node of the offer."""
    heads = (block.attention.heads for block in model.blocks)
    most = min(offer.gpus_per_node, offer.available, *heads)
    return [tp for tp in (1, 2, 4, 8, 16) if tp <= most]


def _cuts(pricer: OfferPricer, stages: Sequence[tuple[str, int]]) -> Iterator[Stages]:
    """Pipelines with layers divided in proportion to memory, to bandwidth, and to blends of the two."""
    gpus = [pricer.hwdb.gpu(kind) for kind, _ in stages]
    parts = []
    for rates in ([gpu.memory_bytes for gpu in gpus], [gpu.memory_bytes_per_s for gpu in gpus]):
        sized = [rate * tp for rate, (_, tp) in zip(rates, stages, strict=True)]
        parts.append([item / sum(sized) for item in sized])
    seen = set()
    for weight in _CUTS:
        blend = [(1 - weight) * memory + weight * speed for memory, speed in zip(*parts, strict=True)]
        held = tuple(layers_by_speed(pricer.model.layers, blend))
        if held not in seen:
            seen.add(held)
            yield [(kind, tp, count) for (kind, tp), count in zip(stages, held, strict=True)]


def layers_by_speed(layers: int, speeds: Sequence[float]) -> list[int]:
    """Layers of every stage, at least one, that minimise the time of the slowest stage."""
    held = [1] * len(speeds)
    ahead = [(2 / speed, place) for place, speed in enumerate(speeds)]
    heapify(ahead)
    for _ in range(layers - len(speeds)):
        _, place = ahead[0]
        held[place] += 1
        heapreplace(ahead, ((held[place] + 1) / speeds[place], place))
    return held


def offer_document(offers: Sequence[GpuOffer]) -> dict[str, Any]:
    """The offers in the format of a problem's key `gpus`."""
    return {
        offer.name: {
            "price_per_hour": offer.usd_per_hour,
            "available": None if offer.available == inf else int(offer.available),
            "gpus_per_node": offer.lost_together or offer.gpus_per_node,
        }
        for offer in offers
    }

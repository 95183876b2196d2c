"""Configurations of a model on GPUs on offer, with the throughputs that the cost layer gives them.

A replica is one pipeline: tensor parallelism inside a node, one or two stages; two stages may be on
different kinds, with layers cut by what each can do. What does not fit memory is no configuration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.serving.build import gpu_island, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load, closed_loop, greatest_throughput, seats
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.deployment import Deployment, ReplicaStage
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Floats

_ROUNDS = 12  # of the bisection for the most requests at once under an objective: to 1 in 4,000
_CUTS = (0.0, 0.5, 1.0)  # between layers by memory and layers by bandwidth


@dataclass(frozen=True, slots=True)
class GpuOffer:
    """A kind of GPU to rent, in nodes of so many."""

    name: str
    usd_per_hour: float
    available: float = inf
    gpus_per_node: int = 8


@dataclass(frozen=True)
class PricedConfiguration:
    """A replica: its stages as (kind, tp, layers), its GPUs, and requests/s of each type alone."""

    name: str
    stages: tuple[tuple[str, int, int], ...]
    gpus: dict[str, int]
    rps: tuple[float, ...]
    most: int | None = None  # replicas of it; None: any number
    model: str = ""  # which it serves, by the name it was asked for


@dataclass
class OfferPricer:
    """Prices configurations of one model under one engine and objective."""

    model: Model
    hwdb: Hwdb
    engine: str
    precision: str
    loads: Load
    slo: Slo
    refused: dict[str, str] = field(default_factory=dict)  # configurations that do not fit, and why

    def __post_init__(self) -> None:
        self._calibration = CalibrationTable.load(self.hwdb)

    def deployment(self, stages: Sequence[tuple[str, int, int]]) -> Deployment:
        """The replica of these stages; rules are those of the engine on the first one's GPU."""
        cut, first = [], 0
        for kind, tp, layers in stages:
            cut.append(ReplicaStage(gpu_island(kind, tp, self.hwdb), first, first + layers, tp))
            first += layers
        engine = engine_defaults(self.hwdb, self.engine, cut[0].island.gpu)
        return Deployment(self.model, tuple(cut), precision_of(self.precision, self.model), engine)

    def priced(self, stages: Sequence[tuple[str, int, int]]) -> PricedConfiguration | None:
        """A configuration with its throughputs; None where it does not fit, which is noted."""
        told = " ({} layers)" if len(stages) > 1 else ""
        name = " + ".join(f"{kind} tp{tp}{told.format(layers)}" for kind, tp, layers in stages)
        try:
            rps = self.throughput(self.deployment(stages))
        except InfeasibleError as error:
            self.refused[name] = str(error)
            return None
        gpus: dict[str, int] = {}
        for kind, tp, _ in stages:
            gpus[kind] = gpus.get(kind, 0) + tp
        return PricedConfiguration(name, tuple(stages), gpus, tuple(rps.tolist()))

    def throughput(self, deployment: Deployment) -> Floats:
        """Requests/s of each type alone: all seats taken, or as many as keep the objective; 0: none does."""
        fit = self._calibration.fit_of(deployment)
        capacity = kv_capacity(deployment, self.hwdb, fit)
        cost = LayerStepCost(deployment, self.hwdb, fit)
        room = seats(deployment, capacity, self.loads)
        full = np.where(
            room >= 1, greatest_throughput(cost, deployment, capacity, self.loads).request_rate, 0.0
        )
        if self.slo == Slo():
            return full

        def kept(clients: Floats) -> tuple[NDArray[np.bool_], Floats]:
            steady = closed_loop(cost, deployment, capacity, self.loads, clients)
            keeps = (steady.tpot_s <= self.slo.tpot_s) & (steady.ttft_s <= self.slo.ttft_s)
            return keeps, steady.running / (self.loads.osl * steady.tpot_s)

        low, high = np.ones_like(room), np.maximum(room, 1.0)
        possible, rate = kept(low)
        for _ in range(_ROUNDS):
            middle = 0.5 * (low + high)
            good, found = kept(middle)
            low, high = np.where(good, middle, low), np.where(good, high, middle)
            rate = np.where(good, found, rate)
        return np.where(possible & (room >= 1), rate, 0.0)


def configurations(pricer: OfferPricer, offers: Sequence[GpuOffer]) -> list[PricedConfiguration]:
    """Every replica worth pricing: one kind in one or two stages, two kinds in a stage each."""
    layers = pricer.model.layers
    found = []
    for offer in offers:
        for tp in _degrees(offer, pricer.model):
            found.append(pricer.priced([(offer.name, tp, layers)]))
            if 2 * tp <= offer.available and layers > 1:
                half = layers // 2
                found.append(pricer.priced([(offer.name, tp, layers - half), (offer.name, tp, half)]))
    for place, one in enumerate(offers):
        for other in offers[place + 1 :]:
            for tp in _degrees(one, pricer.model):
                if tp in _degrees(other, pricer.model) and layers > 1:
                    cuts = [pricer.priced(stages) for stages in _cuts(pricer, one, other, tp)]
                    found.append(
                        max((cut for cut in cuts if cut), key=lambda cut: sum(cut.rps), default=None)
                    )
    return [one for one in found if one is not None and any(one.rps)]


def _degrees(offer: GpuOffer, model: Model) -> list[int]:
    heads = (block.attention.heads for block in model.blocks)
    most = min(offer.gpus_per_node, offer.available, *heads)
    return [tp for tp in (1, 2, 4, 8, 16) if tp <= most]


def _cuts(
    pricer: OfferPricer, one: GpuOffer, other: GpuOffer, tp: int
) -> Iterator[list[tuple[str, int, int]]]:
    """Layers of the first stage between its share of the memory and its share of the bandwidth."""
    first, second = pricer.hwdb.gpu(one.name), pricer.hwdb.gpu(other.name)
    memory = first.memory_bytes / (first.memory_bytes + second.memory_bytes)
    speed = first.memory_bytes_per_s / (first.memory_bytes_per_s + second.memory_bytes_per_s)
    layers, seen = pricer.model.layers, set()
    for weight in _CUTS:
        held = min(max(1, round(layers * ((1 - weight) * memory + weight * speed))), layers - 1)
        if held not in seen:
            seen.add(held)
            yield [(one.name, tp, held), (other.name, tp, layers - held)]


def offer_document(offers: Sequence[GpuOffer]) -> dict[str, Any]:
    """The offers as the key `gpus` of a problem."""
    return {
        offer.name: {
            "price_per_hour": offer.usd_per_hour,
            "available": None if offer.available == inf else int(offer.available),
        }
        for offer in offers
    }

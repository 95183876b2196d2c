"""Predicted seconds of measured points, from hardware, ranks, nodes, operation and size alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.cost.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    reduce_scatter_s,
    send_receive_s,
    spanning,
)
from tangram_sim.cost.collectives.groups import network_parameters
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import GIB, KIB
from tangram_validate.collectives.fabrics import MeasuredFabric
from tangram_validate.collectives.points import Point

# Sizes that the rows of hwdb/collectives were fitted on.
SMALLEST, LARGEST = float(KIB), 16.0 * GIB
WIDER = 2.0  # of the standard error outside them
_WITHIN_90 = 1.645
Operation = Callable[[Floats, Group], Floats]
FUNCTIONS: Mapping[str, Operation] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "all_to_all": all_to_all_s,
    "broadcast": broadcast_s,
    "send_receive": send_receive_s,
}


@dataclass(frozen=True, slots=True)
class CollectivePrediction:
    """A point with its predicted seconds and a 90 % interval."""

    point: Point
    seconds: float
    low_s: float
    high_s: float
    notes: tuple[str, ...]

    @property
    def error(self) -> float | None:
        """Signed relative error; None where nothing was measured."""
        return self.seconds / self.point.seconds - 1.0 if self.point.seconds > 0 else None


def busbw_factor(op: str, ranks: int) -> float:
    """Bus bandwidth over size / time, as nccl-tests defines it."""
    if op == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def group_of(fabric: MeasuredFabric, ranks: int, nodes: int, hwdb: Hwdb) -> Group:
    """The group of all `ranks` on `nodes` nodes of a fabric (K = 1); an NVL72 rack is one domain."""
    crossing, hop = 1.0, 0.0
    if fabric.nic is not None:
        network = network_parameters(hwdb, fabric.nic)
        crossing, hop = fabric.node_bytes_per_s * network.rate_share, network.hop_s
        if network.fallback:  # a slow stack's own latency says more than networks in general
            hop = max(hop, fabric.nic.latency_s)
    per_node = ranks // nodes if fabric.nic is not None else ranks
    return spanning(
        np.array([float(ranks)]),
        np.array([float(per_node)]),
        (fabric.gpu, fabric.architectures),
        fabric.intra,
        hwdb,
        crossing_bytes_per_s=crossing,
        share_bytes_per_s=crossing / per_node,
        hop_s=hop,
        nic=fabric.nic,
    )


def predict(points: Sequence[Point], hwdb: Hwdb) -> list[CollectivePrediction]:
    """Predictions in the order of `points`."""
    answers: dict[int, CollectivePrediction] = {}
    curves: dict[tuple[MeasuredFabric, int, int, str], list[int]] = {}
    for index, point in enumerate(points):
        curves.setdefault((point.fabric, point.ranks, point.nodes, point.op), []).append(index)
    for (fabric, ranks, nodes, op), members in curves.items():
        sizes = np.array([points[index].size_bytes for index in members])
        seconds = FUNCTIONS[op](sizes, group_of(fabric, ranks, nodes, hwdb))
        sigma, notes = _doubt(fabric, ranks, nodes, op, hwdb)
        for index, size, value in zip(members, sizes, seconds, strict=True):
            outside = not SMALLEST <= size <= LARGEST
            spread = math.exp(_WITHIN_90 * sigma * (WIDER if outside else 1.0))
            heard = (*notes, "size outside 1 KiB to 16 GiB: interval doubled") if outside else notes
            value = float(value)
            answers[index] = CollectivePrediction(points[index], value, value / spread, value * spread, heard)
    return [answers[index] for index in range(len(points))]


def _doubt(
    fabric: MeasuredFabric, ranks: int, nodes: int, op: str, hwdb: Hwdb
) -> tuple[float, tuple[str, ...]]:
    """(standard error of the logarithm, notes) of a curve."""
    pattern = "pairwise" if op in ("all_to_all", "send_receive") else "ring"
    notes = fabric.notes
    variance = 0.0
    if ranks > nodes or fabric.nic is None:
        inner = hwdb.collective(pattern, fabric.intra, fabric.gpu)
        if inner is not None:
            variance += inner.error**2
            if inner.fallback:
                notes += (f"{pattern} on {fabric.intra.name}: from its kind, not measured",)
    if fabric.nic is not None:
        outer = network_parameters(hwdb, fabric.nic)
        variance += outer.error**2
        if outer.fallback:
            notes += (f"network {fabric.nic.name}: from networks in general, not measured",)
    return math.sqrt(variance), notes

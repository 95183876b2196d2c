"""Fits the three GEMM parameters of one GPU kind and dtype to measured products.

The curve is that of `cost.kernels.gemm_s`: launch + max(arithmetic, traffic), with a fraction of the peak
and a fraction of the memory bandwidth.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_validate.calibration.robust import Floats, fit, held_out, median_error, spread
from tangram_validate.calibration.tables import GemmTable

START = (0.7, 0.8, 4e-6)


class OperandBytes(NamedTuple):
    """What a product moves, bytes per element; `cast` is what turning one 16-bit input into it moves."""

    operand: float
    output: float
    cast: float


# fp8 tables start from bf16 inputs: a scale is found (2 bytes read) and applied (2 read, 1 written).
# The nvfp4 ones know the outer scale: 2 bytes read, half a byte and a share of a block scale written.
OPERANDS = {
    "bfloat16": OperandBytes(2.0, 2.0, 0.0),
    "fp8": OperandBytes(1.0, 2.0, 5.0),
    "fp8_block": OperandBytes(1.0, 2.0, 5.0),
    "nvfp4": OperandBytes(0.5625, 2.0, 2.5625),
}


class Device(NamedTuple):
    """Datasheet rates that the fractions refer to."""

    peak_flop_per_s: float
    memory_bytes_per_s: float


class GemmParameters(NamedTuple):
    """Fractions of `Device`, and seconds before the first flop."""

    efficiency: float
    memory_efficiency: float
    launch_s: float


@dataclass(frozen=True, slots=True)
class GemmFit:
    """Fitted parameters, their residual spreads, and errors on the half of the shapes not fitted."""

    parameters: GemmParameters
    sigma: GemmParameters
    n: int
    big_error: float  # median, m, n and k >= 1,024
    error: float  # median, all shapes


def gemm_seconds(
    table: GemmTable, precision: OperandBytes, device: Device, parameters: GemmParameters
) -> Floats:
    """Predicted seconds of every row of a table. Arrays of N."""
    arithmetic, traffic, cast = _terms(table, precision, device)
    bound = np.maximum(arithmetic / parameters.efficiency, traffic / parameters.memory_efficiency)
    return np.asarray(parameters.launch_s + bound + cast / parameters.memory_efficiency)


def _terms(table: GemmTable, precision: OperandBytes, device: Device) -> tuple[Floats, Floats, Floats]:
    """Seconds at the datasheet's rates: arithmetic, traffic of the product, traffic of the casts."""
    m, n, k = table.m, table.n, table.k
    operands = (m * k + k * n) * precision.operand
    return (
        2.0 * m * n * k / device.peak_flop_per_s,
        (operands + m * n * precision.output) / device.memory_bytes_per_s,
        m * k * precision.cast / device.memory_bytes_per_s,
    )


def _weights(table: GemmTable, rows: NDArray[np.bool_]) -> Floats:
    """Every framework's table weighs the same, and the shapes of training as much as all shapes together."""
    weights = np.zeros(len(table.m))
    for index in np.unique(table.table):
        for part in (rows & (table.table == index), rows & (table.table == index) & table.big):
            weights[part] += 1.0 / max(int(part.sum()), 1)
    return weights


def _fit(
    table: GemmTable,
    precision: OperandBytes,
    device: Device,
    memory_efficiency: float | None,
    rows: NDArray[np.bool_],
) -> GemmParameters:
    arithmetic, traffic, cast = (term[rows] for term in _terms(table, precision, device))

    def curve(parameters: Floats) -> tuple[Floats, Floats]:
        efficiency, launch = parameters[0], parameters[1]
        memory = parameters[2] if memory_efficiency is None else memory_efficiency
        computing, moving = arithmetic / efficiency, traffic / memory
        compute_bound = computing >= moving
        seconds = launch + np.where(compute_bound, computing, moving) + cast / memory
        slopes = [np.where(compute_bound, -computing, 0.0), np.full(len(seconds), launch)]
        if memory_efficiency is None:
            slopes.append(np.where(compute_bound, 0.0, -moving) - cast / memory)
        return seconds, np.stack(slopes, axis=1)

    start = (START[0], START[2], START[1]) if memory_efficiency is None else (START[0], START[2])
    found = fit(curve, start, table.seconds[rows], _weights(table, rows)[rows])
    memory = float(found[2]) if memory_efficiency is None else memory_efficiency
    return GemmParameters(float(found[0]), memory, float(found[1]))


def fit_gemm(
    table: GemmTable, precision: OperandBytes, device: Device, memory_efficiency: float | None = None
) -> GemmFit:
    """Fit one table: on half of the shapes for the errors reported, on all of them for the parameters.

    With `memory_efficiency` given it stays as it is: the memory of a device does not depend on the dtype.
    `launch_s` then holds whatever the table launches beside the product (casts), and only the
    efficiency describes the product.
    """
    everything = np.ones(len(table.m), dtype=bool)
    kept = held_out(table.m, table.n, table.k)
    half = _fit(table, precision, device, memory_efficiency, ~kept)
    predicted = gemm_seconds(table, precision, device, half)
    parameters = _fit(table, precision, device, memory_efficiency, everything)
    return GemmFit(
        parameters,
        _sigma(table, precision, device, parameters),
        len(table.m),
        median_error(predicted[kept & table.big], table.seconds[kept & table.big]),
        median_error(predicted[kept], table.seconds[kept]),
    )


def _sigma(
    table: GemmTable, precision: OperandBytes, device: Device, parameters: GemmParameters
) -> GemmParameters:
    """Residual spread where a parameter rules: training shapes, traffic-bound ones, tiny ones."""
    predicted = gemm_seconds(table, precision, device, parameters)
    arithmetic, traffic, _ = _terms(table, precision, device)
    computing, moving = arithmetic / parameters.efficiency, traffic / parameters.memory_efficiency
    tiny = parameters.launch_s > 0.5 * predicted
    moved = (moving > computing) & (moving > 0.5 * predicted)

    def over(rows: NDArray[np.bool_]) -> float:
        # Too few such shapes say nothing: then the spread of all of them.
        chosen = rows if rows.sum() >= 20 else np.ones(len(rows), dtype=bool)
        return spread(predicted[chosen], table.seconds[chosen])

    return GemmParameters(
        parameters.efficiency * over(table.big),
        parameters.memory_efficiency * over(moved),
        parameters.launch_s * over(tiny),
    )


def transfer_errors(
    table: GemmTable, precision: OperandBytes, device: Device, borrowed: GemmParameters
) -> tuple[float, float]:
    """Median errors (training shapes, all shapes) with another kind's parameters on this datasheet."""
    predicted = gemm_seconds(table, precision, device, borrowed)
    big = table.big
    return median_error(predicted[big], table.seconds[big]), median_error(predicted, table.seconds)

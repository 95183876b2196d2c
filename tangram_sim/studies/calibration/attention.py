"""Fits the efficiency of the attention core of one GPU kind to measured causal forward attention.

One number per (GPU, kernel): `cost.kernels.attention_s` of fused kernels, launch + flop / (peak x
efficiency), with the flops that the mask leaves. Backward runs from the same number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import attention_flop
from tangram_sim.studies.calibration.gemm import Device, Parameters
from tangram_sim.studies.calibration.robust import Floats, fit, held_out, median_error, spread
from tangram_sim.studies.calibration.tables import AttentionTable

HEAD_DIM = 128  # the head dimension that the efficiency refers to
SEQ_LOW, SEQ_HIGH = 2048, 8192
ROWS_LOW = 16  # heads x sequences: fewer leave much of a large device idle
CACHE_BYTES = 8.0  # per key-value element pair: a key and a value are read and written, 2 bytes each


@dataclass(frozen=True, slots=True)
class AttentionFit:
    """The efficiency at head dimension 128, and errors of the same number elsewhere."""

    efficiency: float
    sigma: float
    n: int
    error: float  # median over the training-like shapes not fitted
    by_seq: tuple[tuple[int, float], ...]  # efficiency fitted to one sequence length alone
    by_head_dim: tuple[tuple[int, float], ...]  # efficiency fitted to one head dimension alone


def attention_seconds(
    table: AttentionTable, device: Device, gemm: Parameters, efficiency: float
) -> tuple[Floats, Floats]:
    """(predicted seconds, the part that the efficiency divides). Arrays of N.

    Serving kernels also write keys and values to their cache; training does not, so that traffic is
    priced apart from the core, at the memory efficiency fitted to the same device's GEMMs.
    """
    tokens = table.batch * table.seq
    flop = attention_flop(tokens, 0.5 * table.seq, table.heads, table.head_dim, table.head_dim)
    cache = tokens * table.kv_heads * table.head_dim * CACHE_BYTES
    moving = cache / (device.memory_bytes_per_s * gemm.memory_efficiency)
    core = flop / (device.peak_flop_per_s * efficiency)
    return np.asarray(2.0 * gemm.launch_s + moving + core), core


def training_like(table: AttentionTable, head_dim: int = HEAD_DIM) -> NDArray[np.bool_]:
    """Rows of sequence lengths that training runs, with enough heads to fill the device."""
    lengths = (table.seq >= SEQ_LOW) & (table.seq <= SEQ_HIGH)
    filled = table.batch * table.heads >= ROWS_LOW
    return np.asarray(lengths & filled & (table.head_dim == head_dim), dtype=np.bool_)


def _fit(table: AttentionTable, device: Device, gemm: Parameters, rows: NDArray[np.bool_]) -> float:
    def curve(parameters: Floats) -> tuple[Floats, Floats]:
        seconds, core = attention_seconds(table, device, gemm, float(parameters[0]))
        return seconds[rows], -core[rows][:, None]

    weights = np.zeros(len(table.seq))
    for index in np.unique(table.table[rows]):
        for length in np.unique(table.seq[rows]):
            part = rows & (table.table == index) & (table.seq == length)
            weights[part] = 1.0 / max(int(part.sum()), 1)
    return float(fit(curve, (0.5,), table.seconds[rows], weights[rows])[0])


def fit_attention(table: AttentionTable, device: Device, gemm: Parameters) -> AttentionFit:
    """Fit training-like shapes; every framework and sequence length weighs the same.

    `gemm` gives the memory efficiency and the launch of the same device.
    """
    rows = training_like(table)
    kept = held_out(table.batch, table.seq, table.heads, table.kv_heads)
    half = _fit(table, device, gemm, rows & ~kept)
    predicted, _ = attention_seconds(table, device, gemm, half)
    efficiency = _fit(table, device, gemm, rows)
    final, _ = attention_seconds(table, device, gemm, efficiency)
    lengths = [length for length in (1024, 2048, 4096, 8192, 16384) if (table.seq == length).any()]
    wide = (table.head_dim == HEAD_DIM) & (table.batch * table.heads >= ROWS_LOW)
    dims = [dim for dim in (64, 128, 256) if training_like(table, dim).sum() >= 20]
    return AttentionFit(
        efficiency,
        efficiency * spread(final[rows], table.seconds[rows]),
        int(rows.sum()),
        median_error(predicted[rows & kept], table.seconds[rows & kept]),
        tuple((length, _fit(table, device, gemm, wide & (table.seq == length))) for length in lengths),
        tuple((dim, _fit(table, device, gemm, training_like(table, dim))) for dim in dims),
    )

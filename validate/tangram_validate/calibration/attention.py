"""Fits the efficiency of the attention core of one GPU kind to measured causal forward attention.

One number per (GPU, kernel): the efficiency of `cost.kernels.fused_attention_s`. What an exponential costs
in comparison with the products depends on the device (`exponent_columns`, from datasheets); with that
counted, one efficiency serves all head dimensions, and the backward pass as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_validate.calibration.gemm import Device, GemmParameters
from tangram_validate.calibration.robust import Floats, fit, held_out, median_error, spread
from tangram_validate.calibration.tables import AttentionTable

HEAD_DIMS = (64, 128, 192, 256)  # what training runs; wider ones belong to serving's latent attention
SEQ_LOW, SEQ_HIGH = 2048, 8192
ROWS_LOW = 16  # heads x sequences: fewer leave much of a large device idle
ACTIVATION_BYTES = 2.0
CACHE_BYTES = 8.0  # per key-value element pair: a key and a value are read and written, 2 bytes each


@dataclass(frozen=True, slots=True)
class AttentionFit:
    """The efficiency fitted to all head dimensions, and those fitted to one length or dimension alone."""

    efficiency: float
    sigma: float
    n: int
    error: float  # median over the training-like shapes not fitted
    by_seq: tuple[tuple[int, float], ...]  # efficiency fitted to one sequence length alone
    by_head_dim: tuple[tuple[int, float], ...]  # efficiency fitted to one head dimension alone


def attention_seconds(
    table: AttentionTable, device: Device, gemm: GemmParameters, exponent_columns: float, efficiency: float
) -> tuple[Floats, Floats]:
    """(predicted seconds, the part that the efficiency divides). Arrays of N.

    Serving kernels also write keys and values to their cache; training does not, so that traffic is
    priced apart from the core, at the memory efficiency fitted to the same device's GEMMs.
    """
    tokens = table.batch * table.seq
    scores = tokens * 0.5 * table.seq * table.heads
    cache = tokens * table.kv_heads * table.head_dim * CACHE_BYTES
    passed = tokens * (table.heads + table.kv_heads) * 2.0 * table.head_dim * ACTIVATION_BYTES
    moving = (cache + passed) / (device.memory_bytes_per_s * gemm.memory_efficiency)
    core = 4.0 * scores * (table.head_dim + exponent_columns) / (device.peak_flop_per_s * efficiency)
    return np.asarray(2.0 * gemm.launch_s + moving + core), core


def training_like(table: AttentionTable, head_dims: Sequence[int] = HEAD_DIMS) -> NDArray[np.bool_]:
    """Rows of sequence lengths that training runs, with enough heads to fill the device."""
    lengths = (table.seq >= SEQ_LOW) & (table.seq <= SEQ_HIGH)
    filled = table.batch * table.heads >= ROWS_LOW
    return np.asarray(lengths & filled & np.isin(table.head_dim, head_dims), dtype=np.bool_)


def fit_attention(
    table: AttentionTable, device: Device, gemm: GemmParameters, exponent_columns: float
) -> AttentionFit:
    """Fit training-like shapes; every framework, sequence length and head dimension weighs the same.

    `gemm` gives the memory efficiency and the launch of the same device.
    """

    def efficiency(rows: NDArray[np.bool_]) -> float:
        def curve(parameters: Floats) -> tuple[Floats, Floats]:
            seconds, core = attention_seconds(table, device, gemm, exponent_columns, float(parameters[0]))
            return seconds[rows], -core[rows][:, None]

        groups = np.stack([table.table, table.seq, table.head_dim], axis=1)[rows]
        _, place, counts = np.unique(groups, axis=0, return_inverse=True, return_counts=True)
        return float(fit(curve, (0.5,), table.seconds[rows], 1.0 / counts[place.ravel()])[0])

    rows = training_like(table)
    kept = held_out(table.batch, table.seq, table.heads, table.kv_heads)
    predicted, _ = attention_seconds(table, device, gemm, exponent_columns, efficiency(rows & ~kept))
    found = efficiency(rows)
    final, _ = attention_seconds(table, device, gemm, exponent_columns, found)
    filled = np.isin(table.head_dim, HEAD_DIMS) & (table.batch * table.heads >= ROWS_LOW)
    lengths = [length for length in (1024, 2048, 4096, 8192, 16384) if (table.seq == length).any()]
    dims = [dim for dim in HEAD_DIMS if training_like(table, (dim,)).sum() >= 20]
    return AttentionFit(
        found,
        found * spread(final[rows], table.seconds[rows]),
        int(rows.sum()),
        median_error(predicted[rows & kept], table.seconds[rows & kept]),
        tuple((length, efficiency(filled & (table.seq == length))) for length in lengths),
        tuple((dim, efficiency(training_like(table, (dim,)))) for dim in dims),
    )

"""Seconds of single kernels: the larger of arithmetic and memory time, plus a launch.

Roofline with one efficiency per kernel class (Williams et al., "Roofline", CACM 2009). Valid for kernels
large enough to fill the device; wave quantisation is not modelled (a fixed-tile wave model fits
measured tables worse than none, see docs/models/kernels.md).
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.device import Rates

Floats: TypeAlias = NDArray[np.float64]
Number: TypeAlias = float | Floats

PADDED_COLUMNS = 32  # fused kernels round a head up to this many columns
ALIGNED_COLUMNS = 8  # 16-bit numbers in the 16 bytes that matrix units want their rows aligned to
MISALIGNED = 0.1  # of the rate, where they are not: vector units at less than half of their own peak


def gemm_s(
    m: Number,
    n: Number,
    k: Number,
    rates: Rates,
    *,
    operand_bytes: float,
    output_bytes: float,
    count: Number = 1.0,
) -> Floats:
    """Seconds of `count` equal GEMMs of shape (m, k) x (k, n) run as one kernel.

    `operand_bytes` and `output_bytes` are bytes per element.
    """
    flop = 2.0 * m * n * k * count
    moved = ((m * k + k * n) * operand_bytes + m * n * output_bytes) * count
    return rates.launch_s + np.maximum(flop / rates.gemm_flop_per_s, moved / rates.memory_bytes_per_s)


def streaming_s(moved_bytes: Number, rates: Rates) -> Floats:
    """Seconds of an elementwise kernel (norm, activation, residual, optimizer) that moves that many bytes."""
    return rates.launch_s + np.asarray(moved_bytes / rates.memory_bytes_per_s)


def visible_keys(seq: int, window: int, causal: bool) -> float:
    """Keys that a query attends to, averaged over a sequence of `seq` tokens; `window` 0: no window.

    A causal mask keeps half of a whole sequence; of a window, all but the part before the first token.
    """
    context = min(seq, window) if window else seq
    return context * (1.0 - 0.5 * context / seq) if causal else float(context)


def attention_flop(tokens: Number, keys: Number, heads: Number, qk_dim: Number, value_dim: Number) -> Floats:
    """Floating-point operations of the two attention products, forward; `keys` per query.

    Fused kernels skip masked keys (`visible_keys`); unfused ones multiply by every key.
    """
    return np.asarray(2.0 * tokens * keys * heads * (qk_dim + value_dim))


def fused_attention_s(
    scores: Number, qk_dim: int, value_dim: int, moved_bytes: Number, rates: Rates
) -> Floats:
    """Seconds of a flash attention forward over `scores` visible query-key pairs (all heads).

    Exponentials run on other units than products and do not overlap with them: each counts as
    `rates.exponent_columns` columns of both products (Shah et al., FlashAttention-3, arXiv:2407.08608,
    section 1, give the ratio of the units). Heads are padded to a multiple of PADDED_COLUMNS. Queries, keys,
    values and outputs (`moved_bytes`) pass through memory once.
    """
    columns = _padded(qk_dim) + _padded(value_dim) + 2.0 * rates.exponent_columns
    arithmetic = 2.0 * scores * columns / rates.attention_flop_per_s
    return np.asarray(rates.launch_s + arithmetic + moved_bytes / rates.memory_bytes_per_s)


def _padded(columns: int) -> int:
    return -(-columns // PADDED_COLUMNS) * PADDED_COLUMNS


def unfused_attention_s(
    scores: Number, qk_dim: int, value_dim: int, streamed_bytes: Number, rates: Rates
) -> Floats:
    """Seconds of attention as two batched products and kernels that stream the whole score matrix.

    Where a head's columns are no multiple of ALIGNED_COLUMNS, the products miss the matrix units' alignment
    (16 bytes, cuBLAS documentation) and reach MISALIGNED of their rate.
    """
    rate = rates.attention_flop_per_s
    arithmetic = sum(
        2.0 * scores * columns / (rate if columns % ALIGNED_COLUMNS == 0 else rate * MISALIGNED)
        for columns in (qk_dim, value_dim)
    )
    return np.asarray(3 * rates.launch_s + arithmetic + streamed_bytes / rates.memory_bytes_per_s)

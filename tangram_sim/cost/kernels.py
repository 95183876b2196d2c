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
    """Keys that a query sees, on average over a sequence of `seq` tokens; `window` 0 is the whole sequence.

    A causal mask leaves half of a whole sequence; of a window, all but what sticks out in front of the
    first token.
    """
    context = min(seq, window) if window else seq
    return context * (1.0 - 0.5 * context / seq) if causal else float(context)


def attention_flop(tokens: Number, keys: Number, heads: Number, qk_dim: Number, value_dim: Number) -> Floats:
    """Floating-point operations of the two attention products, forward; `keys` per query.

    Fused kernels skip what the mask hides (`visible_keys`); unfused ones multiply by every key.
    """
    return np.asarray(2.0 * tokens * keys * heads * (qk_dim + value_dim))


def attention_s(
    flop: Number, score_elements: Number, rates: Rates, activation_bytes: float, passes: float
) -> Floats:
    """Seconds of the attention core.

    Unfused kernels (no flash attention on the device) stream the score matrix `passes` times through
    memory beside the arithmetic; fused ones never store it. `score_elements` counts the full matrix.
    """
    arithmetic = flop / rates.attention_flop_per_s
    if rates.fused_attention:
        return rates.launch_s + np.asarray(arithmetic)
    streamed = score_elements * passes * activation_bytes / rates.memory_bytes_per_s
    return np.asarray(3 * rates.launch_s + arithmetic + streamed)

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


def gemm_s(m: Number, n: Number, k: Number, rates: Rates, operand_bytes: float, output_bytes: float, count: Number = 1.0) -> Floats:
    """Seconds of `count` equal GEMMs of shape (m, k) x (k, n) run as one kernel.

    `operand_bytes` and `output_bytes` are bytes per element.
    """
    flop = 2.0 * m * n * k * count
    moved = ((m * k + k * n) * operand_bytes + m * n * output_bytes) * count
    return rates.launch_s + np.maximum(flop / rates.gemm_flop_per_s, moved / rates.memory_bytes_per_s)


def streaming_s(moved_bytes: Number, rates: Rates) -> Floats:
    """Seconds of an elementwise kernel (norm, activation, residual, optimizer) that moves that many bytes."""
    return rates.launch_s + np.asarray(moved_bytes / rates.memory_bytes_per_s)


def attention_flop(tokens: Number, context: Number, heads: Number, qk_dim: Number, value_dim: Number, causal: bool) -> Floats:
    """Floating-point operations of the two attention products, forward.

    `context` is the number of keys a token may see at most; a causal mask halves the work, which
    fused kernels do exploit.
    """
    return np.asarray(2.0 * tokens * context * heads * (qk_dim + value_dim) * (0.5 if causal else 1.0))


def attention_s(flop: Number, score_elements: Number, rates: Rates, activation_bytes: float, passes: float) -> Floats:
    """Seconds of the attention core.

    Unfused kernels (no flash attention on the device) stream the score matrix `passes` times through
    memory beside the arithmetic; fused ones never store it. `score_elements` counts the full matrix.
    """
    arithmetic = flop / rates.attention_flop_per_s
    if rates.fused_attention:
        return rates.launch_s + np.asarray(arithmetic)
    return 3 * rates.launch_s + arithmetic + score_elements * passes * activation_bytes / rates.memory_bytes_per_s

"""The matrix products of a block in training: their three passes, and the rows of experts."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from tangram_sim.cost.kernels import Floats, gemm_s, streaming_s
from tangram_sim.layers.products import IMBALANCE, Gemm
from tangram_sim.models import Experts
from tangram_sim.training.stage.setting import Setting

# Rows that the last tile of an expert's product wastes on average: half of 128. Measured grouped products
# reach the efficiency of dense ones at 1,024 rows per expert and lose below (aiconfigurator-core 0.12.0).
PARTIAL_TILE = 64.0


class Passes(NamedTuple):
    """Seconds of forward, input gradient and weight gradient. Arrays of K."""

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats


def passes(setting: Setting, gemms: Iterable[Gemm], *, quantised: bool = True) -> Passes:
    """Seconds of the three passes over several products in sequence; each pass has the same arithmetic.

    Frozen 4-bit weights (`quantised`; never those of embedding and head) are unpacked to the products' type
    before either pass. Weight gradients are accumulated over microbatches inside the product (read and
    written once, as with Megatron's fused accumulation); frozen weights have none.
    """
    precision, rates = setting.job.precision, setting.rates
    activations = partial(
        gemm_s,
        rates=rates,
        operand_bytes=precision.operand_bytes,
        output_bytes=precision.activation_bytes,
    )
    gradients = partial(
        gemm_s,
        rates=rates,
        operand_bytes=precision.operand_bytes,
        output_bytes=2.0 * setting.job.recipe.gradient_bytes,
    )
    zero = np.zeros(len(setting.layouts))
    forward, inputs, weights = zero, zero, zero
    for rows, n, k, count in gemms:
        forward = forward + activations(rows, n, k, count=count)
        inputs = inputs + activations(rows, k, n, count=count)
        weights = weights + setting.job.trainable * gradients(n, k, rows, count=count)
        if setting.job.frozen and quantised:
            unpacked = n * k * count * (setting.job.frozen_bytes + precision.operand_bytes)
            seconds = (1.0 - setting.job.trainable) * streaming_s(unpacked, rates)
            forward, inputs = forward + seconds, inputs + seconds
    return Passes(forward, inputs, weights)


def balanced_rows(setting: Setting, part: Experts) -> Floats:
    """Mean tokens of one local expert, without imbalance or padded tiles (see `computed_rows`)."""
    return setting.tokens * part.active * setting.ep / part.experts


def computed_rows(setting: Setting, part: Experts) -> Floats:
    """Rows in the products of one expert on the most loaded rank, with its partial tile padded."""
    return balanced_rows(setting, part) * imbalance(setting) + PARTIAL_TILE


def imbalance(setting: Setting) -> Floats:
    """Ratio of tokens on the most loaded rank to the mean."""
    return np.where((setting.ep > 1) & ~setting.fsep, IMBALANCE, 1.0)


def expert_up(setting: Setting, part: Experts, rows: Floats) -> list[Gemm]:
    """Up-projections of the local experts, `rows` each, as one grouped product."""
    width = setting.sharding.width(part.width * (2 if part.gated else 1))
    return [Gemm(rows, width, setting.model.hidden, part.experts / setting.ep)]


def expert_down(setting: Setting, part: Experts, rows: Floats) -> list[Gemm]:
    """Down-projections of the local experts, `rows` each, as one grouped product."""
    return [Gemm(rows, setting.model.hidden, setting.sharding.width(part.width), part.experts / setting.ep)]

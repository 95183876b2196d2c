"""The matrix products of a block: shapes under tensor parallelism, and their three passes."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from tangram_sim.cost.kernels import Floats, Number, gemm_s
from tangram_sim.models import Attention, Experts, FeedForward
from tangram_sim.training.stage.setting import Setting

# Rows that the last tile of an expert's product wastes on average: half of 128. Measured grouped products
# reach the efficiency of dense ones at 1,024 rows per expert and lose below (aiconfigurator-core 0.12.0).
PARTIAL_TILE = 64.0


# Tokens of the most loaded rank over the mean under a trained router with a balancing loss: a round figure.
# A rank that holds all experts has them all; fully sharded experts are put where their tokens are.
IMBALANCE = 1.2


class Gemm(NamedTuple):
    """`count` products (rows, k) x (k, n) on one rank."""

    rows: Number
    n: Number
    k: Number
    count: Number = 1.0  # type: ignore[assignment]  # hides tuple.count, which nobody calls


class Passes(NamedTuple):
    """Seconds of forward, input gradient and weight gradient. Arrays of K."""

    forward: Floats
    input_gradient: Floats
    weight_gradient: Floats


def passes(setting: Setting, gemms: Iterable[Gemm]) -> Passes:
    """The three passes over several products in sequence; each pass has the same arithmetic.

    Weight gradients are added to those of the microbatches before inside the product (read and written
    once, as with Megatron's fused accumulation); frozen weights (adapters) have none.
    """
    recipe, rates = setting.job.recipe, setting.rates
    activations = partial(
        gemm_s, rates=rates, operand_bytes=recipe.gemm_bytes, output_bytes=recipe.activation_bytes
    )
    gradients = partial(
        gemm_s, rates=rates, operand_bytes=recipe.gemm_bytes, output_bytes=2.0 * recipe.gradient_bytes
    )
    zero = np.zeros(len(setting.layouts))
    forward, inputs, weights = zero, zero, zero
    for rows, n, k, count in gemms:
        forward = forward + activations(rows, n, k, count=count)
        inputs = inputs + activations(rows, k, n, count=count)
        weights = weights + setting.job.trainable * gradients(n, k, rows, count=count)
    return Passes(forward, inputs, weights)


def kv_heads(setting: Setting, attention: Attention) -> Floats:
    """Key/value heads of one rank; replicated where tp exceeds them."""
    return np.maximum(attention.kv_heads / setting.tp, 1.0)


def input_projections(setting: Setting, attention: Attention) -> list[Gemm]:
    """Query, key and value projections, column-parallel; MLA's down-projections are replicated."""
    tokens, hidden, heads = setting.tokens, setting.model.hidden, attention.heads / setting.tp
    if not attention.kv_rank:
        width = heads * attention.head_dim + kv_heads(setting, attention) * (
            attention.head_dim + attention.value_dim
        )
        return [Gemm(tokens, width, hidden)]
    query = (
        [
            Gemm(tokens, attention.query_rank, hidden),
            Gemm(tokens, heads * attention.head_dim, attention.query_rank),
        ]
        if attention.query_rank
        else [Gemm(tokens, heads * attention.head_dim, hidden)]
    )
    expanded = heads * (attention.head_dim - attention.rope_dim + attention.value_dim)
    return [
        *query,
        Gemm(tokens, attention.kv_rank + attention.rope_dim, hidden),
        Gemm(tokens, expanded, attention.kv_rank),
    ]


def output_projection(setting: Setting, attention: Attention) -> list[Gemm]:
    """The row-parallel projection behind the attention core."""
    return [Gemm(setting.tokens, setting.model.hidden, attention.heads * attention.value_dim / setting.tp)]


def up_projection(setting: Setting, part: FeedForward) -> list[Gemm]:
    """The column-parallel up-projection(s)."""
    return [Gemm(setting.tokens, part.width * (2 if part.gated else 1) / setting.tp, setting.model.hidden)]


def down_projection(setting: Setting, part: FeedForward) -> list[Gemm]:
    """The row-parallel down-projection."""
    return [Gemm(setting.tokens, setting.model.hidden, part.width / setting.tp)]


def balanced_rows(setting: Setting, part: Experts) -> Floats:
    """Tokens of one local expert when routing is balanced: what the model needs."""
    return setting.tokens * part.active * setting.ep / part.experts


def computed_rows(setting: Setting, part: Experts) -> Floats:
    """Rows that products of one expert take on the most loaded rank, its partial tile filled up."""
    return balanced_rows(setting, part) * imbalance(setting) + PARTIAL_TILE


def imbalance(setting: Setting) -> Floats:
    """Tokens of the most loaded rank over the mean."""
    return np.where((setting.ep > 1) & ~setting.fsep, IMBALANCE, 1.0)


def expert_up(setting: Setting, part: Experts, rows: Floats) -> list[Gemm]:
    """Up-projections of the local experts, `rows` each, as one grouped product."""
    width = part.width * (2 if part.gated else 1) / setting.tp
    return [Gemm(rows, width, setting.model.hidden, part.experts / setting.ep)]


def expert_down(setting: Setting, part: Experts, rows: Floats) -> list[Gemm]:
    """Down-projections of the local experts, `rows` each, as one grouped product."""
    return [Gemm(rows, setting.model.hidden, part.width / setting.tp, part.experts / setting.ep)]

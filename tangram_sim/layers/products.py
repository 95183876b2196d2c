"""The matrix products of a block's forward pass: their shapes under tensor parallelism.

Training passes the tokens of a microbatch, serving the rows of an iteration.
"""

from typing import NamedTuple, Protocol

from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.layers.sharding import Sharding
from tangram_sim.models import Attention, FeedForward, Model

# Kernels of a dense block's forward pass: norms, projections, attention, activations, residuals, reductions.
KERNELS_FORWARD = 14
NORM_PASSES = (
    5.0  # over the residual stream: the addition reads two and writes one, the norm reads and writes one
)
# Tokens of the most loaded rank over the mean under a trained router with a balancing loss: a round figure.
# A rank that holds all experts has them all; fully sharded experts are put where their tokens are.
IMBALANCE = 1.2


class Sharded(Protocol):
    """Work on a model under tensor parallelism: the quantities that forward products depend on."""

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def tokens(self) -> Number:
        """Rows of the products: tokens of one rank."""

    @property
    def sharding(self) -> Sharding:
        """Division of columns over the tensor-parallel group."""


class Gemm(NamedTuple):
    """`count` products (rows, k) x (k, n) on one rank."""

    rows: Number
    n: Number
    k: Number
    count: Number = 1.0  # type: ignore[assignment]  # hides tuple.count, which nobody calls


def kv_heads(work: Sharded, attention: Attention) -> Floats:
    """Key/value heads of one rank; replicated where tp exceeds them."""
    return work.sharding.whole(attention.kv_heads)


def input_projections(work: Sharded, attention: Attention) -> list[Gemm]:
    """Query, key and value projections, column-parallel; MLA's down-projections are replicated."""
    tokens, hidden, heads = work.tokens, work.model.hidden, work.sharding.width(attention.heads)
    if not attention.kv_rank:
        width = heads * attention.head_dim + kv_heads(work, attention) * (
            attention.head_dim + attention.value_dim
        )
        if attention.output_gate:
            width = width + heads * attention.value_dim
        return [Gemm(tokens, width, hidden)]
    query = (
        [
            Gemm(tokens, attention.query_rank, hidden),
            Gemm(tokens, heads * attention.head_dim, attention.query_rank),
        ]
        if attention.query_rank
        else [Gemm(tokens, heads * attention.head_dim, hidden)]
    )
    if attention.index_heads:  # keys are picked by every rank for all heads
        indexed = attention.index_heads * attention.index_dim
        query += [
            Gemm(tokens, indexed, attention.query_rank or hidden),
            Gemm(tokens, attention.index_dim + attention.index_heads, hidden),
        ]
    expanded = heads * (attention.head_dim - attention.rope_dim + attention.value_dim)
    return [
        *query,
        Gemm(tokens, attention.kv_rank + attention.rope_dim, hidden),
        Gemm(tokens, expanded, attention.kv_rank),
    ]


def output_projection(work: Sharded, attention: Attention) -> list[Gemm]:
    """The row-parallel projection behind the attention core."""
    return [Gemm(work.tokens, work.model.hidden, work.sharding.width(attention.heads * attention.value_dim))]


def up_projection(work: Sharded, part: FeedForward) -> list[Gemm]:
    """The up-projection, with the gate where there is one, cut by columns."""
    return [Gemm(work.tokens, work.sharding.width(part.width * (2 if part.gated else 1)), work.model.hidden)]


def down_projection(work: Sharded, part: FeedForward) -> list[Gemm]:
    """The down-projection, cut by rows."""
    return [Gemm(work.tokens, work.model.hidden, work.sharding.width(part.width))]

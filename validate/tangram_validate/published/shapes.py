"""From shape columns to a model: layers, widths and experts decide, never the name in `model`.

What the columns cannot say is documented here: plain feed-forwards with as many key heads as heads are GPTs
(LayerNorm, biases, tied embeddings, learned positions), all others Llama-like. Where a shipped model has the
shape, its attention and shared experts are taken from its configuration; elsewhere experts beside heads of
fewer than 64 columns mean multi-head latent attention.
"""

from dataclasses import replace
from functools import lru_cache

from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tangram_validate.published.known_shapes import block_at, known_model

# DeepSeek-V2 and -V3 (arXiv:2405.04434, arXiv:2412.19437): sizes of multi-head latent attention.
_LATENT = Attention(0, 0, head_dim=192, value_dim=128, query_rank=1536, kv_rank=512, rope_dim=64)
_FINE_GRAINED = 64  # experts from which on shared experts and leading dense blocks are usual
_LARGE = 256


@lru_cache(maxsize=1024)
def model_of(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    gated: bool,
    vocab: int,
    seq: int,
    experts: int,
    active: int,
    expert_ffn: int,
    masked_lm: bool,
) -> Model:
    """The model of a shape; equal shapes give the same object, so that prices are found again."""
    classic = not gated and not experts and kv_heads == heads
    known = (
        None if classic else known_model((hidden, heads, experts, expert_ffn if experts else ffn), kv_heads)
    )
    attention = _attention(hidden, heads, kv_heads, experts > 0, classic, not masked_lm)
    dense = Block(attention, FeedForward(ffn, gated, classic), norm_bias=classic)
    blocks = (dense,) * layers
    if experts:
        shared = expert_ffn * _shared_experts(experts) if known is None else _shared_width(known)
        sparse = Block(attention, Experts(experts, active, expert_ffn, gated, shared_width=shared))
        leading = _dense_blocks(layers, experts) if ffn not in (0, expert_ffn) else 0
        if known is not None and layers == known.layers:
            leading = sum(isinstance(block.feed_forward, FeedForward) for block in known.blocks)
        blocks = (dense,) * leading + (sparse,) * (layers - leading)
    if known is not None:
        blocks = tuple(
            replace(block, attention=replace(block_at(known, number).attention, causal=not masked_lm))
            for number, block in enumerate(blocks)
        )
    return Model(
        name="published",
        family="published",
        hidden=hidden,
        vocab=vocab,
        blocks=blocks,
        tied=classic,
        positions=seq if classic else 0,
        masked_lm=masked_lm,
    )


def latent(hidden: int, heads: int, experts: bool) -> bool:
    """Whether a shape means multi-head latent attention: heads too narrow to be cuts of the hidden size."""
    return experts and hidden / heads < 64


def _attention(hidden: int, heads: int, kv_heads: int, experts: bool, bias: bool, causal: bool) -> Attention:
    if latent(hidden, heads, experts):
        return replace(_LATENT, heads=heads, kv_heads=heads, causal=causal)
    width = max(hidden // heads, 1)
    return Attention(heads, kv_heads, width, width, causal=causal, qkv_bias=bias, out_bias=bias)


def _shared_width(model: Model) -> int:
    part = model.blocks[-1].feed_forward
    return part.shared_width if isinstance(part, Experts) else 0


def _shared_experts(experts: int) -> int:
    """DeepSeek-V2 has two shared experts beside 160, V3 one beside 256; coarse mixtures have none."""
    return 0 if experts < _FINE_GRAINED else 1 if experts >= _LARGE else 2


def _dense_blocks(layers: int, experts: int) -> int:
    """Leading dense blocks of a fine-grained mixture: DeepSeek-V3 has three in 61, cut copies keep one."""
    if experts < _FINE_GRAINED:
        return 0
    return min(3 if experts >= _LARGE and layers >= 24 else 1, layers - 1)

"""A model as arguments of Megatron-LM (megatron/training/arguments.py), with notes on what they cannot say.

Its defaults are GPT's: layer norms with biases, learned positions, GELU, one matrix for embedding and output.
Every difference is written out, so that the trained model has the parameters that were planned for.
"""

from itertools import groupby
from typing import Any

from tangram_sim.models import Attention, Experts, FeedForward, Model

_NO_WORDS = {  # families whose activation a flag of its own names, or none
    "nemotron": "--squared-relu",
}
_GELU_GATED = ("gemma2", "gemma3_text")


def model_words(model: Model) -> tuple[dict[str, Any], list[str]]:
    """(arguments, notes on what they cannot say); an argument with value None is a switch."""
    words: dict[str, Any] = {"--num-layers": model.layers, "--hidden-size": model.hidden}
    notes = []
    attentions = dict.fromkeys(block.attention for block in model.blocks)
    parts = dict.fromkeys(block.feed_forward for block in model.blocks)
    if len(attentions) > 1:
        notes.append("its layers differ in attention (windows, heads): the first one's is written")
    if any(block.parallel for block in model.blocks):
        notes.append("attention and feed-forward read the same input in it, which Megatron-LM does not do")
    attention = model.blocks[0].attention
    words |= _attention(attention, notes)
    words |= _feed_forward(model, list(parts), notes)
    words |= _biases(attention, next(iter(parts)), notes)
    words["--normalization"] = "LayerNorm" if model.blocks[-1].norm_bias else "RMSNorm"
    if model.norm_epsilon:
        words["--norm-epsilon"] = model.norm_epsilon
    words |= _positions(model)
    notes += _not_stated(model)
    if not model.tied:
        words["--untie-embeddings-and-output-weights"] = None
    notes.append(f"tokenizer ({model.vocab} tokens), data and learning rate are yours to give")
    return words, notes


def _attention(attention: Attention, notes: list[str]) -> dict[str, Any]:
    words: dict[str, Any] = {"--num-attention-heads": attention.heads}
    if attention.kv_rank:
        words |= {
            "--multi-latent-attention": None,
            "--kv-lora-rank": attention.kv_rank,
            "--qk-head-dim": attention.head_dim - attention.rope_dim,
            "--qk-pos-emb-head-dim": attention.rope_dim,
            "--v-head-dim": attention.value_dim,
        }
        if attention.query_rank:
            words["--q-lora-rank"] = attention.query_rank
    else:
        words["--kv-channels"] = attention.head_dim
        if attention.kv_heads != attention.heads:
            words |= {"--group-query-attention": None, "--num-query-groups": attention.kv_heads}
    if attention.norm_parameters == 2 * attention.head_dim:
        words["--qk-layernorm"] = None
    elif attention.norm_parameters:
        notes.append("its attention has weights of its own (sinks, norms over all heads): yours to give")
    for has, what in (
        (attention.linear, "linear attention"),
        (attention.output_gate, "a gate on the output of attention"),
        (attention.index_heads, "sparse attention"),
        (attention.window, f"a window of {attention.window} tokens (`--window-size`)"),
    ):
        if has:
            notes.append(f"it has {what}: yours to give")
    return words


def _feed_forward(model: Model, parts: list[FeedForward | Experts], notes: list[str]) -> dict[str, Any]:
    dense = [part for part in parts if isinstance(part, FeedForward)]
    sparse = [part for part in parts if isinstance(part, Experts)]
    if len(dense) > 1 or len(sparse) > 1:
        notes.append("its feed-forwards have several sizes: the first one's is written")
    words: dict[str, Any] = {"--ffn-hidden-size": (dense or sparse)[0].width}
    if sparse:
        experts = sparse[0]
        words |= {
            "--num-experts": experts.experts,
            "--moe-router-topk": experts.active,
            "--moe-ffn-hidden-size": experts.width,
        }
        if experts.shared_width:
            words["--moe-shared-expert-intermediate-size"] = experts.shared_width
        if dense:
            words["--moe-layer-freq"] = _layer_pattern(model)
    if parts[0].gated:
        words["--swiglu"] = None
        if model.family in _GELU_GATED:
            notes.append("its gate is GELU: `--swiglu` has the same shapes and SiLU")
    elif model.family in _NO_WORDS:
        words[_NO_WORDS[model.family]] = None
    return words


def _layer_pattern(model: Model) -> str:
    """Which layers are mixtures of experts, as Megatron-LM evaluates it: `([0]*3+[1]*58)`."""
    runs = groupby(int(isinstance(block.feed_forward, Experts)) for block in model.blocks)
    return f"({'+'.join(f'[{kind}]*{len(list(same))}' for kind, same in runs)})"


def _biases(attention: Attention, part: FeedForward | Experts, notes: list[str]) -> dict[str, Any]:
    """Biases of linear layers: all, none, or those of queries, keys and values alone."""
    given = (attention.qkv_bias, attention.out_bias, part.bias)
    if all(given):
        return {}
    words: dict[str, Any] = {"--disable-bias-linear": None}
    if given == (True, False, False):
        words["--add-qkv-bias"] = None
    elif any(given):
        notes.append("some of its linear layers have biases and others do not: none are written")
    return words


def _positions(model: Model) -> dict[str, Any]:
    if model.positions:
        return {"--position-embedding-type": "learned_absolute"}
    base = {"--rotary-base": round(model.rotary_base)} if model.rotary_base else {}
    return {"--position-embedding-type": "rope", **base}


def _not_stated(model: Model) -> list[str]:
    """Figures of the model that its file leaves out, and what Megatron-LM takes where it is not told them."""
    lacks = []
    if not (model.positions or model.rotary_base):
        lacks.append("the base of its rotary embedding (`rope_theta`; 10000, `--rotary-base`)")
    if not model.norm_epsilon:
        lacks.append("what its norms add to the variance (`rms_norm_eps`; 1e-5, `--norm-epsilon`)")
    if not lacks:
        return []
    return [f"its file does not say {' and '.join(lacks)}: Megatron-LM's own is in brackets, with its flag"]

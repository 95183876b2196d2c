"""Writes a model.yaml from what a config.json says, for model families that cannot be read directly."""

from collections.abc import Mapping
from typing import Any

# Spellings of one fact in config files of different families, the first that is there counts.
_SPELLINGS = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_head_kv", "multi_query_group_num", "n_kv_heads"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "width": ("intermediate_size", "ffn_hidden_size", "n_inner", "d_ff"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "active": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k"),
    "expert_width": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "max_seq": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
}


def template(facts: Mapping[str, Any], name: str) -> str:
    """The text of a model.yaml; values that the config lacks are `TODO`, which is refused when read."""
    inner = facts.get("text_config")
    given = {**facts, **inner} if isinstance(inner, dict) else facts
    known = {fact: _first(given, spellings) for fact, spellings in _SPELLINGS.items()}
    optional = [f"{key}: {known[key]}" for key in ("kv_heads", "head_dim") if known[key] != _TODO]
    attention = ", ".join([f"heads: {known['heads']}", *optional])
    if known["experts"] != _TODO:
        width = known["expert_width"] if known["expert_width"] != _TODO else known["width"]
        part = f"experts: {{count: {known['experts']}, active: {known['active']}, width: {width}}}"
    else:
        part = f"feed_forward: {{width: {known['width']}, gated: true}}"
    lines = [
        f"# From a config.json with model_type {str(facts.get('model_type'))[:60]!r}. Replace every {_TODO};",
        "# the keys are explained in docs/how-to/add-a-model.md. Check the count of parameters with",
        "# `tangram models show` against the published one.",
        f"name: {name}",
        f"hidden: {known['hidden']}",
        f"vocab: {known['vocab']}",
        f"tied: {str(given.get('tie_word_embeddings') is True).lower()}",
        *([f"max_seq: {known['max_seq']}"] if known["max_seq"] != _TODO else []),
        "layers:                       # one entry per run of equal layers, in order",
        f"  - count: {known['layers']}",
        f"    attention: {{{attention}}}",
        f"    {part}",
    ]
    return "\n".join(lines) + "\n"


_TODO = "TODO"


def _first(given: Mapping[str, Any], spellings: tuple[str, ...]) -> str:
    """The first positive integer under the given keys, as text; `TODO` where there is none."""
    for key in spellings:
        value = given.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return str(value)
    return _TODO

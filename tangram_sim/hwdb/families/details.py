"""Details of a model from its config.json: the usual keys, and what a family's implementation fixes.

Families' constants are those of their modelling code in transformers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.model_details import Details, RopeScaling
from tangram_sim.models import Block, Experts

Error = Callable[[str, str], BadInputError]  # of a key and what was expected

_SIGMOID = ("deepseek_v3", "glm4_moe", "glm_moe_dsa", "llama4", "minimax_m2", "nemotron_h")
_CORRECTED = ("deepseek_v3", "glm4_moe", "glm_moe_dsa", "minimax_m2", "nemotron_h")
# Families whose files must ask for it (`norm_topk_prob`) before weights of chosen experts sum to one.
_NOT_RENORMALISED = ("deepseek_v2", "qwen2_moe", "qwen3_moe")
_BY_SEQUENCE = ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm_moe_dsa")
_ZERO_CENTRED = ("gemma2", "gemma3_text", "nemotron", "qwen3_5", "qwen3_5_moe")
_ACTIVATIONS = {
    "bert": "gelu",
    "bloom": "gelu_new",
    "falcon": "gelu",
    "gemma2": "gelu_pytorch_tanh",
    "gemma3_text": "gelu_pytorch_tanh",
    "gpt2": "gelu_new",
    "gpt_neo": "gelu_new",
    "gpt_neox": "gelu",
    "gptj": "gelu_new",
    "nemotron": "relu2",
    "nemotron_h": "relu2",
    "opt": "relu",
    "starcoder2": "gelu_pytorch_tanh",
}
_BEHIND = "norms behind attention and feed-forward"
_SCALED = "embeddings scaled by the root of the hidden size"
_PECULIAR: dict[str, tuple[str, ...]] = {
    "bloom": ("positions as slopes on attention scores (ALiBi)",),
    "cohere": ("a scale on its logits",),
    "cohere2": ("a scale on its logits", "layers without rotary embedding"),
    "gemma2": (_BEHIND, _SCALED, "soft caps on attention scores and logits"),
    "gemma3_text": (_BEHIND, _SCALED, "two rotary bases"),
    "glm4": (_BEHIND,),
    "granite": ("multipliers on embeddings, attention, residuals and logits",),
    "minimax_m2": ("query and key norms over all heads together",),
    "olmo2": (_BEHIND, "query and key norms over all heads together"),
}
_ROTATED_SHARE = ("partial_rotary_factor", "rotary_pct")


def details_of(facts: Mapping[str, Any], family: str, blocks: tuple[Block, ...], error: Error) -> Details:
    """Details stated in a file, with those that its family fixes. Raises BadInputError naming the key."""
    read = _Reader(facts, error)
    sparse = any(isinstance(block.feed_forward, Experts) for block in blocks)
    attention = blocks[-1].attention
    score = read.word("scoring_func", "sigmoid" if family in _SIGMOID else "softmax")
    if score not in ("softmax", "sigmoid"):
        raise error("scoring_func", "softmax or sigmoid")
    limit = read.number("swiglu_limit", 7.0) if family == "gpt_oss" else 0.0
    peculiar = _PECULIAR.get(family, ())
    if family == "llama4" and facts.get("attn_temperature_tuning"):
        peculiar = ("a temperature of attention that grows with the position",)
    routed = {
        "router_score": score,
        "router_renormalised": read.flag("norm_topk_prob", family not in _NOT_RENORMALISED),
        "router_groups": int(read.number("n_group", 1)),
        "router_groups_kept": int(read.number("topk_group", 1)),
        "router_scale": read.number("routed_scaling_factor", 1.0),
        "router_correction": family in _CORRECTED and read.flag("use_routing_bias", True),
        "auxiliary_loss": read.number("router_aux_loss_coef", read.number("aux_loss_alpha", 0.0)),
        "auxiliary_loss_by_sequence": read.flag("seq_aux", family in _BY_SEQUENCE),
    }
    return Details(
        rotary_share=_rotary_share(read, attention.head_dim),
        local_rotary_base=read.number("rope_local_base_freq", 0.0),
        rope_scaling=_scaling(read),
        rope_free_every=4 if family == "llama4" else 0,
        activation=_activation(facts, family),
        activation_limit=limit,
        **(routed if sparse else {}),  # type: ignore[arg-type]
        sinks=family == "gpt_oss",
        chunked=family == "llama4" and any(block.attention.window for block in blocks),
        query_key_l2_norm=family == "llama4" and read.flag("use_qk_norm", True),
        zero_centred_norms=family in _ZERO_CENTRED,
        predicted_tokens=int(read.number("num_nextn_predict_layers", 0)),
        peculiarities=peculiar,
    )


class _Reader:
    """Typed look-ups of optional keys; newer files nest those of the rotary embedding."""

    def __init__(self, facts: Mapping[str, Any], error: Error) -> None:
        self.facts, self.error = facts, error
        nested = facts.get("rope_parameters")
        self.rope: Mapping[str, Any] = nested if isinstance(nested, dict) else {}

    def number(self, key: str, default: float) -> float:
        value = self.facts.get(key, self.rope.get(key))
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise self.error(key, "a number of at least 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.facts.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def word(self, key: str, default: str) -> str:
        value = self.facts.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, "a word")
        return value


def _rotary_share(read: _Reader, head_dim: int) -> float:
    for key in _ROTATED_SHARE:
        share = read.number(key, 0.0)
        if share > 1:
            raise read.error(key, "a share of a head, above 0 and at most 1")
        if share:
            return share
    rotated = read.number("rotary_dim", 0.0)
    return min(rotated / head_dim, 1.0) if rotated else 1.0


def _scaling(read: _Reader) -> RopeScaling:
    """`rope_scaling`, or its keys in `rope_parameters`; () where positions are not scaled."""
    given = read.facts.get("rope_scaling")
    if given is None:
        given = {key: value for key, value in read.rope.items() if not isinstance(value, dict)}
    if not isinstance(given, dict):
        raise read.error("rope_scaling", "an object with the method and its numbers, or null")
    method = given.get("rope_type", given.get("type", "default"))
    if method in (None, "default", "mrope"):
        return ()
    others = {
        key: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for key, value in given.items()
        if key not in ("rope_type", "type", "rope_theta", "partial_rotary_factor")
        and isinstance(value, int | float | str | bool)
    }
    return tuple(sorted({**others, "type": str(method)}.items()))


def _activation(facts: Mapping[str, Any], family: str) -> str:
    for key in ("hidden_activation", "hidden_act", "activation_function"):
        if isinstance(facts.get(key), str):
            return str(facts[key])
    return _ACTIVATIONS.get(family, "silu")

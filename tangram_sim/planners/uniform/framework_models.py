"""Models that a framework can train as they are, and what it has no configuration for in others.

Megatron-LM: what `megatron/training/arguments.py` (core_v0.16.1) has no flag for. TorchTitan: flavours of its
registries, by their exact number of parameters (counted from the wheels on the meta device).
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from tangram_sim.models import Attention, Experts, FeedForward, Model

_GELU = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")
# What `--use-rope-scaling` fixes (megatron/core/models/common/embeddings/rotary_pos_embedding.py).
LLAMA3_CONSTANTS = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192.0,
}
# What multi-latent attention takes for YaRN and no flag changes (`MLATransformerConfig`).
YARN_CONSTANTS = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096.0}
# Recipes of Megatron-Bridge (`megatron.bridge.recipes`) for families that flags cannot describe.
BRIDGE_RECIPES = {
    "gemma2": "gemma.gemma2",
    "gemma3_text": "gemma.gemma3",
    "gpt_oss": "gpt_oss",
    "minimax_m2": "minimax_m2",
    "glm_moe_dsa": "glm_moe_dsa",
    "qwen3_5": "qwen_vl.qwen35_vl",
    "qwen3_5_moe": "qwen_vl.qwen35_vl",
}
# Presets of DeepSpeed's AutoEP by family (`deepspeed/module_inject/auto_ep_presets`).
AUTOEP_PRESETS = {
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "mixtral": "mixtral",
    "qwen2_moe": "qwen3_moe",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_moe": "qwen3_moe",
}


@dataclass(frozen=True, slots=True)
class Flavor:
    """A model in TorchTitan's registry.

    `parameters` is the count of our version of the model; `more` is what the framework's own count has in
    addition (a vision encoder) or lacks (router biases that are buffers there).
    """

    module: str
    name: str
    families: tuple[str, ...]
    parameters: int
    versions: tuple[str, ...] = ("0.2.2", "0.3.0")
    more: int = 0


_DEEPSEEK = ("deepseek_v3", "deepseek_v2")
FLAVORS = (
    Flavor("llama3", "1B", ("llama",), 1_235_814_400, ("0.3.0",)),
    Flavor("llama3", "3B", ("llama",), 3_212_749_824, ("0.3.0",)),
    Flavor("llama3", "8B", ("llama",), 8_030_261_248),
    Flavor("llama3", "70B", ("llama",), 70_553_706_496),
    Flavor("llama3", "405B", ("llama",), 405_853_388_800),
    Flavor("llama4", "17bx16e", ("llama4",), 107_769_861_120, ("0.2.2",)),
    Flavor("llama4", "17bx128e", ("llama4",), 400_711_848_960, ("0.2.2",)),
    Flavor("qwen3", "0.6B", ("qwen3",), 596_049_920),
    Flavor("qwen3", "1.7B", ("qwen3",), 1_720_574_976),
    Flavor("qwen3", "4B", ("qwen3",), 4_022_468_096),
    Flavor("qwen3", "8B", ("qwen3",), 8_190_735_360),
    Flavor("qwen3", "14B", ("qwen3",), 14_768_307_200),
    Flavor("qwen3", "32B", ("qwen3",), 32_762_123_264),
    Flavor("qwen3", "30B-A3B", ("qwen3_moe",), 30_532_122_624),
    Flavor("qwen3", "235B-A22B", ("qwen3_moe",), 235_093_634_560),
    Flavor("gpt_oss", "20b", ("gpt_oss",), 20_914_757_184),
    Flavor("gpt_oss", "120b", ("gpt_oss",), 116_829_156_672),
    Flavor("deepseek_v3", "16B", _DEEPSEEK, 15_706_484_224),
    Flavor("deepseek_v3", "236B", _DEEPSEEK, 235_741_434_880),
    Flavor("deepseek_v3", "671B", _DEEPSEEK, 671_026_419_200, more=-14_848),
    Flavor("kimi_k2_7", "Kimi-K2.5", _DEEPSEEK, 1_026_408_232_448, ("0.3.0",), more=471_120_880),
)


def flavor_of(model: Model, version: str) -> Flavor | None:
    """TorchTitan's flavour of this model in a version, or None."""
    return next(
        (
            flavor
            for flavor in FLAVORS
            if version in flavor.versions
            and model.family in flavor.families
            and model.parameters == flavor.parameters
        ),
        None,
    )


@lru_cache(maxsize=256)
def model_objections(framework: str, version: str, model: Model) -> tuple[str, ...]:
    """Reasons why a framework cannot train a model as it is; () where it can."""
    if framework in ("megatron", "flagscale"):
        return tuple(_without_flags(model))
    if framework == "torchtitan" and flavor_of(model, version) is None:
        others = sorted({flavor.module for flavor in FLAVORS if version in flavor.versions})
        return (
            f"no flavour of TorchTitan {version} is {model.name} ({model.family}, {model.parameters:,} "
            f"parameters); its models: {', '.join(others)}",
        )
    return ()


@lru_cache(maxsize=64)
def attentions(model: Model) -> tuple[Attention, ...]:
    """The kinds of attention in a model, ignoring window sizes."""
    return tuple(dict.fromkeys(replace(block.attention, window=0) for block in model.blocks))


def feed_forwards(model: Model) -> tuple[list[FeedForward], list[Experts]]:
    """(dense feed-forwards, mixtures of experts): the kinds in a model."""
    parts = list(dict.fromkeys(block.feed_forward for block in model.blocks))
    dense = [part for part in parts if isinstance(part, FeedForward)]
    return dense, [part for part in parts if isinstance(part, Experts)]


def linear_biases(model: Model) -> set[tuple[bool, bool, bool]]:
    """(q/k/v bias, attention output bias, feed-forward bias) of every kind of block in a model."""
    return {
        (block.attention.qkv_bias, block.attention.out_bias, block.feed_forward.bias)
        for block in model.blocks
    }


def _without_flags(model: Model) -> list[str]:
    """One reason listing what a model computes that no flag of Megatron-LM expresses; else empty."""
    unsaid = _unsaid(model)
    if not unsaid:
        return []
    recipe = BRIDGE_RECIPES.get(model.family)
    instead = f"; Megatron-Bridge has a recipe, `megatron.bridge.recipes.{recipe}`" if recipe else ""
    return [f"no flag says of {model.name}: {', '.join(unsaid)}{instead}"]


def _unsaid(model: Model) -> list[str]:
    details, kinds = model.details, attentions(model)
    found = list(details.peculiarities)
    if model.masked_lm:
        found.append("a masked-language head")
    if model.embedding_norm or model.embedding_width != model.hidden:
        found.append("a norm or a projection of its own behind the embedding")
    if not model.final_norm or not all(block.norm_affine for block in model.blocks):
        found.append("no norm, or one without weights, where others have it")
    if len({block.norm_bias for block in model.blocks}) > 1:
        found.append("norms of two kinds")
    if any(block.parallel for block in model.blocks):
        found.append("attention and feed-forward side by side")
    if any(block.norms != 2 for block in model.blocks) and not details.peculiarities:
        found.append("other than two norms in a block")
    found += _unsaid_attention(model, kinds) + _unsaid_rotation(model) + _unsaid_feed_forward(model)
    return list(dict.fromkeys(found))


def _unsaid_attention(model: Model, kinds: tuple[Attention, ...]) -> list[str]:
    found, details = [], model.details
    if any(kind.linear for kind in kinds):
        found.append("linear attention")
    elif len(kinds) > 1:
        found.append("layers of unlike attention")
    if any(kind.output_gate for kind in kinds):
        found.append("a gate on the output of attention")
    if any(kind.index_heads for kind in kinds):
        found.append("sparse attention")
    if details.chunked:
        found.append("attention within chunks")
    for kind in kinds:
        known = (0, kind.heads if details.sinks else 2 * kind.head_dim)
        if not kind.linear and kind.norm_parameters not in known and not details.peculiarities:
            found.append("weights in attention beside projections, head norms and sinks")
    if len({block.attention.window for block in model.blocks} - {0}) > 1:
        found.append("windows of several widths")
    return found


def _unsaid_rotation(model: Model) -> list[str]:
    details, latent = model.details, bool(model.blocks[0].attention.kv_rank)
    method = details.scaling_type
    if not method or method == "linear":
        return []
    if method not in ("llama3", "yarn") or (method == "yarn" and not latent):
        return [f"positions scaled by {method}"]
    constants = LLAMA3_CONSTANTS if method == "llama3" else YARN_CONSTANTS
    return [
        f"{key} {details.scaling(key, value):g} of its {method} scaling (fixed at {value:g})"
        for key, value in constants.items()
        if details.scaling(key, value) != value
    ]


def _unsaid_feed_forward(model: Model) -> list[str]:
    dense, sparse = feed_forwards(model)
    details, found = model.details, []
    if len(dense) > 1 or len(sparse) > 1:
        found.append("feed-forwards of several widths")
    if any(part.sent_width for part in sparse):
        found.append("experts that are sent fewer numbers than a token has")
    if len({block.feed_forward.gated for block in model.blocks}) > 1:
        found.append("feed-forwards with gates and others without")
    gated = model.blocks[0].feed_forward.gated
    if details.activation_limit:
        pass  # the clamped one, which has flags of its own
    elif gated and details.activation not in ("silu", "swish"):
        found.append(f"gates of {details.activation}")
    elif not gated and details.activation not in (*_GELU, "relu2", "silu"):
        found.append(f"{details.activation} between the layers of its feed-forwards")
    biases = linear_biases(model)
    if len(biases) > 1 or not biases <= {(True, True, True), (False, False, False), (True, False, False)}:
        found.append("biases on some of its linear layers and not on others")
    return found

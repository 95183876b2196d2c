"""DeepSeek-V2 and -V3: multi-head latent attention, shared experts, dense first layers.

The multi-token-prediction layers of V3 are not part of the model that is trained here (the 671 B published
leave them out too).
"""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model


def _attention(config: Config, heads: int) -> Attention:
    """Latent attention; the bias flag puts biases on the down-projections and the output."""
    rope, bias = config.count("qk_rope_head_dim", 64), config.flag("attention_bias", False)
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=config.count("qk_nope_head_dim", 128) + rope,
        value_dim=config.count("v_head_dim", 128),
        query_rank=config.count("q_lora_rank", 1536, null=0),
        kv_rank=config.count("kv_lora_rank", 512),
        rope_dim=rope,
        qkv_bias=bias,
        out_bias=bias,
    )


def _experts(
    config: Config, defaults: dict[str, int | None], bias: bool, router_bias: bool
) -> Experts | None:
    """The mixture of experts, or None where the file says there is none (`n_routed_experts: null`)."""
    experts = config.count("n_routed_experts", defaults["n_routed_experts"], null=0)
    if not experts:
        return None
    width = config.count("moe_intermediate_size", defaults["moe_intermediate_size"])
    shared = config.count("n_shared_experts", defaults["n_shared_experts"], null=0, least=0)
    return Experts(
        experts=experts,
        active=config.active("num_experts_per_tok", defaults["num_experts_per_tok"], experts),
        width=width,
        bias=bias,
        shared_width=shared * width,
        router_bias=router_bias,
    )


def _blocks(
    config: Config,
    layers: int,
    attention: Attention,
    dense: FeedForward,
    experts: Experts | None,
    *,
    first: int,
) -> list[Block]:
    """Experts in every `moe_layer_freq`-th layer from `first_k_dense_replace` upward."""
    first = config.count("first_k_dense_replace", first, null=0, least=0)
    step = config.count("moe_layer_freq", 1)
    return [
        Block(attention, experts if experts and layer >= first and layer % step == 0 else dense)
        for layer in range(layers)
    ]


def deepseek_v2(config: Config) -> Model:
    """DeepSeek-V2 and V2-Lite (which has no query bottleneck)."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 32)
    bias = config.flag("mlp_bias", False)
    dense = FeedForward(config.count("intermediate_size", 11008), bias=bias)
    defaults = {
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "num_experts_per_tok": None,
    }
    blocks = _blocks(
        config,
        config.layers("num_hidden_layers", 32),
        _attention(config, heads),
        dense,
        _experts(config, defaults, bias, router_bias=False),
        first=0,
    )
    return config.decoder("deepseek_v2", hidden, blocks, vocab=102400, max_seq=2048)


def deepseek_v3(config: Config) -> Model:
    """DeepSeek-V3 and R1: the router carries a correction bias per expert."""
    hidden, heads = config.count("hidden_size", 7168), config.count("num_attention_heads", 128)
    dense = FeedForward(config.count("intermediate_size", 18432))
    defaults = {
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
    }
    blocks = _blocks(
        config,
        config.layers("num_hidden_layers", 61),
        _attention(config, heads),
        dense,
        _experts(config, dict(defaults), bias=False, router_bias=True),
        first=3,
    )
    return config.decoder("deepseek_v3", hidden, blocks, vocab=129280, max_seq=4096)

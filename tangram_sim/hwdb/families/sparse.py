"""Mixtures of experts: Mixtral, Qwen's, GLM-4.5 and 5, MiniMax-M2, Kimi-K2.5, Llama 4; and dense Qwen3.5.

Multi-token-prediction layers and vision towers are not part of the models here.
"""

from dataclasses import replace

from tangram_sim.hwdb.families.config import Config
from tangram_sim.hwdb.families.decoders import Usual, decoder, dense, everywhere, qwen_everywhere
from tangram_sim.hwdb.families.deepseek import deepseek_v3
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model

# Keys whose products take as long as a chunked recurrence does per token: half a chunk of 64 inside it, and
# the state read and written once (Yang et al., arXiv:2412.06464, section 3.3).
CHUNK = 64


def mixtral(config: Config) -> Model:
    """Mixtral: every feed-forward is a mixture of experts."""
    experts = config.count("num_local_experts", 8, also=("num_experts",))
    active = config.active("num_experts_per_tok", 2, experts)
    part = Experts(experts, active, config.count("intermediate_size", 14336))
    usual = Usual(4096, 32, 32, 32000, 131072, kv_heads=8, windows=everywhere(0))
    return decoder("mixtral", config, usual, lambda _: part)


def qwen3_moe(config: Config) -> Model:
    """Qwen3-MoE: experts in every `decoder_sparse_step`-th layer outside `mlp_only_layers`."""
    step = config.count("decoder_sparse_step", 1)
    plain = FeedForward(config.count("intermediate_size", 6144))
    experts = config.count("num_experts", 128, least=0, also=("num_local_experts",))
    sparse: FeedForward | Experts = plain
    if experts:
        active = config.active("num_experts_per_tok", 8, experts)
        sparse = Experts(experts, active, config.count("moe_intermediate_size", 768))
    dense_layers = config.facts.get("mlp_only_layers") or []
    if not isinstance(dense_layers, list) or not all(type(layer) is int for layer in dense_layers):
        raise config.error("mlp_only_layers", "a list of layer numbers")
    usual = Usual(
        *(2048, 32, 24, 151936, 32768),
        kv_heads=4,
        qkv_bias="attention_bias",
        key_norm="head",
        windows=qwen_everywhere,
    )
    return decoder(
        "qwen3_moe",
        config,
        usual,
        lambda layer: plain if layer in dense_layers or (layer + 1) % step else sparse,
    )


def glm4_moe(config: Config) -> Model:
    """GLM-4.5, 4.6 and Air: grouped queries, dense first layers, a shared expert."""
    experts = config.count("n_routed_experts", 128)
    width = config.count("moe_intermediate_size", 1408)
    part = Experts(
        experts=experts,
        active=config.active("num_experts_per_tok", 8, experts),
        width=width,
        shared_width=config.count("n_shared_experts", 1, least=0) * width,
        router_bias=True,
    )
    plain = FeedForward(config.count("intermediate_size", 10944))
    first = config.count("first_k_dense_replace", 1, least=0)
    usual = Usual(
        *(4096, 96, 46, 151552, 131072),
        kv_heads=8,
        head_dim=128,
        qkv_bias="attention_bias",
        out_bias=False,
        key_norm="head",
        normed_if="use_qk_norm",
    )
    return decoder("glm4_moe", config, usual, lambda layer: plain if layer < first else part)


def glm_moe_dsa(config: Config) -> Model:
    """GLM-5: DeepSeek's latent attention and experts; an indexer picks the keys (DeepSeek-V3.2)."""
    base = deepseek_v3(config)
    heads, dim = config.count("index_n_heads", 32), config.count("index_head_dim", 128)
    chosen = config.count("index_topk", 2048)
    blocks = [
        replace(block, attention=replace(block.attention, index_heads=heads, index_dim=dim, window=chosen))
        for block in base.blocks
    ]
    return config.decoder("glm_moe_dsa", base.hidden, blocks, vocab=154880, max_seq=202752)


def minimax_m2(config: Config) -> Model:
    """MiniMax-M2: grouped queries normalised over all heads, experts in every layer, a router with a bias."""
    experts = config.count("num_local_experts", 256, also=("num_experts",))
    part = Experts(
        experts=experts,
        active=config.active("num_experts_per_tok", 8, experts),
        width=config.count("intermediate_size", 1536),
        router_bias=True,
    )
    usual = Usual(3072, 48, 62, 200064, 196608, kv_heads=8, head_dim=128, key_norm="all")
    return decoder("minimax_m2", config, usual, lambda _: part)


def _with_gated_shared(config: Config, experts: int, active: int, width: int, shared_width: int) -> Experts:
    """Qwen's mixture of experts, whose shared expert has a gate. Arguments are defaults for missing keys."""
    number = config.count("num_experts", experts)
    return Experts(
        experts=number,
        active=config.active("num_experts_per_tok", active, number),
        width=config.count("moe_intermediate_size", width),
        shared_width=config.count("shared_expert_intermediate_size", shared_width, least=0),
        shared_gate=True,
    )


def qwen2_moe(config: Config) -> Model:
    """Qwen1.5-MoE and Qwen2-57B-A14B: biases on queries, keys and values, a gated shared expert."""
    part = _with_gated_shared(config, experts=60, active=4, width=1408, shared_width=5632)
    plain = FeedForward(config.count("intermediate_size", 5632))
    step = config.count("decoder_sparse_step", 1)
    usual = Usual(2048, 16, 24, 151936, 32768, kv_heads=16, qkv_bias=True, out_bias=False)
    return decoder("qwen2_moe", config, usual, lambda layer: plain if (layer + 1) % step else part)


def llama4(config: Config) -> Model:
    """Llama 4, the language model: a mixture with a shared expert every `interleave_moe_layer_step` layers.

    Three of four layers attend within chunks of `attention_chunk_size` tokens, priced as a window.
    """
    config = text_of(config)
    experts, width = config.count("num_local_experts", 16), config.count("intermediate_size", 8192)
    part = Experts(experts, config.active("num_experts_per_tok", 1, experts), width, shared_width=width)
    plain = FeedForward(config.count("intermediate_size_mlp", 16384))
    step = config.count("interleave_moe_layer_step", 1)

    def chunked(config: Config, layers: int) -> list[int]:
        chunk = config.count("attention_chunk_size", 8192, null=0)
        return [chunk if (layer + 1) % 4 else 0 for layer in range(layers)]

    usual = Usual(5120, 40, 48, 202048, 131072, kv_heads=8, head_dim=128, windows=chunked)
    return decoder("llama4", config, usual, lambda layer: plain if (layer + 1) % step else part)


def kimi_k25(config: Config) -> Model:
    """Kimi-K2.5: only its language model, which has DeepSeek-V3's architecture."""
    return deepseek_v3(text_of(config))


def gemma3(config: Config) -> Model:
    """Gemma 3 with vision: the language model inside; the vision tower is not modelled."""
    return dense("gemma3_text", text_of(config))


def qwen3_5_moe(config: Config) -> Model:
    """Qwen3.5 with experts."""
    config = text_of(config)
    part = _with_gated_shared(config, experts=512, active=10, width=1024, shared_width=1024)
    return _qwen3_5(config, "qwen3_5_moe", part, heads=32, kv_heads=2, values=64, layers=60)


def qwen3_5(config: Config) -> Model:
    """Qwen3.5 without experts."""
    config = text_of(config)
    part = FeedForward(config.count("intermediate_size", 12288))
    return _qwen3_5(config, "qwen3_5", part, heads=16, kv_heads=4, values=32, layers=32)


def _qwen3_5(
    config: Config,
    family: str,
    part: FeedForward | Experts,
    *,
    heads: int,
    kv_heads: int,
    values: int,
    layers: int,
) -> Model:
    """Three gated delta-net layers for each layer of full, gated attention. Arguments are defaults."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", heads)
    head_dim = config.count("head_dim", 256)
    full = Attention(
        heads=heads,
        kv_heads=config.kv_heads(heads, kv_heads),
        head_dim=head_dim,
        value_dim=head_dim,
        norm_parameters=2 * head_dim,
        output_gate=config.flag("attn_output_gate", True),
    )
    keys, key_dim = config.count("linear_num_key_heads", 16), config.count("linear_key_head_dim", 128)
    values = config.count("linear_num_value_heads", values)
    value_dim = config.count("linear_value_head_dim", 128)
    if values % keys:
        raise config.error("linear_num_value_heads", f"a multiple of the {keys} linear_num_key_heads")
    convolved = 2 * keys * key_dim + values * value_dim
    # Beside the projections: decay and step size of each value head, a short convolution, a norm.
    small = 2 * values * (hidden + 1) + config.count("linear_conv_kernel_dim", 4) * convolved + value_dim
    linear = Attention(
        heads=keys,
        kv_heads=keys,
        head_dim=key_dim,
        value_dim=values * value_dim // keys,
        window=CHUNK + 2 * key_dim,
        norm_parameters=small,
        output_gate=True,
        linear=True,
    )
    interval = config.count("full_attention_interval", 4)
    blocks = [
        Block(linear if (layer + 1) % interval else full, part)
        for layer in range(config.layers("num_hidden_layers", layers))
    ]
    return config.decoder(family, hidden, blocks, vocab=248320, max_seq=262144)


def text_of(config: Config) -> Config:
    """The language model's part of the config, which models with vision nest in `text_config`."""
    text = config.facts.get("text_config")
    if text is None:
        return config
    if not isinstance(text, dict):
        raise config.error("text_config", "an object with the facts of the text model")
    kept = {key: config.facts[key] for key in ("source", "tie_word_embeddings") if key in config.facts}
    return Config(text | kept, f"{config.where}, text_config", config.name, config.taken)

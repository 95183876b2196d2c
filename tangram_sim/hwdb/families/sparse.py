"""Large mixtures of experts: GLM-4.5, GLM-5, MiniMax-M2, Kimi-K2.5, Qwen2-MoE, Qwen3.5 (dense too), Llama 4.

Multi-token-prediction layers and vision towers are not part of the models here.
"""

from dataclasses import replace

from tangram_sim.hwdb.families.config import Config
from tangram_sim.hwdb.families.deepseek import deepseek_v3
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model

# Keys whose products take as long as a chunked recurrence does per token: half a chunk of 64 inside it, and
# the state read and written once (Yang et al., arXiv:2412.06464, section 3.3).
CHUNK = 64


def glm4_moe(config: Config) -> Model:
    """GLM-4.5, 4.6 and Air: grouped queries, dense first layers, a shared expert."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 96)
    head_dim, norm = config.count("head_dim", 128), config.flag("use_qk_norm", False)
    attention = Attention(
        heads=heads,
        kv_heads=config.kv_heads(heads, 8),
        head_dim=head_dim,
        value_dim=head_dim,
        qkv_bias=config.flag("attention_bias", False),
        norm_parameters=2 * head_dim if norm else 0,
    )
    experts = config.count("n_routed_experts", 128)
    width = config.count("moe_intermediate_size", 1408)
    part = Experts(
        experts=experts,
        active=config.active("num_experts_per_tok", 8, experts),
        width=width,
        shared_width=config.count("n_shared_experts", 1, least=0) * width,
        router_bias=True,
    )
    dense = FeedForward(config.count("intermediate_size", 10944))
    first = config.count("first_k_dense_replace", 1, least=0)
    layers = config.layers("num_hidden_layers", 46)
    blocks = [Block(attention, dense if layer < first else part) for layer in range(layers)]
    return config.decoder("glm4_moe", hidden, blocks, vocab=151552, max_seq=131072)


def glm_moe_dsa(config: Config) -> Model:
    """GLM-5: DeepSeek's latent attention and experts; an indexer picks the keys (DeepSeek-V3.2)."""
    dense = deepseek_v3(config)
    heads, dim = config.count("index_n_heads", 32), config.count("index_head_dim", 128)
    chosen = config.count("index_topk", 2048)
    blocks = [
        replace(block, attention=replace(block.attention, index_heads=heads, index_dim=dim, window=chosen))
        for block in dense.blocks
    ]
    return config.decoder("glm_moe_dsa", dense.hidden, blocks, vocab=154880, max_seq=202752)


def minimax_m2(config: Config) -> Model:
    """MiniMax-M2: grouped queries normalised over all heads, experts in every layer, a router with a bias."""
    hidden, heads = config.count("hidden_size", 3072), config.count("num_attention_heads", 48)
    kv_heads, head_dim = config.kv_heads(heads, 8), config.count("head_dim", 128)
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        norm_parameters=(heads + kv_heads) * head_dim,
    )
    experts = config.count("num_local_experts", 256, also=("num_experts",))
    part = Experts(
        experts=experts,
        active=config.active("num_experts_per_tok", 8, experts),
        width=config.count("intermediate_size", 1536),
        router_bias=True,
    )
    blocks = [Block(attention, part)] * config.layers("num_hidden_layers", 62)
    return config.decoder("minimax_m2", hidden, blocks, vocab=200064, max_seq=196608)


def _with_gated_shared(config: Config, experts: int, active: int, width: int, shared_width: int) -> Experts:
    """Qwen's mixtures: the shared expert has a gate. Figures stand in for what the file leaves out."""
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
    hidden, heads = config.count("hidden_size", 2048), config.count("num_attention_heads", 16)
    dim = config.head_dim(hidden, heads)
    attention = Attention(heads, config.kv_heads(heads, 16), dim, dim, qkv_bias=True)
    part = _with_gated_shared(config, experts=60, active=4, width=1408, shared_width=5632)
    dense = FeedForward(config.count("intermediate_size", 5632))
    step = config.count("decoder_sparse_step", 1)
    blocks = [
        Block(attention, dense if (layer + 1) % step else part)
        for layer in range(config.layers("num_hidden_layers", 24))
    ]
    return config.decoder("qwen2_moe", hidden, blocks, vocab=151936, max_seq=32768)


def llama4(config: Config) -> Model:
    """Llama 4, the language model: experts in every `interleave_moe_layer_step`-th layer with a shared one.

    Three layers of four attend within chunks of `attention_chunk_size` tokens, priced as a window.
    """
    config = text_of(config)
    hidden, heads = config.count("hidden_size", 5120), config.count("num_attention_heads", 40)
    kv_heads, dim = config.kv_heads(heads, 8), config.count("head_dim", 128)
    chunk = config.count("attention_chunk_size", 8192, null=0)
    experts, width = config.count("num_local_experts", 16), config.count("intermediate_size", 8192)
    part = Experts(experts, config.active("num_experts_per_tok", 1, experts), width, shared_width=width)
    dense = FeedForward(config.count("intermediate_size_mlp", 16384))
    step = config.count("interleave_moe_layer_step", 1)
    blocks = [
        Block(
            Attention(heads, kv_heads, dim, dim, window=chunk if (layer + 1) % 4 else 0),
            dense if (layer + 1) % step else part,
        )
        for layer in range(config.layers("num_hidden_layers", 48))
    ]
    return config.decoder("llama4", hidden, blocks, vocab=202048, max_seq=131072)


def kimi_k25(config: Config) -> Model:
    """Kimi-K2.5: the language model inside, of DeepSeek-V3's kind."""
    return deepseek_v3(text_of(config))


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
    """Three gated delta-net layers to one of full, gated attention. Figures stand in for what is left out."""
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
    """The facts of the language model, which files of models with vision hold in a section of their own."""
    text = config.facts.get("text_config")
    if text is None:
        return config
    if not isinstance(text, dict):
        raise config.error("text_config", "an object with the facts of the text model")
    kept = {key: config.facts[key] for key in ("source", "tie_word_embeddings") if key in config.facts}
    return Config(text | kept, f"{config.where}, text_config", config.name, config.taken)

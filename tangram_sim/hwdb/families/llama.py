"""Llama and its relatives: Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Phi-3, Granite.

Pre-norm blocks with RMSNorm, rotary positions, grouped queries and a gated feed-forward (SwiGLU).
"""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model


def _attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    window: int = 0,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
) -> Attention:
    """Grouped-query attention; Qwen3 normalises queries and keys per head, with weights shared by heads."""
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=head_dim,
        window=window,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        norm_parameters=2 * head_dim if qk_norm else 0,
    )


def llama(config: Config, family: str = "llama") -> Model:
    """Llama 1 to 3, and what has the same blocks under another name."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 32)
    bias = config.flag("attention_bias", False)
    attention = _attention(
        heads, config.kv_heads(heads), config.head_dim(hidden, heads), qkv_bias=bias, out_bias=bias
    )
    feed_forward = FeedForward(config.count("intermediate_size", 11008), bias=config.flag("mlp_bias", False))
    blocks = [Block(attention, feed_forward)] * config.layers("num_hidden_layers", 32)
    return config.decoder(family, hidden, blocks, vocab=32000, max_seq=2048)


def mistral(config: Config) -> Model:
    """Mistral 7B and NeMo; all layers slide when `sliding_window` is a number."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 32)
    window = config.count("sliding_window", 4096, null=0)
    attention = _attention(heads, config.kv_heads(heads, 8), config.head_dim(hidden, heads), window=window)
    feed_forward = FeedForward(config.count("intermediate_size", 14336))
    blocks = [Block(attention, feed_forward)] * config.layers("num_hidden_layers", 32)
    return config.decoder("mistral", hidden, blocks, vocab=32000, max_seq=131072)


def mixtral(config: Config) -> Model:
    """Mixtral: every feed-forward is a mixture of experts."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 32)
    window = config.count("sliding_window", 0, null=0)
    attention = _attention(heads, config.kv_heads(heads, 8), config.head_dim(hidden, heads), window=window)
    experts = config.count("num_local_experts", 8, also=("num_experts",))
    active = config.active("num_experts_per_tok", 2, experts)
    part = Experts(experts, active, config.count("intermediate_size", 14336))
    blocks = [Block(attention, part)] * config.layers("num_hidden_layers", 32)
    return config.decoder("mixtral", hidden, blocks, vocab=32000, max_seq=131072)


def _qwen_windows(config: Config, layers: int) -> list[int]:
    """Layers from `max_window_layers` upward slide, when sliding is switched on at all."""
    on = config.flag("use_sliding_window", False)
    window = config.count("sliding_window", 4096, null=0) if on else 0
    first = config.count("max_window_layers", 28, least=0)
    return config.windows(layers, window, [layer >= first for layer in range(layers)])


def qwen2(config: Config) -> Model:
    """Qwen2 and Qwen2.5: biases on the query, key and value projections."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 32)
    kv_heads, head_dim = config.kv_heads(heads, 32), config.head_dim(hidden, heads)
    feed_forward = FeedForward(config.count("intermediate_size", 22016))
    blocks = [
        Block(_attention(heads, kv_heads, head_dim, window=window, qkv_bias=True), feed_forward)
        for window in _qwen_windows(config, config.layers("num_hidden_layers", 32))
    ]
    return config.decoder("qwen2", hidden, blocks, vocab=151936, max_seq=32768)


def qwen3(config: Config) -> Model:
    """Qwen3 dense: head size stated apart from the hidden size, QK-norm."""
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 32)
    kv_heads, head_dim = config.kv_heads(heads, 32), config.count("head_dim", 128)
    bias = config.flag("attention_bias", False)
    feed_forward = FeedForward(config.count("intermediate_size", 22016))
    blocks = [
        Block(
            _attention(heads, kv_heads, head_dim, window=window, qkv_bias=bias, out_bias=bias, qk_norm=True),
            feed_forward,
        )
        for window in _qwen_windows(config, config.layers("num_hidden_layers", 32))
    ]
    return config.decoder("qwen3", hidden, blocks, vocab=151936, max_seq=32768)


def qwen3_moe(config: Config) -> Model:
    """Qwen3-MoE: experts in every `decoder_sparse_step`-th layer outside `mlp_only_layers`."""
    hidden, heads = config.count("hidden_size", 2048), config.count("num_attention_heads", 32)
    layers, step = config.layers("num_hidden_layers", 24), config.count("decoder_sparse_step", 1)
    bias, on = config.flag("attention_bias", False), config.flag("use_sliding_window", False)
    window = config.count("sliding_window", 4096, null=0) if on else 0
    attention = _attention(
        heads,
        config.kv_heads(heads, 4),
        config.head_dim(hidden, heads),
        window=window,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
    )
    dense = FeedForward(config.count("intermediate_size", 6144))
    experts = config.count("num_experts", 128, least=0, also=("num_local_experts",))
    sparse = (
        Experts(
            experts,
            config.active("num_experts_per_tok", 8, experts),
            config.count("moe_intermediate_size", 768),
        )
        if experts
        else dense
    )
    dense_layers = config.facts.get("mlp_only_layers") or []
    if not isinstance(dense_layers, list) or not all(type(layer) is int for layer in dense_layers):
        raise config.error("mlp_only_layers", "a list of layer numbers")
    blocks = [
        Block(attention, dense if layer in dense_layers or (layer + 1) % step else sparse)
        for layer in range(layers)
    ]
    return config.decoder("qwen3_moe", hidden, blocks, vocab=151936, max_seq=32768)


def phi3(config: Config) -> Model:
    """Phi-3 mini and medium; all layers slide when `sliding_window` is a number."""
    hidden, heads = config.count("hidden_size", 3072), config.count("num_attention_heads", 32)
    window = config.count("sliding_window", 0, null=0)
    attention = _attention(heads, config.kv_heads(heads), config.head_dim(hidden, heads), window=window)
    feed_forward = FeedForward(config.count("intermediate_size", 8192))
    blocks = [Block(attention, feed_forward)] * config.layers("num_hidden_layers", 32)
    return config.decoder("phi3", hidden, blocks, vocab=32064, max_seq=4096)


def granite(config: Config) -> Model:
    """Granite 3: Llama's blocks; four scalar multipliers carry no parameters."""
    return llama(config, "granite")

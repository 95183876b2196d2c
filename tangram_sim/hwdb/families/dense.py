"""Dense families of 2024 and 2025: OLMo 2, GLM-4, Command-R and Command-A, StarCoder2, Nemotron-4.

Each docstring says what differs from Llama's block; shapes and biases are those of the public checkpoints.
"""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, FeedForward, Model


def _attention(config: Config, hidden: int, kv_heads: int | None = None) -> tuple[int, int, int]:
    """(heads, key/value heads, size of one head)."""
    heads = config.count("num_attention_heads", 32)
    return heads, config.kv_heads(heads, kv_heads), config.head_dim(hidden, heads)


def olmo2(config: Config) -> Model:
    """OLMo 2: norms behind attention and feed-forward, QK-norm over all heads at once."""
    hidden = config.count("hidden_size", 4096)
    heads, kv_heads, dim = _attention(config, hidden)
    bias = config.flag("attention_bias", False)
    attention = Attention(
        heads, kv_heads, dim, dim, qkv_bias=bias, out_bias=bias, norm_parameters=(heads + kv_heads) * dim
    )
    part = FeedForward(config.count("intermediate_size", 11008))
    blocks = [Block(attention, part)] * config.layers("num_hidden_layers", 32)
    return config.decoder("olmo2", hidden, blocks, vocab=50304, max_seq=2048, tied=False)


def glm4(config: Config) -> Model:
    """GLM-4 (9B and 32B of 2024 and 2025): four norms per block, biases on queries, keys and values."""
    hidden = config.count("hidden_size", 4096)
    heads, kv_heads, dim = _attention(config, hidden, 2)
    attention = Attention(heads, kv_heads, dim, dim, qkv_bias=config.flag("attention_bias", False))
    part = FeedForward(config.count("intermediate_size", 13696))
    norms = 4 if config.facts.get("model_type") == "glm4" else 2  # `glm`: the checkpoints of 2024
    blocks = [Block(attention, part, norms=norms)] * config.layers("num_hidden_layers", 40)
    return config.decoder("glm4", hidden, blocks, vocab=151552, max_seq=131072, tied=False)


def cohere(config: Config) -> Model:
    """Command-R: one norm per block, attention and feed-forward in parallel, embeddings tied."""
    hidden = config.count("hidden_size", 8192)
    heads, kv_heads, dim = _attention(config, hidden)
    bias, norm = config.flag("attention_bias", False), config.flag("use_qk_norm", False)
    attention = Attention(
        heads,
        kv_heads,
        dim,
        dim,
        qkv_bias=bias,
        out_bias=bias,
        norm_parameters=(heads + kv_heads) * dim if norm else 0,
    )
    part = FeedForward(config.count("intermediate_size", 22528))
    blocks = [Block(attention, part, norms=1, parallel=True)] * config.layers("num_hidden_layers", 40)
    return config.decoder("cohere", hidden, blocks, vocab=256000, max_seq=8192, tied=True)


def cohere2(config: Config) -> Model:
    """Command-R7B and Command-A: Command-R with three sliding layers to a full one."""
    hidden = config.count("hidden_size", 8192)
    heads, kv_heads, dim = _attention(config, hidden)
    bias, layers = config.flag("attention_bias", False), config.layers("num_hidden_layers", 40)
    part = FeedForward(config.count("intermediate_size", 22528))
    period = config.count("sliding_window_pattern", 4, also=("_sliding_window_pattern",))
    sliding = [(layer + 1) % period != 0 for layer in range(layers)]
    blocks = [
        Block(
            Attention(heads, kv_heads, dim, dim, window=window, qkv_bias=bias, out_bias=bias),
            part,
            norms=1,
            parallel=True,
        )
        for window in config.windows(layers, config.count("sliding_window", 4096, null=0), sliding)
    ]
    return config.decoder("cohere2", hidden, blocks, vocab=256000, max_seq=8192, tied=True)


def starcoder2(config: Config) -> Model:
    """StarCoder2: LayerNorm, a feed-forward without gate, biases everywhere, embeddings tied."""
    hidden, bias = config.count("hidden_size", 3072), config.flag("use_bias", True)
    heads, kv_heads, dim = _attention(config, hidden, 2)
    attention = Attention(
        heads,
        kv_heads,
        dim,
        dim,
        window=config.count("sliding_window", 0, null=0),
        qkv_bias=bias,
        out_bias=bias,
    )
    part = FeedForward(config.count("intermediate_size", 12288), gated=False, bias=bias)
    blocks = [Block(attention, part, norm_bias=True)] * config.layers("num_hidden_layers", 30)
    return config.decoder("starcoder2", hidden, blocks, vocab=49152, max_seq=4096, tied=True)


def nemotron(config: Config) -> Model:
    """Nemotron-4 and Minitron: LayerNorm, squared ReLU without gate, no biases on projections."""
    hidden = config.count("hidden_size", 6144)
    heads, kv_heads, dim = _attention(config, hidden)
    bias = config.flag("attention_bias", False)
    attention = Attention(heads, kv_heads, dim, dim, qkv_bias=bias, out_bias=bias)
    part = FeedForward(
        config.count("intermediate_size", 24576), gated=False, bias=config.flag("mlp_bias", False)
    )
    blocks = [Block(attention, part, norm_bias=True)] * config.layers("num_hidden_layers", 32)
    return config.decoder("nemotron", hidden, blocks, vocab=256000, max_seq=4096, tied=False)

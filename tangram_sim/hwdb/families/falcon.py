"""Falcon: LayerNorm, no biases, one key/value head (7B) or grouped ones (40B and 180B)."""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, FeedForward, Model


def _norms(config: Config, grouped: bool, parallel: bool) -> int:
    """Norms per block: the parallel 7B shares one, the grouped architecture has one per branch."""
    if not parallel:
        return 2
    stated = config.count("num_ln_in_parallel_attn", 0, null=0, most=2)
    return stated or (2 if grouped else 1)


def falcon(config: Config) -> Model:
    """Falcon 7B, 40B, 180B and RefinedWeb models."""
    hidden = config.count("hidden_size", 4544, also=("n_embed",))
    heads, bias = config.count("num_attention_heads", 71), config.flag("bias", False)
    head_dim, grouped = config.head_dim(hidden, heads), config.flag("new_decoder_architecture", False)
    parallel = config.flag("parallel_attn", True)
    if grouped:
        kv_heads = config.kv_heads(heads, key="num_kv_heads")
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
    block = Block(
        Attention(heads, kv_heads, head_dim, head_dim, qkv_bias=bias, out_bias=bias),
        FeedForward(config.count("ffn_hidden_size", 4 * hidden, null=4 * hidden), gated=False, bias=bias),
        norms=_norms(config, grouped, parallel),
        norm_bias=True,
        parallel=parallel,
    )
    return config.model(
        "falcon",
        hidden,
        config.count("vocab_size", 65024),
        [block] * config.layers("num_hidden_layers", 32),
        tied=config.flag("tie_word_embeddings", True),
        max_seq=config.count("max_position_embeddings", 2048),
    )

"""Gemma 2 and 3: four norms per block, tied vocabulary, sliding and full attention in turn."""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, FeedForward, Model


def _gemma(config: Config, family: str, *, vocab: int, max_seq: int, period: int, qk_norm: bool) -> Model:
    """`period` - 1 sliding layers, then a full one, over and over."""
    hidden, heads = config.count("hidden_size", 2304), config.count("num_attention_heads", 8)
    layers, head_dim = config.layers("num_hidden_layers", 26), config.count("head_dim", 256)
    kv_heads, bias = config.kv_heads(heads, 4), config.flag("attention_bias", False)
    feed_forward = FeedForward(config.count("intermediate_size", 9216))
    sliding = [(layer + 1) % period != 0 for layer in range(layers)]
    blocks = [
        Block(
            Attention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                value_dim=head_dim,
                window=window,
                qkv_bias=bias,
                out_bias=bias,
                norm_parameters=2 * head_dim if qk_norm else 0,
            ),
            feed_forward,
            norms=4,
        )
        for window in config.windows(layers, config.count("sliding_window", 4096, null=0), sliding)
    ]
    return config.decoder(family, hidden, blocks, vocab=vocab, max_seq=max_seq, tied=True)


def gemma2(config: Config) -> Model:
    """Gemma 2: every second layer slides."""
    return _gemma(config, "gemma2", vocab=256000, max_seq=8192, period=2, qk_norm=False)


def gemma3_text(config: Config) -> Model:
    """Gemma 3, text: five sliding layers to a full one unless the file says otherwise, QK-norm."""
    period = config.count("sliding_window_pattern", 6, also=("_sliding_window_pattern",))
    return _gemma(config, "gemma3_text", vocab=262208, max_seq=131072, period=period, qk_norm=True)


def gemma3(config: Config) -> Model:
    """Gemma 3 with vision: the language model inside; the vision tower is not modelled."""
    text = config.facts.get("text_config", {})
    if not isinstance(text, dict):
        raise config.error("text_config", "an object with the facts of the text model")
    if "tie_word_embeddings" in config.facts:
        text = {"tie_word_embeddings": config.facts["tie_word_embeddings"]} | text
    if "source" in config.facts:
        text = text | {"source": config.facts["source"]}
    return gemma3_text(Config(text, f"{config.where}, text_config", config.name, config.taken))

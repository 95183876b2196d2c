"""BERT as it is pre-trained: encoder, masked-language-model head, pooler and next-sentence classifier."""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, FeedForward, Model


def bert(config: Config) -> Model:
    """BERT; the count is that of the pre-training checkpoint, pooler and sentence classifier included."""
    hidden, heads = config.count("hidden_size", 768), config.count("num_attention_heads", 12)
    vocab, positions = config.count("vocab_size", 30522), config.count("max_position_embeddings", 512)
    if config.flag("is_decoder", False):
        raise config.error("is_decoder", "false: BERT is modelled as the encoder it was published as")
    head_dim = config.head_dim(hidden, heads)
    block = Block(
        Attention(heads, heads, head_dim, head_dim, causal=False, qkv_bias=True, out_bias=True),
        FeedForward(config.count("intermediate_size", 3072), gated=False, bias=True),
        norm_bias=True,
    )
    dense = hidden * hidden + hidden
    return config.model(
        "bert",
        hidden,
        vocab,
        [block] * config.layers("num_hidden_layers", 12),
        tied=config.flag("tie_word_embeddings", True),
        positions=positions,
        max_seq=positions,
        token_types=config.count("type_vocab_size", 2, least=0),
        embedding_norm=True,
        final_norm=False,
        head_parameters=dense + 2 * hidden + vocab,  # transform, its norm, output bias
        masked_lm=True,
        extra_parameters=dense + 2 * hidden + 2,  # pooler, next-sentence classifier
    )

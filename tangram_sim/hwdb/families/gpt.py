"""Models with LayerNorm and plain feed-forwards: GPT-2 (Megatron's GPT-3), GPT-Neo, -J, -NeoX, OPT, BLOOM.

And BERT as it is pre-trained, with masked-language-model head, pooler and next-sentence classifier; and
Falcon: no biases, one key/value head (7B) or grouped ones (40B and 180B).
"""

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, FeedForward, Model

OPT_POSITION_OFFSET = 2  # OPT's position table starts two rows early, for padding


def _block(
    config: Config,
    hidden: int,
    heads: int,
    width: int,
    *,
    key: str = "num_attention_heads",
    window: int = 0,
    qkv_bias: bool = True,
    out_bias: bool = True,
    bias: bool = True,
    parallel: bool = False,
    norms: int = 2,
    norm_affine: bool = True,
) -> Block:
    """A block of multi-head attention and a plain feed-forward."""
    head_dim = config.head_dim(hidden, heads, key)
    attention = Attention(
        heads, heads, head_dim, head_dim, window=window, qkv_bias=qkv_bias, out_bias=out_bias
    )
    return Block(
        attention,
        FeedForward(width, gated=False, bias=bias),
        norms=norms,
        norm_bias=True,
        parallel=parallel,
        norm_affine=norm_affine,
    )


def gpt2(config: Config) -> Model:
    """GPT-2; Megatron-LM's GPT-3 has the same tensors."""
    hidden = config.count("n_embd", 768, also=("hidden_size",))
    heads = config.count("n_head", 12, also=("num_attention_heads",))
    if config.flag("add_cross_attention", False):
        raise config.error("add_cross_attention", "false: encoder-decoder models are not modelled")
    width = config.count("n_inner", 4 * hidden, null=4 * hidden)
    positions = config.count("n_positions", 1024, also=("max_position_embeddings",))
    return config.model(
        "gpt2",
        hidden,
        config.count("vocab_size", 50257),
        [_block(config, hidden, heads, width, key="n_head")]
        * config.layers("n_layer", 12, also=("num_hidden_layers",)),
        tied=config.flag("tie_word_embeddings", True),
        positions=positions,
        max_seq=positions,
    )


def _local_layers(config: Config, layers: int) -> list[bool]:
    """Whether each layer of GPT-Neo attends locally, from `[[["global", "local"], 12]]`."""
    stated = config.facts.get("attention_types")
    if stated is None:
        return [layer % 2 == 1 for layer in range(layers)]
    expected = f'{layers} layers as [[["global", "local"], count], ...]'
    if not isinstance(stated, list):
        raise config.error("attention_types", expected)
    local: list[bool] = []
    for item in stated:
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], list)):
            raise config.error("attention_types", expected)
        kinds, repeats = item
        if type(repeats) is not int or not 0 < repeats <= layers:
            raise config.error("attention_types", expected)
        if not all(kind in ("global", "local") for kind in kinds) or len(kinds) > layers:
            raise config.error("attention_types", expected)
        local += [kind == "local" for kind in kinds] * repeats
    if len(local) != layers:
        raise config.error("attention_types", f"{expected}; it unrolls to {len(local)}")
    return local


def gpt_neo(config: Config) -> Model:
    """GPT-Neo: alternating global and local attention; no biases on queries, keys and values."""
    hidden = config.count("hidden_size", 2048)
    heads = config.count("num_heads", 16, also=("num_attention_heads",))
    layers, window = (
        config.layers("num_layers", 24, also=("num_hidden_layers",)),
        config.count("window_size", 256),
    )
    width = config.count("intermediate_size", 4 * hidden, null=4 * hidden)
    positions = config.count("max_position_embeddings", 2048)
    blocks = [
        _block(config, hidden, heads, width, key="num_heads", window=window if local else 0, qkv_bias=False)
        for local in _local_layers(config, layers)
    ]
    return config.model(
        "gpt_neo",
        hidden,
        config.count("vocab_size", 50257),
        blocks,
        tied=config.flag("tie_word_embeddings", True),
        positions=positions,
        max_seq=positions,
    )


def gpt_neox(config: Config) -> Model:
    """GPT-NeoX and Pythia: rotary positions, attention and feed-forward in parallel."""
    hidden, heads = config.count("hidden_size", 6144), config.count("num_attention_heads", 64)
    bias = config.flag("attention_bias", True)
    block = _block(
        config,
        hidden,
        heads,
        config.count("intermediate_size", 24576),
        qkv_bias=bias,
        out_bias=bias,
        parallel=config.flag("use_parallel_residual", True),
    )
    return config.model(
        "gpt_neox",
        hidden,
        config.count("vocab_size", 50432),
        [block] * config.layers("num_hidden_layers", 44),
        tied=config.flag("tie_word_embeddings", False),
        max_seq=config.count("max_position_embeddings", 2048),
    )


def gptj(config: Config) -> Model:
    """GPT-J: rotary positions, attention without biases beside the feed-forward, one norm for both.

    The head's bias, one number for each entry of the vocabulary, is not counted.
    """
    hidden, heads = config.count("n_embd", 4096, also=("hidden_size",)), config.count("n_head", 16)
    width = config.count("n_inner", 4 * hidden, null=4 * hidden)
    block = _block(
        config,
        hidden,
        heads,
        width,
        key="n_head",
        qkv_bias=False,
        out_bias=False,
        parallel=True,
        norms=1,
    )
    return config.model(
        "gptj",
        hidden,
        config.count("vocab_size", 50400),
        [block] * config.layers("n_layer", 28, also=("num_hidden_layers",)),
        tied=config.flag("tie_word_embeddings", False),
        max_seq=config.count("n_positions", 2048),
    )


def bloom(config: Config) -> Model:
    """BLOOM: positions as slopes of attention scores (ALiBi). The norm of embeddings is not counted."""
    hidden = config.count("hidden_size", 64, also=("n_embed",))
    heads = config.count("n_head", 8, also=("num_attention_heads",))
    return config.model(
        "bloom",
        hidden,
        config.count("vocab_size", 250880),
        [_block(config, hidden, heads, 4 * hidden, key="n_head")]
        * config.layers("n_layer", 2, also=("num_hidden_layers",)),
        tied=config.flag("tie_word_embeddings", True),
        max_seq=config.count("seq_length", 2048),
    )


def opt(config: Config) -> Model:
    """OPT; the 350M is post-norm, has no final norm and a narrower vocabulary matrix."""
    hidden, heads = config.count("hidden_size", 768), config.count("num_attention_heads", 12)
    bias, affine = config.flag("enable_bias", True), config.flag("layer_norm_elementwise_affine", True)
    max_seq = config.count("max_position_embeddings", 2048)
    block = _block(
        config,
        hidden,
        heads,
        config.count("ffn_dim", 3072),
        qkv_bias=bias,
        out_bias=bias,
        bias=bias,
        norm_affine=affine,
    )
    width = config.count("word_embed_proj_dim", hidden, null=hidden)
    return config.model(
        "opt",
        hidden,
        config.count("vocab_size", 50272),
        [block] * config.layers("num_hidden_layers", 12),
        tied=config.flag("tie_word_embeddings", True),
        positions=max_seq + OPT_POSITION_OFFSET,
        max_seq=max_seq,
        embedding_dim=width if width != hidden else 0,
        final_norm=config.flag("do_layer_norm_before", True)
        and not config.flag("_remove_final_layer_norm", False),
    )


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

"""Pre-norm decoders with grouped queries: a family's usual figures are one row; one reader reads them all.

Shapes and biases are those of the public checkpoints. A figure of a row holds where a file leaves it out.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tangram_sim.hwdb.families.config import Config
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model

Windows = Callable[[Config, int], list[int]]  # of a file and its number of layers: each layer's; 0: no window
_ON = ("use_bias",)  # flags that are on where a file leaves them out


def _none(_: Config, layers: int) -> list[int]:
    return [0] * layers


def everywhere(window: int) -> Windows:
    """All layers slide where `sliding_window` is a number; `window` tokens where the file does not say."""
    return lambda config, layers: [config.count("sliding_window", window, null=0)] * layers


def in_turn(period: int, *, stated: bool) -> Windows:
    """`period` - 1 sliding layers, then a full one, over and over; `stated`: a file may name the period."""

    def windows(config: Config, layers: int) -> list[int]:
        keys = "sliding_window_pattern", ("_sliding_window_pattern",)
        every = config.count(keys[0], period, also=keys[1]) if stated else period
        sliding = [(layer + 1) % every != 0 for layer in range(layers)]
        return config.windows(layers, config.count("sliding_window", 4096, null=0), sliding)

    return windows


def _qwen(config: Config, layers: int) -> list[int]:
    """Layers from `max_window_layers` upward slide, when sliding is switched on at all."""
    on = config.flag("use_sliding_window", False)
    window = config.count("sliding_window", 4096, null=0) if on else 0
    first = config.count("max_window_layers", 28, least=0)
    return config.windows(layers, window, [layer >= first for layer in range(layers)])


def qwen_everywhere(config: Config, layers: int) -> list[int]:
    """All layers slide, when sliding is switched on."""
    return everywhere(4096)(config, layers) if config.flag("use_sliding_window", False) else [0] * layers


@dataclass(frozen=True, slots=True)
class Usual:
    """What a family has where a file does not say, and what its implementation fixes.

    `kv_heads` None: as many as query heads; `head_dim` 0: the hidden size over the heads, unless stated.
    Biases are fixed, or the key of a flag; `out_bias` None: as `qkv_bias`. `key_norm` is of each "head" or of
    "all" together, where the flag `normed_if` is on or there is none.
    """

    hidden: int
    heads: int
    layers: int
    vocabulary: int
    longest_seq: int
    width: int = 0
    kv_heads: int | None = None
    head_dim: int = 0
    tied: bool = False
    windows: Windows = _none
    qkv_bias: bool | str = False
    out_bias: bool | None = None
    mlp_bias: bool | str = False
    key_norm: str = ""
    normed_if: str = ""
    gated: bool = True
    norms: int = 2
    norm_bias: bool = False
    parallel: bool = False


# Hidden size, heads, layers, vocabulary and longest sequence come first.
DENSE = {
    "llama": Usual(  # 1 to 3, and what has the same blocks under another name
        *(4096, 32, 32, 32000, 2048),
        width=11008,
        qkv_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "mistral": Usual(4096, 32, 32, 32000, 131072, width=14336, kv_heads=8, windows=everywhere(4096)),
    "phi3": Usual(3072, 32, 32, 32064, 4096, width=8192, windows=everywhere(0)),
    "qwen2": Usual(  # and 2.5
        *(4096, 32, 32, 151936, 32768),
        width=22016,
        kv_heads=32,
        qkv_bias=True,
        out_bias=False,
        windows=_qwen,
    ),
    "qwen3": Usual(
        *(4096, 32, 32, 151936, 32768),
        width=22016,
        kv_heads=32,
        head_dim=128,
        qkv_bias="attention_bias",
        key_norm="head",
        windows=_qwen,
    ),
    "olmo2": Usual(  # norms behind attention and feed-forward
        *(4096, 32, 32, 50304, 2048),
        width=11008,
        qkv_bias="attention_bias",
        key_norm="all",
    ),
    "glm4": Usual(  # 9B and 32B of 2025
        *(4096, 32, 40, 151552, 131072),
        width=13696,
        kv_heads=2,
        qkv_bias="attention_bias",
        out_bias=False,
        norms=4,
    ),
    "cohere": Usual(  # Command-R
        *(8192, 32, 40, 256000, 8192),
        width=22528,
        qkv_bias="attention_bias",
        key_norm="all",
        normed_if="use_qk_norm",
        norms=1,
        parallel=True,
        tied=True,
    ),
    "cohere2": Usual(  # Command-R7B and Command-A
        *(8192, 32, 40, 256000, 8192),
        width=22528,
        windows=in_turn(4, stated=True),
        qkv_bias="attention_bias",
        norms=1,
        parallel=True,
        tied=True,
    ),
    "starcoder2": Usual(
        *(3072, 32, 30, 49152, 4096),
        width=12288,
        kv_heads=2,
        windows=everywhere(0),
        qkv_bias="use_bias",
        mlp_bias="use_bias",
        gated=False,
        norm_bias=True,
        tied=True,
    ),
    "nemotron": Usual(  # Nemotron-4 and Minitron: squared ReLU
        *(6144, 32, 32, 256000, 4096),
        width=24576,
        qkv_bias="attention_bias",
        mlp_bias="mlp_bias",
        gated=False,
        norm_bias=True,
    ),
    "gemma2": Usual(
        *(2304, 8, 26, 256000, 8192),
        width=9216,
        kv_heads=4,
        head_dim=256,
        windows=in_turn(2, stated=False),
        qkv_bias="attention_bias",
        norms=4,
        tied=True,
    ),
}
DENSE["granite"] = DENSE["llama"]  # four scalar multipliers carry no parameters
DENSE["glm"] = replace(DENSE["glm4"], norms=2)  # the checkpoints of 2024
DENSE["gemma3_text"] = replace(
    DENSE["gemma2"], vocabulary=262208, longest_seq=131072, windows=in_turn(6, stated=True), key_norm="head"
)
_NAMED = {"glm": "glm4"}  # families whose models are known by another's name


def dense(family: str, config: Config) -> Model:
    """A model of one of the dense families."""
    usual = DENSE[family]
    part = FeedForward(
        config.count("intermediate_size", usual.width),
        gated=usual.gated,
        bias=_is_on(config, usual.mlp_bias),
    )
    return decoder(_NAMED.get(family, family), config, usual, lambda _: part)


def decoder(family: str, config: Config, usual: Usual, part: Callable[[int], FeedForward | Experts]) -> Model:
    """A model whose layer number n has the feed-forward `part(n)`."""
    hidden, heads = (
        config.count("hidden_size", usual.hidden),
        config.count("num_attention_heads", usual.heads),
    )
    kv_heads = config.kv_heads(heads, usual.kv_heads)
    dim = config.count("head_dim", usual.head_dim) if usual.head_dim else config.head_dim(hidden, heads)
    normed = usual.key_norm if not usual.normed_if or config.flag(usual.normed_if, False) else ""
    blocks = [
        Block(
            Attention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=dim,
                value_dim=dim,
                window=window,
                qkv_bias=_is_on(config, usual.qkv_bias),
                out_bias=_is_on(config, usual.qkv_bias if usual.out_bias is None else usual.out_bias),
                norm_parameters={"": 0, "head": 2, "all": heads + kv_heads}[normed] * dim,
            ),
            part(layer),
            norms=usual.norms,
            norm_bias=usual.norm_bias,
            parallel=usual.parallel,
        )
        for layer, window in enumerate(
            usual.windows(config, config.layers("num_hidden_layers", usual.layers))
        )
    ]
    return config.decoder(
        family, hidden, blocks, vocab=usual.vocabulary, max_seq=usual.longest_seq, tied=usual.tied
    )


def _is_on(config: Config, flag: bool | str) -> bool:
    """A flag that the family fixes, or that the key of this name says."""
    return config.flag(flag, flag in _ON) if isinstance(flag, str) else flag

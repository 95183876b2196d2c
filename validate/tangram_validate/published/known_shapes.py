"""Attention of shipped models, found by shape: a row's missing widths are those of the one model that has it.

A row states hidden size, heads, experts and their width. Heads need not be cuts of the hidden size (Qwen3's
have 128 columns where the cut has 64, gpt-oss's 64 where it has 45), and latent attention does not show in
their number (DeepSeek-V3's cut is 56, Kimi-K2's 112): no rule replaces the published configuration.
"""

from collections import defaultdict
from functools import lru_cache

from tangram_sim.hwdb import load_model
from tangram_sim.hwdb.models import model_names
from tangram_sim.models import Block, Experts, Model

Shape = tuple[int, int, int, int]  # hidden, heads, experts (0: dense), width of the feed-forward or an expert


def shape_of(model: Model) -> Shape:
    """What a row would state of a model, by its last block."""
    block = model.blocks[-1]
    part = block.feed_forward
    experts = part.experts if isinstance(part, Experts) else 0
    return model.hidden, block.attention.heads, experts, part.width


@lru_cache(maxsize=1)
def _shipped() -> dict[Shape, list[Model]]:
    found: dict[Shape, list[Model]] = defaultdict(list)
    for name in model_names():
        model = load_model(name)
        if model.blocks[-1].feed_forward.gated:
            found[shape_of(model)].append(model)
    return found


def known_model(shape: Shape, kv_heads: int) -> Model | None:
    """The shipped gated model of that shape, or None; `kv_heads` as stated, or as many as heads if not.

    Of several the one without windows: a window is said of no row, and is an addition to the plain model.
    """
    heads = shape[1]
    bearers = [
        model
        for model in _shipped().get(shape, [])
        if kv_heads in (heads, model.blocks[-1].attention.kv_heads)
    ]
    return min(bearers, key=_windows, default=None)


def _windows(model: Model) -> int:
    return sum(block.attention.window > 0 for block in model.blocks)


def block_at(model: Model, number: int) -> Block:
    """The block that layer `number` copies in a model cut or stretched to another number of layers."""
    return model.blocks[number % len(model.blocks)]

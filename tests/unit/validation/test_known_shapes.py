"""Every shipped model, known by its shape alone, has the attention of its configuration."""

import pytest
from tangram_validate.published.known_shapes import known_model, shape_of
from tangram_validate.published.shapes import model_of

from tangram_sim.hwdb import load_model
from tangram_sim.hwdb.models import model_names
from tangram_sim.models import Experts, FeedForward, Model

GATED = [name for name in model_names() if load_model(name).blocks[-1].feed_forward.gated]


def from_shape(model: Model, kv_heads: int | None = None, layers: int | None = None) -> Model:
    """The model that the shape columns of a row give."""
    part, attention = model.blocks[-1].feed_forward, model.blocks[-1].attention
    sparse = isinstance(part, Experts)
    dense = next((b.feed_forward.width for b in model.blocks if isinstance(b.feed_forward, FeedForward)), 0)
    return model_of(
        layers or model.layers,
        model.hidden,
        attention.heads,
        kv_heads or attention.kv_heads,
        dense if sparse else part.width,
        True,
        model.vocab,
        4096,
        part.experts if isinstance(part, Experts) else 0,
        part.active if isinstance(part, Experts) else 0,
        part.width if sparse else 0,
        False,
    )


@pytest.mark.parametrize("name", GATED)
def test_a_shape_gives_the_attention_of_its_published_configuration(name: str) -> None:
    """Widths, latent ranks and windows of every block; parameters to a hundredth."""
    model = load_model(name)
    bearer = known_model(shape_of(model), model.blocks[-1].attention.kv_heads)
    assert bearer is not None
    if bearer.blocks[-1].attention != model.blocks[-1].attention:
        # Shapes of Llama 3 8B and Phi-4 with a window, DeepSeek-V3's with an indexer: no row states either.
        assert name in ("mistral-7b", "phi3-medium", "deepseek-v3.2")
        return
    found = from_shape(model)
    assert [b.attention for b in found.blocks] == [b.attention for b in bearer.blocks[: model.layers]]
    if bearer.name == name and model.tied == found.tied:
        assert found.parameters == pytest.approx(model.parameters, rel=0.01)


@pytest.mark.parametrize(
    ("name", "head_dim", "kv_rank"),
    [
        ("gpt-oss-120b", 64, 0),  # 45 columns of the hidden size each, and yet not latent
        ("qwen3-30b-a3b", 128, 0),  # 64 of the hidden size
        ("qwen3-235b-a22b", 128, 0),
        ("qwen3-32b", 128, 0),  # 80
        ("kimi-k2.5", 192, 512),  # latent at 112
        ("deepseek-v3", 192, 512),
        ("deepseek-v2-lite", 192, 512),  # latent at 128
        ("mistral-nemo-12b", 128, 0),  # 160
    ],
)
def test_heads_are_as_wide_as_published_also_of_cut_copies(name: str, head_dim: int, kv_rank: int) -> None:
    """Four layers, key heads unstated: copies that benchmarks cut down keep the widths."""
    model = load_model(name)
    copy = from_shape(model, kv_heads=model.blocks[-1].attention.heads, layers=4)
    assert {(b.attention.head_dim, b.attention.kv_rank) for b in copy.blocks} == {(head_dim, kv_rank)}


def test_a_shape_that_nobody_ships_keeps_the_rules() -> None:
    """Heads are cuts of the hidden size; narrow ones beside experts mean latent attention."""
    assert (
        model_of(4, 4160, 65, 65, 11008, True, 32000, 4096, 0, 0, 0, False).blocks[0].attention.head_dim == 64
    )
    assert (
        model_of(4, 4096, 128, 128, 0, True, 32000, 4096, 96, 4, 1024, False).blocks[0].attention.kv_rank
        == 512
    )

"""Products of a layer against its parameters: one rank multiplies every matrix once."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tangram_sim.hwdb import load_model, model_names
from tangram_sim.layers import products
from tangram_sim.layers.sharding import Sharding
from tangram_sim.models import Block, FeedForward, Model


@dataclass(frozen=True)
class OneRank:
    """Seven tokens on a rank that holds `1 / degree` of every matrix."""

    model: Model
    sharding: Sharding
    tokens: float = 7.0


def elements(found: list[products.Gemm]) -> float:
    """Elements of the matrices that are multiplied with."""
    assert all(float(np.asarray(item.rows)) == 7.0 for item in found)
    return sum(float(np.asarray(item.n * item.k * item.count)) for item in found)


def kinds(model: Model) -> list[Block]:
    return list(dict.fromkeys(model.blocks))


@pytest.mark.parametrize("name", model_names())
def test_projections_multiply_every_matrix_of_an_attention_once(name: str) -> None:
    """What is left of its parameters are norms and biases."""
    model = load_model(name)
    work: Any = OneRank(model, Sharding(1))
    for block in kinds(model):
        attention = replace(block.attention, qkv_bias=False, out_bias=False, norm_parameters=0)
        norms = attention.query_rank + attention.kv_rank if attention.kv_rank else 0
        norms += 2 * attention.index_dim if attention.index_heads else 0
        found = products.input_projections(work, attention) + products.output_projection(work, attention)
        assert elements(found) == attention.parameters(model.hidden) - norms


@pytest.mark.parametrize("name", model_names())
def test_a_feed_forward_multiplies_its_matrices_once_and_two_ranks_half_each(name: str) -> None:
    model = load_model(name)
    for part in {block.feed_forward for block in model.blocks if isinstance(block.feed_forward, FeedForward)}:
        plain = replace(part, bias=False)
        for degree in (1, 2):
            work: Any = OneRank(model, Sharding(degree))
            found = products.up_projection(work, plain) + products.down_projection(work, plain)
            assert elements(found) * degree == plain.parameters(model.hidden)

"""Cuts of a layer's columns over ranks: even ones, uneven ones, and products that follow them."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.layers.products import down_projection, kv_heads, up_projection
from tangram_sim.layers.sharding import Sharding
from tangram_sim.models import Attention, FeedForward, Model


@dataclass(frozen=True)
class Work:
    """What products are asked with."""

    model: Model
    tokens: float
    sharding: Sharding


MODEL = Model("m", "llama", 512, 1000, (), tied=False)


@given(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=16), st.integers(1, 10**6))
def test_shares_of_a_group_hold_every_column_once(weights: list[float], columns: int) -> None:
    shares = np.array(weights) / np.mean(weights)
    held = [float(Sharding(len(shares), share).width(columns)) for share in shares]
    assert sum(held) == pytest.approx(columns)
    assert held == pytest.approx([columns * share / len(shares) for share in shares])


def test_a_rank_of_half_the_share_has_products_of_half_the_width() -> None:
    part = FeedForward(2048)
    even, half = (Work(MODEL, 128.0, Sharding(4.0, share)) for share in (1.0, 0.5))
    for products in (up_projection, down_projection):
        (whole,), (less,) = products(even, part), products(half, part)
        assert less.rows * less.n * less.k == whole.rows * whole.n * whole.k / 2


def test_key_heads_are_replicated_where_there_are_more_ranks_than_heads() -> None:
    attention = Attention(heads=16, kv_heads=2, head_dim=64, value_dim=64)
    degrees = np.array([1, 2, 8])
    assert kv_heads(Work(MODEL, 1.0, Sharding(degrees)), attention).tolist() == [2.0, 1.0, 1.0]
    assert Sharding(degrees).width(attention.heads).tolist() == [16.0, 8.0, 2.0]

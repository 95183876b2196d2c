"""Columns moved between real ranks: what the traffic model counts is what collectives carry."""

import pytest

pytest.importorskip("torch", reason="real runs need the [validate] extra")

from tangram_validate.testbed.launch import Ranks
from tangram_validate.testbed.migration import published_linear, unit_feed_forward

from tangram_sim.reliability.stragglers.tensor_traffic import Linear, published_traffic, unit_traffic

HIDDEN, TOKENS = 32, 24


@pytest.mark.parametrize("world", [2, 4])
def test_published_messages_carry_what_the_model_counts(world: int) -> None:
    """Column-parallel: exact, and the sent columns' work gives the plain layer's outputs and gradients."""
    outputs, sent = 4 * HIDDEN // world, 28
    with Ranks(world, timeout_s=60.0) as ranks:
        found = ranks.run(published_linear, outputs, HIDDEN, TOKENS, sent)
    traffic = published_traffic([Linear(outputs, HIDDEN, TOKENS)], 4)
    for item in found:
        assert item.total_bytes == traffic.at(sent / HIDDEN)
        assert item.difference < 1e-5


@pytest.mark.parametrize("world", [2, 4])
def test_unit_migration_gives_the_plain_layers_gradients(world: int) -> None:
    units, sent = 4 * HIDDEN // world, 3 * HIDDEN // world
    with Ranks(world, timeout_s=60.0) as ranks:
        found = ranks.run(unit_feed_forward, HIDDEN, units, TOKENS, sent)
    held = [Linear(units, HIDDEN, TOKENS), Linear(HIDDEN, units, TOKENS)]
    for item in found:
        assert item.total_bytes == unit_traffic(held, 4, 4).at(sent / units)
        assert item.difference < 1e-5

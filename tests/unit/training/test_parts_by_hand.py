"""Parts and chunks of a stage on made-up figures: which of them sets a pass, a peak, an exchange."""

from dataclasses import replace
from typing import Any

import pytest

from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.layers.atoms import whole
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.plan import StagePrice
from tangram_sim.training.stage import peaks
from tangram_sim.training.stage.parts import slowest
from tangram_sim.training.stage.sharing import Holder, Sharings, runs_of

# 3 and 10 s a pass, 4 of them for weights; 100 bytes kept, 30 a microbatch, 7 for a while; 1,000 there.
PRICE = StagePrice(3, 10, 4, 1, 2, 100, 30, 7, 1000, 0.5, 20, 50)
LARGER = replace(PRICE, static_bytes=200, activation_bytes=10, transient_bytes=9)


def test_a_pass_of_two_halves_waits_for_the_slowest_of_each() -> None:
    """Inputs take 6 and 8 s, weights 4 and 1: 12 in all; as one pass 10. Sync ends at 11 in either part."""
    other = replace(PRICE, forward_s=2, backward_s=9, backward_weight_s=1, gradient_sync_s=2)
    split, joint = (slowest([PRICE, other], splits_backward=item) for item in (True, False))
    assert (split.forward_s, split.backward_s, split.backward_weight_s) == (3, 12, 4)
    assert (joint.backward_s, joint.gradient_sync_s, split.gradient_sync_s) == (10, 1, 0)


def test_chunks_of_a_rank_add_up_what_stays_and_take_turns_with_the_rest() -> None:
    """300 bytes stay; three microbatches of 30 and 9 more: 399, half as much again of the 99 cached."""
    for chunks in ((PRICE, LARGER), (LARGER, PRICE)):
        assert peaks.allocated_bytes(chunks, 3) == 399 + 20
        assert peaks.reserved_bytes(chunks, 3) == 300 + 1.5 * 99 + 20
        assert peaks.device_bytes(chunks, 3) == 300 + 1.5 * 99 + 20 + 50
        assert peaks.capacity_bytes(chunks) == 1070


@pytest.mark.parametrize(
    ("chunks", "ends", "runs"),
    [
        ([(0, 2), (4, 6)], (True, True), [(0, 3), (5, 8)]),
        ([(0, 2), (4, 6)], (False, False), [(1, 3), (5, 7)]),
        ([(0, 6)], (True, True), [(0, 8)]),
        ([], (True, False), [(0, 1)]),
        ([], (False, True), [(7, 8)]),
    ],
)
def test_blocks_are_atoms_between_the_ends(chunks: Any, ends: tuple[bool, bool], runs: Any) -> None:
    """Six blocks are atoms 1 to 6; the embedding is atom 0, the head 7; a stage may have an end alone."""
    assert runs_of(chunks, *ends, 6) == runs


def test_a_whole_model_is_its_blocks_and_both_ends() -> None:
    model = Model("m", "m", 64, 100, (Block(Attention(4, 4, 16, 16), FeedForward(64)),) * 3)
    assert (whole(model).start, whole(model).stop) == (0, 5)


def test_parts_of_unequal_kinds_exchange_over_the_slowest_road_after_the_longest_way() -> None:
    """Three parts: two rounds there and back, of a third of the bytes each."""

    class Roads:
        def road(self, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[float, float]:
            return {(0, 1): (10.0, 0.5), (1, 2): (5.0, 0.25), (2, 0): (20.0, 0.75)}[source[0], target[0]]

    holders = [Holder((rank,), Layout(), 1) for rank in range(3)]
    assert Sharings(Roads()).exchange_s(holders, 30.0) == 2 * 2 * (10 / 5 + 0.75)  # type: ignore[arg-type]


def test_copies_are_counted_over_data_and_context_ranks() -> None:
    """Four copies in one part (two by two), two in the other; experts over two ranks: two and one."""
    hwdb = Hwdb.load()
    boxes = cluster_from_dict({"nodes": [{"count": 1, "node": "DGX-H100"}]}, hwdb)
    holders = (Holder((0, 1, 2, 3), Layout(dp=2, cp=2, ep=2), 1), Holder((4, 5), Layout(dp=2, ep=2), 1))
    found = Sharings(Placement(boxes, hwdb)).of(holders, 0)
    assert (found.replicas, found.expert_replicas) == (6, 3)
    assert found.dense is None and found.experts is None

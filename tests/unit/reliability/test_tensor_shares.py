"""ZERO-resizing, SEMI-migration as published, unit migration: traffic, worked rows, laws, best senders."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.reliability.stragglers.tensor_shares import (
    LayerCosts,
    Shares,
    _best,
    even,
    hybrid,
    lossless_bound_s,
    published_shares,
    resized,
    with_senders,
)
from tangram_sim.reliability.stragglers.tensor_traffic import (
    Linear,
    Traffic,
    published_messages,
    published_traffic,
    unit_traffic,
)
from tangram_sim.sim import fast, reference

MILD, STEEP = (2.0, *[1.0] * 7), (8.0, 6.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0)
SLOWNESS = st.lists(st.floats(1.0, 9.0), min_size=2, max_size=8)
COSTS = LayerCosts(1.0, 0.0, 0.005, 0.01, 0.10)
PRODUCTS_S = 11.22e-3  # of a ViT-1B block on a rank
FAST, LAN = 130e9, 10e9  # bytes/s of the group's links


def migrated(slowness: Sequence[float], costs: LayerCosts) -> Shares:
    """Slow ranks send columns to those with slack; nothing is pruned."""
    return _best(slowness, costs, 0.0, 0.0, senders=range(len(slowness)))


def vit_block(hidden: int, ranks: int, tokens: int) -> list[Linear]:
    """The four linears of a block without grouped heads: QKV, output, and two of four times the width."""
    return [
        Linear(3 * hidden / ranks, hidden, tokens),
        Linear(hidden, hidden / ranks, tokens),
        Linear(4 * hidden / ranks, hidden, tokens),
        Linear(hidden, 4 * hidden / ranks, tokens),
    ]


VIT_1B = vit_block(2048, 8, 4160)
PUBLISHED, UNIT = published_traffic(VIT_1B, 4), unit_traffic(VIT_1B, 4, 4)


def over(traffic: Traffic, rate: float, units: int = 0) -> LayerCosts:
    """A block of ViT-1B whose senders' bytes take S / bw."""
    return LayerCosts(
        PRODUCTS_S, send_s=traffic.whole / rate, share_s=traffic.listed / rate, units=units, unit_part=2 / 3
    )


def test_published_traffic_is_the_authors() -> None:
    assert (PUBLISHED.whole, PUBLISHED.listed * 7 / 8) == (271_450_112, 75_264)
    assert published_traffic(vit_block(3072, 8, 2080), 4).whole == 316_833_792
    hidden, ranks, tokens, sent = 2048, 8, 4160, 7 / 8  # the closed form of a block
    assert PUBLISHED.at(sent) == pytest.approx(
        4 * (36 * hidden**2 / ranks + 2 * tokens * (2 + 7 / ranks) * hidden)
        + 16 * sent * (2 + 5 / ranks) * hidden,
        rel=1e-12,
    )


def test_unit_migration_sends_weights_and_takes_gradients_back_once_a_step() -> None:
    assert UNIT.at(7 / 8) == 44_040_192
    assert PUBLISHED.at(7 / 8) / UNIT.at(7 / 8) == pytest.approx(6.2, abs=0.05)
    assert 16 * PUBLISHED.at(7 / 8) / UNIT.at(7 / 8) == pytest.approx(98.6, abs=0.1)


def test_one_rank_twice_as_slow_over_a_fast_link() -> None:
    assert even(MILD, over(PUBLISHED, FAST)).layer_s == pytest.approx(22.44e-3)
    assert hybrid(MILD, over(PUBLISHED, FAST), max_pruned=0).layer_s == pytest.approx(14.1e-3, rel=0.03)
    for units in (0, 1024):
        assert migrated(MILD, over(UNIT, FAST, units)).layer_s == pytest.approx(12.15e-3, rel=0.005)


def test_one_rank_twice_as_slow_over_a_slow_link_the_published_method_is_refused() -> None:
    costs = over(PUBLISHED, LAN)
    forced = with_senders(MILD, replace_high(costs), frozenset({0}), 0.0, 0.0)
    assert forced.transfer_s > 0.027
    assert migrated(MILD, costs) == even(MILD, costs)
    assert migrated(MILD, costs).verdict == "even"
    assert migrated(MILD, over(UNIT, LAN, 1024)).layer_s == pytest.approx(14.31e-3, rel=0.005)
    assert migrated(MILD, over(UNIT, LAN, 1024)).verdict == "migrate"


def replace_high(costs: LayerCosts) -> LayerCosts:
    """The same costs on layers ten times as long, so that sending pays."""
    return LayerCosts(10 * costs.columns_s, send_s=costs.send_s, share_s=costs.share_s)


def test_four_slow_ranks() -> None:
    ideal = lossless_bound_s(STEEP, over(PUBLISHED, LAN))
    assert ideal + 4 * PUBLISHED.whole / LAN == pytest.approx(126e-3, rel=0.01)
    assert hybrid(STEEP, over(PUBLISHED, LAN), max_pruned=0).layer_s == pytest.approx(89.8e-3, rel=0.001)
    assert migrated(STEEP, over(UNIT, LAN)).layer_s == pytest.approx(29.6e-3, rel=0.005)
    assert migrated(STEEP, over(PUBLISHED, FAST)).layer_s == pytest.approx(26.15e-3, rel=0.005)
    assert migrated(STEEP, over(UNIT, FAST)).layer_s == pytest.approx(18.71e-3, rel=0.005)


def test_the_fixed_shares_of_the_published_code() -> None:
    costs = LayerCosts(1.0)
    assert published_shares(STEEP, costs, migrates=False).pruned == (0.5,) * 4 + (0.0,) * 4
    found = published_shares(STEEP, costs, migrates=True)
    assert found.sent == (0.875, *[0.0] * 7)
    assert found.received == (0.0,) * 4 + (0.875 / 4,) * 4
    assert found.layer_s == 6.0  # ranks 1 to 3 neither prune nor send
    assert published_shares((1.0, 1.0), costs, migrates=True) == even((1.0, 1.0), costs)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_published_traffic_depends_on_the_share_by_its_lists_only(one: float, other: float) -> None:
    if min(one, other) > 0:
        difference = PUBLISHED.at(one) - PUBLISHED.at(other)
        assert difference == pytest.approx(PUBLISHED.listed * (one - other), abs=1e-6)
        assert UNIT.at(one) <= PUBLISHED.at(one)
    assert PUBLISHED.at(0.0) == UNIT.at(0.0) == 0.0


@given(st.integers(1, 16), st.floats(0.1, 3.0))
def test_without_slow_ranks_nothing_moves(ranks: int, fixed: float) -> None:
    costs = LayerCosts(1.0, fixed, 0.01, 0.01, 0.1)
    for shared in (even, resized, migrated, hybrid):
        found = shared([1.0] * ranks, costs)
        assert found.layer_s == pytest.approx(1 + fixed)
        assert not any((*found.pruned, *found.sent, *found.received))
        assert found.transfer_s == 0


@given(SLOWNESS, st.floats(0.0, 0.9), st.floats(0.0, 0.5), st.sampled_from([(0, 1.0, 0), (64, 0.7, 4)]))
@settings(deadline=None, max_examples=40)
def test_laws_of_shares(x: list[float], cap: float, fixed: float, moved: tuple[int, float, int]) -> None:
    units, part, groups = moved
    costs = LayerCosts(1.0, fixed, 0.003, 0.01, 0.1, units=units, unit_part=part, groups=groups)
    both, pruned, sent = hybrid(x, costs, cap), resized(x, costs, cap), migrated(x, costs)
    tolerance = 1e-9
    assert both.layer_s <= min(pruned.layer_s, sent.layer_s) + tolerance
    assert max(pruned.layer_s, sent.layer_s) <= even(x, costs).layer_s + tolerance
    # Everything that is computed has to be computed somewhere.
    assert sent.layer_s >= lossless_bound_s(x, costs) - tolerance
    assert both.layer_s >= lossless_bound_s(x, costs) * (1 - both.pruned_share) - tolerance
    # Nothing is lost on the way, and resizing sends nothing.
    assert sum(both.sent) == pytest.approx(sum(both.received), abs=1e-9)
    assert max(both.sent) <= costs.most_sent + tolerance
    assert not any(pruned.sent) and pruned.transfer_s == 0
    # Who is slower gives up no less.
    for shares in (pruned.pruned, sent.sent):
        ordered = [share for _, share in sorted(zip(x, shares, strict=True))]
        assert all(a <= b + tolerance for a, b in pairwise(ordered))


@given(SLOWNESS, st.floats(0.02, 1.0))
@settings(deadline=None, max_examples=40)
def test_whole_units_move_and_no_rank_takes_more_than_it_has_memory_for(x: list[float], most: float) -> None:
    costs = LayerCosts(1.0, most_received=most, units=32, unit_part=2 / 3, groups=2)
    slowest = frozenset({x.index(max(x))})
    for found in (migrated(x, costs), with_senders(x, costs, slowest, 0.0, 0.0)):
        unit = costs.unit_part / costs.units
        group = (1 - costs.unit_part) / costs.groups
        for share in (*found.sent, *found.received):
            rest = min(
                abs((share - count * group) / unit - round((share - count * group) / unit))
                for count in range(9)
            )
            assert rest == pytest.approx(0.0, abs=1e-6)
        assert sum(found.sent) == pytest.approx(sum(found.received), abs=1e-9)
        assert max(found.received) <= most + 1e-9
    assert with_one_group(x).most_sent == pytest.approx(2 / 3)  # the last heads stay


def test_whole_groups_that_fit_nowhere_stay() -> None:
    """Two thirds of the columns are units of their own; the rest goes in sixths: room for one, or none."""
    x = (30.0, *[1.0] * 7)
    for most, moves in ((0.15, False), (0.2, True)):
        costs = LayerCosts(1.0, most_received=most, units=32, unit_part=2 / 3, groups=2)
        found = with_senders(x, costs, frozenset({0}), 0.0, 0.0)
        assert (found.sent[0] > 2 / 3, found == even(x, costs)) == (moves, not moves)


def with_one_group(x: list[float]) -> LayerCosts:
    return LayerCosts(1.0, units=32, unit_part=2 / 3, groups=1)


@given(SLOWNESS, st.floats(0.5, 4.0))
@settings(deadline=None, max_examples=40)
def test_scaling_all_ranks_scales_the_time(x: list[float], scale: float) -> None:
    free = LayerCosts(1.0, 0.2)
    assert hybrid([each * scale for each in x], free).layer_s == pytest.approx(
        hybrid(x, free).layer_s * scale, rel=1e-9
    )


def test_the_slowest_are_the_best_to_send() -> None:
    """Brute force over every subset of senders, 40 draws."""
    rng = np.random.default_rng(18)
    for _ in range(40):
        x = np.round(rng.uniform(1, 8, size=4), 3).tolist()
        subsets = [frozenset(ranks) for count in range(5) for ranks in combinations(range(4), count)]
        best = min(with_senders(x, COSTS, senders, 0.5, 1.0).layer_s for senders in subsets)
        assert hybrid(x, COSTS).layer_s == pytest.approx(best, rel=1e-9)


@given(SLOWNESS, st.booleans())
@settings(deadline=None, max_examples=30)
def test_both_engines_play_a_group_to_the_same_end(x: list[float], published: bool) -> None:
    """Ranks compute their shares, then every sender's messages occupy all ranks, one after the other."""
    traffic = PUBLISHED if published else UNIT
    shares = hybrid(x, over(traffic, FAST))
    graph = group_graph(x, over(traffic, FAST), shares, published)
    expected = pytest.approx(shares.layer_s, rel=1e-9)
    assert fast.play(graph).makespan_s == expected
    assert reference.play(graph).makespan_s == expected


def group_graph(x: list[float], costs: LayerCosts, shares: Shares, published: bool):
    builder = GraphBuilder()
    done = []
    for rank, slowness in enumerate(x):
        share = 1 - shares.pruned[rank] - shares.sent[rank] + shares.received[rank]
        busy_s = slowness * (costs.fixed_s + costs.columns_s * share)
        done.append(builder.op("compute", f"rank {rank}", busy_s))
    before = done
    for share in (share for share in shares.sent if share > 0):
        if published:
            sizes = [
                published_message.whole + published_message.listed * share
                for held in VIT_1B
                for published_message in published_messages(held, 4)
            ]
        else:
            sizes = [share * 4 * held.weights for held in VIT_1B for _ in ("weights", "gradients")]
        for size in sizes:
            before = [
                builder.op("collective", f"rank {rank}", size / FAST, after=before) for rank in range(len(x))
            ]
    return builder.freeze()


def test_a_limit_on_pruning_is_kept() -> None:
    limited = hybrid(STEEP, COSTS, max_pruned=0.01)
    assert limited.pruned_share <= 0.01 + 1e-9
    assert limited.layer_s >= hybrid(STEEP, COSTS).layer_s


def test_pruning_pays_for_what_it_gathers() -> None:
    """11 passes over what is kept, one over the whole: too much for a rank that is hardly slow."""
    assert resized((1.05, 1.0), LayerCosts(1.0, gather_s=0.02), cap=0.1).verdict == "even"
    found = resized((2.0, 1.0), LayerCosts(1.0, gather_s=0.01), cap=0.9)
    cut = found.pruned[0]
    assert found.layer_s == pytest.approx(2 * (1 - cut + 0.01 * (11 * (1 - cut) + 1)))
    assert found.verdict == "resize"


@pytest.mark.parametrize("x", [[], [0.0, 1.0], [-1.0], [float("nan"), 1.0]])
def test_bad_slowness_is_refused(x: list[float]) -> None:
    with pytest.raises(BadInputError, match="above 0"):
        even(x, COSTS)
    with pytest.raises(BadInputError, match="cap"):
        resized([1.0], COSTS, cap=1.0)

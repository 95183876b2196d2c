"""ZERO-resizing and SEMI-migration: the worked example, laws, and the best subset of senders."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.stragglers.tensor_shares import (
    LayerCosts,
    even,
    hybrid,
    lossless_bound_s,
    migrated,
    resized,
    with_senders,
)

COSTS = LayerCosts(1.0, 0.0, 0.01, 0.10)
MILD, STEEP = (2.0, *[1.0] * 7), (8.0, 6.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0)
SLOWNESS = st.lists(st.floats(1.0, 9.0), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("x", "expected"),
    [(MILD, (2.0, 1.0, 1.2145, 1.0, 1.0667)), (STEEP, (8.0, 4.0, 2.2166, 2.1774, 1.5868))],
)
def test_the_worked_example(x: tuple[float, ...], expected: tuple[float, ...]) -> None:
    got = (
        even(x, COSTS).layer_s,
        resized(x, COSTS).layer_s,
        migrated(x, COSTS).layer_s,
        hybrid(x, COSTS).layer_s,
        lossless_bound_s(x, COSTS),
    )
    assert got == pytest.approx(expected, abs=1e-3)


def test_shares_of_the_worked_example() -> None:
    assert resized(MILD, COSTS).pruned_share == pytest.approx(0.0625, abs=1e-3)
    steep = resized(STEEP, COSTS)
    assert steep.pruned[:2] == pytest.approx((0.5, 0.333), abs=1e-3)
    assert steep.pruned_share == pytest.approx(0.104, abs=1e-3)
    both = hybrid(STEEP, COSTS)
    assert both.sent[:3] == pytest.approx((0.807, 0.743, 0.615), abs=1e-3)
    assert both.pruned[3] == pytest.approx(0.229, abs=1e-3)
    assert both.pruned_share == pytest.approx(0.0287, abs=1e-3)
    deep = resized(STEEP, COSTS, cap=0.95)
    assert (deep.layer_s, deep.pruned_share) == pytest.approx((1.0, 0.370), abs=1e-3)
    assert hybrid(STEEP, LayerCosts(1.0)).layer_s == pytest.approx(1.5413, abs=1e-3)
    assert hybrid(STEEP, LayerCosts(1.0, 0.0, 1.0, 5.0)).layer_s == pytest.approx(4.0, abs=1e-3)


@given(st.integers(1, 16), st.floats(0.1, 3.0))
def test_without_slow_ranks_nothing_moves(ranks: int, fixed: float) -> None:
    costs = LayerCosts(1.0, fixed, 0.01, 0.1)
    for shared in (even, resized, migrated, hybrid):
        found = shared([1.0] * ranks, costs)
        assert found.layer_s == pytest.approx(1 + fixed)
        assert not any((*found.pruned, *found.sent, *found.received))
        assert found.transfer_s == 0


@given(SLOWNESS, st.floats(0.0, 0.9), st.floats(0.0, 0.5))
@settings(deadline=None, max_examples=40)
def test_laws_of_shares(x: list[float], cap: float, fixed: float) -> None:
    costs = LayerCosts(1.0, fixed, 0.01, 0.1)
    both, pruned, sent = hybrid(x, costs, cap), resized(x, costs, cap), migrated(x, costs)
    tolerance = 1e-9
    assert both.layer_s <= min(pruned.layer_s, sent.layer_s) + tolerance
    assert pruned.layer_s <= even(x, costs).layer_s + tolerance
    # Everything that is computed has to be computed somewhere.
    assert sent.layer_s >= lossless_bound_s(x, costs) - tolerance
    assert both.layer_s >= lossless_bound_s(x, costs) * (1 - both.pruned_share) - tolerance
    # Nothing is lost on the way, and resizing sends nothing.
    assert sum(both.sent) == pytest.approx(sum(both.received), abs=1e-9)
    assert not any(pruned.sent) and pruned.transfer_s == 0
    # Who is slower gives up no less.
    for shares in (pruned.pruned, sent.sent):
        ordered = [share for _, share in sorted(zip(x, shares, strict=True))]
        assert all(a <= b + tolerance for a, b in pairwise(ordered))


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


def test_a_limit_on_pruning_is_kept() -> None:
    limited = hybrid(STEEP, COSTS, max_pruned=0.01)
    assert limited.pruned_share <= 0.01 + 1e-9
    assert limited.layer_s >= hybrid(STEEP, COSTS).layer_s


@pytest.mark.parametrize("x", [[], [0.0, 1.0], [-1.0], [float("nan"), 1.0]])
def test_bad_slowness_is_refused(x: list[float]) -> None:
    with pytest.raises(BadInputError, match="above 0"):
        even(x, COSTS)
    with pytest.raises(BadInputError, match="cap"):
        resized([1.0], COSTS, cap=1.0)

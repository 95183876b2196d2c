"""Remedies: optimal splits, played cuts, sorted sequences, and when to take which."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.stragglers.escalation import (
    RemedyOption,
    escalate,
    lost_s,
)
from tangram_sim.reliability.stragglers.partition import layer_times, move_layers
from tangram_sim.reliability.stragglers.remedies import Setup, advise
from tangram_sim.reliability.stragglers.replay import replay_of
from tangram_sim.reliability.stragglers.replicas import (
    MeasuredPipeline,
    measured_pipeline,
    split_by_speed,
    split_microbatches,
)
from tangram_sim.reliability.stragglers.sequences import fitted, resorted
from tangram_sim.reliability.stragglers.tensor_shares import LayerCosts
from tangram_sim.reliability.stragglers.tensor_traffic import SharingCosts, Traffic
from tangram_sim.reliability.stragglers.whatif import analyse
from tangram_sim.reliability.traces.tables import read_table

from .traces import assembled, rows_of, shared


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=3), st.integers(0, 9))
def test_greedy_split_is_as_good_as_any(seconds: list[float], microbatches: int) -> None:
    counts = split_microbatches(seconds, microbatches)
    assert sum(counts) == microbatches
    best = min(
        max(n * t for n, t in zip(tried, seconds, strict=True))
        for tried in product(range(microbatches + 1), repeat=len(seconds))
        if sum(tried) == microbatches
    )
    assert max(n * t for n, t in zip(counts, seconds, strict=True)) == pytest.approx(best)


def test_one_slow_replica_of_four_gains_at_most_what_the_closed_form_says() -> None:
    x = 1.787
    counts = split_microbatches([x, 1.0, 1.0, 1.0], 4096)
    gain = 1024 * x / max(n * t for n, t in zip(counts, (x, 1, 1, 1), strict=True))
    assert gain == pytest.approx((3 * x + 1) / 4, rel=2e-3)


def made_up(layers: tuple[int, ...], last_s: float, slow: dict[tuple[int, int], float], dp: int = 1):
    held = np.array(layers, dtype=np.float64)
    work = held[None, :].repeat(dp, axis=0)
    work[:, -1] += last_s
    for place, factor in slow.items():
        work[place] *= factor
    found = MeasuredPipeline(work, 2 * work, 0.0, 0.0, 6, 0.0)
    return MeasuredPipeline(work, 2 * work, 0.0, 0.0, 6, found.played_s())


@settings(max_examples=25, deadline=None)
@given(slow=st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 1)), st.floats(1.0, 2.5)))
def test_moving_and_splitting_together_are_no_worse_than_either(slow: dict[tuple[int, int], float]) -> None:
    pipeline = made_up((4, 4), 1.0, slow, dp=3)
    passes = layer_times(pipeline, (4, 4)).passes_s((4, 4))
    resplit = float(pipeline.pipelines_s(*passes, split_by_speed(pipeline, *passes)).max())
    moved = move_layers(pipeline, (4, 4))[1]
    both = move_layers(pipeline, (4, 4), split_by_speed)[1]
    assert both <= min(resplit, moved) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("layers", "last_s", "slow"),
    [
        ((4, 4, 4), 3.0, {}),
        ((4, 4, 4), 0.0, {(0, 0): 2.0}),
        ((2, 5, 3), 0.0, {(0, 1): 1.5}),
        ((6, 2), 1.0, {}),
    ],
)
def test_moved_layers_are_as_good_as_the_best_cut(layers, last_s, slow) -> None:
    """Brute force over every cut, played. An end's extra work shows only where the cut tells it from
    layers.
    """
    pipeline = made_up(layers, last_s, slow)
    cut, step = move_layers(pipeline, layers)
    times = layer_times(pipeline, layers)
    total = sum(layers)
    best = min(
        float(pipeline.pipelines_s(*times.passes_s(tried), [6]).max())
        for tried in product(range(1, total), repeat=len(layers))
        if sum(tried) == total
    )
    assert step == pytest.approx(best)
    assert sum(cut) == total


def test_taking_passes_apart_and_putting_them_together_changes_nothing() -> None:
    pipeline = made_up((3, 4, 5), 2.0, {(0, 1): 1.3, (1, 2): 1.2}, dp=2)
    forward, backward = layer_times(pipeline, (3, 4, 5)).passes_s((3, 4, 5))
    assert forward == pytest.approx(pipeline.forward_s)
    assert backward == pytest.approx(pipeline.backward_s)


def test_moving_layers_of_the_measured_trace() -> None:
    """36 layers as 9 9 9 9 against 13 10 10 3: 19.5 % faster by the trace's own constants."""
    pipeline = measured_pipeline(replay_of(read_table(shared("traces/straggler_trace_ST.csv"))))
    times = layer_times(pipeline, (9, 9, 9, 9))
    assert times.layer_s == pytest.approx((7.46e-3, 15.9e-3), rel=0.01)
    assert times.last_s == pytest.approx((72.6e-3, 60.2e-3), rel=0.02)
    forward, backward = times.passes_s((13, 10, 10, 3))
    moved = pipeline.changed_step_s(forward, backward, [4, 4])
    assert pipeline.step_s / moved - 1 == pytest.approx(0.195, abs=0.005)
    cut, best = move_layers(pipeline, (9, 9, 9, 9))
    assert best <= moved
    assert cut[-1] == 3


def test_what_is_advised_for_one_slow_worker() -> None:
    trace = assembled(rows_of(dp=4, stages=3, microbatches=8, slow={(1, 1): 2.0}))
    found, replay = analyse(trace), replay_of(trace)
    advice = advise(found, replay, Setup(layers=(4, 4, 4), tp=2, max_pruned=0.25))
    by_name = {remedy.name: remedy for remedy in advice.remedies}
    # A spare gives back all; shares of two ranks, one twice as slow, 4/3 of a healthy layer; pruned within
    # 1/4 all.
    assert by_name["replace the worker"].gain == pytest.approx(found.slowdown, rel=0.06)
    assert by_name["SEMI-migration"].step_s <= by_name["uneven tensor shares"].step_s + 1e-12
    assert by_name["ZERO-resizing"].pruned_share == pytest.approx(0.25, abs=1e-6)
    assert by_name["uneven tensor shares"].pruned_share == 0
    assert 1 < by_name["re-split microbatches"].gain < by_name["replace the worker"].gain
    assert [r.step_s for r in advice.remedies] == sorted(r.step_s for r in advice.remedies)
    assert all(r.payback_s == pytest.approx(r.price_s / (r.gain - 1)) for r in advice.remedies if r.gain > 1)


def test_resizing_is_looked_at_only_on_request() -> None:
    trace = assembled(rows_of(dp=2, slow={(1, 1): 2.0}))
    advice = advise(analyse(trace), replay_of(trace), Setup(tp=4))
    assert not any(remedy.pruned_share for remedy in advice.remedies)
    assert "ZERO-resizing" not in {remedy.name for remedy in advice.remedies}


@given(st.lists(st.integers(1, 4096), min_size=8, max_size=40), st.integers(1, 8))
def test_sorting_again_keeps_every_sequence_and_evens_out_squares(lengths: list[int], bins: int) -> None:
    found = resorted(lengths, bins)
    assert sorted(length for held in found for length in held) == sorted(lengths)
    loads = [sum(length**2 for length in held) for held in found]
    # Longest first onto the least: the fullest exceeds the mean by less than the longest sequence's own.
    assert max(loads) <= sum(loads) / bins + max(lengths) ** 2


def test_the_law_of_lengths_is_found_again() -> None:
    rng = np.random.default_rng(3)
    tokens, squares = rng.uniform(1e3, 4e3, 50), rng.uniform(1e6, 9e6, 50)
    assert fitted(tokens, squares, 2e-6 * tokens + 3e-9 * squares) == pytest.approx((2e-6, 3e-9))


@pytest.mark.parametrize(("lengths", "bins"), [([], 1), ([5], 2), ([0, 3], 1), ([3], 0)])
def test_impossible_sorts_are_refused(lengths: list[int], bins: int) -> None:
    with pytest.raises(BadInputError):
        resorted(lengths or [1], bins) if lengths else resorted([1], 2)


@given(st.floats(1.0, 1e4), st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1e6))
@settings(max_examples=200)
def test_two_levels_never_lose_more_than_twice_the_best(
    price: float, rate: float, kept: float, phase: float
) -> None:
    choices = [RemedyOption("nothing", 0.0, rate), RemedyOption("swap", price, rate * kept)]
    hindsight_s = min(choice.price_s + phase * choice.loss_rate for choice in choices)
    assert lost_s(escalate(choices), phase) <= 2 * hindsight_s + 1e-6


def test_remedies_are_taken_when_the_time_lost_equals_their_price() -> None:
    taken = escalate(
        [
            RemedyOption("restart", 600.0, 0.0),
            RemedyOption("nothing", 0.0, 0.5),
            RemedyOption("swap", 60.0, 0.2),
        ]
    )
    assert [(step.choice.name, step.after_s) for step in taken] == [
        ("nothing", 0.0),
        ("swap", 120.0),
        ("restart", pytest.approx(120.0 + (600.0 - 120.0) / 0.2)),
    ]


def test_moving_columns_pays_for_its_transfers_or_says_that_it_does_not() -> None:
    trace = assembled(rows_of(dp=4, stages=3, microbatches=8, slow={(1, 1): 2.0}))
    found, replay = analyse(trace), replay_of(trace)

    def told(send_s: float | None) -> tuple[float, str]:
        added: tuple[SharingCosts, ...] = ()
        if send_s is not None:
            price, nothing = LayerCosts(1.0, send_s=send_s), Traffic(0.0, 0.0)
            added = (SharingCosts(0.0, price, price, nothing, nothing, 0.0),) * 3
        advice = advise(found, replay, Setup(tp=2, max_pruned=0.01, added=added))
        by_name = {remedy.name: remedy for remedy in advice.remedies}
        return by_name["unit migration"].gain, by_name["SEMI-migration"].detail

    free, said = told(None)
    assert "transfer not priced: give `plan=`" in said
    gains = [told(send_s)[0] for send_s in (0.0, 1e-3, 1.0)]
    assert gains[0] == pytest.approx(free)
    assert gains[0] > gains[1] > gains[2]
    assert gains[2] == pytest.approx(1.0)  # refused: even shares are better
    assert "not priced" not in told(1.0)[1]

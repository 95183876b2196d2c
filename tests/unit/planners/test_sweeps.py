"""When a search leaves microbatch sizes out, and what a play says of more microbatches than it plays."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.play_kernels import passes_played, play, play_ahead
from tangram_sim.planners.tangram.composition.search import Search
from tests.planning import Workshop, random_instance

SIZES = (4, 2, 8, 1, 16, 32)  # outward from the one in the middle
TIGHT = replace(budget("normal"), patience=2, sizes=3, options=10, layouts=100)


def begun(*, played: bool = True, options: int = 0, priced: int = 0) -> Search:
    """A search that has looked at something, under a tight budget."""
    workshop = Workshop(random_instance(3))
    units = [1] * len(workshop.islands)
    search = Search(
        workshop.enumeration(), workshop.referee, 1.0, units, workshop.work, (), TIGHT, Deadline()
    )
    spent: Any = SimpleNamespace(priced=priced)
    search.enumeration, search.options = spent, options
    search.played = {((), 4): 1.0} if played else {}
    return search


@pytest.mark.parametrize(
    ("position", "spent", "left"),
    [
        (0, {"options": 10, "priced": 100}, False),  # the likeliest one is always looked at
        (2, {"options": 10, "priced": 99}, False),  # and so many more
        (3, {"options": 9, "priced": 99}, False),  # further ones while that costs little
        (3, {"options": 10, "priced": 0}, True),
        (1, {"options": 0, "priced": 100}, True),
        (5, {"options": 10, "priced": 100, "played": False}, False),  # there is no plan yet
    ],
)
def test_sizes_are_left_out_of_the_full_sweep_by_what_was_spent(
    position: int, spent: dict[str, Any], left: bool
) -> None:
    search = begun(**spent)
    assert search._enough(position, SIZES[position], SIZES, full=True) == left
    assert search.left_out == ([SIZES[position]] if left else [])


def test_what_sweeps_over_halves_priced_does_not_count_against_the_full_one() -> None:
    """Where they fit nothing they price much in vain; the sizes they were of no help for are looked at."""
    search = begun(priced=199)
    search.priced_before = 100
    assert not search._enough(1, SIZES[1], SIZES, full=True)
    search.priced_before = 99
    assert search._enough(1, SIZES[1], SIZES, full=True)


@pytest.mark.parametrize(
    ("position", "vain", "priced", "left"),
    [
        (5, {8: True, 16: True}, 0, True),  # two in a row on its side found nothing
        (5, {8: True, 16: False}, 0, False),
        (5, {8: False, 16: True}, 0, False),
        (3, {2: True}, 0, False),  # one on its side: patience is two
        (3, {2: True, 8: True, 16: True}, 0, False),  # those above do not count below
        (1, {}, 49, False),
        (1, {}, 50, True),  # half of the layouts
        (0, {}, 50, False),
    ],
)
def test_a_coarse_sweep_ends_where_a_side_gets_no_better(
    position: int, vain: dict[int, bool], priced: int, left: bool
) -> None:
    search = begun(priced=priced)
    search.vain = {4: True, **vain}
    assert search._enough(position, SIZES[position], SIZES, full=False) == left
    assert search.left_out == []


def test_a_short_run_is_played_and_a_long_one_goes_on_as_it_did() -> None:
    """In full up to `passes_played`; beyond, 1F1B's stages settle, and what is added is near the play."""
    draws, errors = np.random.default_rng(1), []
    for _ in range(100):
        stages, more = int(draws.integers(1, 6)), int(draws.integers(1, 41))
        times, hops = draws.uniform(0.1, 3.0, (stages, 4)), draws.uniform(0.01, 0.3, stages)
        short = passes_played(stages, 1 << 20)
        assert passes_played(stages, short) == short and passes_played(stages, 3) == 3
        for microbatches in (1, stages, short):
            ahead, whole = play_ahead(times, hops, microbatches), play(times, hops, microbatches, False)
            assert ahead[0].tolist() == whole[0].tolist() and ahead[1] == whole[1]
        estimate, played = (
            item[1]
            for item in (play_ahead(times, hops, short + more), play(times, hops, short + more, False))
        )
        errors.append(abs(estimate / played - 1))
    assert np.median(errors) < 1e-9
    assert max(errors) < 0.1


def test_equal_stages_take_the_closed_form_for_however_many_microbatches() -> None:
    times = np.tile([1.0, 2.0, 0.5, 0.25], (4, 1))
    for microbatches in (1, 24, 25, 1000):
        _, step_s = play_ahead(times, np.zeros(4), microbatches)
        assert step_s == pytest.approx((microbatches + 3) * 3.0 + 0.75, rel=1e-12)


def test_only_the_full_sweep_proves_and_counts_against_the_budget() -> None:
    """A sweep over whole islands gives a plan to beat; the full one a bound that no played plan is below."""
    instance = random_instance(12)
    workshop = Workshop(replace(instance, job=replace(instance.job, schedule="1f1b")))
    islands = workshop.islands
    search = Search(
        workshop.enumeration(), workshop.referee, 1.0, [1] * len(islands), workshop.work, (),
        budget("normal"), Deadline(),
    )  # fmt: skip
    whole = tuple((island.nodes,) for island in islands)
    search._sweep((4, 2), whole, (float("inf"),), None)
    coarse_s = search.best_s
    assert 0.0 < coarse_s < float("inf") and set(search.vain) == {4, 2}
    assert (search.bounds, search.options, search.least_s()) == ({}, 0, 0.0)
    every = tuple(tuple(range(1, island.nodes + 1)) for island in islands)
    assert search.priced_before == 0 < search.enumeration.priced
    before = search.enumeration.priced
    search._sweep((4, 2), every, (float("inf"),), None, full=True)
    assert search.priced_before == before
    assert search.options > 0 and set(search.bounds) == {4, 2}
    assert min(search.bounds.values()) <= search.best_s <= coarse_s
    assert all(bound_s <= search.best_of[size] for size, bound_s in search.bounds.items())
    assert search.best_s == min(search.best_of.values()) == min(search.played.values())


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 8), (4, 8), (4, 2)])
def test_steps_of_zero_bubble_plans_are_estimated_too_long_by_two_thirds_of_what_equal_stages_wait(
    stages: int, microbatches: int
) -> None:
    """Three passes a microbatch; of the waits of 1F1B a third is left. One stage is taken as two."""
    workshop = Workshop(random_instance(3))
    search = begun()
    search.estimated = True
    job = replace(workshop.instance.job, global_batch=2 * microbatches)
    pipeline = SimpleNamespace(microbatch=2, stages=(None,) * stages)
    known: Any = SimpleNamespace(plan=SimpleNamespace(pipelines=(pipeline,), job=job), step_s=1.5)
    search.begin_at(known)
    waits = max(stages - 1, 1)
    assert search.over == pytest.approx((microbatches + waits) / (microbatches + waits / 3))
    assert search.best_s == search.best_of[2] == 1.5 and search.from_known

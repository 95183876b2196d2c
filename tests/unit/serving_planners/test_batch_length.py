"""Throughputs that depend on how long a batch lasts: the plan against every plan, and its bound."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from tangram_sim.serving.batch_times import BATCH_SECONDS
from tangram_sim.serving_planners.answer import Rental
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import (
    MAKESPAN,
    LossScenario,
    OfferedGpu,
    RentalProblem,
    ReplicaConfiguration,
    RequestType,
)
from tangram_sim.serving_planners.rental import rent


def random_batch(seed: int, types: int = 1, fall: float = 0.0) -> RentalProblem:
    """Two kinds and four configurations, each with seconds of its own in which it does nothing.

    Shares `fall` by this part at most while the batch gets half as long again, each from its own length.
    """
    random = np.random.default_rng(seed)
    gpus = tuple(OfferedGpu(f"k{n}", float(random.uniform(1, 4)), int(random.integers(2, 5))) for n in (0, 1))
    found = []
    for c in range(4):
        held = (0, int(c // 2) + 1) if c % 2 else (int(c // 2) + 1, 0)
        usd = sum(count * gpu.usd_per_hour for count, gpu in zip(held, gpus, strict=True))
        lost_s = random.uniform(0.5, 20)
        share = np.maximum(1.0 - lost_s / BATCH_SECONDS, 0.0)
        if fall:
            late = np.log(BATCH_SECONDS / random.uniform(5, 25)) / np.log(1.5)
            share = np.maximum(1.0 - 0.1 * lost_s / BATCH_SECONDS, 0.0)
            share *= 1.0 - random.uniform(fall / 2, fall) * np.clip(late, 0.0, 1.0)
        rps = tuple(random.uniform(0.5, 3.0, types).tolist())
        found.append(ReplicaConfiguration(f"c{c}", held, rps, usd, of_batch=tuple(share.tolist())))
    amounts = random.uniform(5, 60, types)
    kinds = tuple(RequestType(f"t{w}", float(amount)) for w, amount in enumerate(amounts))
    budget = float(random.uniform(5, 14))
    return RentalProblem(MAKESPAN, gpus, tuple(found), kinds, budget)


def length_s(problem: RentalProblem, counts: tuple[int, ...]) -> float:
    """How long these replicas take for one type of request, by halving."""
    low, high = 0.1, 1e5
    for _ in range(80):
        middle = 0.5 * (low + high)
        done = sum(
            count * configuration.rps[0] * configuration.share_in(middle) * middle
            for configuration, count in zip(problem.configurations, counts, strict=True)
        )
        low, high = (low, middle) if done >= problem.types[0].amount else (middle, high)
    return high


def shortest_s(problem: RentalProblem, least_s: Callable[[tuple[int, ...]], float] = lambda _: 0.0) -> float:
    """The shortest batch over all numbers of replicas within caps and budget, none shorter than `least_s`."""
    best = inf
    for counts in product(range(5), repeat=4):
        if not any(counts):
            continue
        used = np.array([configuration.gpus for configuration in problem.configurations]).T @ np.array(counts)
        usd = sum(
            n * configuration.usd_per_hour
            for n, configuration in zip(counts, problem.configurations, strict=True)
        )
        within = all(n <= gpu.available for n, gpu in zip(used, problem.gpus, strict=True))
        if within and usd <= problem.budget_usd_per_hour:
            best = min(best, max(length_s(problem, counts), least_s(counts)))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_shortest_batch_is_that_of_all_plans(seed: int) -> None:
    problem = random_batch(seed)
    found, best = solve(problem), shortest_s(problem)
    assert isinstance(found, Rental)
    assert found.value == pytest.approx(best, rel=1e-4)
    assert found.bound <= best * (1 + 1e-6)
    assert found.gap < 1e-3


@pytest.mark.parametrize("seed", range(12))
def test_where_shares_fall_again_the_bound_still_holds_for_all_plans(seed: int) -> None:
    problem = random_batch(seed, fall=0.3)
    found, best = solve(problem), shortest_s(problem)
    assert isinstance(found, Rental)
    assert found.bound <= best * (1 + 1e-6)
    assert best * (1 - 1e-6) <= found.value <= best * 1.01


def test_a_length_far_beyond_the_best_gives_no_bound_above_it() -> None:
    """Whichever length is tried: the greatest shares on the way there promise at least what is reached."""
    for seed in range(12):
        problem = random_batch(seed, fall=0.3)
        best = shortest_s(problem)
        for tried in (1.2 * best, 2.0 * best, 5.0 * best):
            found = solve(problem.lasting(tried, best))
            assert isinstance(found, Rental)
            assert found.bound <= best * (1 + 1e-6)
            assert found.bound <= solve(problem.lasting(tried)).bound * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_plan_and_rivals_agree_with_their_own_lengths(seed: int) -> None:
    """A batch of several types; no rival, each with the throughputs of its own length, is below the bound."""
    problem = random_batch(seed, types=3)
    answer = rent(problem)
    assert answer.plan is not None
    plan = answer.plan
    again = solve(problem.lasting(plan.value))
    assert isinstance(again, Rental)
    assert again.value == pytest.approx(plan.value, rel=2e-2)
    assert plan.bound <= plan.value
    for rival in answer.rivals:
        if rival.capped and isinstance(rival.answer, Rental):
            assert plan.value <= rival.answer.value * (1 + 1e-6)


def test_a_batch_longer_than_any_length_known_has_the_throughputs_of_the_longest() -> None:
    problem = random_batch(1)
    huge = RentalProblem(
        MAKESPAN, problem.gpus, problem.configurations, (RequestType("t", 1e9),), problem.budget_usd_per_hour
    )
    found = solve(huge)
    assert isinstance(found, Rental)
    assert found.value > BATCH_SECONDS[-1]


@pytest.mark.parametrize("late", [1.0, 0.7])
def test_a_batch_lasts_as_long_as_what_a_lost_node_leaves(late: float) -> None:
    """Sixteen replicas on two nodes: any loss leaves eight, whatever share of its throughput each reaches."""
    share = np.interp(BATCH_SECONDS, [0.0, 100.0, 1e5], [0.5, late, late])
    one = ReplicaConfiguration("one", (1,), (1.0,), 1.0, of_batch=tuple(share.tolist()))
    asked = RentalProblem(
        MAKESPAN,
        (OfferedGpu("a", 1.0, 16.0),),
        (one,),
        (RequestType("t", 1000.0),),
        budget_usd_per_hour=16.0,
        scenarios=(LossScenario("node", any_node=True),),
    )
    found = solve(asked)
    assert isinstance(found, Rental) and found.optimal
    assert found.value == pytest.approx(length_s(asked, (8,)), rel=1e-5)
    assert found.bound <= length_s(asked, (8,)) * (1 + 1e-9)
    assert [node.replicas for node in found.nodes] == [((0, 8),)]
    assert found.counts == (16,)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fall", [0.0, 0.3])
def test_the_shortest_batch_that_bears_a_lost_configuration_is_that_of_all_plans(
    seed: int, fall: float
) -> None:
    """Without configuration 0 what is left must keep half the pace."""
    plain = random_batch(seed, fall=fall)
    asked = replace(plain, scenarios=(LossScenario("c0", lost=frozenset({0}), coverage=0.5),))
    kept = replace(plain, types=(replace(plain.types[0], amount=0.5 * plain.types[0].amount),))
    best = shortest_s(plain, lambda counts: length_s(kept, (0, *counts[1:])))
    found = solve(asked)
    assert isinstance(found, Rental)
    assert found.bound <= best * (1 + 1e-6)
    assert best * (1 - 1e-6) <= found.value <= best * (1.01 if fall else 1.0001)

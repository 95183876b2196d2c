"""Plans that follow a market: hindsight by brute force, its order among policies, and what is refused."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving_problems import cost
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.serving_planners.replanning import (
    MarketPeriod,
    Switching,
    hindsight,
    myopic,
    unmoved,
)
from tangram_sim.units import HOUR_S
from tests.commands import tangram

PROBLEM = {
    "kind": "cost",
    "gpus": {"a": {"price_per_hour": 1.0, "available": 4}, "b": {"price_per_hour": 1.5, "available": 4}},
    "configurations": [
        {"name": "a1", "gpus": {"a": 1}, "throughput": [1.0]},
        {"name": "b1", "gpus": {"b": 1}, "throughput": [1.2]},
    ],
    "workload": [{"rate": 2}],
}


def rental(data: dict) -> RentalProblem:
    problem, _ = read_problem(data)
    assert isinstance(problem, RentalProblem)
    return problem


def market(prices: list[tuple[float, float]], available: list[tuple[float, float]]) -> list[MarketPeriod]:
    return [
        MarketPeriod(600.0 * t, 600.0, usd, there)
        for t, (usd, there) in enumerate(zip(prices, available, strict=True))
    ]


def cost_of(periods: list[MarketPeriod], switching: Switching, path: tuple[tuple[int, int], ...]) -> float:
    """What counts of a1 and b1 by period cost: rent, switches, requests that are not served."""
    total = 0.0
    for t, (period, counts) in enumerate(zip(periods, path, strict=True)):
        served = min(1.0, (counts[0] * 1.0 + counts[1] * 1.2) / 2)
        total += (1 - served) * 2 * period.seconds * switching.usd_per_lost_request
        for kind in range(2):
            usd_per_s = period.usd_per_hour[kind] / HOUR_S
            change = counts[kind] - path[t - 1][kind] if t else 0
            seconds = change * switching.load_s if change > 0 else -change * switching.drain_s
            total += usd_per_s * (counts[kind] * period.seconds + seconds)
    return total


@pytest.mark.parametrize("load_s", [0.0, 300.0, 3000.0])
def test_hindsight_is_the_best_of_all_paths(load_s: float) -> None:
    periods = market([(1, 1.5), (3, 1.5), (1, 1.5)], [(4, 4), (4, 4), (4, 1)])
    switching = Switching(load_s, 60.0, 0.01)
    paths = product(product(range(3), range(3)), repeat=3)
    best = min(cost_of(periods, switching, path) for path in paths if path[2][1] <= 1)
    found = hindsight(rental(PROBLEM), periods, switching)
    assert found.cost == pytest.approx(best, rel=1e-4)
    assert found.bound <= found.cost * (1 + 1e-9)
    assert found.bound >= found.cost * (1 - 1e-3)
    counts = tuple((plan.counts[0], plan.counts[1]) for plan in found.plans)
    assert found.cost == pytest.approx(cost_of(periods, switching, counts), rel=1e-6)


@pytest.mark.slow
def test_no_policy_beats_hindsight_and_caps_hold() -> None:
    random = np.random.default_rng(0)
    problem = rental(cost(random))
    periods = []
    for t in range(4):
        usd = tuple(gpu.usd_per_hour * random.uniform(0.5, 2) for gpu in problem.gpus)
        there = tuple(float(random.integers(0, 12)) for _ in problem.gpus)
        periods.append(MarketPeriod(3600.0 * t, 3600.0, usd, there, random.uniform(0.5, 1.5)))
    switching = Switching()
    best = hindsight(problem, periods, switching, 10.0)
    seen = myopic(problem, periods, switching, sees_switches=True)
    for followed_plan in (
        seen,
        myopic(problem, periods, switching, sees_switches=False),
        unmoved(problem, periods, switching),
    ):
        assert followed_plan.cost >= best.bound * (1 - 1e-6)
        for period, plan in zip(periods, followed_plan.plans, strict=True):
            used = np.array([c.gpus for c in problem.configurations]).T @ np.array(plan.counts)
            assert (used <= np.array(period.available) + 1e-9).all()
            assert 0 <= plan.served <= 1


def test_no_policy_spends_more_than_the_budget_when_prices_rise() -> None:
    """Two replicas for 2 USD an hour; at three times the price none is left, for whoever plans."""
    problem = rental(PROBLEM | {"budget_per_hour": 2.0})
    periods = market([(1, 1.5), (3, 4.5)], [(4, 4), (4, 4)])
    best, kept = hindsight(problem, periods, Switching()), unmoved(problem, periods, Switching())
    assert [plan.counts for plan in kept.plans] == [(2, 0), (0, 0)]
    assert kept.cost >= best.bound * (1 - 1e-6)


def test_the_verb_follows_a_file_and_names_what_is_wrong(tmp_path: Path) -> None:
    problem, trace = tmp_path / "problem.json", tmp_path / "market.csv"
    problem.write_text(json.dumps(PROBLEM))
    trace.write_text("time_s,gpu,price_per_hour,available\n0,a,1,4\n600,a,,0\n1200,a,0.4,4\n")
    asked = ("serve", "replan", problem, "--trace", trace, "--until", 3600)
    told = tangram(*asked, "--json").json
    assert told["periods"] == 3
    by_name = {item["name"]: item for item in told["policies"]}
    assert by_name["hindsight"]["cost"] <= by_name["switching seen"]["cost"] * (1 + 1e-4)
    assert "a1" not in by_name["switching seen"]["periods"][1]["replicas"]
    assert "requests lost" in tangram(*asked).out
    for text, words in (
        ("time_s,gpu\n0,a\n", "wanted are rows"),
        ("time_s,gpu,price_per_hour,available\n0,c,1,4\n", "unknown GPU"),
        ("time_s,gpu,price_per_hour,available\n0,a,-1,4\n", "price_per_hour"),
        ("time_s,gpu,price_per_hour,available\n9,a,1,4\n3,a,1,4\n", "must ascend"),
        ("time_s,gpu,price_per_hour,available\n9000,a,1,4\n", "give a later end"),
    ):
        trace.write_text(text)
        refused = tangram(*asked)
        assert (refused.code, words in refused.err) == (2, True), refused.err

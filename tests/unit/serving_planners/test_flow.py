"""Layer placements of the largest flow: brute force on small ones, the compiled search on large ones."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving_problems import placement
from tangram_sim.serving_planners.flow import place
from tangram_sim.serving_planners.flow_kernels import placed_flow
from tangram_sim.serving_planners.flow_network import throughput
from tangram_sim.serving_planners.flow_problem import FlowProblem, relaxed_bound
from tangram_sim.serving_planners.flow_search import annealed
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem


def read(data: dict[str, Any]) -> FlowProblem:
    problem, _ = read_problem(data)
    assert isinstance(problem, FlowProblem)
    return problem


def flow(layers: int, rates: list[list[float]], link: float) -> dict[str, Any]:
    size = len(rates) + 1
    return {
        "kind": "flow",
        "layers": layers,
        "nodes": [{"name": f"n{i}", "tokens_per_s": rate} for i, rate in enumerate(rates)],
        "link_tokens_per_s": [[0 if i == j else link for j in range(size)] for i in range(size)],
    }


def brute_flow(problem: FlowProblem) -> float:
    choices = []
    for node in problem.nodes:
        ranges = [
            (first, first + k)
            for k in range(1, len(node.tokens_per_s) + 1)
            for first in range(problem.layers - k + 1)
        ]
        choices.append(ranges)
    return max(throughput(problem, placement) for placement in product(*choices))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    st.integers(2, 3),
    st.lists(st.lists(st.floats(10, 100), min_size=1, max_size=3), min_size=2, max_size=3),
    st.sampled_from([15.0, 40.0, 500.0]),
)
def test_placements_are_the_best_of_all(layers: int, rates: list[list[float]], link: float) -> None:
    data = flow(layers, [sorted(rate, reverse=True) for rate in rates], link)
    problem = read(data)
    best, found = brute_flow(problem), plan_problem(problem)
    if found.status == "infeasible":
        assert best == 0
        return
    assert found.status == "optimal"
    assert found.tokens_per_s == pytest.approx(best, rel=1e-6)
    assert sum(path.share for path in found.paths) == pytest.approx(1.0)
    for path in found.paths:
        done = 0
        for node in path.nodes:
            held = found.placement[node]
            assert held is not None
            assert held[0] <= done < held[1]
            done = held[1]
        assert done == layers


@pytest.mark.parametrize("seed", range(5))
def test_the_compiled_flow_is_the_flow(seed: int) -> None:
    """On random placements, with nodes that hold nothing among them."""
    random = np.random.default_rng(seed)
    problem = read(placement(random, 10, 12))
    most = [len(node.tokens_per_s) for node in problem.nodes]
    rates = np.zeros((10, max(most)))
    for i, node in enumerate(problem.nodes):
        rates[i, : most[i]] = node.tokens_per_s
    held = [int(random.integers(0, count + 1)) for count in most]
    first = np.array([int(random.integers(0, 12 - count + 1)) for count in held])
    end = first + np.array(held)
    given_ = tuple((int(a), int(b)) if b > a else None for a, b in zip(first, end, strict=True))
    links = np.array(problem.link_tokens_per_s)
    found = placed_flow(first, end, rates, links, problem.layers, np.zeros((22, 22)))
    assert found == pytest.approx(throughput(problem, given_), rel=1e-9)


def test_annealing_passes_what_it_says_below_the_bound() -> None:
    problem = read(placement(np.random.default_rng(1), 12, 16))
    found, rate = annealed(problem, 0, 1, 10.0)
    assert rate == pytest.approx(throughput(problem, found), rel=1e-9)
    assert 0.8 * relaxed_bound(problem) < rate <= relaxed_bound(problem)
    answer = place(problem, 2.0)
    assert answer is not None
    assert answer.tokens_per_s >= rate * (1 - 1e-9)

"""Plans that bear the loss of any one node, against every plan and every way of placing it."""

from collections.abc import Iterator
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tangram_sim.serving_planners.answer import Rental, Unanswered
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem

PER_NODE = 4


def drawn(seed: int, **more: Any) -> dict[str, Any]:
    """A few nodes of two kinds, replicas on one or both of them, two types of request."""
    random = np.random.default_rng(seed)
    sizes = [({"a": 2}, 1.0), ({"a": 4}, 2.2), ({"b": 2}, 0.6), ({"b": 1}, 0.25), ({"a": 2, "b": 2}, 1.5)]
    chosen = random.choice(len(sizes), 3, replace=False)
    return {
        "kind": "cost",
        "gpus": {
            name: {
                "price_per_hour": float(random.uniform(1, 3)),
                "available": int(random.integers(1, 3)) * PER_NODE,
                "gpus_per_node": PER_NODE,
            }
            for name in ("a", "b")
        },
        "configurations": [
            {
                "name": f"c{c}",
                "gpus": sizes[c][0],
                "throughput": (sizes[c][1] * random.uniform(2, 5, 2)).tolist(),
            }
            for c in chosen
        ],
        "workload": [{"rate": float(rate)} for rate in random.uniform(0.5, 2.5, 2)],
        "scenarios": [{"lost": "node"}],
        **more,
    }


def carries(problem: RentalProblem, counts: tuple[int, ...]) -> bool:
    """Whether so many replicas carry all requests, by a linear program of its own."""
    width, types = len(counts), len(problem.types)
    loads = np.zeros((width, width * types))
    served = np.zeros((types, width * types))
    for c, configuration in enumerate(problem.configurations):
        for w, kind in enumerate(problem.types):
            loads[c, c * types + w] = kind.amount / configuration.rps[w] / problem.utilisation
            served[w, c * types + w] = 1.0
    found = linprog(
        np.zeros(width * types), A_ub=loads, b_ub=np.array(counts) + 1e-9, A_eq=served, b_eq=np.ones(types)
    )
    return bool(found.status == 0)


def placements(problem: RentalProblem, counts: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to put the replicas on nodes: for each node, how many of which configuration touch it."""
    nodes = [n for n, gpu in enumerate(problem.gpus) for _ in range(int(gpu.available) // PER_NODE)]
    slots = [
        (c, n)
        for c, count in enumerate(counts)
        for _ in range(count)
        for n in range(len(problem.gpus))
        if problem.configurations[c].gpus[n]
    ]

    def place(left: list[tuple[int, int]], held: list[list[int]], free: list[int]) -> Iterator[Any]:
        if not left:
            yield [tuple(node) for node in held]
            return
        (c, n), seen = left[0], set()
        for j, kind in enumerate(nodes):
            need = problem.configurations[c].gpus[n]
            state = (kind, tuple(held[j]))
            if kind != n or free[j] < need or state in seen:
                continue
            seen.add(state)
            held[j][c] += 1
            free[j] -= need
            yield from place(left[1:], held, free)
            held[j][c] -= 1
            free[j] += need

    yield from place(slots, [[0] * len(counts) for _ in nodes], [PER_NODE] * len(nodes))


def bears(problem: RentalProblem, counts: tuple[int, ...], nodes: list[tuple[int, ...]]) -> bool:
    """Whether what every single lost node leaves carries all requests."""
    return all(
        carries(problem, tuple(count - gone for count, gone in zip(counts, node, strict=True)))
        for node in set(nodes)
    )


def cheapest(problem: RentalProblem) -> float:
    """The least USD an hour of all counts with a placement that bears the loss of any node; inf: none."""
    most = [
        min(int(gpu.available) // taken for gpu, taken in zip(problem.gpus, one.gpus, strict=True) if taken)
        for one in problem.configurations
    ]
    best = inf
    usd = [one.usd_per_hour for one in problem.configurations]
    for counts in product(*(range(limit + 1) for limit in most)):
        cost = float(np.dot(usd, counts))
        if cost >= best - 1e-9 or not carries(problem, counts):
            continue
        known: dict[tuple[int, ...], bool] = {}

        def holds(node: tuple[int, ...], counts: tuple[int, ...] = counts, known: Any = known) -> bool:
            if node not in known:
                known[node] = bears(problem, counts, [node])
            return bool(known[node])

        if any(all(holds(node) for node in nodes) for nodes in placements(problem, counts)):
            best = cost
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_that_bears_a_lost_node_is_cheaper(seed: int) -> None:
    problem, _ = read_problem(drawn(seed))
    assert isinstance(problem, RentalProblem)
    found, best = solve(problem), cheapest(problem)
    if isinstance(found, Unanswered):
        assert found.proven and best == inf
        return
    assert found.optimal and found.value == pytest.approx(best)
    assert_placed(problem, found)


def assert_placed(problem: RentalProblem, found: Rental) -> None:
    """The nodes of a plan hold all its replicas, none too many, and any of them may go."""
    width = len(problem.configurations)
    placed = np.zeros((len(problem.gpus), width))
    for node in found.nodes:
        held = dict(node.replicas)
        taken = sum(problem.configurations[c].gpus[node.gpu] * count for c, count in held.items())
        assert taken <= problem.gpus[node.gpu].per_node
        for c, count in held.items():
            placed[node.gpu, c] += count * node.count
        lost = tuple(held.get(c, 0) for c in range(width))
        assert bears(problem, found.counts, [lost])
    for c, one in enumerate(problem.configurations):
        for n, gpus in enumerate(one.gpus):
            assert placed[n, c] >= found.counts[c] * (gpus > 0)


@pytest.mark.parametrize("seed", range(4))
def test_many_nodes_in_classes_bear_the_loss_of_any(seed: int) -> None:
    """Of forty nodes most are classes of equal ones: what is placed still bears any loss."""
    data = drawn(seed)
    for gpu in data["gpus"].values():
        gpu["available"] = 40 * PER_NODE
    for kind in data["workload"]:
        kind["rate"] *= 25
    problem, _ = read_problem(data)
    assert isinstance(problem, RentalProblem)
    found, plain = solve(problem, time_limit_s=10.0), solve(read_problem({**data, "scenarios": []})[0])  # type: ignore[arg-type]
    assert isinstance(found, Rental) and isinstance(plain, Rental)
    assert_placed(problem, found)
    assert plain.value <= found.value <= 1.25 * plain.value


def test_gpus_without_a_limit_are_rented_by_full_nodes() -> None:
    """One replica fills a quarter of a node: unlimited GPUs do not put each on a node of its own."""
    data = {
        "kind": "cost",
        "gpus": {"a": {"price_per_hour": 1.0, "gpus_per_node": 4}},
        "configurations": [{"name": "one", "gpus": {"a": 1}, "throughput": [1.0]}],
        "workload": [{"rate": 6.0}],
        "scenarios": [{"lost": "node"}],
    }
    # Three nodes of four are rented from nine on: 3 + 3 + 3 leave six.
    assert plan_problem(read_problem(data)[0]).cost_per_hour == pytest.approx(9.0)
    data["workload"][0]["rate"] = 1.0  # type: ignore[index]
    # One and a spare on two nodes would do, were they not one node: five are 3 + 2 or 4 + 1.
    assert plan_problem(read_problem(data)[0]).cost_per_hour == pytest.approx(5.0)
    data["workload"][0]["rate"] = 6.0  # type: ignore[index]
    data["gpus"]["a"]["gpus_per_node"] = 1  # type: ignore[index]
    assert plan_problem(read_problem(data)[0]).cost_per_hour == pytest.approx(7.0)


def test_why_there_is_none_says_which_rate_a_lost_node_leaves() -> None:
    data = {
        "kind": "cost",
        "gpus": {"a": {"price_per_hour": 1.0, "available": 8, "gpus_per_node": 4}},
        "configurations": [{"name": "pair", "gpus": {"a": 2}, "throughput": [1.0]}],
        "workload": [{"rate": 3.0}],
        "scenarios": [{"lost": "node"}],
    }
    told = plan_problem(read_problem(data)[0])
    assert told.status == "infeasible"
    assert "together carry 4 requests/s, what any one lost node leaves 2 of the 3 that" in told.reason
    assert "without these caps 8 USD/h would do" in told.reason

"""Plans that bear the loss of any one node, against every plan and every way of placing it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tangram_sim.serving_planners import node_loss
from tangram_sim.serving_planners.answer import Rental, Unanswered
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import (
    COST,
    MAKESPAN,
    LossScenario,
    OfferedGpu,
    RentalProblem,
    ReplicaConfiguration,
    RequestType,
)
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.serving_planners.reasons import why_infeasible
from tangram_sim.studies.serving_plan import plan_problem

PER_NODE = 4
ANY_NODE = (LossScenario("node", any_node=True),)


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
        assert taken <= node.gpus
        for c, count in held.items():
            placed[node.gpu, c] += count * node.count
        lost = tuple(held.get(c, 0) for c in range(width))
        assert bears(problem, found.counts, [lost])
    for c, one in enumerate(problem.configurations):
        for n, gpus in enumerate(one.gpus):
            assert placed[n, c] == found.counts[c] * (gpus > 0)


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


@pytest.mark.parametrize("size", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("need", [1.0, 4.0, 6.5])
def test_gpus_without_a_limit_are_rented_by_whole_nodes(size: int, need: float) -> None:
    """Also where replicas do not fill a node of 8: the fewest nodes whose replicas, less one node's, do."""
    gpus = (OfferedGpu("a", 1.0),)
    one = ReplicaConfiguration("one", (size,), (1.0,), float(size))
    found = solve(RentalProblem(COST, gpus, (one,), (RequestType("t", need),), scenarios=ANY_NODE))
    assert isinstance(found, Rental) and found.optimal
    most = 8 // size  # on a node; one more node than carry the rate
    nodes = next(n for n in range(1, 20) if (n - 1) * most >= need)
    assert found.value == pytest.approx(8.0 * nodes)
    assert sum(node.count for node in found.nodes) == nodes


def test_a_budget_and_the_cost_of_a_plan_hold_idle_gpus_of_whole_nodes() -> None:
    data = {
        "kind": "cost",
        "gpus": {"a": {"price_per_hour": 1.0, "gpus_per_node": 4}},
        "configurations": [{"name": "one", "gpus": {"a": 3}, "throughput": [1.0]}],
        "workload": [{"rate": 2.0}],
        "scenarios": [{"lost": "node"}],
    }
    told = plan_problem(read_problem(data)[0])
    assert (told.cost_per_hour, told.gpus_used, told.status) == (12.0, {"a": 9}, "optimal")
    assert plan_problem(read_problem({**data, "budget_per_hour": 11.0})[0]).status == "infeasible"
    assert plan_problem(read_problem({**data, "budget_per_hour": 12.0})[0]).status == "optimal"
    batch = {**data, "kind": "makespan", "workload": [{"requests": 8}], "budget_per_hour": 15.0}
    told = plan_problem(read_problem({**batch, "scenarios": [{"lost": "node", "coverage": 0.5}]})[0])
    assert (told.cost_per_hour, told.makespan_s) == (12.0, pytest.approx(8.0 / 3.0))


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.0])
def test_a_search_on_few_nodes_keeps_the_budget_of_dearer_hours(factor: float) -> None:
    """Ten nodes of 8 for 80 USD/h carry 70 replicas' rate less a node; the budget is for three times that."""
    asked = RentalProblem(
        COST,
        (OfferedGpu("a", 1.0),),
        (ReplicaConfiguration("one", (1,), (1.0,), 1.0),),
        (RequestType("t", 70.0),),
        budget_usd_per_hour=240.0,
        scenarios=(LossScenario("node", any_node=True, price_factors=(factor,) if factor > 1 else ()),),
    )
    found = solve(asked)
    assert isinstance(found, Rental) and found.bound <= 80.0 * (1 + 1e-9) <= found.value * (1 + 2e-9)
    assert found.value * factor <= 240.0 * (1 + 1e-9)
    if factor == 1.0:
        assert found.value == 80.0 and found.optimal


def test_what_takes_fewer_gpus_for_the_same_dollars_leaves_more_of_a_node_idle() -> None:
    """Spot replicas of 8 for 4 USD/h fill their nodes; those of 6 for 4 leave two GPUs to pay for."""
    gpus = (OfferedGpu("a", 1.0),)
    wide = ReplicaConfiguration("wide", (8,), (1.0,), 4.0)
    slim = ReplicaConfiguration("slim", (6,), (1.0,), 4.0)
    asked = RentalProblem(COST, gpus, (slim, wide), (RequestType("t", 1.0),), scenarios=ANY_NODE)
    found = solve(asked)
    assert isinstance(found, Rental) and (found.counts, found.value) == ((0, 2), 8.0)


def test_types_that_each_need_two_nodes_of_their_own_are_placed_on_fourteen() -> None:
    """No two nodes of a type's replicas may be one; classes of equal nodes would not hold them."""
    each = [
        ReplicaConfiguration(f"c{i}", (8,), tuple(float(i == j) for j in range(7)), 8.0) for i in range(7)
    ]
    every = ReplicaConfiguration("every", (8,), (1.0,) * 7, 80.0)
    types = tuple(RequestType(f"t{i}", 1.0) for i in range(7))
    asked = RentalProblem(COST, (OfferedGpu("a", 1.0, 14 * 8.0),), (*each, every), types, scenarios=ANY_NODE)
    found = solve(asked)
    assert isinstance(found, Rental) and found.value == 112.0 and found.optimal


@pytest.mark.parametrize("seed", range(4))
def test_no_bound_with_classes_of_equal_nodes_passes_the_best_plan(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On eight nodes: what classes leave out is neither called impossible nor passed by the bound."""
    random = np.random.default_rng(seed)
    data = drawn(seed)
    chosen = data["configurations"][:2]
    data |= {"configurations": chosen, "workload": [{"rate": float(random.uniform(3, 9))} for _ in range(2)]}
    for gpu in data["gpus"].values():
        gpu["available"] = 8 * PER_NODE
    problem, _ = read_problem(data)
    assert isinstance(problem, RentalProblem)
    best = solve(problem, time_limit_s=60.0)
    monkeypatch.setattr(node_loss, "_ALONE", 1)
    found = solve(problem, time_limit_s=60.0)
    if isinstance(best, Unanswered):
        assert best.proven and isinstance(found, Unanswered)
        return
    assert best.optimal
    if isinstance(found, Unanswered):
        assert not found.proven
        return
    assert found.bound <= best.value * (1 + 1e-9) <= found.value * (1 + 2e-9)
    assert_placed(problem, found)


def test_what_only_a_configuration_left_out_could_bear_is_not_called_impossible() -> None:
    """Of 46 configurations 45 are spot: the one that a scenario leaves stays among those looked at."""
    types = 45
    spot = [
        ReplicaConfiguration(
            f"s{i}", (1,), tuple(1.0 + 0.01 * (i == j) for j in range(types)), 1.0, spot=True
        )
        for i in range(types)
    ]
    stays = ReplicaConfiguration("stays", (1,), (0.2,) * types, 1.5)
    asked = RentalProblem(
        COST,
        (OfferedGpu("a", 1.0, 64.0),),
        (*spot, stays),
        tuple(RequestType(f"t{i}", 0.02) for i in range(types)),
        scenarios=(*ANY_NODE, LossScenario("spot", lost=frozenset(range(types)))),
    )
    found = solve(asked, time_limit_s=5.0)
    if isinstance(found, Unanswered):  # time ran out
        assert not found.proven
    else:
        assert found.bound <= 8.5 + 1e-9 and found.counts[types] * 0.2 >= 0.9 - 1e-9


def test_a_node_that_is_not_full_has_its_own_size() -> None:
    asked = RentalProblem(
        COST,
        (OfferedGpu("a", 1.0, 12.0),),
        (ReplicaConfiguration("c", (4,), (1.0,), 4.0),),
        (RequestType("t", 1.0),),
        scenarios=ANY_NODE,
    )
    hosts = plan_problem(asked).hosts
    assert sorted((host.gpus, host.count, host.replicas["c"]) for host in hosts) == [(4, 1, 1), (8, 1, 1)]


def test_a_batch_without_a_plan_is_told_what_bears_a_lost_node() -> None:
    """One replica would finish it, but not when its node fails: two are the least."""
    asked = RentalProblem(
        MAKESPAN,
        (OfferedGpu("a", 1.0, 16.0),),
        (ReplicaConfiguration("c", (1,), (1.0,), 1.0),),
        (RequestType("t", 10.0),),
        budget_usd_per_hour=1.5,
        scenarios=ANY_NODE,
    )
    told = plan_problem(asked).reason
    assert told == "the budget of 1.5 USD/h is too small: the least that would do is 2 USD/h"


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
    # Without a limit by whole nodes of two replicas: 2 + 2 + 2 leave four.
    assert "without these caps 12 USD/h would do" in told.reason
    told = plan_problem(read_problem({**data, "budget_per_hour": 10.0})[0])
    assert "without these caps 12 USD/h would do (the budget is 10 USD/h)" in told.reason


def test_a_proven_reason_names_the_prices_that_pass_the_budget() -> None:
    """Three replicas cost 3 USD/h today and 6 at doubled prices."""
    asked = RentalProblem(
        COST,
        (OfferedGpu("a", 1.0, 8.0),),
        (ReplicaConfiguration("one", (1,), (1.0,), 1.0),),
        (RequestType("t", 3.0),),
        budget_usd_per_hour=4.0,
        scenarios=(LossScenario("price=a:2", price_factors=(2.0,)),),
    )
    told = plan_problem(asked)
    assert told.reason == (
        "at the prices of price=a:2 no plan is within the budget of 4 USD/h; at today's 3 USD/h would do"
    )
    assert why_infeasible(asked, proven=False) == "whether there is one is not known"
    less = plan_problem(replace(asked, budget_usd_per_hour=2.0)).reason
    assert less.endswith("the least that would do is 3 USD/h, without the prices of price=a:2")
    assert plan_problem(replace(asked, budget_usd_per_hour=6.0)).status == "optimal"

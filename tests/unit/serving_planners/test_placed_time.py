"""How the time of a plan that bears a lost node is spent: a first plan, a fuller one, bounds."""

from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from tangram_sim.serving_planners import milp, node_loss
from tangram_sim.serving_planners.answer import Rental
from tangram_sim.serving_planners.problem import (
    COST,
    MAKESPAN,
    LossScenario,
    OfferedGpu,
    RentalProblem,
    ReplicaConfiguration,
    RequestType,
)
from tangram_sim.serving_planners.program import Optimum
from tangram_sim.serving_planners.replica_program import ReplicaProgram


def many_nodes(objective: str, configurations: int) -> RentalProblem:
    """Three types on replicas of two kinds: one without a limit, 64 nodes of the other at half the price."""
    random = np.random.default_rng(1)
    given = []
    for c in range(configurations):
        size, dear = int(random.choice([1, 2, 4, 8])), 2.0 if c % 2 else 1.0
        rps = tuple((random.uniform(0.5, 1.5, 3) * size * dear**0.9).tolist())
        given.append(ReplicaConfiguration(f"c{c}", (size, 0) if c % 2 else (0, size), rps, size * dear))
    return RentalProblem(
        objective,
        (OfferedGpu("a", 2.0, inf), OfferedGpu("b", 1.0, 64 * 8.0)),
        tuple(given),
        tuple(RequestType(f"t{w}", 25.0 + w) for w in range(3)),
        budget_usd_per_hour=inf if objective == COST else 120.0,
        scenarios=(LossScenario("node", any_node=True),),
    )


def test_the_first_plan_of_tens_of_nodes_is_within_a_tenth_of_the_bound() -> None:
    asked = many_nodes(COST, 40)
    first = milp._first_placed(asked, False, 1e-3, 60.0)
    bound = ReplicaProgram(asked, False, 1.0, whole_replicas=False).optimum(1e-6, 60.0).bound
    assert first is not None and bound <= first.value <= 1.1 * bound
    found = milp.solve(asked, time_limit_s=2.0)
    assert isinstance(found, Rental) and found.bound <= found.value


@pytest.mark.parametrize("objective", [COST, MAKESPAN])
@pytest.mark.parametrize("alone", [1, 16])
def test_parts_that_take_all_their_time_take_no_more_than_there_is(
    objective: str, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that runs on by the whole limit of every program."""
    now, limit_s, parts = 0.0, 8.0, []
    whole = ReplicaProgram.optimum

    def slow(self: ReplicaProgram, relative_gap: float, time_limit_s: float) -> Optimum:
        nonlocal now
        now += time_limit_s
        parts.append(time_limit_s)
        return whole(self, max(relative_gap, 0.1), time_limit_s)

    monkeypatch.setattr(ReplicaProgram, "optimum", slow)
    monkeypatch.setattr(milp, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(node_loss, "_ALONE", alone)
    milp.solve(many_nodes(objective, 4), time_limit_s=limit_s)
    assert len(parts) >= 4 and now == sum(parts) <= limit_s * 1.01

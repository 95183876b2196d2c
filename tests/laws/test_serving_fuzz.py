"""Mutilated problems, fleets, traces and markets of a service: an answer or a named error, nothing else."""

import copy
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.serving_problems import FAMILIES
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.synthetic import LengthMix, synthetic
from tangram_sim.serving.trace_file import read_trace
from tangram_sim.serving_planners.market_file import read_market
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem
from tangram_sim.studies.serving_simulation import simulate_service
from tests.unit.serving_planners.test_plan_problem import MELANGE, PAPER, ROBUST
from tests.unit.serving_planners.test_roles import PROBLEM as ROLES

HWDB = Hwdb.load(())
FLOW = {
    "kind": "flow",
    "layers": 3,
    "nodes": [{"name": "a", "tokens_per_s": [90, 50, 30]}, {"name": "b", "tokens_per_s": [60, 35]}],
    "link_tokens_per_s": [[0, 50, 99], [50, 0, 99], [99, 99, 0]],
}
OWN = {"step_s": 0.01, "decode_s": 1e-4, "prompt_s": 2e-5, "kv_blocks": 400}
FLEET = {
    "types": [[400, 60], [30, 5]],
    "replicas": [
        {"name": "mine", "count": 2, "usd_per_hour": 3.0, "costs": OWN, "shares": [1.0, 0.5]},
        {"name": "spot", "costs": OWN, "up": [[0, 5], [9, None]], "notice_s": 1, "boot_s": 1},
    ],
}
STRANGE = [
    *(
        None,
        -1,
        0,
        1,
        2,
        0.5,
        -0.0,
        1e-300,
        1e300,
        10**15,
        "",
        "x",
        "spot",
        "1",
        True,
        [],
        {},
        [[]],
        [0],
        {"a": 1},
    ),
    *(math.nan, math.inf, "makespan", "flow", "cost", "robust", "decode"),
]
LIMIT_S = 0.2


def mutilated(data: Any, random: Random) -> Any:
    """The same with one to three places changed, taken out or doubled."""
    data = copy.deepcopy(data)
    for _ in range(random.randint(1, 3)):
        place = data
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = random.choice(keys)
            deeper = place[key]
            if isinstance(deeper, dict | list) and deeper and random.random() < 0.75:
                place = deeper
                continue
            if random.random() < 0.2:
                del place[key]
            elif isinstance(place, list) and random.random() < 0.2:
                place.append(copy.deepcopy(deeper))
            else:
                place[key] = random.choice(STRANGE)
            break
    return data


@pytest.mark.parametrize("seed", range(120))
def test_a_mutilated_problem_is_answered_or_refused(seed: int) -> None:
    random = Random(seed)
    whole = [PAPER, MELANGE | {"slices": 2}, ROBUST, FLOW, ROLES]
    try:
        problem, ignored = read_problem(mutilated(random.choice(whole), random))
        found = plan_problem(problem, LIMIT_S, ignored)
    except TangramError as error:
        assert str(error)
        return
    assert found.status in ("optimal", "feasible", "infeasible")
    assert (found.status == "infeasible") == bool(found.reason)
    json.dumps(found.model_dump(), allow_nan=False)


@pytest.mark.parametrize("seed", range(80))
def test_a_mutilated_fleet_is_played_or_refused(seed: int) -> None:
    work = synthetic(30, 5.0, [LengthMix(100, 8)], seed)
    try:
        fleet = read_fleet(mutilated(FLEET, Random(seed)), HWDB)
        found, _ = simulate_service(fleet, work)
    except TangramError as error:
        assert str(error)
        return
    counts = found.requests
    assert counts.arrived == counts.completed + counts.failed + counts.running == 30


TRACE = (
    "arrival_s,input_tokens,output_tokens,prefix_id,prefix_tokens,model\n"
    "0,10,3,a,5,m\n1.5,20,4,,0,n\n2,9,1,a,9,m\n"
)
MARKET = "time_s,gpu,price_per_hour,available,rate_factor\n0,t1,4,2,1\n60,t2,,1,\n90,t1,3,,0.5\n"


def scratched(text: str, random: Random) -> str:
    """The same with a few characters changed, doubled or gone."""
    letters = list(text)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(letters))
        letters[at : at + random.randint(0, 2)] = random.choice(
            ["", ",", "\n", "-", "9", "x", "1e9", "\t", '"', "é"]
        )
    return "".join(letters)


@pytest.mark.parametrize("seed", range(60))
def test_scratched_traces_and_markets_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    random, file = Random(seed), tmp_path / "file.csv"
    file.write_text(scratched(TRACE, random), encoding="utf-8")
    try:
        work = read_trace(file)
        assert len(work) and (work.input_tokens >= 1).all() and (work.arrival_s >= 0).all()
    except TangramError as error:
        assert str(error)
    file.write_text(scratched(MARKET, random), encoding="utf-8")
    problem, _ = read_problem(PAPER)
    assert isinstance(problem, RentalProblem)
    try:
        assert all(period.seconds > 0 for period in read_market(file, problem, 100.0))
    except TangramError as error:
        assert str(error)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "large_flow"])
def test_random_problems_are_proven(family: str) -> None:
    import numpy as np

    problem, _ = read_problem(FAMILIES[family](np.random.default_rng(3)))
    found = plan_problem(problem)
    assert found.status == "optimal", found.gap

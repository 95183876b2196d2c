"""Plans of a service from given throughputs: worked examples, brute force, laws, and reasons."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tangram_sim.errors import TangramError
from tangram_sim.serving_planners.answer import PROVEN, Rental, Unanswered
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.serving_planners.program import LinearProgram
from tangram_sim.studies.serving_plan import ServePlanDocument, plan_problem
from tests.commands import tangram
from tests.places import SHARED

EXAMPLES = SHARED / "data" / "serving" / "planning_examples.json"

# The worked example of arXiv 2502.00722; the paper's bisection stops at 28.67 s.
PAPER: dict[str, Any] = {
    "kind": "makespan",
    "budget_per_hour": 8,
    "gpus": {
        "t1": {"price_per_hour": 4, "available": 2},
        "t2": {"price_per_hour": 2, "available": 2},
        "t3": {"price_per_hour": 2, "available": 2},
    },
    "configurations": [
        {"name": "c1", "gpus": {"t1": 1}, "throughput": [1, 1.2]},
        {"name": "c2", "gpus": {"t2": 1}, "throughput": [0.9, 0.9]},
        {"name": "c3", "gpus": {"t3": 1}, "throughput": [0.3, 0.5]},
        {"name": "c4", "gpus": {"t2": 2}, "throughput": [2.4, 1.5]},
    ],
    "workload": [{"requests": 80}, {"requests": 20}],
}

# The example of Melange's README: four sizes of requests on two kinds.
MELANGE: dict[str, Any] = {
    "kind": "cost",
    "gpus": {"A10G": {"price_per_hour": 1.01}, "A100": {"price_per_hour": 3.67}},
    "configurations": [
        {"name": "A10G", "gpus": {"A10G": 1}, "throughput": [2, 1, 5, 2]},
        {"name": "A100", "gpus": {"A100": 1}, "throughput": [20, 20, 40, 20]},
    ],
    "workload": [{"rate": 6}, {"rate": 3}, {"rate": 15}, {"rate": 6}],
}


def planned(data: dict[str, Any], **options: Any) -> ServePlanDocument:
    problem, ignored = read_problem(data)
    return plan_problem(problem, ignored=ignored, **options)


def rental(data: dict[str, Any]) -> RentalProblem:
    problem, _ = read_problem(data)
    assert isinstance(problem, RentalProblem)
    return problem


def test_worked_example_of_the_paper() -> None:
    found = planned(PAPER)
    assert found.status == "optimal"
    assert found.makespan_s == pytest.approx(28.431373, abs=1e-6)
    assert {replica.configuration: replica.count for replica in found.replicas} == {"c1": 1, "c4": 1}
    assert found.shares["c1"][0] == pytest.approx(0.147059, abs=1e-6)
    rivals = {(rival.gpu, rival.capped): rival.value for rival in found.rivals}
    assert rivals["t2", True] == pytest.approx(46.6667, abs=1e-4)
    assert rivals["t1", True] == pytest.approx(48.3333, abs=1e-4)
    assert found.levers["composition"].value == pytest.approx(46.6667, abs=1e-4)


@pytest.mark.parametrize(("slices", "usd"), [(1, 6.70), (2, 5.69), (4, 5.69), (8, 5.69), (None, 4.68)])
def test_melange_example_by_slices(slices: int | None, usd: float) -> None:
    found = planned(MELANGE | {"slices": slices})
    assert (found.status, found.cost_per_hour) == ("optimal", pytest.approx(usd, abs=1e-9))
    for w in range(4):
        parts = [row[w] * (slices or 1) for row in found.shares.values()]
        assert sum(parts) == pytest.approx(slices or 1)
        assert slices is None or all(part == pytest.approx(round(part)) for part in parts)


@pytest.mark.skipif(not EXAMPLES.exists(), reason="the shared facts are not beside this checkout")
def test_solved_problems_of_the_shared_data() -> None:
    given_ = {load["id"]: load for load in json.loads(EXAMPLES.read_text())}
    large = planned(given_["S1"])
    assert (large.status, large.makespan_s) == ("optimal", pytest.approx(524.4788058, rel=1e-7))
    for gpu, value in given_["S1"]["answer"]["homogeneous_s"].items():
        name, _, uncapped = gpu.partition(" ")
        mine = next(
            rival for rival in large.rivals if rival.gpu == name and rival.capped is not bool(uncapped)
        )
        assert mine.value == pytest.approx(value, rel=1e-6)
    flow = planned(given_["S2"])
    assert (flow.status, flow.tokens_per_s) == ("optimal", pytest.approx(312.7, rel=1e-7))


def test_command_prints_the_plan_and_json(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(PAPER))
    shown = tangram("serve", "plan", file)
    assert shown.code == 0
    assert "28.4314 s for all requests" in shown.out
    told = tangram("serve", "plan", file, "--json").json
    assert told.keys() >= {
        *("schema_version", "status", "objective", "makespan_s", "throughput_rps", "bound", "gap"),
        *("replicas", "shares", "gpus_used", "placement", "rivals", "interval", "assumptions"),
        "planning_cpu_s",
    }
    assert told["gpus_used"] == {"t1": 1, "t2": 2, "t3": 0}


# laws and brute force

RATES = st.one_of(st.none(), st.floats(0.2, 20).map(lambda rate: round(rate, 3)))


@st.composite
def problems(draw: st.DrawFn, kind: str = "makespan") -> dict[str, Any]:
    types = draw(st.integers(1, 3))
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    configurations = []
    for name in names:
        for count in draw(st.lists(st.integers(1, 3), min_size=1, max_size=2, unique=True)):
            rates = draw(st.lists(RATES, min_size=types, max_size=types))
            configurations.append({"name": f"{name}{count}", "gpus": {name: count}, "throughput": rates})
    if len(names) > 1 and draw(st.booleans()):
        rates = draw(st.lists(RATES, min_size=types, max_size=types))
        configurations.append({"name": "both", "gpus": {names[0]: 1, names[1]: 1}, "throughput": rates})
    key = "requests" if kind == "makespan" else "rate"
    return {
        "kind": kind,
        "gpus": {
            name: {
                "price_per_hour": draw(st.sampled_from([0.5, 1.0, 1.7, 2.5])),
                "available": draw(st.integers(0, 4)),
            }
            for name in names
        },
        "budget_per_hour": draw(st.sampled_from([2.0, 4.0, 6.0])),
        "configurations": configurations,
        "workload": [{key: draw(st.integers(1, 30))} for _ in range(types)],
    }


def brute_force(problem: RentalProblem) -> float:
    """The least objective over all numbers of replicas; shares by a linear program of its own."""
    best = float("inf")
    ranges = []
    for configuration in problem.configurations:
        most = min(
            int(gpu.available // count)
            for gpu, count in zip(problem.gpus, configuration.gpus, strict=True)
            if count
        )
        ranges.append(range(most + 1))
    for counts in product(*ranges):
        usd = sum(
            k * configuration.usd_per_hour
            for k, configuration in zip(counts, problem.configurations, strict=True)
        )
        used = [
            sum(
                k * configuration.gpus[n]
                for k, configuration in zip(counts, problem.configurations, strict=True)
            )
            for n in range(len(problem.gpus))
        ]
        if usd > problem.budget_usd_per_hour + 1e-9 or any(
            k > gpu.available for k, gpu in zip(used, problem.gpus, strict=True)
        ):
            continue
        makespan = least_makespan(problem, counts)
        if problem.objective == "makespan":
            best = min(best, makespan)
        elif makespan <= 1 + 1e-9:
            best = min(best, usd)
    return best


def least_makespan(problem: RentalProblem, counts: tuple[int, ...]) -> float:
    program = LinearProgram()
    longest = program.variable()
    parts = {
        (c, w): program.variable(1.0)
        for c, configuration in enumerate(problem.configurations)
        for w in range(len(problem.types))
        if configuration.rps[w] > 0 and counts[c]
    }
    for w in range(len(problem.types)):
        program.row([(v, 1.0) for (_, at), v in parts.items() if at == w], low=1.0, high=1.0)
    for c, configuration in enumerate(problem.configurations):
        busy = [
            (v, problem.types[w].amount / configuration.rps[w]) for (at, w), v in parts.items() if at == c
        ]
        if busy:
            program.row([*busy, (longest, -float(counts[c]))], high=0.0)
    found = program.minimise([(longest, 1.0)])
    return float("inf") if found.values is None else float(found.values[longest])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(problems("makespan") | problems("cost"))
def test_plans_are_the_best_of_all(data: dict[str, Any]) -> None:
    """Against every number of replicas; and the answer keeps its own constraints."""
    problem = rental(data)
    found, best = solve(problem), brute_force(problem)
    if isinstance(found, Unanswered):
        assert found.proven
        assert best == float("inf")
        return
    assert found.value == pytest.approx(best, rel=1e-6)
    assert found.optimal
    assert found.bound <= found.value
    check_constraints(problem, found)


def check_constraints(problem: RentalProblem, found: Rental) -> None:
    usd = sum(
        k * configuration.usd_per_hour
        for k, configuration in zip(found.counts, problem.configurations, strict=True)
    )
    assert usd <= problem.budget_usd_per_hour * (1 + 1e-9)
    for w in range(len(problem.types)):
        assert sum(row[w] for row in found.shares) == pytest.approx(1.0)
    within = found.value if problem.objective == "makespan" else 1.0
    for configuration, count, row in zip(problem.configurations, found.counts, found.shares, strict=True):
        assert all(configuration.rps[w] > 0 for w, part in enumerate(row) if part > 0)
        busy = sum(
            part * problem.types[w].amount / configuration.rps[w] for w, part in enumerate(row) if part > 0
        )
        assert busy <= within * count * (1 + 1e-6) + 1e-9


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(problems("makespan"), st.sampled_from([1.25, 2.0]), st.integers(0, 2))
def test_more_money_or_more_gpus_never_hurt_and_mixing_never_loses(
    data: dict[str, Any], richer: float, kind: int
) -> None:
    found = planned(data)
    assume(found.status != "infeasible")
    assert found.makespan_s is not None
    for rival in found.rivals:
        assert not rival.capped or rival.value is None or found.makespan_s <= rival.value * (1 + 1e-9)
    for lever in found.levers.values():
        assert lever.worth is None or lever.worth >= -1e-6
    with_money = planned(data | {"budget_per_hour": data["budget_per_hour"] * richer})
    gpus = {name: dict(item) for name, item in data["gpus"].items()}
    gpus[list(gpus)[kind % len(gpus)]]["available"] += 2
    with_gpus = planned(data | {"gpus": gpus})
    for more in (with_money, with_gpus):
        assert more.makespan_s is not None
        assert more.makespan_s <= found.makespan_s * (1 + 2 * PROVEN)


# scenarios, models, spot

ROBUST: dict[str, Any] = {
    "kind": "robust",
    "gpus": {"a": {"price_per_hour": 1.0, "available": 9}, "b": {"price_per_hour": 1.5, "available": 9}},
    "configurations": [
        {"name": "a1", "gpus": {"a": 1}, "throughput": [1.0]},
        {"name": "b1", "gpus": {"b": 1}, "throughput": [1.0]},
    ],
    "workload": [{"rate": 4}],
    "scenarios": [{"lost": "a", "coverage": 0.5}],
}


def test_a_robust_plan_holds_what_a_loss_leaves_to_cover() -> None:
    """Half the rate must outlive kind a: two b, and two a for the rest; all on a would cost 4."""
    found = planned(ROBUST)
    assert {replica.configuration: replica.count for replica in found.replicas} == {"a1": 2, "b1": 2}
    assert found.cost_per_hour == pytest.approx(5.0)
    assert planned(ROBUST | {"scenarios": [{"lost": ["a"], "coverage": 0}]}).cost_per_hour == pytest.approx(
        4.0
    )


def test_only_spot_configurations_of_a_lost_kind_go() -> None:
    spot = {"name": "a1 spot", "gpus": {"a": 1}, "throughput": [1.0], "price_per_hour": 0.4, "spot": True}
    found = planned(ROBUST | {"configurations": [*ROBUST["configurations"], spot]})
    assert {replica.configuration: replica.count for replica in found.replicas} == {"a1": 2, "a1 spot": 2}


def test_rates_and_prices_of_a_scenario_count() -> None:
    surge = planned(ROBUST | {"scenarios": [{"rate_factor": 1.5}]})
    assert surge.cost_per_hour == pytest.approx(6.0)
    dearer = [{"price_factor": {"a": 2.0}}]
    tight = planned(ROBUST | {"scenarios": dearer, "budget_per_hour": 7.2})
    assert tight.cost_per_hour == pytest.approx(5.0)  # 2 x 2 + 2 x 1.5 at the doubled price is 7


def test_two_models_share_a_fleet() -> None:
    data = {
        "kind": "makespan",
        "gpus": {"a": {"price_per_hour": 1.0, "available": 3}},
        "configurations": [
            {"name": "small", "model": "S", "gpus": {"a": 1}, "throughput": [2.0]},
            {"name": "large", "model": "L", "gpus": {"a": 2}, "throughput": [None, 1.0]},
        ],
        "workload": [{"model": "S", "requests": 100}, {"model": "L", "requests": 80}],
    }
    found = planned(data)
    assert found.makespan_s == pytest.approx(80.0)
    assert found.shares == {"small": [1.0, 0.0], "large": [0.0, 1.0]}


# what is said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "makespam"}, "Nearest: makespan"),
        ({"gpus": {"t1": {"price_per_hour": 0}}}, "gpus.t1.price_per_hour"),
        ({"gpus": {"t1": {"price_per_hour": 4, "available": -1}}}, "available"),
        ({"workload": []}, "workload"),
        ({"workload": [{"requests": 0}, {"requests": 0}]}, "empty"),
        ({"workload": [{"rate": 1}, {"rate": 1}]}, "not `rate`"),
        ({"workload": [{"requests": 1}]}, "2 throughputs for 1 workload types"),
        ({"budget_per_houd": 3, "budget_per_hour": None}, "unknown key"),
        ({"budget_per_hour": -3}, "budget_per_hour"),
        ({"slices": 4}, "slices"),
        ({"scenarios": [{"lost": "t9"}]}, "unknown GPU or configuration lost"),
        ({"configurations": PAPER["configurations"] + PAPER["configurations"][:1]}, "twice"),
        (
            {"configurations": [{"name": "x", "gpus": {"t7": 1}, "throughput": [1, 1]}]},
            "unknown GPU in configuration 'x'",
        ),
    ],
)
def test_bad_problems_are_refused_in_words(change: dict[str, Any], words: str) -> None:
    data = PAPER | change
    if data.get("budget_per_hour") is None:
        del data["budget_per_hour"]
    with pytest.raises(TangramError, match=words):
        planned(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget_per_hour": 1.5}, "budget of 1.5 USD/h is too small: the least that would do is 2 USD/h"),
        (
            {
                "workload": [{"requests": 80}, {"requests": 20}],
                "configurations": [{"name": "c1", "gpus": {"t1": 1}, "throughput": [1, None]}],
            },
            "no configuration can serve type 1",
        ),
        (
            {"configurations": [{"name": "c", "gpus": {"t1": 3}, "throughput": [1, 1]}]},
            "every configuration takes more t1",
        ),
    ],
)
def test_infeasible_is_an_answer_with_its_reason(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(PAPER | change))
    shown = tangram("serve", "plan", file, "--json")
    answer = json.loads(shown.out)
    assert (shown.code, answer["status"], answer["bound"]) == (2, "infeasible", None)
    assert words in shown.err
    assert words in answer["reason"]


def test_cost_beyond_the_caps_names_them() -> None:
    gpus = {
        "A10G": {"price_per_hour": 1.01, "available": 1},
        "A100": {"price_per_hour": 3.67, "available": 0},
    }
    found = planned(MELANGE | {"gpus": gpus})
    assert (found.status, found.cost_per_hour) == ("infeasible", None)
    assert "1 A10G, 0 A100" in found.reason
    assert "4.68 USD/h would do" in found.reason


def test_what_is_not_understood_is_named() -> None:
    assert "weather" in planned(PAPER | {"weather": "fine"}).notes[0]

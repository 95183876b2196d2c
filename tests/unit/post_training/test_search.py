"""Placement of roles: brute force on small fleets, bounds, baselines and laws of the search."""

import os
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import load_cluster
from tangram_sim.post_training.overheads import load_overheads
from tangram_sim.post_training.rollout import DISPATCH
from tangram_sim.post_training.step import StepOutcome, lent_from_s, priced_training, rolled_out
from tangram_sim.rl_planners.baselines import NAIVE, baselines
from tangram_sim.rl_planners.bound import Advantage, advantages
from tangram_sim.rl_planners.candidates import RoleChoices
from tangram_sim.rl_planners.generation_bound import GenerationBound, _fewer, _hull
from tangram_sim.rl_planners.pools import Pools
from tangram_sim.rl_planners.problem import Judge, RlProblem
from tangram_sim.rl_planners.search import RlSearch, search
from tests.commands import tangram
from tests.unit.post_training.setups import HWDB, work

# `make fuzz` asks for 200 (FLEETS=): they take a worker nine minutes.
FLEETS = int(os.environ.get("FLEETS", "20"))
KINDS = ("H800-SXM5-80GB", "H20-96GB", "L40S", "A100-SXM4-80GB")


def problem(fleet: str, staleness: int = 1, **more) -> RlProblem:
    step = work(16, 4, 400, 1600)
    return RlProblem(step, load_cluster(fleet, HWDB), HWDB, load_overheads(HWDB), staleness, **more)


fleets = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(1, 3)),
    min_size=2,
    max_size=3,
    unique_by=lambda item: item[0],
).filter(lambda groups: sum(count for _, count in groups) <= 6)


def spelled(groups) -> str:
    return "+".join(f"{kind}x8:{count}" for kind, count in groups)


def brute_force(asked: RlProblem) -> float:
    """The least step over all choices of nodes for both roles, all placements and all modes."""
    pools, judge = Pools(asked), Judge(asked)
    candidates = RoleChoices(asked, pools, advantages(asked))
    plans = [plan for role_nodes in candidates.every() for plan in candidates.plans(role_nodes)]
    return min((judge.step_s(plan) for plan in plans), default=float("inf"))


def test_every_choice_of_nodes_is_a_candidate_on_small_fleets() -> None:
    asked = problem("H800-SXM5-80GBx8:2+H20-96GBx8:1", 1)
    candidates = list(RoleChoices(asked, Pools(asked), advantages(asked)).every())
    pairs = [
        (trains, generates)
        for trains, generates in product(asked.vectors(), asked.vectors())
        if all(a + b <= whole for a, b, whole in zip(trains, generates, asked.counts, strict=True))
    ]
    split = [
        (candidate.training, candidate.rollout) for candidate in candidates if candidate.placement == "split"
    ]
    assert sorted(set(split)) == sorted(pairs)
    assert len(split) == len(pairs) * len(asked.modes)
    assert {candidate.training for candidate in candidates if candidate.placement == "colocated"} == set(
        asked.vectors()
    )


def test_the_fastest_layout_is_that_of_all_layouts_priced() -> None:
    asked = problem("H800-SXM5-80GBx8:2+H20-96GBx8:1", 1)
    pools = Pools(asked)
    for counts in asked.vectors():
        found = pools.layout(counts)
        priced = [priced_training(asked.work, pool, HWDB) for pool in pools.layouts(counts)]
        passes = asked.work.old_logprobs + asked.work.reference
        every = [
            asked.work.updates * training_phases.update_s + passes * training_phases.forward_s
            for training_phases in priced
            if training_phases.first_stage_bytes <= training_phases.capacity_bytes
        ]
        assert found is not None
        assert found.seconds == min(every)


def test_the_fastest_engines_are_those_of_all_engines_played() -> None:
    asked = problem("H800-SXM5-80GBx8:1+H20-96GBx8:1", 1)
    pools = Pools(asked)
    found = pools.rollout((1, 1))
    engines = [*pools.replicas((1, 1), "split"), *pools.replicas((1, 0), "split")]
    engines += pools.replicas((0, 1), "split")
    played = [
        min(rolled_out(asked.work, engine, way, asked.overheads, HWDB).seconds for way in DISPATCH)
        for engine in engines
    ]
    assert found is not None
    assert found.seconds == min(played) == found.least_s
    # What ranks them is near what is played where engines are alike, and the bound below it.
    for engine, seconds in zip(engines, played, strict=True):
        estimates, alike = pools._estimates, len(engine) == 1
        near, least = estimates.burst_s(engine) / seconds, estimates.least_burst_s(engine) / seconds
        assert 0.98 < near < (1.12 if alike else 1.5)
        assert (0.9 if alike else 0.5) < least <= 1 + 1e-9
        assert estimates.steady_s(engine, 4) < estimates.burst_s(engine)


def test_idle_trainers_that_generate_help_where_steps_take_turns() -> None:
    found = search(problem("H800-SXM5-80GBx8:1+H20-96GBx8:1", 0, placement="hybrid"))
    plan = found.best.plan
    assert plan.lent
    assert found.best.idle["training"] < 0.5
    assert plan.gpus == 16


def test_lent_gpus_come_after_they_have_trained() -> None:
    found = search(problem("H800-SXM5-80GBx8:1+H20-96GBx8:1", 1, placement="hybrid"))
    late = [step_outcome for step_outcome in found.ranked if step_outcome.plan.mode.kind == "one-step-off"]
    for step_outcome in [found.best, *late]:
        if step_outcome.plan.mode.kind == "one-step-off":
            assert (
                step_outcome.step_s
                >= lent_from_s(step_outcome.phases_s) + step_outcome.phases_s["weight_sync"] - 1e-9
            )


@settings(max_examples=2, deadline=None)
@given(groups=fleets, staleness=st.sampled_from((0, 1)))
def test_the_search_matches_brute_force_on_small_fleets(groups, staleness) -> None:
    asked = problem(spelled(groups), staleness)
    best = brute_force(asked)
    found = search(asked)
    assert found.best.step_s <= best * (1 + 1e-9)
    assert found.bound_s <= found.best.step_s


@pytest.mark.slow
@settings(max_examples=FLEETS, deadline=None)
@given(groups=fleets, staleness=st.sampled_from((0, 1)))
def test_the_search_matches_brute_force_on_more_fleets(groups, staleness) -> None:
    asked = problem(spelled(groups), staleness)
    assert search(asked).best.step_s <= brute_force(asked) * (1 + 1e-9)


@settings(max_examples=2, deadline=None)
@given(groups=fleets, staleness=st.sampled_from((0, 1, 3)))
def test_no_baseline_beats_the_search_and_no_plan_the_bound(groups, staleness) -> None:
    looked = RlSearch(problem(spelled(groups), staleness))
    found = looked.run()
    for rule in baselines():
        plan = rule.plan(looked.problem, looked.pools, looked.judge)
        if plan is not None:
            assert looked.judge.step_s(plan) >= found.best.step_s * (1 - 1e-9), rule.name
    outcomes = [item.step_s for item in looked.judge.played.values() if isinstance(item, StepOutcome)]
    assert min(outcomes) >= found.bound_s * (1 - 1e-9)


def test_the_ratio_of_a_kind_is_what_it_generates_over_what_it_trains() -> None:
    kinds = [Advantage("A", 16, 1.0, 0.5), Advantage("B", 16, 0.15, 0.6)]
    assert [kind.ratio for kind in kinds] == [0.5, pytest.approx(4)]


def test_cheap_memory_generates_and_arithmetic_trains() -> None:
    found = search(problem("H800-SXM5-80GBx8:2+H20-96GBx8:2", placement="split"))
    ratio = {kind.kind: kind.ratio for kind in found.kinds}
    assert ratio["H20-96GB"] > ratio["H800-SXM5-80GB"]
    trains = {group.node.gpu.name for group in found.best.plan.training.cluster.groups}
    assert trains == {"H800-SXM5-80GB"}


def test_more_nodes_never_slow_the_best_plan() -> None:
    small, large = (search(problem(f"H800-SXM5-80GBx8:1+H20-96GBx8:{count}")) for count in (1, 2))
    assert large.best.step_s <= small.best.step_s * (1 + 1e-9)


def test_more_staleness_never_slows_the_best_plan() -> None:
    steps = [search(problem("H800-SXM5-80GBx8:1+H20-96GBx8:1", eta)).best.step_s for eta in (0, 1)]
    assert steps[1] <= steps[0]


def test_two_groups_of_equal_nodes_are_one() -> None:
    rl_search_result, two = (
        search(problem(fleet)) for fleet in ("H20-96GBx8:2", "H20-96GBx8:1+H20-96GBx8:1")
    )
    assert two.best.step_s == pytest.approx(rl_search_result.best.step_s, rel=0.02)


def test_a_fleet_that_holds_no_role_is_refused_with_what_to_give() -> None:
    with pytest.raises(InfeasibleError, match="larger GPUs"):
        search(problem("L4x1:1"))


def test_naive_rules_are_among_the_baselines() -> None:
    assert set(NAIVE) <= {rule.name for rule in baselines()}


@settings(max_examples=3, deadline=None)
@given(
    groups=fleets,
    eta=st.sampled_from((1, 2, 3)),
    shape=st.sampled_from(((16, 4, 400, 1600), (64, 4, 1500, 6000), (32, 8, 3000, 6000))),
    chosen=st.integers(0, 10**6),
)
def test_no_loop_is_played_faster_than_the_bound_of_its_nodes(groups, eta, shape, chosen) -> None:
    fleet = load_cluster(spelled(groups), HWDB)
    asked = RlProblem(work(*shape), fleet, HWDB, load_overheads(HWDB), eta)
    pools, judge = Pools(asked), Judge(asked)
    candidates = RoleChoices(asked, pools, advantages(asked))
    loops = [role_nodes for role_nodes in candidates.every() if role_nodes.mode.kind == "async"]
    role_nodes = loops[chosen % len(loops)]
    bound_s = candidates.bound_s(role_nodes)
    assert candidates.rough_s(role_nodes) <= bound_s * (1 + 1e-9)
    for plan in candidates.plans(role_nodes):
        assert judge.step_s(plan) >= bound_s * (1 - 1e-9)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=30))
def test_a_hull_is_concave_and_the_least_one_above_all_points(points: list[tuple[int, int]]) -> None:
    """Its corners are points; every other point is below the line through two corners."""
    every = [(0.0, 0.0), *((float(x), float(y)) for x, y in points)]
    x, y = _hull(*np.array(every).T)
    corners = list(zip(x.tolist(), y.tolist(), strict=True))
    assert corners[0] == (0.0, 0.0) and set(corners) <= set(every)
    slopes = np.diff(y) / np.diff(x)
    assert (np.diff(x) > 0).all() and (np.diff(slopes) < 0).all() and (slopes > 0).all()
    assert all(rate <= np.interp(running, x, y) + 1e-9 for running, rate in every)


def test_a_hull_of_fewer_edges_is_concave_and_above_the_whole_one() -> None:
    running = np.arange(200.0)
    rate = running / (1.0 + 0.05 * running)
    x, y = _fewer(running, rate)
    assert len(x) < 25 and (np.diff(np.diff(y) / np.diff(x)) < 0).all()
    assert (x[0], y[0], x[-1], y[-1]) == (0.0, 0.0, running[-1], rate[-1])
    above = np.interp(running, x, y) - rate
    assert above.min() > -1e-12 and above.max() < 0.05 * rate.max()


def test_kinds_that_cannot_train_never_slow_the_best_plan() -> None:
    """One lacks the memory, one the units for bf16: a curve over the ratio of GPUs leaves such cuts out."""
    step = ("--prompts", 16, "--samples", 4, "--response-tokens", 400, "--cap", 1600)
    alone, small, old = (
        tangram("rl", "plan", "qwen2.5-7b", f"H20-96GBx8:2{more}", *step, "--json").json
        for more in ("", "+L40Sx1:1", "+T4x1:1")
    )
    for found in (small, old):
        assert found["step_s"] <= alone["step_s"] * (1 + 1e-9)
        assert all(point["training_gpus"] >= 8 for point in found["curve"])
    assert [kind["ratio"] is None for kind in old["kinds"]] == [False, True]


def test_the_tail_of_long_responses_is_in_the_bound_of_a_loop() -> None:
    """Many GPUs cannot share few long responses: a bound of all tokens alone would halve with the GPUs."""
    asked = problem("H20-96GBx8:6", 1)
    bound = GenerationBound(asked)
    few, many = (bound.steady_s((gpus,), 1, exact=True) for gpus in (8, 48))
    whole = bound.steady[1][-1]
    alone = [0.97 / bound._rate(whole, (gpus,), exact=True) for gpus in (8, 48)]
    assert few >= alone[0] and many > 1.02 * alone[1]

"""Chains of stages over node groups: the covering program against every chain, and what plans gain by it."""

from dataclasses import replace
from itertools import combinations, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster, load_model
from tangram_sim.layouts import Layout
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS
from tangram_sim.planners.uniform.layouts import Uniform, places_together, stage_ranks, uniform_plan
from tangram_sim.sim import contention
from tangram_sim.studies.batch_estimates import Estimate, Estimator
from tangram_sim.studies.chain_grounds import arrangements
from tangram_sim.studies.chain_prices import ChainPrices
from tangram_sim.studies.chain_problem import Chain, ChainProblem
from tangram_sim.studies.chain_roads import held_ahead
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.launchable import nearest
from tangram_sim.studies.launchable_chains import Chains
from tangram_sim.studies.launchable_layouts import Degrees, LaunchCandidate, LaunchLayouts
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
KINDS = ("H200-SXM-141GB", "H100-SXM5-80GB")


@st.composite
def problems(draw: st.DrawFn) -> ChainProblem:
    """Up to three groups of up to three stages, three to six atoms, memory that sometimes suffices."""
    groups, atoms = draw(st.integers(1, 3)), draw(st.integers(3, 6))

    def sums(low: float, high: float) -> np.ndarray:
        steps = [draw(st.lists(st.floats(low, high), min_size=atoms, max_size=atoms)) for _ in range(groups)]
        return np.concatenate([np.zeros((groups, 1)), np.cumsum(steps, axis=1)], axis=1)

    def each(low: float, high: float) -> list[float]:
        return [draw(st.floats(low, high)) for _ in range(groups)]

    seconds = sums(0.1, 2.0)
    state = np.repeat(sums(0.1, 1.0)[:1], groups, axis=0)
    hops = np.array([each(0.0, 0.5) for _ in range(groups)])
    return ChainProblem(
        names=tuple(f"g{number}" for number in range(groups)),
        passes=draw(st.integers(1, 8)),
        slots=np.array([draw(st.integers(0, 3)) for _ in range(groups)], np.int32),
        prices=ChainPrices(
            sums=np.stack([seconds, seconds / 3, sums(0.0, 0.5), sums(0.0, 1.0), state]),
            fixed=np.array(
                [
                    each(1.0, 12.0),
                    each(0.0, 0.5),
                    each(0.0, 0.5),
                    each(0.0, 0.5),
                    each(0.0, 0.1),
                    each(0.0, 1.0),
                ]
            ),
            hops=hops,
            beside=np.array([[float(draw(st.integers(1, 2))) for _ in range(groups)], each(0.0, 0.5)]),
            tied=np.array([each(0.0, 1.0) for _ in range(groups)]),
            held=np.array([min(behind + 1.0, 4.0) for behind in range(10)]),
        ),
        eager=draw(st.booleans()),
    )


def every_chain(problem: ChainProblem) -> list[Chain]:
    """All sequences of groups with all cuts that have the memory."""
    atoms, found = problem.prices.sums.shape[2] - 1, []
    for depth in range(1, min(int(problem.slots.sum()), atoms) + 1):
        for groups in product(range(len(problem.names)), repeat=depth):
            if any(groups.count(group) > slots for group, slots in enumerate(problem.slots)):
                continue
            for inner in combinations(range(1, atoms), depth - 1):
                cuts = tuple(zip((0, *inner), (*inner, atoms), strict=True))
                if (step_s := problem.step_s(groups, cuts)) < inf:
                    found.append(Chain(step_s, groups, cuts))
    return found


def period(problem: ChainProblem, chain: Chain) -> float:
    """Seconds between two microbatches at least: the most that neighbouring stages take in the mean."""
    own, hops = [], []
    for number, (group, (start, stop)) in enumerate(zip(chain.groups, chain.cuts, strict=True)):
        whole = problem.prices.sums[:, group, stop] - problem.prices.sums[:, group, start]
        tail = (problem.prices.fixed[5, group] + whole[2]) / problem.passes
        own.append(float(problem.prices.fixed[4, group] + whole[0] + tail))
        behind = chain.groups[number + 1 :]
        near = group == (*behind, -1)[0] and behind.count(group) % problem.prices.beside[0, group] > 0
        road = problem.prices.beside[1, group] if near else problem.prices.hops[group, (*behind, group)[0]]
        hops.append(float(road))
    most = 0.0
    for first in range(len(own)):
        waits = not problem.eager and len(own) - first < problem.passes
        for last in range(first, len(own) if waits else first + 1):
            window = sum(own[first : last + 1]) + 2 * sum(hops[first:last])
            most = max(most, window / (last + 1 - first))
    return most


def feasible(problem: ChainProblem, limit_s: float, depth: int) -> bool:
    """Whether a chain of at most `depth` stages takes a microbatch every `limit_s` seconds."""
    return problem._cover(limit_s, depth, -1, problem._room()) >= 0


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_microbatch_follows_the_other_as_soon_as_in_any_chain(problem: ChainProblem) -> None:
    """Exact for what goes on between two microbatches, round trips of neighbouring stages among it."""
    every, solved = every_chain(problem), problem.solve(10) if problem.slots.any() else []
    assert bool(every) == bool(solved)
    if not every:
        return
    known, found = {(chain.groups, chain.cuts): chain.step_s for chain in every}, solved[0]
    for item in solved:
        assert known[item.groups, item.cuts] == pytest.approx(item.step_s)
    assert found.step_s == min(item.step_s for item in solved)
    least = min(period(problem, chain) for chain in every)
    assert feasible(problem, least * (1 + 1e-9), 10)
    assert not feasible(problem, least * (1 - 1e-6), 10)
    for depth in (1, 2):
        few = [period(problem, chain) for chain in every if len(chain.groups) <= depth]
        assert feasible(problem, min(few, default=inf) * (1 + 1e-9), depth) == bool(few)
    better, best_s = problem.improved(found), min(known.values())
    assert known[better.groups, better.cuts] == pytest.approx(better.step_s)
    assert best_s * (1 - 1e-9) <= better.step_s <= found.step_s
    for variant in problem.variants(found):
        assert known[variant.groups, variant.cuts] == pytest.approx(variant.step_s)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from((3, 8, 60)))
def test_no_chain_is_cut_short_under_a_limit_that_it_keeps(problem: ChainProblem, passes: int) -> None:
    """What a stage and those in front of it take at least is no more than what is played."""
    from tangram_sim.studies.chain_kernels import step_of

    for chain in every_chain(replace(problem, passes=passes))[:200]:
        bounds = np.array([*(start for start, _ in chain.cuts), chain.cuts[-1][1]], np.int32)
        asked = passes, problem.eager, 1, problem.prices
        step_s = step_of(*asked, np.array(chain.groups, np.int32), bounds, chain.step_s * (1 + 1e-9))
        assert step_s == chain.step_s


def test_chains_without_room_are_told_before_they_are_looked_for() -> None:
    """Four stages for nine blocks: they have the room for three each, not for two, nor half the time."""
    each = np.arange(12.0)
    sums = np.stack([each, each / 3, 0 * each, each, each])[:, None]
    roads = np.zeros((1, 1)), np.array([[1.0], [0.0]]), np.zeros((1, 1)), np.ones(4)

    def slower(blocks: float, below_s: float, depth: int = 4) -> bool:
        fixed = np.array([[2.0 * blocks], [0.0], [0.0], [0.0], [0.0], [0.0]])
        problem = ChainProblem(("g0",), 8, np.array([4], np.int32), ChainPrices(sums, fixed, *roads))
        return problem.surely_slower(depth, below_s)

    assert not slower(3, 100.0)
    assert slower(2, 100.0)
    assert slower(3, 100.0, depth=2)
    assert slower(3, 15.0)


def test_chains_found_are_near_the_best_of_all() -> None:
    """Of sixty random problems the improved chain is the best in most, and at most 4 % slower."""
    rng, ratios = np.random.default_rng(5), []
    while len(ratios) < 60:
        groups, atoms = int(rng.integers(2, 4)), int(rng.integers(5, 7))
        # Equal blocks between two ends, faster on one group than on another.
        steps = np.ones(atoms) * rng.uniform(0.5, 2.0, (groups, 1))
        steps[:, 0], steps[:, -1] = 0.3 * steps[:, 0], 0.7 * steps[:, -1]
        seconds = np.concatenate([np.zeros((groups, 1)), np.cumsum(steps, axis=1)], axis=1)
        bytes_each = np.concatenate([np.zeros((groups, 1)), np.cumsum(np.ones((groups, atoms)), 1)], 1)
        problem = ChainProblem(
            tuple(f"g{number}" for number in range(groups)),
            int(rng.integers(4, 40)),
            rng.integers(1, 3, groups).astype(np.int32),
            ChainPrices(
                np.stack([seconds, seconds / 3, 0.1 * seconds, 0.2 * bytes_each, bytes_each]),
                np.concatenate([rng.uniform(3.0, 9.0, (1, groups)), np.zeros((5, groups))]),
                rng.uniform(0.0, 0.6, (groups, groups)),
                np.ones((2, groups)),
                np.zeros((groups, groups)),
                np.arange(1.0, 11.0),
            ),
        )
        every, found = every_chain(problem), problem.solve(10)[:3]
        if found:
            best_s = min(problem.improved(item).step_s for item in found)
            ratios.append(best_s / min(chain.step_s for chain in every))
    assert np.mean(np.array(ratios) < 1.0001) > 0.8
    assert max(ratios) < 1.04


def test_fewer_groups_and_less_memory_never_let_microbatches_follow_sooner() -> None:
    """A narrower question has a smaller set of chains."""
    seconds = np.array([[0, 1, 3, 5, 7, 9, 10.0], [0, 2, 6, 10, 14, 18, 20.0]])
    nothing = np.zeros((2, 7))
    problem = ChainProblem(
        ("g0", "g1"),
        8,
        np.array([3, 2], np.int32),
        ChainPrices(
            np.stack([seconds, seconds / 3, nothing, nothing, np.repeat([np.arange(7.0)], 2, axis=0)]),
            np.array([[4.0, 8.0], *5 * [[0.0, 0.0]]]),
            np.full((2, 2), 0.1),
            np.ones((2, 2)),
            np.zeros((2, 2)),
            np.ones(8),
        ),
    )
    for limit_s in (3.0, 4.0, 5.0, 7.0, 9.0, 12.0):
        less = replace(
            problem, prices=problem.prices._replace(fixed=np.array([[3.0, 8.0], *5 * [[0.0, 0.0]]]))
        )
        for other in (problem.on([0]), problem.on([1]), less):
            assert feasible(problem, limit_s, 8) or not feasible(other, limit_s, 8)


def test_stages_stand_on_whole_nodes_or_parts_of_one() -> None:
    cluster = load_cluster("A100-80GBx8:2+L40Sx4:2", HWDB)
    held = [len(places_together(cluster, "g0", width)) for width in (1, 3, 4, 8, 16, 12)]
    assert held == [16, 4, 4, 2, 1, 0]
    assert places_together(cluster, "g1", 4) == [(16, 17, 18, 19), (20, 21, 22, 23)]
    wanted = Uniform(tp=4, pp=3, dp=1, stage_groups=("g0", "g1", "g0"))
    # Nodes fill from the last stage backwards: stages behind one another share one.
    assert stage_ranks(cluster, wanted, 4) == [(8, 9, 10, 11), (20, 21, 22, 23), (12, 13, 14, 15)]
    for groups, error in (
        (("g0", "g1"), BadInputError),
        (("g1", "g1", "g1"), InfeasibleError),
        (("g0", "g7", "g0"), UnknownNameError),
    ):
        with pytest.raises(error, match=r"stage group|node group"):
            stage_ranks(cluster, Uniform(tp=4, pp=3, dp=1, stage_groups=groups), 4)


def test_a_layout_over_any_sequence_of_groups_is_estimated_as_it_is_played() -> None:
    from tangram_sim.studies.forecast import forecast

    cluster, model = load_cluster("A100-80GBx8:1+L40Sx4:2", HWDB), load_model("gpt3-1.3b")
    wanted = Uniform(tp=4, pp=4, dp=1, stage_groups=("g0", "g1", "g0", "g1"), layers=(9, 3, 9, 3))
    job = Job(32, 2048, "bf16")
    (found,) = Estimator(model, cluster, HWDB).estimate([job], [wanted])
    assert isinstance(found, Estimate)
    plan = uniform_plan(model, cluster, job, wanted)
    assert [stage.parts[0].island for stage in plan.pipelines[0].stages] == ["g0", "g1", "g0", "g1"]
    assert {stage.layout for stage in plan.pipelines[0].stages} == {Layout(4)}
    assert found.step_s == pytest.approx(forecast(plan, HWDB).step_s, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_interleaved_stages_are_played_as_the_schedule_orders_them(data: st.DataObject) -> None:
    """The compiled play against the step template, pass by pass; rounds played on agree where all are."""
    from tangram_sim.sim.fast import makespans
    from tangram_sim.studies.chain_kernels import play_interleaved
    from tangram_sim.training.schedules import StageTimes, step_template

    stages, chunks = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 3))
    passes = stages * data.draw(st.integers(1, 4))
    each = st.lists(st.floats(0.1, 1.0), min_size=stages, max_size=stages)
    forward, backward, hops = (np.array(data.draw(each)) for _ in range(3))
    blocks = np.array([data.draw(st.integers(chunks, 7)) for _ in range(stages)])
    shares = np.array([[n // chunks + (c < n % chunks) for c in range(chunks)] for n in blocks])
    shares = shares / blocks[:, None]
    nothing = np.zeros((stages, chunks))
    times = StageTimes(
        forward[:, None] * shares, backward[:, None] * shares, nothing, hops, hops, forward, nothing[:, 0]
    )
    template = step_template("interleaved", stages, passes, chunks, tied=False)
    (wanted,) = makespans(template.graph, template.durations(times)[None])
    table = np.stack([forward, backward, forward, nothing[:, 0]], axis=1)
    found = play_interleaved(table, blocks, hops, float(hops[-1]), passes, chunks)
    assert found == pytest.approx(wanted, rel=1e-9)


def every_interleaved(problem: ChainProblem, depth: int) -> float:
    """The shortest step of all chains of so many stages that have the memory."""
    atoms, best_s = problem.prices.sums.shape[2] - 1, inf
    for groups in product(range(len(problem.names)), repeat=depth):
        if any(groups.count(group) > slots for group, slots in enumerate(problem.slots)):
            continue
        for inner in combinations(range(1, atoms), depth - 1):
            cuts = tuple(zip((0, *inner), (*inner, atoms), strict=True))
            best_s = min(best_s, problem.step_s(groups, cuts))
    return best_s


def test_interleaved_chains_are_near_the_best_of_all() -> None:
    """Every stage has a block in every chunk; at most 3 % slower than the best of all, and mostly it."""
    rng, ratios = np.random.default_rng(7), []
    while len(ratios) < 40:
        groups, atoms, depth = 2, int(rng.integers(7, 10)), int(rng.integers(2, 4))
        steps = np.ones(atoms) * rng.uniform(0.5, 2.0, (groups, 1))
        steps[:, 0], steps[:, -1] = 0.1 * steps[:, 0], 0.3 * steps[:, -1]
        seconds = np.concatenate([np.zeros((groups, 1)), np.cumsum(steps, axis=1)], axis=1)
        kept = np.concatenate([np.zeros((groups, 1)), np.cumsum(np.ones((groups, atoms)), 1)], 1)
        passes = depth * int(rng.integers(1, 6))
        problem = ChainProblem(
            ("g0", "g1"),
            passes,
            rng.integers(1, 4, groups).astype(np.int32),
            ChainPrices(
                np.stack([seconds, seconds / 3, 0.1 * seconds, 0.2 * kept, kept]),
                np.concatenate([rng.uniform(4.0, 14.0, (1, groups)), np.zeros((5, groups))]),
                rng.uniform(0.0, 0.3, (groups, groups)),
                np.ones((2, groups)),
                np.zeros((groups, groups)),
                held_ahead("interleaved", depth, passes, 2),
            ),
            chunks=2,
        )
        best_s = every_interleaved(problem, depth)
        found = problem.solve(depth) if problem.slots.sum() >= depth else []
        assert all(len(chain.groups) == depth for chain in found)
        assert all(min(chain.blocks(atoms - 2, 2)) > 0 for chain in found)
        if best_s == inf:
            assert not found
            continue
        assert best_s >= problem.interleaved_bounds_s(2, depth)[-1] * (1 - 1e-9)
        ratios.append(min((problem.improved(chain).step_s for chain in found[:3]), default=inf) / best_s)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) < 1.03
    assert sum(ratio < 1.001 for ratio in ratios) > 30


@pytest.mark.parametrize("groups", [("g1", "g1", "g0"), ("g0", "g1", "g1"), ("g1", "g0", "g1")])
@pytest.mark.parametrize("passes", [8, 64])
def test_chains_share_links_as_their_plans_do(groups: tuple[str, ...], passes: int) -> None:
    """How much longer a step takes with links shared, of one chain by its program and by its plan."""
    nodes = [{"count": 2, "gpu": gpu, "gpus": 8, "intra_link": "NVLink4", "nic_gbps": 5} for gpu in KINDS]
    cluster, model = cluster_from_dict({"nodes": nodes}, HWDB, "two kinds"), load_model("llama3-8b")
    job = Job(passes, 8192, "bf16")
    layouts = LaunchLayouts(model, cluster, job, HWDB, SearchOptions(), [FRAMEWORKS["megatron"]])
    chains = Chains(layouts)
    layout = Uniform(tp=8, pp=3, dp=1, sequence_parallel=True, layers=(10, 11, 11), stage_groups=groups)
    plan = uniform_plan(model, cluster, job, layout)
    degrees = Degrees(8, 1, 1, 1, "none")
    (arrangement,) = arrangements(cluster.groups, 8, 8, ordered=False)
    problem = next(
        chains._problem(row, inf)
        for row in chains._rows([(degrees, arrangement)], inf)
        if row.layout.zero_stage == 0 and row.layout.sequence_parallel
    )
    assert problem is not None
    cuts = ((0, 11), (11, 22), (22, 34))
    numbers = tuple(problem.names.index(group) for group in groups)
    chain = Chain(problem.step_s(numbers, cuts), numbers, cuts)
    longer = chains._longer(LaunchCandidate(chain.step_s, job, layout), problem, chain)
    graph = forecast(plan, HWDB).lowered.graph()
    shared, alone = (contention.play(graph, sharing).makespan_s for sharing in (True, False))
    assert shared > 1.01 * alone
    assert longer == pytest.approx(shared / alone, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_stages_of_equal_depth_stay_so_when_groups_change_places(problem: ChainProblem) -> None:
    """Without atoms that move only groups change places; and none do where the order is kept."""
    for chain in problem.solve(10)[:2] if problem.slots.any() else []:
        moved = problem.improved(chain, reach=0)
        assert moved.cuts == chain.cuts
        assert sorted(moved.groups) == sorted(chain.groups)
        assert moved.step_s <= chain.step_s * (1 + 1e-9)
        assert problem.improved(chain, same_order=True).groups == chain.groups


def test_an_order_of_groups_is_not_ahead_of_every_order_with_stages_of_equal_depth() -> None:
    """`--order g1,g2,g0` found 11.99 s for DeepSpeed where the open question's answer took 14.69 s."""
    kinds = (
        (1, "H100-SXM5-80GB", "NVLink4", 1600),
        (3, "RTX-6000-Ada", "PCIe4x16", 400),
        (3, "A100-SXM4-40GB", "NVLink3", 400),
    )
    nodes = [
        {"count": count, "gpu": gpu, "gpus": 8, "intra_link": link, "nic_gbps": gbps}
        for count, gpu, link, gbps in kinds
    ]
    cluster, model = cluster_from_dict({"nodes": nodes}, HWDB, "three kinds"), load_model("mixtral-8x7b")
    asked, steps = (model, cluster, Job(128, 4096, "bf16"), HWDB.filled_to(0.875)), []
    for order in ((), ("g1", "g2", "g0")):
        found = nearest(*asked, SearchOptions(frameworks=("deepspeed",), order=order), ("deepspeed",))
        assert found is not None
        steps.append(found.forecast.step_s)
    assert steps[0] <= 1.002 * steps[1]

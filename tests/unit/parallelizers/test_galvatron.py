"""Galvatron, its BMW, exact and uniform forms, and OSDP: counts, exactness, contract, and where they win."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import tangram_sim as ts
from tangram_sim.clusters import Cluster, Network, Node, NodeGroup
from tangram_sim.hwdb import load_model
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers import mixing, partition
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.contract import check_parallelizer
from tangram_sim.parallelizers.galvatron import Galvatron, GalvatronBMW, GalvatronExact, candidates, count
from tangram_sim.parallelizers.galvatron_uniform import GalvatronUniform
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.parallelizers.mixing import MixingProblem
from tangram_sim.parallelizers.osdp import OSDP
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.tangram.composition.finalists import StageAssignment
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.sim import contention
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.planfile import _layout_document, pipeline_documents, plan_from_document
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayerLayout, LayoutRun, passage
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.stage.runs import LayerRun
from tangram_sim.training.step.lowered import Lowering
from tests.contracts.requests import HWDB, REQUESTS, island, request

TWO_STAGES = Constraints(fixed=(("pp", 2),))
FAST = (Galvatron, GalvatronBMW, GalvatronUniform, OSDP)
# Memory is short for one strategy and plentiful for the next: where mixing pays.
LLAMA = request(
    "llama2-7b", island("A100-SXM4-40GB", "NVLink3", 1, 8), (0, None), 32, 8, Job(256, 2048, "bf16")
)


def cost_of(program: MixingProblem, strategies: tuple[int, ...]) -> tuple[float, float]:
    """(seconds, peak bytes) of one choice."""
    layers = range(len(strategies))
    seconds = sum(float(program.seconds[layer, strategies[layer]]) for layer in layers)
    seconds += sum(
        float(program.switch_s[strategies[layer - 1], strategies[layer]]) for layer in layers if layer
    )
    held = sum(float(program.held_bytes[layer, strategies[layer]]) for layer in layers)
    transient = max(float(program.transient_bytes[layer, strategies[layer]]) for layer in layers)
    return seconds, held + transient


def step_s(partial, microbatches):
    """Seconds of a step of this slice alone."""
    stages = partial.stages
    closing = passage(
        [stage.forward_s for stage in stages],
        [stage.backward_s for stage in stages],
        [stage.gradient_sync_s + stage.optimizer_s for stage in stages],
        partial.hop_s,
    )[2]
    return closing + (microbatches - 1) * partial.slowest_s


def best(parallelizer, asked):
    answer = parallelizer.parallelize(asked)
    return min(
        (step_s(partial, asked.microbatches), partial.stages_behind, partial) for partial in answer.partials
    )[::2]


@pytest.mark.parametrize(
    ("gpus", "plain", "pruned"),
    [(2, 4, 4), (4, 13, 11), (8, 34, 22), (16, 73, 37), (32, 136, 56), (64, 229, 79)],
)
def test_decision_trees_have_as_many_leaves_as_the_paper_counts(gpus, plain, pruned):
    assert (count(gpus, pruned=False), count(gpus)) == (plain, pruned)
    assert (count(gpus, False, checkpointing=True), count(gpus, checkpointing=True)) == (
        2 * plain,
        2 * pruned,
    )


def test_leaves_per_pipeline_depth():
    assert [len(candidates(64 >> depth)) for depth in range(7)] == [23, 19, 15, 11, 7, 3, 1]
    for leaf in candidates(16):
        assert np.prod([degree for _, degree in leaf]) == 16
        assert not {"DP", "SDP"} <= {paradigm for paradigm, _ in leaf}


def random_program(rng, layers, strategies):
    """Layers of all kinds, as long as they are few enough for brute force."""
    switch = rng.random((strategies, strategies)) * 0.2
    np.fill_diagonal(switch, 0.0)
    return MixingProblem(
        rng.random((layers, strategies)) + 0.2,
        rng.random((layers, strategies)),
        rng.random((layers, strategies)) * 0.5,
        switch,
        float(rng.uniform(0.3, layers * 0.6 + 0.3)),
    )


def brute_force_s(program):
    layers, strategies = program.seconds.shape
    costs = (cost_of(program, item) for item in itertools.product(range(strategies), repeat=layers))
    return min((seconds for seconds, peak in costs if peak <= program.capacity_bytes), default=float("inf"))


def test_the_exact_program_equals_brute_force():
    """Its own problem, transients and switches included, also where nothing fits."""
    rng = np.random.default_rng(7)
    infeasible = 0
    for _ in range(100):
        program = random_program(rng, int(rng.integers(1, 6)), 4)
        found, least = mixing.exact(program), brute_force_s(program)
        if np.isinf(least):
            infeasible += 1
            assert found == mixing.NOTHING
            continue
        assert found.seconds == pytest.approx(least, rel=1e-9)
        seconds, peak = cost_of(program, found.strategies)
        assert seconds == pytest.approx(found.seconds)
        assert peak <= program.capacity_bytes * (1 + 1e-9)
    assert 5 < infeasible < 60


def equal_layers(rng):
    """One kind of layer many times; faster strategies hold more."""
    layers, strategies = int(rng.integers(8, 41)), int(rng.integers(8, 21))
    seconds = rng.uniform(1, 2, strategies)
    held = np.maximum(2.2 - seconds + rng.normal(0, 0.15, strategies), 0.05)
    shape = rng.integers(0, 4, strategies)
    switch = np.where(shape[:, None] == shape, 0.0, rng.uniform(0.02, 0.1))
    capacity = layers * rng.uniform(held.min() * 1.05, held.max()) + 0.3
    rows = np.ones((layers, 1))
    return MixingProblem(
        rows * seconds, rows * held, rows * rng.random(strategies) * 0.3, switch, float(capacity)
    )


def test_two_strategies_lose_little_on_equal_layers():
    """The default: never better than the exact program, and within 2 % of it on every instance."""
    rng = np.random.default_rng(11)
    gaps = []
    for _ in range(8):
        program = equal_layers(rng)
        mixed, found = mixing.mix(program), mixing.exact(program)
        assert cost_of(program, mixed.strategies)[0] == pytest.approx(mixed.seconds)
        gaps.append(mixed.seconds / found.seconds - 1)
    assert min(gaps) >= -1e-9
    assert max(gaps) < 0.02
    assert np.mean(gaps) < 0.004


def test_more_memory_never_hurts():
    rng = np.random.default_rng(3)
    program = equal_layers(rng)
    for solve in (mixing.mix, mixing.exact):
        seconds = [
            solve(program._replace(capacity_bytes=program.capacity_bytes * factor)).seconds
            for factor in (0.7, 0.9, 1.0, 1.2, 2.0)
        ]
        assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("kind", FAST)
def test_the_contract_holds(kind, asked):
    check_parallelizer(kind(), [asked])


@pytest.mark.parametrize("name", ["few atoms", "gpipe"])
def test_the_contract_holds_for_the_exact_program(name):
    check_parallelizer(GalvatronExact(), [REQUESTS[name]])


def test_the_choice_of_a_stage_equals_trying_every_two_runs():
    """The mix's own problem with real prices: every pair of strategies, every place to switch."""
    asked = request("gpt3-1.3b", atoms=(1, 9), microbatch=8, microbatches=8)
    tight = replace(
        asked.island, gpu=replace(asked.island.gpu, memory_bytes=asked.island.gpu.memory_bytes * 0.42)
    )
    planner = Galvatron()
    menu = planner._menu(replace(asked, island=tight), 1)
    for held in (1, 3):
        least = float("inf")
        for p, q in itertools.product(range(len(menu.layouts)), repeat=2):
            for cut in range(2, 10):
                runs = ((1, 9, p),) if cut == 9 else ((1, cut, p), (cut, 9, q))
                stage = menu.stage(runs)
                if stage.in_flight_limit() >= held:
                    tail = stage.gradient_sync_s + stage.optimizer_s
                    least = min(least, stage.forward_s + stage.backward_s + tail / 8)
        runs = planner.choose(menu, 1, 9, held, 8)
        assert runs is not None
        stage = menu.stage(runs)
        found = stage.forward_s + stage.backward_s + (stage.gradient_sync_s + stage.optimizer_s) / 8
        assert found == pytest.approx(least, rel=1e-9)


def test_layers_of_one_stage_differ_where_that_pays():
    """Outside grid's space, over 10 % faster there, and from a fifth of the layouts looked at."""
    uniform, hybrid = Grid().parallelize(LLAMA), Galvatron().parallelize(LLAMA)
    grid_s, _ = best(Grid(), LLAMA)
    for kind in (Galvatron, GalvatronBMW, OSDP):
        seconds, partial = best(kind(), LLAMA)
        assert len({run.layout for run in partial.runs}) == 2
        assert seconds < 0.9 * grid_s
    assert 4 * hybrid.considered < uniform.considered


def test_fine_is_never_slower_than_coarse_and_ties_without_pressure():
    """Layer by layer against one strategy for all: no gap once memory is plenty."""
    gpu = LLAMA.island.gpu
    for factor in (0.5, 0.8, 1.0, 6.0):
        asked = replace(
            LLAMA, island=replace(LLAMA.island, gpu=replace(gpu, memory_bytes=gpu.memory_bytes * factor))
        )

        class Coarse(Galvatron):
            switches = False

        if not Coarse().parallelize(asked).partials:
            continue
        assert best(Galvatron(), asked)[0] <= best(Coarse(), asked)[0] * (1 + 1e-9)


def test_a_sum_of_runs_is_close_to_the_play_of_the_whole_stage():
    """What the search compares, against the chain played through both layouts."""
    _, partial = best(Galvatron(), LLAMA)
    prices = StagePrices(LLAMA.slice.model, LLAMA.job, HWDB)
    runs = tuple(
        LayerRun(prices.pricer(LLAMA.island, run.layout, LLAMA.microbatch), run.start, run.stop)
        for run in partial.runs
    )
    played, summed = prices.joined(runs), partial.stages[0]
    for name in ("static_bytes", "activation_bytes", "transient_bytes"):
        assert getattr(summed, name) == pytest.approx(getattr(played, name), rel=1e-9)
    assert summed.forward_s == pytest.approx(played.forward_s, rel=0.02)
    assert summed.backward_s == pytest.approx(played.backward_s, rel=0.02)


def balance(weights, cuts, start):
    return max(
        float(weight[low - start : high - start].sum())
        for weight, (low, high) in zip(weights, itertools.pairwise(cuts), strict=True)
    )


def test_partitions_are_balanced_exactly_and_improved_between_the_balances():
    rng = np.random.default_rng(5)
    for _ in range(40):
        atoms, depth, start = int(rng.integers(4, 9)), int(rng.integers(2, 5)), int(rng.integers(0, 3))
        weights = [rng.random(atoms) + 0.1 for _ in range(depth)]
        every = [
            (start, *(start + cut for cut in cuts), start + atoms)
            for cuts in itertools.combinations(range(1, atoms), depth - 1)
        ]
        cuts = partition.balanced(weights, start)
        assert cuts in every
        assert balance(weights, cuts, start) == pytest.approx(
            min(balance(weights, item, start) for item in every)
        )
        times = [rng.random(atoms) + 0.1] * depth
        other = partition.balanced(times, start)

        def evaluate(cuts, times=times, start=start):
            seconds = [float(times[0][a - start : b - start].sum()) for a, b in itertools.pairwise(cuts)]
            return max(seconds), seconds

        found = partition.between(cuts, other, evaluate)
        assert found is not None
        assert found[1] <= min(evaluate(cuts)[0], evaluate(other)[0])
        # Galvatron-BMW's balance degree of a partition lies between 0 and 1 - 1 / P.
        seconds = evaluate(found[0])[1]
        assert 0 <= 1 - max(seconds) / sum(seconds) <= 1 - 1 / depth + 1e-12


def test_bmw_is_no_worse_than_equal_work_per_stage():
    """With inner pipelines forced and memory short, so that the two balances differ."""
    won = 0
    for factor in (0.8, 0.9, 1.0):
        asked = request("gpt3-2.7b", microbatch=4, microbatches=16, constraints=TWO_STAGES)
        gpu = replace(asked.island.gpu, memory_bytes=asked.island.gpu.memory_bytes * factor)
        asked = replace(asked, island=replace(asked.island, gpu=gpu))
        if not Galvatron().parallelize(asked).partials:
            won += bool(GalvatronBMW().parallelize(asked).partials)
            continue
        even, moved = best(Galvatron(), asked)[0], best(GalvatronBMW(), asked)[0]
        assert moved <= even * (1 + 1e-9)
        won += moved < even * (1 - 1e-6)
    assert won >= 2


def one_island(gpu="A100-SXM4-40GB", link="NVLink3", nodes=1, gpus=8):
    group = NodeGroup("g0", nodes, Node(HWDB.gpu(gpu), gpus, HWDB.link(link), 12.5e9))
    return Cluster("one-island", (group,), Network(1.0, ()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["galvatron", "osdp"])
def test_tangram_on_one_island_is_its_parallelizer_and_plays_hybrid_plans_whole(name, monkeypatch):
    """With whole islands it chooses what the parallelizer chooses; splitting islands is never worse."""
    kind = {"galvatron": Galvatron, "osdp": OSDP}[name]
    monkeypatch.setattr("tangram_sim.planners.search_memory.parallelizer_named", lambda _: kind)
    model, cluster, job = load_model("llama2-7b"), one_island(nodes=2), Job(256, 2048, "bf16")
    fixed = Constraints(fixed=(("pp", 1),))
    whole = tangram(
        model, cluster, job, HWDB, SearchOptions(parallelizer=name, sub_islands=False, constraints=fixed)
    )
    split = tangram(model, cluster, job, HWDB, SearchOptions(parallelizer=name, constraints=fixed))
    plan = whole.ranked[0].plan
    (stage,) = plan.pipelines[0].stages
    (where,) = find_islands(cluster, "bf16", hwdb=HWDB)
    asked = request("llama2-7b", where, job=job, constraints=fixed)
    alone, best_alone = [], None
    for size in (16, 32, 64, 128, 256):
        answer = kind().parallelize(replace(asked, microbatch=size, microbatches=256 // size))
        for partial in answer.partials:
            alone.append(step_s(partial, 256 // size))
            best_alone = partial if alone[-1] == min(alone) else best_alone
    # Prices of runs are summed there and played together here, which hides a little more.
    assert 0.97 * min(alone) < whole.ranked[0].step_s <= min(alone) * (1 + 1e-3)
    assert split.ranked[0].step_s <= whole.ranked[0].step_s * (1 + 1e-9)
    assert len(stage.parts[0].layouts) == len(best_alone.runs or (0,))


def test_a_hybrid_plan_is_written_and_read_back():
    """The plan file holds every run; reading it gives the same decisions, which are played whole."""
    _, partial = best(OSDP(), LLAMA)
    seat = StageAssignment("g0", tuple(range(8)), partial.runs[0].layout, 0, 34, partial.runs)
    layouts = seat.layouts(32)
    assert [run.layers for run in layouts] == [(0, partial.runs[0].stop - 1), (partial.runs[0].stop - 1, 32)]
    document = ts.plan(load_model("llama2-7b"), one_island(), Job(256, 2048, "bf16"), hwdb=HWDB).document
    (pipeline,) = document.pipelines
    (stage,) = pipeline.stages
    before = document.step_s
    part = stage.parts[0].with_fields(layouts=[_layout_document(run) for run in layouts])
    stage = stage.with_fields(parts=[part])
    document = document.with_fields(pipelines=[pipeline.with_fields(stages=[stage])])
    again = PlanDocument.model_validate_json(document.model_dump_json())
    plan = plan_from_document(again, HWDB, "here")
    assert plan.pipelines[0].stages[0].parts[0].layouts == layouts
    assert pipeline_documents(plan)[0].stages[0].parts[0].layouts == stage.parts[0].layouts
    step = Lowering.of(plan, HWDB).lower(plan.pipelines[0])
    assert step.fits()
    assert 0.5 * before < contention.play(step.graph()).makespan_s < 2 * before


def test_runs_follow_a_stage_whose_ends_move():
    """Refinement moves atoms between stages: the nearest run takes what has none, and empty runs vanish."""
    a, b = Layout(dp=4), Layout(dp=4, zero_stage=3)
    seat = StageAssignment("g", (0, 1, 2, 3), a, 3, 9, (LayoutRun(3, 5, a), LayoutRun(5, 9, b)))
    assert seat.layouts(20) == (LayerLayout((2, 4), a), LayerLayout((4, 8), b))
    assert replace(seat, start=1, stop=11).layouts(20) == (LayerLayout((0, 4), a), LayerLayout((4, 10), b))
    assert replace(seat, start=6).layouts(20) == (LayerLayout((5, 8), b),)
    assert replace(seat, stop=4).layouts(20) == (LayerLayout((2, 3), a),)
    assert replace(seat, runs=()).layouts(20) == (LayerLayout((2, 8), a),)
    head = StageAssignment("g", (0,), a, 21, 22)
    assert head.layouts(20) == (LayerLayout((20, 20), a),)

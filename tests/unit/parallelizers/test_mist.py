"""Mist: policies and pipelines against brute force and worked numbers, the contract, and where it wins."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.hwdb import load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.contract import check_parallelizer
from tangram_sim.parallelizers.galvatron import Galvatron, GalvatronBMW
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.parallelizers.interstage import choose
from tangram_sim.parallelizers.interstage import step_s as objective_s
from tangram_sim.parallelizers.mist import MOST_POLICIES, Mist
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.training.job import Job
from tests.contracts.requests import HWDB, REQUESTS, island, request
from tests.unit.parallelizers.test_galvatron import LLAMA, best, one_island, step_s


def two_stages(policies):
    """The worked example: two layers a stage, seconds of a layer and extra seconds of a stage."""
    row = (np.array([2 * t for t, _ in policies]), np.array([d for _, d in policies]))
    return [{(0, 2): row}, {(2, 4): row}]


def test_late_stages_hide_what_closes_a_step():
    """A is faster, B closes sooner: B in front and A behind beats either alone, and A then B."""
    a, b = (1.0, 2.0), (1.15, 0.5)
    figures = {
        "AA": objective_s([2.0, 2.0], [2.0, 2.0], 4),
        "BB": objective_s([2.3, 2.3], [0.5, 0.5], 4),
        "BA": objective_s([2.3, 2.0], [0.5, 2.0], 4),
        "AB": objective_s([2.0, 2.3], [2.0, 0.5], 4),
    }
    assert figures == pytest.approx({"AA": 12.0, "BB": 12.0, "BA": 11.7, "AB": 13.2}, abs=1e-9)
    found = choose(two_stages([a, b]), 0, 4, 4)
    assert found.stages == ((0, 2, 1), (2, 4, 0))
    assert found.seconds == pytest.approx(11.7)
    # Sharing d out over the microbatches, as t + d / m, picks B for both.
    averaged = [2 * t + d / 4 for t, d in (a, b)]
    assert averaged[1] < averaged[0]


def every_pipeline(stages, start, stop):
    """All (times, extras) of covers of layers [start, stop)."""
    if not stages:
        return [((), ())] if start == stop else []
    found = []
    for (low, high), (times, extras) in stages[0].items():
        if low == start:
            for rest_times, rest_extras in every_pipeline(stages[1:], high, stop):
                found += [((t, *rest_times), (d, *rest_extras)) for t, d in zip(times, extras, strict=True)]
    return found


def test_pipelines_equal_brute_force():
    rng = np.random.default_rng(6)
    infeasible = 0
    for _ in range(40):
        depth, microbatches = int(rng.integers(1, 5)), int(rng.integers(1, 12))
        stop = depth * 2
        stages = []
        for place in range(depth):
            lows = {0} if place == 0 else {2 * place - 1, 2 * place}
            highs = {stop} if place == depth - 1 else {2 * place + 1, 2 * place + 2}
            options = {}
            for low, high in itertools.product(lows, highs):
                count = int(rng.integers(0, 4))
                if low < high:
                    options[low, high] = ((high - low) * (rng.random(count) + 0.5), rng.random(count) * 4)
            stages.append(options)
        every = every_pipeline(stages, 0, stop)
        least = min((objective_s(t, d, microbatches) for t, d in every), default=None)
        found = choose(stages, 0, stop, microbatches)
        infeasible += least is None
        assert (found is None) == (least is None)
        if found:
            assert found.seconds == pytest.approx(least, rel=1e-12)
            picked = [stages[place][low, high] for place, (low, high, _) in enumerate(found.stages)]
            times = [row[0][index] for row, (_, _, index) in zip(picked, found.stages, strict=True)]
            extras = [row[1][index] for row, (_, _, index) in zip(picked, found.stages, strict=True)]
            assert objective_s(times, extras, microbatches) == pytest.approx(found.seconds)
    assert infeasible < 20


@pytest.mark.parametrize("atoms", [(0, 9), (5, 12), (1, 2)])
def test_policies_equal_pricing_every_number_of_layers_that_recompute(atoms, monkeypatch):
    """The Pareto points of one stage, however many, against every strategy and count priced one by one."""
    monkeypatch.setattr("tangram_sim.parallelizers.mist.MOST_POLICIES", 1000)
    asked = request("gpt3-1.3b", atoms=atoms, microbatch=8, microbatches=8)
    planner = Mist()
    menu = planner._menu(asked, 1)
    start, stop = atoms
    found = planner.policies(menu, start, stop, 8)
    points = set()
    for index, layout in enumerate(menu.layouts):
        choices = [((start, stop, index),)]
        plain = replace(layout, recompute="none")
        if layout.recompute != "none":
            cuts = range(start + 1 + (start == 0), stop)
            choices += [((start, cut, index), (cut, stop, menu.layouts.index(plain))) for cut in cuts]
        for runs in choices:
            stage = menu.stage(runs)
            limit = min(stage.in_flight_limit(), 8)
            if limit >= 1:
                points.add(
                    (
                        stage.forward_s + stage.backward_s,
                        stage.gradient_sync_s + stage.optimizer_s,
                        -limit,
                    )
                )
    table = np.array(sorted(points))
    for seconds, extra, limit in table:
        near = (found.seconds <= seconds * (1 + 1e-9)) & (found.extra <= extra * (1 + 1e-9))
        assert (near & (found.limit >= -limit)).any()
    for seconds, extra, limit in zip(found.seconds, found.extra, found.limit, strict=True):
        assert np.isclose(table, [seconds, extra, -limit], rtol=1e-9).all(axis=1).any()
    monkeypatch.undo()
    assert len(Mist().policies(menu, start, stop, 8).seconds) <= MOST_POLICIES


@pytest.mark.parametrize("name", REQUESTS)
def test_the_contract_holds(name):
    check_parallelizer(Mist(), [REQUESTS[name]])


def test_some_layers_recompute_where_that_pays():
    """Outside grid's space: Llama-2 7B on eight A100-40GB, a tenth faster from a quarter of the layouts."""
    uniform, answer = Grid().parallelize(LLAMA), Mist().parallelize(LLAMA)
    seconds, partial = best(Mist(), LLAMA)
    front, back = partial.runs
    assert (front.layout.recompute, back.layout.recompute) == ("full", "none")
    assert replace(front.layout, recompute="none") == back.layout
    assert seconds < 0.95 * best(Grid(), LLAMA)[0]
    assert 4 * answer.considered < uniform.considered


def test_closing_work_hides_in_late_stages():
    """Four inner stages: ZeRO-3 spreads gradients over microbatches in front, where nothing hides them."""
    fixed = Constraints(fixed=(("pp", 4),))
    asked = request(
        "llama2-7b",
        island("A100-SXM4-40GB", "NVLink3", 1, 8),
        (0, None),
        4,
        16,
        Job(64, 2048, "bf16"),
        constraints=fixed,
    )
    seconds, partial = best(Mist(), asked)
    for other in (Grid, Galvatron, GalvatronBMW):
        assert seconds <= best(other(), asked)[0] * (1 + 1e-9)
    stages = partial.stages
    times = [stage.forward_s + stage.backward_s for stage in stages]
    extras = [stage.gradient_sync_s + stage.optimizer_s for stage in stages]
    assert extras[0] <= min(extras[1:]) * (1 + 1e-9)
    assert objective_s(times, extras, 16) <= min(
        objective_s(
            [stage.forward_s + stage.backward_s for stage in item.stages],
            [stage.gradient_sync_s + stage.optimizer_s for stage in item.stages],
            16,
        )
        for item in Galvatron().parallelize(asked).partials
    ) * (1 + 1e-9)


def test_tangram_on_one_island_is_mist(monkeypatch):
    """With whole islands it plays what Mist finds for some microbatch; splitting islands is never worse."""
    monkeypatch.setattr("tangram_sim.planners.search_memory.parallelizer_named", lambda _: Mist)
    model, cluster, job = load_model("gpt3-1.3b"), one_island(nodes=2, gpus=4), Job(64, 2048, "bf16")
    fixed = Constraints(fixed=(("pp", 1),))
    wishes = SearchOptions(parallelizer="mist", sub_islands=False, constraints=fixed)
    whole = tangram(model, cluster, job, HWDB, wishes).ranked[0]
    split_up = tangram(model, cluster, job, HWDB, replace(wishes, sub_islands=True)).ranked[0]
    (where,) = find_islands(cluster, "bf16", hwdb=HWDB)
    asked = request("gpt3-1.3b", where, job=job, constraints=fixed)
    alone = [
        step_s(partial, 64 // size)
        for size in (1, 2, 4, 8, 16, 32, 64)
        for partial in Mist().parallelize(replace(asked, microbatch=size, microbatches=64 // size)).partials
    ]
    # Prices of runs are summed there and played together here, which hides a little more.
    assert 0.98 * min(alone) < whole.step_s <= min(alone) * (1 + 1e-3)
    assert split_up.step_s <= whole.step_s * (1 + 1e-9)

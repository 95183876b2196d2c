"""Labels of the exact composition against their definition: which pipelines there are, and their bounds."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.exact import find
from tangram_sim.planners.tangram.composition.labels import Labels, Look, PipelineTable
from tests.planning import (
    Workshop,
    composed_of,
    pipelines,
    problem_of,
    random_instance,
    recursion_s,
    second_looks,
    ways_of,
)

SEEDS = (3, 8, 12, 17, 21, 30)
EVERYTHING = Look(float("inf"), 1 << 60, 1 << 30)


@cache
def made(seed: int, schedule: str) -> tuple[Workshop, PipelineTable, dict[object, float]]:
    """(instance, its table, bound of every pipeline by its places)."""
    instance = random_instance(seed)
    workshop = Workshop(replace(instance, job=replace(instance.job, schedule=schedule)))
    table = workshop.table(2)
    problem = problem_of(workshop, table)
    every = {
        composed_of(table, pipeline, 0.0).places: recursion_s(problem, pipeline)
        for pipeline in pipelines(table, workshop.counts)
    }
    return workshop, problem, every


def looked(problem: PipelineTable, look: Look) -> tuple[Labels, dict[object, float]]:
    """What a look finds, and the bounds of its complete labels by their places."""
    found = problem.below(look, Deadline())
    assert found is not None
    labels = zip(found.complete.tolist(), found.bounds.tolist(), strict=True)
    return found, {problem.composed(0.0, found.facts, item).places: bound for item, bound in labels}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_dropped_every_pipeline_below_a_limit_is_a_label_with_its_own_bound(
    seed: int, schedule: str
) -> None:
    _, problem, every = made(seed, schedule)
    for limit_s in (float("inf"), float(np.median([*every.values(), 1.0]))):
        _, told = looked(problem, replace(EVERYTHING, limit_s=limit_s, dropping=False))
        below = {places: bound for places, bound in every.items() if bound < limit_s}
        assert told == pytest.approx(below, rel=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_lie_below_every_play_and_suffixes_that_are_played_only_raise_them(
    seed: int, schedule: str
) -> None:
    _, problem, every = made(seed, schedule)
    found, _ = looked(problem, replace(EVERYTHING, dropping=False))
    played = problem.played(found.facts, found.complete, Deadline())
    assert (found.bounds <= played * (1 + 1e-9)).all()
    closer, raised = looked(problem, replace(EVERYTHING, dropping=False, passes=1 << 40))
    steps = problem.played(closer.facts, closer.complete, Deadline())
    assert raised.keys() == every.keys()
    assert all(bound >= every[places] * (1 - 1e-12) for places, bound in raised.items())
    assert (closer.bounds <= steps * (1 + 1e-9)).all()
    assert problem.least_s <= min(steps, default=float("inf")) * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_label_stands_for_is_no_better_than_its_debt_says(seed: int) -> None:
    """Dropped labels lose nothing of the least bound; with a tolerance no more than that for every stage."""
    _, problem, every = made(seed, "1f1b")
    if not every:
        return
    least_s = min(every.values())
    exact, told = looked(problem, EVERYTHING)
    assert min(told.values()) == pytest.approx(least_s, rel=1e-12)
    assert all(bound >= every[places] * (1 - 1e-12) for places, bound in told.items())
    tolerance_s = 0.02 * least_s
    loose, owed = looked(problem, replace(EVERYTHING, tolerance_s=tolerance_s))
    most = max(len(places) for places in every)  # type: ignore[arg-type]
    assert least_s - most * tolerance_s <= min(owed.values()) <= least_s * (1 + 1e-12)
    assert len(loose.facts) <= len(exact.facts)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_beam_keeps_real_pipelines_and_knows_the_least_bound_it_left_out(seed: int, width: int) -> None:
    _, problem, every = made(seed, "1f1b")
    if not every:
        return
    found, told = looked(problem, replace(EVERYTHING, width=width))
    assert all(bound == pytest.approx(every[places], rel=1e-12) for places, bound in told.items())
    assert min(found.dropped_s, *told.values()) <= min(every.values()) * (1 + 1e-12)
    assert len(found.facts) <= 1 + width * problem.before.shape[1] * len(problem.table.slice_class)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("seed", SEEDS)
def test_however_little_work_is_allowed_bounds_hold_and_steps_are_played_ones(
    seed: int, schedule: str
) -> None:
    """Beams, tolerances, looks that are closed or not: never a bound above the best, never a false step."""
    workshop, problem, every = made(seed, schedule)
    if not every:
        return
    found, _ = looked(problem, replace(EVERYTHING, dropping=False))
    best_s = float(problem.played(found.facts, found.complete, Deadline()).min())
    table, instance = problem.table, workshop.instance
    ways = ways_of(workshop, table, workshop.hops(2), list(workshop.islands))
    usual = budget("normal")
    hasty = replace(usual, first_work=1)
    beams = replace(hasty, proof_work=(1,) * len(usual.proof_work))
    for tight, few in ((usual, 1 << 10), (hasty, 1 << 10), (beams, 1)):
        with second_looks(few_labels=few):
            proof = find(
                table, workshop.counts, ways, instance.model, instance.job, float("inf"), float("inf"),
                budget=tight,
            )  # fmt: skip
        assert proof.bound_s <= best_s * (1 + 1e-9)
        steps = [pipeline.objective_s for pipeline in proof.pipelines]
        assert steps == sorted(steps) and min(steps) >= best_s * (1 - 1e-9)
        for pipeline in proof.pipelines[:3]:
            assert pipeline.objective_s == pytest.approx(workshop.played(pipeline), rel=1e-9)
        if tight is usual:
            assert steps[0] == pytest.approx(best_s, rel=1e-3 if schedule == "1f1b" else 2e-2)
            assert proof.bound_s >= best_s * 0.98 or schedule == "gpipe"


@pytest.mark.parametrize("seed", SEEDS)
def test_however_few_pipelines_are_composed_the_others_are_in_the_bound(seed: int) -> None:
    """One more allowed loses none; from as many as there are on all that is there comes out."""
    workshop, problem, every = made(seed, "1f1b")
    ways = ways_of(workshop, problem.table, workshop.hops(2), list(workshop.islands))
    given = problem.table, workshop.counts, ways, workshop.instance.model, workshop.instance.job
    found = [
        find(*given, float("inf"), float("inf"), budget=replace(budget("normal"), composed=most))
        for most in range(1, 14)
    ]
    steps = [[pipeline.objective_s for pipeline in proof.pipelines] for proof in found]
    best_s = min((min(some) for some in steps if some), default=float("inf"))
    assert all(proof.bound_s <= best_s * (1 + 1e-9) for proof in found)
    assert all(set(fewer) <= set(more) for fewer, more in pairwise(steps))
    assert [min(len(some), most) for most, some in enumerate(steps, 1)] == [
        min(most, len(every)) for most in range(1, 14)
    ]


@pytest.mark.parametrize(("seed", "most_nodes", "behind"), [(3, 3, 3), (3, 8, 6), (14, 3, 5), (14, 8, 6)])
def test_no_more_stages_stand_behind_than_there_are_nodes_or_atoms_for(
    seed: int, most_nodes: int, behind: int
) -> None:
    """Of a model of seven atoms the first stage has six behind it at most, however many nodes there are."""
    workshop = Workshop(random_instance(seed, most_nodes))
    problem = problem_of(workshop, workshop.table(1))
    assert len(problem.table.slice_class) - 1 == 7
    assert problem.most_behind == behind

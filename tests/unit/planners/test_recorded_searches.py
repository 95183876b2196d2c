"""Looks, proofs and whole searches on small problems: answers, bounds and work counted, as recorded.

Brute force (`test_compose.py`, `test_exact.py`) holds what a search finds; how much it looks at for that is
held here, in labels and comparisons, which do not depend on the machine (`tests/records`).
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tangram_sim.layouts import Layout
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.composed import Composed
from tangram_sim.planners.tangram.composition.exact import fastest, find
from tangram_sim.planners.tangram.composition.finalists import StageAssignment, _moved, pipeline_of, seats_of
from tangram_sim.planners.tangram.composition.labels import Look, PipelineTable
from tangram_sim.planners.tangram.composition.search import coarse, hop_seconds, microbatch_sizes
from tangram_sim.planners.tangram.composition.states import NodeStates
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.fleet_budget import FleetBudget
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayoutRun
from tests.planning import Workshop, problem_of, random_instance, second_looks, ways_of
from tests.records import HWDB, hold

SEEDS = (3, 8, 12, 17, 21, 30)
SCHEDULES = ("1f1b", "gpipe", "zb-h1")
EVERYTHING = Look(float("inf"), 1 << 60, 1 << 30)


@cache
def made(seed: int, schedule: str) -> tuple[Workshop, PipelineTable]:
    """An instance and its table."""
    instance = random_instance(seed, hwdb=HWDB)
    workshop = Workshop(replace(instance, job=replace(instance.job, schedule=schedule)), HWDB)
    return workshop, problem_of(workshop, workshop.table(2))


def looked(problem: PipelineTable, look: Look) -> dict[str, Any]:
    """What a look came to, and what its labels are played in."""
    found = problem.below(look, Deadline())
    work = {"work": problem.spent, "labels": problem.spent_labels, "least": problem.least_s}
    if found is None:
        return work
    steps = problem.played(found.facts, found.complete, Deadline())
    likely = problem.estimated(found.facts, found.complete, Deadline())
    finite = np.isfinite(steps)
    return {
        **work,
        "complete": len(found.complete),
        "facts": np.abs(found.facts.astype(np.int64)).sum(axis=0) % 1_000_003,
        "bounds": [found.bounds.sum(), *np.sort(found.bounds)[:3]],
        "dropped": found.dropped_s if np.isfinite(found.dropped_s) else "nothing",
        "steps": [steps[finite].sum(), likely[finite].sum(), *np.sort(steps)[:3]],
        "unfit": int((~finite).sum()),
    }


def told(pipelines: list[Composed]) -> list[Any]:
    """How many there are, all values, and where the first ones stand."""
    places = [
        [(at.kind, at.start, at.stop, str(at.partial.layout)) for at in pipeline.places]
        for pipeline in pipelines[:3]
    ]
    return [len(pipelines), sum(pipeline.objective_s for pipeline in pipelines), places]


def looks(seed: int, schedule: str) -> dict[str, Any]:
    """Looks of every kind at one table, and the table itself."""
    workshop, problem = made(seed, schedule)
    best_s = float(problem.below(EVERYTHING, Deadline()).bounds.min(initial=1.0))  # type: ignore[union-attr]
    some = {
        "all": replace(EVERYTHING, dropping=False),
        "dropping": EVERYTHING,
        "limited": replace(EVERYTHING, limit_s=1.1 * best_s),
        "tolerant": replace(EVERYTHING, tolerance_s=0.02 * best_s),
        "narrow": replace(EVERYTHING, width=2),
        "played": replace(EVERYTHING, passes=1 << 40, proving=False),
        "played in part": replace(EVERYTHING, passes=200, dropping=False, limit_s=1.3 * best_s),
        "little work": replace(EVERYTHING, work=40),
    }
    states = NodeStates.of(workshop.counts, one_by_one=True)
    return {
        "columns": problem.floats.sum(axis=0)[[0, 1, 2, 3, 4, 5, 6, 8]],
        "rates": np.where(np.isfinite(problem.floats[:, [7, 9]]), problem.floats[:, [7, 9]], 0.0).sum(axis=0),
        "times": problem.times.sum(axis=0),
        "facts": [problem.lost, problem.deepest, problem.most_behind, problem.tied_bytes],
        "before": problem.before,
        "roads": [problem.between, problem.ways.node_bytes_per_s, problem.ways.size],
        "states": [states.codes, states.used, states.strides],
        "any order": problem.any_order_s(2 * best_s, Deadline()),
        "looks": {name: looked(problem, look) for name, look in some.items()},
    }


def proofs(seed: int, schedule: str) -> dict[str, Any]:
    """What is proven under budgets that suffice, and under others that do not."""
    workshop, problem = made(seed, schedule)
    table, instance = problem.table, workshop.instance
    ways = ways_of(workshop, table, workshop.hops(2), list(workshop.islands))
    usual = budget("normal")
    hasty = replace(usual, first_work=1)
    none = (1,) * len(usual.proof_work)
    budgets = {
        "usual": (usual, float("inf")),
        "beams": (hasty, float("inf")),
        "no proof": (replace(hasty, proof_work=none), float("inf")),
        "few labels": (usual, float("inf")),
        "few kept": (replace(usual, kept=2, composed=3, played_passes=40), float("inf")),
        "narrow": (replace(hasty, widths=(1, 2), beam_work=50), float("inf")),
    }
    looks = {
        "no proof": second_looks(few_labels=1),
        "few labels": second_looks(few_labels=1, some_labels=1 << 20, proven=0.0),
    }
    given = table, workshop.counts, ways, instance.model, instance.job
    found: dict[str, Any] = {}
    for name, (tight, best_s) in budgets.items():
        for proving in (True, False):
            with looks.get(name, nullcontext()):
                proof = find(*given, float("inf"), best_s, 0.01, tight, proving=proving)
            found[f"{name}, {proving}"] = [proof.bound_s, proof.exact, *told(proof.pipelines)]
    least_s = min((pipeline.objective_s for pipeline in find(*given, 1e9, 1e9).pipelines), default=1.0)
    for share in (0.9, 1.0, 1.05):
        proof = find(*given, share * least_s, least_s, 0.01, hasty)
        found[f"below {share}"] = [proof.bound_s, *told(proof.pipelines)]
    fleet = FleetBudget()
    for one_by_one in (True, False):
        quick = fastest(*given, 2 * least_s, fleet, Deadline(), one_by_one=one_by_one)
        found[f"fastest, {one_by_one}"] = told(quick)
    seats = [
        seats_of(composed, workshop.islands, workshop.referee.lowering.placement) for composed in quick[:2]
    ]
    found["seats"] = [
        [(at.island, at.ranks, str(at.layout), at.start, at.stop) for at in item] for item in seats
    ]
    found["refined"] = [
        [(at.start, at.stop) for at in workshop.referee.refine(item, 2)] for item in seats if len(item) > 1
    ]
    size = instance.job.boundary_bytes(instance.model, 2)
    order = [island.name for island in workshop.islands[::-1]]
    hops = hop_seconds(workshop.islands, instance.cluster, HWDB, size, order)
    found["hops"] = [workshop.hops(2), np.where(np.isfinite(hops), hops, -1.0)]
    return found


def search(seed: int, schedule: str, most_nodes: int, wishes: SearchOptions) -> dict[str, Any]:
    """A whole search: what was looked at, the plans found, and what holds for all others."""
    instance = random_instance(seed, most_nodes, HWDB)
    job = replace(instance.job, schedule=schedule)
    found = tangram(
        instance.model, instance.cluster, job, HWDB, replace(wishes, constraints=instance.constraints)
    )
    return {
        "counts": asdict(found.counts),
        "bounds": [found.lower_bound_step_s, found.pipeline_bound_s],
        "loads": found.loads,
        "steps": [scored.step_s for scored in found.ranked],
        "stages": [
            [len(stage.ranks) for stage in scored.plan.pipelines[0].stages] for scored in found.ranked
        ],
        "microbatches": [scored.plan.pipelines[0].microbatch for scored in found.ranked],
    }


def searches() -> dict[str, Callable[[], dict[str, Any]]]:
    """Every case by name."""
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    for schedule in SCHEDULES:
        for seed in SEEDS:
            cases[f"looks {seed}, {schedule}"] = lambda a=seed, b=schedule: looks(a, b)  # type: ignore[misc]
        for seed in SEEDS[:4]:
            cases[f"proofs {seed}, {schedule}"] = lambda a=seed, b=schedule: proofs(a, b)  # type: ignore[misc]
    alone = SearchOptions(replicate=False, beside=False, top=4)
    some = (
        (8, "zb-h1", 2), (12, "gpipe", 3), (14, "1f1b", 3),
        (14, "zb-h1", 3), (38, "1f1b", 2), (12, "1f1b", 6),
    )  # fmt: skip
    for seed, schedule, nodes in some:
        cases[f"search {seed}, {schedule}, {nodes} nodes"] = (
            lambda a=seed, b=schedule, c=nodes: search(a, b, c, alone)  # type: ignore[misc]
        )
    hasty = replace(alone, effort="quick")
    cases["search 14, quick"] = lambda: search(14, "1f1b", 3, hasty)
    return cases


CASES = searches()


@pytest.mark.parametrize("name", CASES)
def test_searches_are_those_recorded(name: str) -> None:
    hold("searches", name, CASES[name]())


def test_parts_of_islands_in_halves() -> None:
    """Of 8 nodes 4 and 8; of 5 both 2 and 3; in units of two nodes; one node is whole."""
    assert [coarse(*item) for item in ((8, 1), (5, 1), (8, 2), (6, 2), (1, 1), (2, 2))] == [
        (4, 8), (2, 3, 5), (4, 8), (2, 4, 6), (1,), (2,)
    ]  # fmt: skip


def test_microbatches_are_tried_from_thirty_two_of_them_outward() -> None:
    """64 sequences: 2 a microbatch, then 1 and 4 (64 and 16 microbatches), the smaller first."""
    assert microbatch_sizes(Job(global_batch=64)) == [2, 1, 4, 8, 16, 32, 64]


def test_counts_of_nodes_are_digits() -> None:
    """Two of one kind and one of another: codes 0 to 5; a pair takes one of each, if there is one."""
    states = NodeStates.of([2, 1])
    assert states.codes.tolist() == [0, 1, 2, 3, 4, 5] and states.strides.tolist() == [1, 3]
    assert states.used.tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]
    assert states.taken([[1, 1]]).tolist() == [[1, 0], [0, 1], [1, 1]]
    assert states.without(np.array([1, 1])).tolist() == [-1, -1, -1, -1, 0, 1]
    apart = NodeStates.of([2, 2], one_by_one=True)
    assert apart.used.tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [2, 1], [0, 2], [1, 2], [2, 2]]


PLAIN, WIDE = Layout(dp=2), Layout(tp=2)


def seat(
    start: int, stop: int, *runs: tuple[int, int, Layout], beside: tuple[Any, ...] = ()
) -> StageAssignment:
    some = tuple(LayoutRun(*run) for run in runs)
    return StageAssignment("g0", (0, 1), PLAIN, start, stop, some, 0, beside)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (seat(0, 4), [((0, 3), PLAIN)]),
        (seat(3, 10), [((2, 8), PLAIN)]),  # atoms 3 to 8 are blocks 2 to 7, atom 9 is the head
        (seat(0, 6, (0, 3, PLAIN), (3, 6, WIDE)), [((0, 2), PLAIN), ((2, 5), WIDE)]),
        (seat(2, 6, (0, 3, PLAIN), (3, 8, WIDE)), [((1, 2), PLAIN), ((2, 5), WIDE)]),  # its front has moved
        (seat(3, 6, (0, 3, PLAIN), (3, 6, WIDE)), [((2, 5), WIDE)]),  # one run is gone
        (seat(0, 8, (2, 4, PLAIN), (4, 6, WIDE)), [((0, 3), PLAIN), ((3, 7), WIDE)]),  # ends take the nearest
        (seat(1, 7, (1, 3, WIDE), (3, 5, WIDE), (5, 7, PLAIN)), [((0, 4), WIDE), ((4, 6), PLAIN)]),
        (seat(9, 10), [((8, 8), PLAIN)]),
    ],
)
def test_layouts_of_the_blocks_of_a_stage(stage: StageAssignment, expected: list[Any]) -> None:
    """Of a model of eight blocks: atom 0 is the embedding, atom 9 the head."""
    assert [(run.layers, run.layout) for run in stage.layouts(8)] == expected


def test_a_boundary_moves_by_one_atom_unless_a_stage_would_be_empty() -> None:
    three = seat(0, 4, beside=(seat(0, 4),)), seat(4, 5), seat(5, 10)
    assert [
        (stage_assignment.start, stage_assignment.stop) for stage_assignment in _moved(three, 0, 1, -1) or ()
    ] == [(0, 3), (3, 5), (5, 10)]
    assert [
        (stage_assignment.start, stage_assignment.stop) for stage_assignment in _moved(three, 1, 2, 1) or ()
    ] == [(0, 4), (4, 6), (6, 10)]
    assert _moved(three, 0, 1, 1) is None and _moved(three, 1, 2, -1) is None
    # Two boundaries at once: the stage between is as full as before.
    assert [
        (stage_assignment.start, stage_assignment.stop) for stage_assignment in _moved(three, 0, 2, 1) or ()
    ] == [(0, 5), (5, 6), (6, 10)]
    assert [
        (stage_assignment.start, stage_assignment.stop) for stage_assignment in _moved(three, 0, 2, -1) or ()
    ] == [(0, 3), (3, 4), (4, 10)]
    moved = _moved(three, 0, 1, -1)
    assert moved is not None and (moved[0].beside[0].start, moved[0].beside[0].stop) == (0, 3)


def test_stages_of_a_pipeline_hold_their_blocks_and_ends() -> None:
    made = pipeline_of((seat(0, 1), seat(1, 5), replace(seat(5, 10), sequences=3)), 8, 4, 6)
    assert [stage.chunks for stage in made.stages] == [(), ((0, 4),), ((4, 8),)]
    assert [stage.embedding for stage in made.stages] == [True, False, False]
    assert [stage.head for stage in made.stages] == [False, False, True]
    assert [stage.parts[0].sequences_per_microbatch for stage in made.stages] == [4, 4, 3]
    assert (made.microbatches, made.microbatch) == (6, 4)

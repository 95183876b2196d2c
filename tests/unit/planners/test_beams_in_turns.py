"""Beams in turns: narrow ones for every size, wide ones where the step is near, proofs at the end."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.planners.budget import EFFORTS, SearchBudget, budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition import exact
from tangram_sim.planners.tangram.composition.search import Search
from tangram_sim.planners.tangram.composition.states import NodeStates
from tests.planning import Workshop, pipelines, random_instance

TURNS = replace(budget("normal"), first_work=1, widths=(1, 2, 4, 8), narrow=2)
NOTHING_PROVEN = replace(TURNS, proof_work=(1, 1), widest_work=0, far_work=0)


def searched(
    seed: int, spend: SearchBudget, monkeypatch: pytest.MonkeyPatch
) -> tuple[Search, list[tuple[int, int, bool]]]:
    """A search over all nodes, and its beams: microbatch size, width, whether it ended."""
    workshop, seen = Workshop(random_instance(seed)), list[tuple[int, int, bool]]()
    beam, batch = exact._beam, workshop.instance.job.global_batch

    def noted(problem, look, *others):
        found = beam(problem, look, *others)
        seen.append((batch // problem.table.microbatches, look.width, found is not None))
        return found

    monkeypatch.setattr(exact, "_beam", noted)
    units = [1] * len(workshop.islands)
    tools = workshop.enumeration(), workshop.referee, workshop.bound.step_s(), units, workshop.work, ()
    search = Search(*tools, spend, Deadline())
    grain = tuple(tuple(range(1, island.nodes + 1)) for island in workshop.islands)
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if batch % size == 0]
    search._sweep(sizes, grain, (float("inf"),), None, full=True)
    return search, seen


@pytest.mark.parametrize("seed", [403, 439, 441, 449, 487])
def test_much_work_with_the_widest_beam_is_for_the_best_size_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seeds where a beam of four gained something for the best size: others near it end at four."""
    search, seen = searched(seed, NOTHING_PROVEN, monkeypatch)
    best = min(search.best_of, key=lambda size: search.best_of[size])
    assert [size for size, width, _ in seen if width == 8] == [best]
    assert len({size for size, width, _ in seen if width == 4}) > 1
    assert seen[-1][:2] == (best, 8)
    wide = [number for number, (_, width, _) in enumerate(seen) if width > 2]
    narrow = [number for number, (_, width, _) in enumerate(seen) if width <= 2]
    assert max(narrow) < min(wide)


@pytest.mark.parametrize("seed", [439, 441, 449, 487])
def test_where_it_is_little_work_the_widest_beam_is_for_sizes_near_the_best(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = replace(NOTHING_PROVEN, widest_work=TURNS.widest_work)
    search, seen = searched(seed, little, monkeypatch)
    widest = [size for size, width, _ in seen if width == 8]
    assert len(set(widest)) == len(widest) > 1
    assert all(search.best_of[size] <= TURNS.near * search.best_s for size in widest)


@pytest.mark.parametrize("seed", [400, 439, 449])
@pytest.mark.parametrize("spend", [TURNS, replace(TURNS, narrow_work=1), budget("normal")])
def test_all_that_is_composed_is_counted(
    seed: int, spend: SearchBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by wider beams and proofs of sizes that were begun before; what is found again counts once."""
    begun, looks_of = list[exact.Composition](), Search._looks

    def noted(*asked):
        begun.append(looks_of(*asked))
        return begun[-1]

    monkeypatch.setattr(Search, "_looks", noted)
    search, _ = searched(seed, spend, monkeypatch)
    composed = sum(len(looks.proof().pipelines) for looks in begun)
    assert search.enumeration.counts.composed == composed > 0


@pytest.mark.parametrize("seed", [400, 402, 404, 406])
def test_what_is_cut_is_looked_at_later(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to no work for narrow beams all are cut, begun again, and prove no less than they may."""
    search, seen = searched(seed, replace(TURNS, narrow_work=1), monkeypatch)
    cut = [size for size, _, ended in seen if not ended]
    assert cut
    # What is not begun again has a bound at the best step or above.
    left = set(cut) - {size for size, _, ended in seen if ended}
    assert all(search.bounds[size] >= search.best_s * (1 - 1e-9) for size in left if search.provable)
    whole, _ = searched(seed, replace(TURNS, widths=(64,), narrow=64), monkeypatch)
    assert search.best_s <= whole.best_s * 1.02
    for size, bound_s in search.bounds.items():
        assert bound_s <= min(
            search.best_of.get(size, float("inf")), whole.best_of.get(size, float("inf"))
        ) * (1 + 1e-9)


@pytest.mark.parametrize("counts", [(3,), (2, 5), (4, 1, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_states_that_stages_reach_are_the_sums_of_their_nodes(counts: tuple[int, ...], seed: int) -> None:
    """By brute force; and with all of one node of each kind that is every state."""
    random, states = np.random.default_rng(seed), NodeStates.of(counts)
    moves = [np.minimum(random.integers(0, 4, len(counts)), counts) for _ in range(3)]
    moves = [move for move in moves if move.any()]
    before = np.array([states.without(move) for move in moves], dtype=np.int64).reshape(-1, len(states.codes))
    sums, more = {(0,) * len(counts)}, True
    while more:
        further = {tuple(np.add(item, move).tolist()) for item in sums for move in moves}
        further = {item for item in further if all(np.less_equal(item, counts))}
        more = bool(further - sums)
        sums |= further
    assert {tuple(item) for item in states.used[states.reached(before)].tolist()} == sums
    single = np.array([states.without(move) for move in np.eye(len(counts), dtype=np.int64)])
    assert states.reached(single).all()


@pytest.mark.parametrize("effort", EFFORTS)
def test_narrow_beams_are_some_of_all(effort: str) -> None:
    spend = budget(effort)
    assert spend.narrow in spend.widths
    assert spend.near >= 1


def test_pipelines_of_the_instances_are_many() -> None:
    """Else nothing above says anything."""
    workshop = Workshop(random_instance(400))
    assert len(list(pipelines(workshop.table(2), workshop.counts))) > 8

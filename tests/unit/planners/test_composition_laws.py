"""The exact composition on invented tables: every label, bound and dominance against its definition.

Tables of a real parallelizer are smooth: a larger slice takes longer, more nodes are faster, ends are alike.
An invented one has figures of every size, and equal ones: multiples of a half, slices that nobody offers,
inner pipelines, joint islands, forbidden neighbours, ends of all rates. Every pipeline of it is enumerated
here by the functions of `tests.planning`, which read the table and know no label.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest

from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition import exact_kernels, labels
from tangram_sim.planners.tangram.composition.exact_kernels import DEBT, LEAST_DROPPED, WORST_KEPT, narrowed
from tangram_sim.planners.tangram.composition.labels import Labels, LinkBounds, Look, PipelineTable
from tangram_sim.planners.tangram.composition.play_kernels import (
    BACK,
    DEEPEST,
    DEPTH,
    ENDS,
    OPTION,
    PARENT,
    RATE,
    TIED,
    play,
)
from tangram_sim.planners.tangram.enumeration.table import PartialPlanTable
from tangram_sim.training.job import Job
from tangram_sim.training.plan import PartialPlan, StagePrice, passage
from tests.planning import pipelines, recursion_s

SEEDS = range(12)
SCHEDULES = ("1f1b", "gpipe", "zb-h1")
EVERYTHING = Look(float("inf"), 1 << 60, 1 << 30, dropping=False)
_BLOCK = Block(Attention(2, 2, 4, 4), FeedForward(16, gated=False))


@dataclass(frozen=True)
class Invented:
    """A problem whose figures nobody priced."""

    problem: PipelineTable
    counts: list[int]

    def pipelines(self) -> list[tuple[tuple[int, int, int], ...]]:
        """All of them, none with neighbours that are forbidden: (option, start, stop) front to back."""
        kinds, lag = self.problem.ints[:, 0], self.problem.between[0]
        return [
            pipeline
            for pipeline in pipelines(self.problem.table, self.counts)
            if all(np.isfinite(lag[kinds[a[0]], kinds[b[0]]]) for a, b in pairwise(pipeline))
        ]


@cache
def invented(seed: int, schedule: str) -> Invented:
    """Two kinds of island and a joint one, four or five atoms, two to six microbatches."""
    chance = random.Random(f"{seed}/{schedule}")

    def some(most: int = 6) -> float:
        return chance.randint(0, most) / 2

    counts, atoms = [2, chance.choice([1, 2])], chance.choice([4, 4, 5])
    joint = ((1, 1),) if chance.random() < 0.5 else ()
    kinds = len(counts) + len(joint)
    tied = chance.random() < 0.6
    model = Model("invented", "gpt2", 8, 16, (_BLOCK,) * (atoms - 2), tied=tied)
    microbatch, microbatches = 1, chance.choice([2, 3, 6])
    of_slice = np.full((atoms + 1, atoms + 1), -1, dtype=np.int64)
    pointers, partials, floats, ints = [0], [], [], []
    for start, stop in combinations(range(atoms + 1), 2):
        if stop - start == 3 and chance.random() < 0.5:  # a slice that nobody offers
            continue
        of_slice[start, stop] = len(pointers) - 1
        for kind, nodes in product(range(kinds), (1, 2)):
            if chance.random() < 0.1 or (kind >= len(counts) and nodes > 1):
                continue
            depth = min(chance.choice([1, 1, 1, 2]), stop - start)
            stages = tuple(
                StagePrice(some() + 0.5, some() + 0.5, 0.0, some(4), some(2), 0.0, 0.0, 0.0, 1.0)
                for _ in range(depth)
            )
            hop, behind = some(1) if depth > 1 else 0.0, chance.choice([0, 1, 3, 3, 3])
            partial = PartialPlan(
                start, stop, f"g{kind}", nodes, Layout(dp=chance.choice([1, 2])), microbatch,
                (*range(start, start + depth), stop), stages, hop, behind, 1.0,
            )  # fmt: skip
            partials.append(partial)
            tails = [stage.gradient_sync_s + stage.optimizer_s for stage in stages]
            forward, backward = [stage.forward_s for stage in stages], [stage.backward_s for stage in stages]
            floats.append((partial.slowest_s, *passage(forward, backward, tails, hop)))
            ints.append((kind, nodes, depth, behind))
        pointers.append(len(partials))
    table = PartialPlanTable(
        microbatch, microbatches, of_slice, np.array(pointers), np.array(floats).reshape(-1, 4),
        np.array(ints, dtype=np.int64).reshape(-1, 4), partials, schedule != "1f1b", joint,
    )  # fmt: skip
    lag = np.array([[some(2) for _ in range(kinds)] for _ in range(kinds)])
    if chance.random() < 0.3:  # an order of kinds
        lag[np.tril_indices(kinds, -1)] = np.inf
    rate = np.array([[chance.choice([1.0, 2.0, 4.0]) for _ in range(kinds)] for _ in range(kinds)])
    nodes_rate = np.array([chance.choice([1.0, 2.0, 3.0]) for _ in range(kinds)])
    ways = LinkBounds(chance.choice([0.5, 1.0, 2.0]), lag, rate, nodes_rate, lag, rough=False)
    job = Job(microbatches, 16, "fp16", "adamw", schedule)
    problem = PipelineTable(table, counts, ways, model, job)
    problem.tied_bytes = chance.choice([1.0, 3.0]) if tied else 0.0  # as large as what else there is
    return Invented(problem, counts)


def options_of(facts: Any, label: int) -> tuple[int, ...]:
    """The options of a label, front to back."""
    found = []
    while facts[label, OPTION] >= 0:
        found.append(int(facts[label, OPTION]))
        label = facts[label, PARENT]
    return tuple(found)


def looked(problem: PipelineTable, look: Look) -> Labels:
    found = problem.below(look, Deadline())
    assert found is not None
    return found


def bounds_of(found: Labels) -> dict[tuple[int, ...], float]:
    """Bounds of complete pipelines by their options."""
    return {
        options_of(found.facts, item): bound
        for item, bound in zip(found.complete.tolist(), found.bounds.tolist(), strict=True)
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", SEEDS)
def test_labels_are_all_pipelines_below_a_limit_with_the_bounds_of_the_recursion(
    seed: int, schedule: str
) -> None:
    """However many turns the compiled loop takes; a limit at a bound leaves that one out."""
    item = invented(seed, schedule)
    every = {tuple(p[0] for p in pipe): recursion_s(item.problem, pipe) for pipe in item.pipelines()}
    assert len(every) > 3
    ordered = sorted(every.values())
    for limit_s in (float("inf"), ordered[len(ordered) // 2], ordered[0]):
        found = bounds_of(looked(item.problem, replace(EVERYTHING, limit_s=limit_s)))
        assert found == pytest.approx({k: v for k, v in every.items() if v < limit_s}, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_turns_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop leaves off and goes on anywhere, with labels kept for their width or dropped."""
    item = invented(seed, "1f1b")
    for look in (replace(EVERYTHING, dropping=True), replace(EVERYTHING, width=2), EVERYTHING):
        whole = looked(item.problem, look)
        with monkeypatch.context() as patch:
            patch.setattr(labels, "TURN", 30)
            parts = looked(item.problem, look)
        np.testing.assert_array_equal(parts.facts, whole.facts)
        np.testing.assert_array_equal(parts.bounds, whole.bounds)
        assert parts.dropped_s == whole.dropped_s


def played_s(one: Invented, pipeline: tuple[tuple[int, int, int], ...]) -> tuple[float, Any]:
    """(seconds of a step of single stages, without what ends of a tied matrix do; ends of the stages)."""
    problem, rows, hops = one.problem, [], []
    for place, (option, _, _) in enumerate(pipeline):
        partial = problem.table.partials[option]
        rows += [(s.forward_s, s.backward_s, s.gradient_sync_s, s.optimizer_s) for s in partial.stages]
        hops += [partial.hop_s] * (len(partial.stages) - 1)
        hop = 0.0
        if place + 1 < len(pipeline):
            a, b = (int(problem.ints[pipeline[at][0], 0]) for at in (place, place + 1))
            ends = [nic_of(one, pipeline[at][0]) for at in (place, place + 1)]
            lag, rate = problem.between[:, a, b]
            hop = lag + problem.ways.size / min(rate, *ends)
        hops.append(hop)
    ended, step_s = play(np.array(rows), np.array(hops), problem.table.microbatches, problem.lost == 2)
    return step_s, ended


def nic_of(one: Invented, option: int) -> float:
    """Bytes/s that leave a stage: its nodes', shared by its inner stages."""
    problem, partial = one.problem, one.problem.table.partials[option]
    kind = int(problem.ints[option, 0])
    return float(problem.ways.node_bytes_per_s[kind] * partial.nodes / len(partial.stages))


def tied_s(one: Invented, pipeline: tuple[tuple[int, int, int], ...], ended: Any) -> float:
    """When both ends of a tied matrix have reduced its gradients and stepped; 0 where one stage has both."""
    problem, partials = one.problem, one.problem.table.partials
    if not problem.tied_bytes or len(pipeline) == 1:
        return 0.0
    front, back = (partials[pipeline[at][0]] for at in (0, -1))
    lag, rate = problem.between[:, *(int(problem.ints[pipeline[at][0], 0]) for at in (0, -1))]
    nics = [nic_of(one, pipeline[at][0]) for at in (0, -1)]
    first, last = front.stages[0], back.stages[-1]
    begin = max(ended[0] + first.gradient_sync_s, ended[-1] + last.gradient_sync_s)
    most = max(front.end_copies, back.end_copies)
    sent = most * problem.tied_bytes / min(rate, *nics)
    return float(begin + 2 * lag + sent + max(first.optimizer_s, last.optimizer_s))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("seed", SEEDS)
def test_steps_and_bounds_of_pipelines_played_stage_by_stage(seed: int, schedule: str) -> None:
    """Where suffixes are played, the bound of single stages that tie nothing is their step; else below it."""
    item = invented(seed, schedule)
    every = {tuple(p[0] for p in pipe): pipe for pipe in item.pipelines()}
    found = looked(item.problem, replace(EVERYTHING, passes=1 << 40))
    steps = item.problem.played(found.facts, found.complete, Deadline())
    closer = bounds_of(found)
    assert closer.keys() == every.keys()
    for (options, bound), step_s in zip(closer.items(), steps.tolist(), strict=True):
        alone_s, ended = played_s(item, every[options])
        assert step_s == pytest.approx(max(alone_s, tied_s(item, every[options], ended)), rel=1e-12)
        if item.problem.tied_bytes or (item.problem.ints[list(options), 2] > 1).any():
            assert bound <= step_s * (1 + 1e-12)
        else:
            assert bound == pytest.approx(step_s, rel=1e-12)


def test_plays_that_time_does_not_suffice_for_are_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are played whatever the time; with time, turn by turn, all are as if played at once."""
    item = invented(0, "1f1b")
    found = looked(item.problem, EVERYTHING)
    whole = item.problem.played(found.facts, found.complete, Deadline())
    monkeypatch.setattr(labels, "PASSES_OF_TURN", 1)
    parts = item.problem.played(found.facts, found.complete, Deadline())
    assert parts.tolist() == whole.tolist()
    over = Deadline()
    over.interrupted = True
    late = item.problem.played(found.facts, found.complete, over)
    assert late[0] == whole[0] and np.isinf(late[1:]).all() and len(late) > 3


def by_state(problem: PipelineTable, look: Look) -> dict[tuple[int, int], dict[tuple[int, ...], Any]]:
    """Labels by (first atom, state) and their options: (L, A, E, stages behind, deepest, ends, rate, tie)."""
    taken: dict[str, Any] = {}
    real = exact_kernels.below

    def watched(*given: Any, **named: Any) -> None:
        taken.update(named, floats=given[2])
        real(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_kernels, "below", watched)
        looked(problem, look)
    floats, values, facts, first, last = map(taken.get, ("floats", "values", "facts", "first", "last"))
    found: dict[tuple[int, int], dict[tuple[int, ...], Any]] = defaultdict(dict)
    for start, state in product(range(first.shape[0] - 1), range(first.shape[1])):
        for label in range(first[start, state], last[start, state]):
            fact = facts[label]
            tie = floats[fact[BACK], TIED] if problem.tied_bytes else 0.0
            rate = floats[fact[OPTION], RATE]
            row = *values[label, :DEBT], fact[DEPTH], -fact[DEEPEST], fact[ENDS], -rate, -tie
            found[start, state][options_of(facts, label)] = row
    return found


def beats(one: Any, other: Any, *, proving: bool) -> bool:
    """No figure larger; the same ends, and where bounds are to hold the same depth."""
    return bool(
        all(a <= b for a, b in zip(one, other, strict=True))
        and one[5] == other[5]
        and (not proving or one[3] == other[3])
    )


@pytest.mark.parametrize("proving", [True, False])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_state_keeps_what_nothing_beats_and_only_that(schedule: str, proving: bool) -> None:
    """None that is kept beats another one; each that is not there is beaten by one that is.

    Where complete, all that came so far are told.
    """
    dropped = 0
    for seed in range(120):
        item = invented(seed, schedule)
        every = by_state(item.problem, EVERYTHING)
        kept = by_state(item.problem, replace(EVERYTHING, dropping=True, proving=proving))
        for place, rows in every.items():
            left = kept.get(place, {})
            assert left.keys() <= rows.keys()
            if place[0] == 0:
                continue
            for (name, row), (other, theirs) in product(left.items(), repeat=2):
                assert name == other or not beats(row, theirs, proving=proving), (seed, place, name, other)
            for name in rows.keys() - left.keys():
                dropped += 1
                better = (item for item in left.values() if beats(item, rows[name], proving=proving))
                assert next(better, None) is not None, (seed, place, name)
    assert dropped > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_still_to_come_is_the_least_of_all_ways(seed: int) -> None:
    """Of atoms in front and nodes left: latency, forward latency, own time, repeats, each by itself."""
    item = invented(seed, "1f1b")
    problem = item.problem
    looked(problem, EVERYTHING)
    _, least = problem._least
    takes = [*np.eye(len(item.counts), dtype=int), *problem.table.joint]
    strides = np.cumprod([1, *(count + 1 for count in item.counts)])[:-1]
    brute = np.full_like(least, np.inf)
    brute[0, :3], brute[0, 3] = 0.0, -np.inf

    def extend(stop: int, used: Any, figures: tuple[float, float, float, float]) -> None:
        """Stages from the front on: atoms before `stop` have one."""
        for rest in product(*(range(count - int(n) + 1) for count, n in zip(item.counts, used, strict=True))):
            at = int(np.array(rest) @ strides)
            brute[stop, :, at] = np.minimum(brute[stop, :, at], figures)
        for after in range(stop + 1, len(least)):
            group = problem.table.slice_class[stop, after]
            if group < 0:
                continue
            for option in range(problem.table.option_ptr[group], problem.table.option_ptr[group + 1]):
                kind, nodes, inner, most = problem.table.ints[option].tolist()
                taken = used + nodes * np.array(takes[kind])
                if (taken > item.counts).any():
                    continue
                latency, forward, own, repeats, loss = problem.floats[option, :5].tolist()
                ahead = min(problem.most_behind, most + inner - 1)
                extend(
                    after,
                    taken,
                    (
                        figures[0] + latency,
                        figures[1] + forward,
                        max(figures[2], own + figures[0]),
                        max(figures[3], repeats - ahead * loss),
                    ),
                )

    extend(0, np.zeros(len(item.counts), dtype=int), (0.0, 0.0, 0.0, -np.inf))
    np.testing.assert_allclose(least, brute, rtol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_a_state_that_is_narrowed_keeps_the_least_bounds(seed: int) -> None:
    """Just as many as asked for, of bounds that are partly equal; the least that went is known."""
    draws = np.random.default_rng(seed)
    begin, count = int(draws.integers(0, 4)), int(draws.integers(8, 30))
    width = int(draws.integers(1, count - begin - 1))
    bounds = draws.integers(1, 12, count) / 2.0
    values, facts = draws.uniform(0.0, 0.2, (count, 4)), np.arange(count * 8, dtype=np.int32).reshape(-1, 8)
    whole = [(bounds[k], *values[k], *facts[k]) for k in range(count)]
    edge = np.full(2, np.inf)
    end = narrowed(values, facts, bounds, begin, count, width, edge)
    assert end == begin + width
    rows = [(bounds[k], *values[k], *facts[k]) for k in range(end)]
    assert rows[:begin] == whole[:begin]
    kept, gone = rows[begin:], [row for row in whole[begin:] if row not in rows[begin:]]
    assert len(gone) == count - begin - width and all(row in whole for row in kept)
    assert max(row[0] for row in kept) <= min(row[0] for row in gone)
    assert edge[LEAST_DROPPED] == min(row[0] - row[1 + DEBT] for row in gone)
    assert edge[WORST_KEPT] == pytest.approx(max(row[0] for row in kept), rel=1e-9)

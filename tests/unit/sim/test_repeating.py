"""Chains that repeat: what is added for steady atoms is what playing them all comes to."""

import numpy as np
import pytest

from tangram_sim.opgraph import IntArray, OpGraph, column, op_graph
from tangram_sim.sim import kernels
from tangram_sim.sim.fast import MANY_PLAYS, latest_ends, repeating

STREAMS = 4


def chain(seed: int, atoms: int, cycle: int = 1) -> tuple[OpGraph, IntArray, IntArray, IntArray]:
    """Random atoms, alike every `cycle` of them, but the first and the last: graph, sources, groups, marks.

    Ops wait for earlier ones of their own atom and of the two before it, on a few streams.
    """
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 8))
    streams, groups = rng.integers(0, STREAMS, width), rng.integers(-1, 2, width)
    waits = [
        [(int(back), int(rng.integers(0, op if back == 0 else width))) for back in backs if back or op]
        for op, backs in enumerate(rng.integers(0, 3, (width, 2)).tolist())
    ]
    resource, source, group, pointers, preds, marks = [], [], [], [0], [], []
    for atom in range(atoms):
        odd = atom in (0, atoms - 1)
        for op in range(width - odd):
            resource.append(int(streams[op]))
            source.append(op + width * (cycle if odd else atom % cycle))
            group.append(int(groups[op]))
            for back, other in waits[op]:
                begin = marks[atom - back - 1] + 1 if atom > back else 0 if atom == back else -1
                if begin >= 0 and begin + other < len(resource) - 1:
                    preds.append(begin + other)
            pointers.append(len(preds))
        marks.append(len(resource) - 1)
    graph = op_graph(
        resource=resource,
        duration_s=np.zeros(len(resource)),
        pred_ptr=pointers,
        pred=preds,
        resources=[f"stream{number}" for number in range(STREAMS)],
    )
    return graph, column(source, np.int32), column(group, np.int32), column(marks, np.int32)


@pytest.mark.parametrize("cycle", [1, 3, 6])
@pytest.mark.parametrize("seed", range(40))
def test_steady_atoms_are_added_as_if_they_were_played(seed: int, cycle: int) -> None:
    """Also where one stream is a little slower than another, which shows only after many atoms."""
    graph, source, group, marks = chain(seed, 80, cycle)
    first, last, period = repeating(graph, source, group, marks).tolist()
    assert last - first > 60
    assert period == cycle
    durations = np.random.default_rng(seed).uniform(0.5, 1.5, (20, int(source.max()) + 1))
    durations[:5] = np.round(durations[:5])
    durations[5:10] = 1.0 + 0.01 * durations[5:10]
    asked = graph, source, durations.T, group, 2, marks
    played, added = latest_ends(*asked), latest_ends(*asked, repeating(graph, source, group, marks))
    np.testing.assert_allclose(added, played, rtol=1e-12, atol=0.0)


def played(seed: int, atoms: int, cycle: int) -> tuple[int, int]:
    """How many ops of a chain get an end, and how many there are: what is added for is passed over.

    Every latest end is filled all the same, with what playing all of the chain comes to.
    """
    graph, source, group, marks = chain(seed, atoms, cycle)
    durations = np.random.default_rng(seed).uniform(0.5, 1.5, int(source.max()) + 1)
    plays = np.repeat(durations[:, None], kernels.LANES, axis=1)
    end = np.full((len(graph), kernels.LANES), -1.0)  # of ops that nobody has played: no time at all
    latest = np.full((2, len(marks), kernels.LANES), np.nan)
    waits = graph.pred_ptr, graph.pred, graph.resource_previous
    repeats = repeating(graph, source, group, marks)
    scratch = np.empty((kernels.LANES, 2)), np.empty((2, kernels.LANES), np.int64)
    kernels.latest_ends(
        *waits, source, column(plays, np.float64), group, marks, repeats, *scratch, end, latest
    )
    whole = latest_ends(graph, source, column(plays, np.float64), group, 2, marks)
    np.testing.assert_allclose(latest, whole, rtol=1e-12, atol=0.0)
    return int((end[:, 0] >= 0).sum()), len(graph)


@pytest.mark.parametrize("cycle", [1, 3, 6])
def test_what_is_played_does_not_grow_with_the_chain(cycle: int) -> None:
    """Once a chain is steady its length costs nothing but what a whole number of periods leaves over."""
    for seed in range(12):
        (some, short), (more, long) = played(seed, 160, cycle), played(seed, 320, cycle)
        period = (long - short) // 160 * cycle
        assert abs(more - some) < period
        assert some <= 12 * period
        assert long > 1.9 * short


def test_only_equal_atoms_repeat() -> None:
    """A chain of atoms that all differ, and one that is short, are played to their end."""
    graph, _, group, marks = chain(3, 60)
    assert repeating(graph, column(np.arange(len(graph)), np.int32), group, marks).tolist() == [0, 0, 0]
    short = chain(3, 8)
    assert repeating(*short).tolist() == [0, 0, 0]


@pytest.mark.parametrize("odd", [20, 45, 60])
def test_of_two_runs_of_equal_atoms_the_longer_one_repeats(odd: int) -> None:
    """One atom among eighty is another one: all of the longer side of it is alike, and nothing beyond."""
    graph, source, group, marks = chain(4, 80)
    other = source.copy()
    other[marks[odd - 1] + 1 : marks[odd] + 1] = source.max() + 1
    first, last, period = repeating(graph, other, group, marks).tolist()
    assert period == 1
    assert last == (odd - 1 if odd > 40 else 78)
    assert first >= (0 if odd > 40 else odd) and last - first > 30


@pytest.mark.parametrize("kinds", [1, 9, 100, MANY_PLAYS])
def test_equal_rows_end_as_each_would_alone(kinds: int) -> None:
    """Many layouts of few durations, in any order, beside ones that differ in the last digit only."""
    graph, source, group, marks = chain(5, 12)
    rng = np.random.default_rng(kinds)
    different = rng.uniform(0.5, 1.5, (kinds, int(source.max()) + 1))
    different[-1] = np.nextafter(different[0], 2.0)
    durations = different[rng.permutation(np.arange(2 * MANY_PLAYS) % kinds)]
    alone = [latest_ends(graph, source, row[:, None], group, 2, marks)[..., 0] for row in durations]
    known = set(kernels.latest_ends.signatures)
    together = latest_ends(graph, source, durations.T, group, 2, marks)
    np.testing.assert_array_equal(np.moveaxis(together, -1, 0), alone)
    assert set(kernels.latest_ends.signatures) == known  # no other kind of array, compiled and loaded again


def test_rows_of_one_sum_that_differ_are_played_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are told apart by a weighted sum: with weights of nothing all sums are one, rows are not."""
    graph, source, group, marks = chain(5, 12)
    durations = np.random.default_rng(1).uniform(0.5, 1.5, (int(source.max()) + 1, 2 * MANY_PLAYS))
    expected = latest_ends(graph, source, durations, group, 2, marks)
    monkeypatch.setattr(np, "sin", np.zeros_like)
    np.testing.assert_array_equal(latest_ends(graph, source, durations, group, 2, marks), expected)


@pytest.mark.parametrize("cycle", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_a_play_ends_alike_whatever_is_played_beside_it(seed: int, cycle: int) -> None:
    """To the last digit, also where some become steady sooner than others: plans of one time are told apart
    by it, and what is asked together differs from search to search.
    """
    graph, source, group, marks = chain(seed, 80, cycle)
    repeats = repeating(graph, source, group, marks)
    durations = np.random.default_rng(seed).uniform(0.5, 1.5, (kernels.LANES + 1, int(source.max()) + 1))
    durations[::2] = 1.0 + 0.01 * durations[::2]
    asked = group, 2, marks, repeats
    alone = [latest_ends(graph, source, row[:, None], *asked)[..., 0] for row in durations]
    together = latest_ends(graph, source, durations.T, *asked)
    np.testing.assert_array_equal(np.moveaxis(together, -1, 0), alone)
    assert (
        len(kernels.steady.signatures) <= 1
    )  # one kind of arguments; 0 where it came from disk inside its caller

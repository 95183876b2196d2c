"""Islands: the three constraints on random clusters, names, worst-member figures, reasons, tolerances."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.placement.cutting import NodeMetrics, Tolerances, cut, obstacle

TOLERANCES = Tolerances()


def metrics(compute, memory=None, intra=None, gpus=None) -> NodeMetrics:
    n = len(compute)
    return NodeMetrics(
        np.array([[value] for value in (gpus or [4] * n)], dtype=np.int64),
        np.array(compute, dtype=np.float64),
        np.array(memory or [80.0] * n, dtype=np.float64),
        np.array([[value] for value in (intra or [100.0] * n)], dtype=np.float64),
    )


def uniform(n: int, rate: float = 10.0) -> np.ndarray:
    return np.full((n, n), rate)


def breaks(m: NodeMetrics, e: np.ndarray, t: Tolerances, nodes: list[int]) -> bool:
    if len({tuple(m.shape[node]) for node in nodes}) > 1:
        return True
    columns = ((m.compute, t.compute), (m.memory, t.memory), *((link, t.intra) for link in m.intra.T))
    for column, allowed in columns:
        for a, b in itertools.combinations(nodes, 2):
            high, low = max(column[a], column[b]), min(column[a], column[b])
            if high > low * (1 + allowed) * (1 + 1e-9):
                return True
    outside = [node for node in range(len(e)) if node not in nodes]
    return any(e[a, b] < e[a, c] for a in nodes for b in nodes if a != b for c in outside)


@st.composite
def problems(draw, tied: bool | None = None) -> tuple[NodeMetrics, np.ndarray]:
    n = draw(st.integers(1, 7))
    tied = draw(st.booleans()) if tied is None else tied
    pairs = n * (n - 1) // 2
    if tied:
        rates = draw(st.lists(st.integers(1, 3), min_size=pairs, max_size=pairs))
    else:
        rates = draw(st.permutations(range(1, pairs + 1)))
    e = np.zeros((n, n))
    e[np.triu_indices(n, 1)] = rates
    e += e.T

    def column(*values: float) -> list[float]:
        return draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    m = metrics(
        column(100.0, 100.0, 96.0, 92.0, 90.0, 45.0, 0.0),
        column(80.0, 80.0, 80.0, 78.0, 40.0),
        column(100.0, 100.0, 100.0, 93.0, 20.0),
        column(4, 4, 4, 8),
    )
    return m, e


@settings(max_examples=300, deadline=None)
@given(problems())
def test_every_island_meets_the_three_constraints_and_no_two_could_be_one(problem):
    m, e = problem
    islands = cut(m, e, TOLERANCES)
    assert sorted(node for island in islands for node in island) == list(range(len(e)))
    for island in islands:
        assert not breaks(m, e, TOLERANCES, island)
    for item, other in itertools.combinations(islands, 2):
        assert breaks(m, e, TOLERANCES, item + other)


@settings(max_examples=200, deadline=None)
@given(problems(), st.data())
def test_the_obstacle_is_there_exactly_when_a_constraint_is_broken(problem, data):
    m, e = problem
    nodes = data.draw(st.lists(st.integers(0, len(e) - 1), min_size=1, unique=True))
    found = obstacle(m, e, TOLERANCES, nodes)
    assert (found is not None) == breaks(m, e, TOLERANCES, nodes)
    if found is not None:
        assert found.high > found.low


def partitions(nodes: list[int]) -> Iterator[list[list[int]]]:
    if not nodes:
        yield []
        return
    for rest in partitions(nodes[1:]):
        yield [[nodes[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [nodes[0], *rest[index]], *rest[index + 1 :]]


@settings(max_examples=60, deadline=None)
@given(problems(tied=False))
def test_without_ties_no_partition_has_fewer_islands(problem):
    m, e = problem
    if len(e) > 6:
        return
    broken: dict[tuple[int, ...], bool] = {}

    def legal(nodes: list[int]) -> bool:
        key = tuple(sorted(nodes))
        if key not in broken:
            broken[key] = breaks(m, e, TOLERANCES, list(key))
        return not broken[key]

    fewest = min(len(p) for p in partitions(list(range(len(e)))) if all(legal(island) for island in p))
    assert len(cut(m, e, TOLERANCES)) == fewest


@settings(max_examples=100, deadline=None)
@given(problems(tied=False), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(problem, random):
    m, e = problem
    order = list(range(len(e)))
    random.shuffle(order)
    shuffled = NodeMetrics(m.shape[order], m.compute[order], m.memory[order], m.intra[order])
    back = [
        sorted(order[node] for node in island)
        for island in cut(shuffled, e[np.ix_(order, order)], TOLERANCES)
    ]
    assert sorted(back) == cut(m, e, TOLERANCES)


def test_the_tolerance_bounds_the_spread_of_the_whole_island_and_not_of_neighbours():
    """100, 92, 85 differ by less than 10 % from one to the next and by 18 % in all."""
    islands = cut(metrics([100.0, 92.0, 85.0]), uniform(3), TOLERANCES)
    assert islands == [[0, 1], [2]]


@pytest.mark.parametrize("column", ["compute", "memory", "intra"])
def test_a_spread_of_exactly_the_tolerance_is_allowed(column):
    allowed = getattr(TOLERANCES, column)
    figures = {"compute": [100.0] * 2, column: [100.0, 100.0 * (1 + allowed)]}
    assert cut(metrics(**figures), uniform(2), TOLERANCES) == [[0, 1]]
    figures[column][1] *= 1.001
    assert cut(metrics(**figures), uniform(2), TOLERANCES) == [[0], [1]]


def test_different_numbers_of_gpus_never_share_an_island():
    assert cut(metrics([100.0] * 3, gpus=[4, 8, 4]), uniform(3), TOLERANCES) == [[0, 2], [1]]


def test_equal_nodes_on_two_switches_are_two_islands_when_a_third_party_sits_on_one_of_them():
    """0, 1 and 2, 3 are equal; 4 is another kind behind the first switch, nearer to 0 than 2 is."""
    e = uniform(5, 1.0)
    for nodes in ((0, 1, 4), (2, 3)):
        e[np.ix_(nodes, nodes)] = 10.0
    assert cut(metrics([100.0] * 4 + [50.0]), e, TOLERANCES) == [[0, 1], [2, 3], [4]]
    # without the third party all four are one island: no link that leaves it is faster than its slowest
    assert cut(metrics([100.0] * 4), e[:4, :4], TOLERANCES) == [[0, 1, 2, 3]]


def test_equal_nodes_whose_faster_links_leave_to_another_kind_stay_single():
    e = np.array([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 9], [9, 9, 9, 0]], dtype=float)
    assert cut(metrics([100.0, 100.0, 50.0, 50.0]), e, TOLERANCES) == [[0], [1], [2, 3]]


def test_an_island_is_found_that_cannot_be_grown_node_by_node():
    """{0,1,2} is illegal (1 is nearer to 3), {0,1,3} too (0 is nearer to 2); all four are legal."""
    e = uniform(5, 0.5)
    e[:4, :4] = [[0, 9, 5, 1], [9, 0, 1, 5], [5, 1, 0, 1], [1, 5, 1, 0]]
    m = metrics([100.0] * 4 + [50.0])
    for grown in ([0, 1, 2], [0, 1, 3]):
        assert obstacle(m, e, TOLERANCES, grown).constraint == "network"
    assert cut(m, e, TOLERANCES) == [[0, 1, 2, 3], [4]]


def test_a_single_node_is_an_island():
    assert cut(metrics([0.0]), uniform(1), TOLERANCES) == [[0]]

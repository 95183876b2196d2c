"""Regrouped ranks against every other grouping, and what meets where."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.stragglers.regrouping import regroup, regrouped_paces


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1, 4), min_size=6, max_size=6), st.sampled_from([1, 2, 3]))
def test_no_grouping_has_a_faster_kth_slowest_group(slowness: list[float], size: int) -> None:
    def paces(order: tuple[int, ...]) -> list[float]:
        groups = [order[at : at + size] for at in range(0, 6, size)]
        return sorted((max(slowness[rank] for rank in group) for group in groups), reverse=True)

    groups = regroup(slowness, size)
    assert sorted(rank for group in groups for rank in group) == list(range(6))
    found = [max(slowness[rank] for rank in group) for group in groups]
    assert found == sorted(found, reverse=True)
    for order in permutations(range(6)):
        assert all(a <= b for a, b in zip(found, paces(order), strict=True))


def test_slow_ranks_of_four_workers_fill_one_and_meet_in_the_first_replica() -> None:
    slow = np.ones((2, 4))
    slow[0, 1], slow[1, 0], slow[1, 2], slow[1, 3] = 1.5, 2.0, 1.2, 1.1
    found = regrouped_paces(slow, 4)
    assert found.tolist() == [[2.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    # Two workers a node, (stage; replicas 0 and 1): ranks stay in their node.
    near = regrouped_paces(slow, 2, workers_per_node=2)
    assert near.tolist() == [[2.0, 1.5, 1.2, 1.1], [1.0, 1.0, 1.0, 1.0]]


def test_nothing_slow_stays_as_it_is_and_uneven_groups_are_refused() -> None:
    assert (regrouped_paces(np.ones((2, 2)), 4) == 1).all()
    with pytest.raises(BadInputError, match="groups of 4"):
        regroup([1.0] * 6, 4)

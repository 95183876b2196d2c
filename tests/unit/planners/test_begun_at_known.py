"""A search that begins at a known plan ends as soon as one that found it; rows that others beat."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import EFFORTS
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.fleets.fleet_bound_kernels import unbeaten
from tangram_sim.training.job import Job

HWDB = Hwdb.load()


def pieces() -> Cluster:
    """Three nodes of one kind, two of another."""
    fast, slow = (load_cluster(name).groups[0] for name in ("azure-c1", "azure-c2"))
    node_group, other = (replace(group, name=name) for group, name in ((fast, "a"), (slow, "b")))
    groups: tuple[NodeGroup, ...] = (replace(node_group, count=3), replace(other, count=2))
    return Cluster("pieces", groups)


def test_a_search_that_begins_at_its_own_answer_asks_no_more() -> None:
    """A batch of 24 divisors: where nothing better is found, not all of them are looked at."""
    model, cluster, job = load_model("gpt3-1.3b"), pieces(), Job(360, 2048, dtype="bf16")
    wishes = SearchOptions(effort="quick", spanning=False, replicate=False)
    first = tangram(model, cluster, job, HWDB, wishes)
    again = tangram(model, cluster, job, HWDB, wishes, known=[first.ranked[0].plan])
    assert again.ranked[0].step_s <= first.ranked[0].step_s * (1 + 1e-9)
    assert again.counts.asked <= first.counts.asked


@pytest.mark.parametrize("effort", list(EFFORTS))
def test_some_islands_apart_are_as_wide_as_the_effort_and_prove_nothing(effort: str) -> None:
    apart = EFFORTS[effort].apart
    assert not apart.bounding
    assert (apart.layouts, apart.widths) == (EFFORTS[effort].layouts, EFFORTS[effort].widths)


@given(arrays(np.float64, st.tuples(st.integers(1, 40), st.just(3)), elements=st.integers(0, 4)), st.data())
def test_rows_are_kept_as_brute_force_keeps_them(costs: np.ndarray, data: st.DataObject) -> None:
    """Of equal rows the last stays; of two classes neither beats rows of the other."""
    cut = data.draw(st.integers(0, len(costs)))
    expected = []
    for mine, row in enumerate(costs):
        others = range(cut) if mine < cut else range(cut, len(costs))
        expected.append(
            not any(
                other != mine and (costs[other] <= row).all() and ((costs[other] < row).any() or other > mine)
                for other in others
            )
        )
    pointers = np.array([0, cut, len(costs)], dtype=np.int64)
    assert unbeaten(pointers, np.ascontiguousarray(costs)).tolist() == expected

"""What searches keep for one another: partial plans and prices are asked for once, and no plan changes."""

from collections.abc import Sequence
from typing import Any

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.placement.slowing import with_slowdowns
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.search_memory import SearchMemory
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.studies.slow_files import read_slow
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
MODEL, JOB = load_model("gpt3-1.3b"), Job(16, 1024, dtype="bf16")
BEFORE = load_cluster("H100x4:2+A100-80GBx4:2", HWDB)


def _slowed(cluster: Cluster) -> Cluster:
    return with_slowdowns(cluster, read_slow("n1=1.4", cluster).slowdowns)


CHANGES = {
    "a node is lost": load_cluster("H100x4:1+A100-80GBx4:2", HWDB),
    "a node comes": load_cluster("H100x4:2+A100-80GBx4:3", HWDB),
    "a kind goes": load_cluster("H100x4:2", HWDB),
    "a node slows down": _slowed(BEFORE),
}


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slices the parallelizer had to price, one entry for every call."""
    counts: list[int] = []
    real = Grid._kept

    def counted(grid: Grid, request: Any, menu: Any, slices: Sequence[Any]) -> Any:
        counts.append(len(slices))
        return real(grid, request, menu, slices)

    monkeypatch.setattr(Grid, "_kept", counted)
    return counts


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_fleet_is_planned_as_from_nothing_and_asks_less(change: str, priced: list[int]) -> None:
    """The same plans, seconds, bound and counts; of slices on parts of islands only new ones are priced."""
    options = SearchOptions()

    def planned(cluster: Cluster) -> Any:
        priced.clear()
        return tangram(MODEL, cluster, JOB, HWDB, options)

    alone, asked_alone = planned(CHANGES[change]), sum(priced)
    memory = SearchMemory()
    with memory.in_use():
        planned(BEFORE)
        kept, asked = planned(CHANGES[change]), sum(priced)
        again, asked_again = planned(CHANGES[change]), sum(priced)
    for found in (kept, again):
        assert [scored.plan for scored in found.ranked] == [scored.plan for scored in alone.ranked]
        assert [scored.step_s for scored in found.ranked] == [scored.step_s for scored in alone.ranked]
        assert (found.lower_bound_step_s, found.counts) == (alone.lower_bound_step_s, alone.counts)
    assert asked < asked_alone
    assert asked_again == 0


def test_a_memory_is_in_use_until_its_end(priced: list[int]) -> None:
    """A search after it asks everything anew; so does one with another model."""
    memory = SearchMemory()
    with memory.in_use():
        tangram(MODEL, CHANGES["a kind goes"], JOB, HWDB)
    first = sum(priced)
    priced.clear()
    tangram(MODEL, CHANGES["a kind goes"], JOB, HWDB)
    assert sum(priced) == first > 0
    priced.clear()
    with memory.in_use():
        tangram(load_model("gpt3-2.7b"), CHANGES["a kind goes"], JOB, HWDB)
    assert sum(priced) > 0

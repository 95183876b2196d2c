"""Groups of ranks on a made-up fabric: who is beside whom, and what each pair of figures comes from.

Three boxes of four GPUs that all differ. A group alone sends 100 bytes/s inside a box, half of that with one
group beside it; between boxes it sends ten times less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from tangram_sim.clusters import PathRates
from tangram_sim.cost.paths import IslandPaths, path_finder, ring_finder
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import load_cluster
from tangram_sim.topology.groups import GroupPaths
from tests.neutral import neutral_hwdb

BOX = 4


@dataclass(frozen=True)
class Rate:
    """Bytes/s, as a path's rate has them."""

    bytes_per_s: float


@dataclass(frozen=True)
class Boxes:
    """What is asked of a topology."""

    boxes: tuple[int, ...] = (10, 11, 12)
    attached: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,))
    first_rank: tuple[int, ...] = (0, 4, 8, 12)

    def box_of(self, rank: int) -> int:
        return rank // BOX

    def split(self, ranks: Sequence[int]) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for rank in ranks:
            found[rank // BOX] = (*found.get(rank // BOX, ()), rank % BOX)
        return found


@dataclass
class Finder:
    """Answers by a rule, and keeps what it was asked."""

    broken: bool = False
    topology: Boxes = Boxes()  # frozen
    asked: dict[tuple[int, ...], set[tuple[int, ...]]] = field(default_factory=dict)

    def group(self, ranks: Sequence[int], beside: Sequence[Sequence[int]] = ()) -> GroupPaths:
        self.asked[tuple(ranks)] = {tuple(item) for item in beside}
        if self.broken:
            raise InfeasibleError("no path")
        split = self.topology.split(ranks)
        inside = Rate(100 / (1 + len(beside)))
        across = Rate(10 / (1 + len(beside)) if len(split) > 1 else inf)
        # The second box exchanges at half of the pace of the others.
        exchange = Rate(40.0 if 1 in split else 80.0)
        fewest = min(len(places) for places in split.values())
        hops = (0.5, 2.0 * (len(split) > 1))
        rates: tuple[Any, ...] = (inside, inside, across, inside, exchange)
        return GroupPaths(len(ranks), len(split), fewest, *rates, *hops)


def island(*nodes: tuple[int, ...], finder: Finder | None = None) -> IslandPaths:
    return IslandPaths.of(finder or Finder(), nodes)  # type: ignore[arg-type]


def test_parts_of_an_island_are_aligned_blocks_and_the_last_ones() -> None:
    """Two of three nodes: the first two and the last two; of each the first and the second pair."""
    whole = island((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    assert whole.part(2, 2).alternatives == (
        ((0, 1), (4, 5)), ((2, 3), (6, 7)), ((4, 5), (8, 9)), ((6, 7), (10, 11))
    )  # fmt: skip
    assert whole.part(3, 3).alternatives == (((0, 1, 2), (4, 5, 6), (8, 9, 10)),)
    assert len(whole.part(1, 4).alternatives) == 3


def test_one_rank_alone_is_limited_by_nothing() -> None:
    assert island((0, 1)).rates(1, 1) == PathRates(1, inf, inf, inf, inf, 0.0, 0.0)


def test_what_no_path_joins_crawls() -> None:
    assert island((0, 1), finder=Finder(broken=True)).rates(2, 1) == PathRates(1, 0, 0, 0, 0, 0, 0)


def test_inside_a_box_groups_share_it_and_nothing_leaves() -> None:
    """Two pairs of one box: 50 bytes/s each; a member sends the other half of 80."""
    finder = Finder()
    assert island((0, 1, 2, 3), finder=finder).rates(2, 1) == PathRates(2, 50, 40, inf, inf, 0.5, 0.0)
    assert finder.asked[0, 1] == {(2, 3)} and finder.asked[2, 3] == {(0, 1)}
    # The other half of its box belongs to others: a pair that stays inside is not slowed by them.
    alone = Finder()
    assert island((0, 1), finder=alone).rates(2, 1).ring_bytes_per_s == 100
    assert alone.asked == {(0, 1): set()}


def test_groups_of_other_boxes_are_not_beside_one_that_stays_in_its_own() -> None:
    finder = Finder()
    island((0, 1, 2, 3), (4, 5, 6, 7), finder=finder).rates(4, 1)
    assert finder.asked[0, 1, 2, 3] == set() and finder.asked[4, 5, 6, 7] == set()


def test_across_boxes_others_on_the_fabric_and_the_rest_of_the_boxes_are_beside() -> None:
    """Pairs a node apart: (0, 4) beside (1, 5), and the GPUs 2, 3, 6, 7 that are somebody else's."""
    finder = Finder()
    found = island((0, 1), (4, 5), finder=finder).rates(2, 2)
    assert finder.asked[0, 4] == {(1, 5), (2, 3, 6, 7)}
    # A third of 100 and of 10 bytes/s; no box holds two; a member sends half of 40 out.
    assert found == PathRates(1, 100 / 3, inf, 10 / 3, 20, 0.5, 2.0)


def test_a_group_of_two_boxes_exchanges_as_fast_as_the_slower_box_lets_it() -> None:
    """Two members in each of boxes 0 and 1: halves of 80 and of 40; out of a box, half of 40."""
    finder = Finder()
    found = island((0, 1), (4, 5), finder=finder).rates(4, 1)
    assert (found.exchange_bytes_per_s, found.leaving_bytes_per_s, found.inside) == (20, 20, 2)
    assert finder.asked[0, 1] == {(2, 3)}  # the rest of its box


def test_a_box_with_one_member_exchanges_nothing_inside() -> None:
    finder = Finder()
    found = island((0, 1), (4,), finder=finder).rates(3, 1)
    assert found.exchange_bytes_per_s == 40 and (4,) not in finder.asked


@pytest.mark.parametrize("finder_of", [path_finder, ring_finder])
def test_figures_of_host_bridges_are_taken_as_measured(finder_of: object) -> None:
    hwdb = neutral_hwdb()
    reach = finder_of(load_cluster("azure-c1", hwdb), hwdb).reach  # type: ignore[operator]
    assert reach.peer("any", "host") == 1.0

"""From a composed pipeline to ranks and hops: nodes in order, layouts by stage, what lies between islands."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.hwdb import load_cluster
from tangram_sim.layouts import Layout
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.finalists import seats_of
from tangram_sim.planners.tangram.composition.search import hop_seconds
from tangram_sim.topology.full import full_wiring
from tangram_sim.training.plan import LayoutRun, PartialPlan, Portion, StagePrice
from tests.neutral import neutral_hwdb

HWDB = neutral_hwdb()
PLAIN, WIDE, DEEP = Layout(dp=8), Layout(tp=8), Layout(dp=4, pp=2)
SHARDED = replace(DEEP, zero_stage=1)
NOTHING = StagePrice(*[0.0] * 9)


def partial(nodes: int, layout: Layout, cuts: tuple[int, ...], *runs: LayoutRun) -> PartialPlan:
    stages = (NOTHING,) * (len(cuts) - 1)
    return PartialPlan(cuts[0], cuts[-1], "any", nodes, layout, 1, cuts, stages, 0.0, 9, 0.0, runs=runs)


def test_places_take_their_islands_nodes_in_order_and_inner_stages_their_ranks() -> None:
    """Four nodes of 8 A100 (ranks 0 to 31), then four of 8 H100; one H100 node holds two stages."""
    cluster = load_cluster("dgx-a100-h100", HWDB)
    islands = find_islands(cluster, "bf16", hwdb=HWDB)
    places = (
        Placed(1, 0, 4, partial(1, PLAIN, (0, 4))),
        Placed(0, 4, 10, partial(2, WIDE, (4, 10))),
        Placed(1, 10, 16, partial(1, DEEP, (20, 23, 26))),  # priced for the slice from 20 on
    )
    seats = seats_of(Composed(1.0, places, 1, 4), islands, Placement(cluster, HWDB))
    assert [(seat.island, seat.ranks[0], seat.ranks[-1] + 1, seat.start, seat.stop) for seat in seats] == [
        ("g1", 32, 40, 0, 4),
        ("g0", 0, 16, 4, 10),
        ("g1", 40, 44, 10, 13),
        ("g1", 44, 48, 13, 16),
    ]
    assert [seat.layout for seat in seats] == [PLAIN, WIDE, Layout(dp=4), Layout(dp=4)]
    assert all(seat.runs == () for seat in seats)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([LayoutRun(20, 26, DEEP)], [(DEEP, ()), (DEEP, ())]),
        ([LayoutRun(20, 22, DEEP), LayoutRun(22, 26, DEEP)], [(DEEP, ()), (DEEP, ())]),
        (
            [LayoutRun(20, 22, SHARDED), LayoutRun(22, 26, DEEP)],
            [(SHARDED, ((10, 12, SHARDED), (12, 16, DEEP))), (DEEP, ())],
        ),
        (
            [LayoutRun(20, 23, DEEP), LayoutRun(23, 26, SHARDED)],
            [(DEEP, ()), (SHARDED, ())],
        ),
    ],
)
def test_a_stage_has_runs_only_where_its_layouts_differ(
    runs: list[LayoutRun], expected: list[tuple[Layout, tuple[tuple[int, int, Layout], ...]]]
) -> None:
    """Runs are moved with the slice (by 10 atoms here); a run that ends where a stage begins is not its."""
    cluster = load_cluster("dgx-a100-h100", HWDB)
    islands = find_islands(cluster, "bf16", hwdb=HWDB)
    composed = Composed(1.0, (Placed(0, 10, 16, partial(1, DEEP, (20, 23, 26), *runs)),), 1, 4)
    found = seats_of(composed, islands, Placement(cluster, HWDB))
    assert [
        (stage_assignment.layout, tuple((run.start, run.stop, run.layout) for run in stage_assignment.runs))
        for stage_assignment in found
    ] == [
        (replace(layout, pp=1), tuple((start, stop, replace(at, pp=1)) for start, stop, at in parts))
        for layout, parts in expected
    ]


@pytest.mark.parametrize("name", ["dgx-a100-h100", "h100x8-nodes4", "azure-c3-t4x4-a100x4-v100x8"])
def test_hops_over_a_stated_graph_are_those_over_the_derived_one(name: str) -> None:
    """But from an island of one node to itself, where nothing is sent."""
    derived = load_cluster(name, HWDB)
    stated = replace(derived, wiring=full_wiring(derived))
    found, expected = (
        hop_seconds(find_islands(cluster, "fp16", hwdb=HWDB), cluster, HWDB, 1e6, ())
        for cluster in (stated, derived)
    )
    alone = [island.nodes == 1 for island in find_islands(derived, "fp16", hwdb=HWDB)]
    assert (found[np.diag(alone)] == 0.0).all()
    assert found[~np.diag(alone)] == pytest.approx(expected[~np.diag(alone)], rel=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "dgx-a100-h100",
        "h100x8-nodes4",
        "azure-c3-t4x4-a100x4-v100x8",
        "ND128isr_GB200_v6:3+A100-PCIe-80GBx4:2",
    ],
)
def test_a_hop_takes_what_the_road_between_two_nodes_does_for_more_bytes(name: str) -> None:
    """Seconds a byte: of neighbours in a rack over its links, of others over NICs and what groups allow."""
    cluster = load_cluster(name, HWDB)
    islands, placement = find_islands(cluster, "fp16", hwdb=HWDB), Placement(cluster, HWDB)
    some, more = (hop_seconds(islands, cluster, HWDB, size, ()) for size in (1e9, 3e9))
    first = placement.first_rank
    for a, source in enumerate(islands):
        for b, target in enumerate(islands):
            ends = source.node_indices[0], target.node_indices[-1]
            if ends[0] == ends[1]:
                continue
            near, far = (tuple(range(first[node], first[node + 1])) for node in ends)
            rate, _ = placement.road(near, far)
            assert more[a, b] - some[a, b] == pytest.approx(2e9 / rate, rel=1e-9), (a, b)


@pytest.mark.parametrize("sequences", [(3, 5), (0, 0)])
def test_a_joint_stage_takes_the_next_nodes_of_each_island(sequences: tuple[int, int]) -> None:
    """As parts beside each other where each has its sequences, else as ranks of one stage."""
    cluster = load_cluster("dgx-a100-h100", HWDB)
    islands = find_islands(cluster, "bf16", hwdb=HWDB)
    runs = (LayoutRun(20, 26, SHARDED),)
    portions = Portion("g1", 1, sequences[0], WIDE), Portion("g0", 2, sequences[1], PLAIN, runs)
    together = replace(partial(1, WIDE, (20, 26)), portions=portions)
    places = Placed(0, 0, 10, partial(1, PLAIN, (0, 10))), Placed(2, 10, 16, together)
    _, joint = seats_of(Composed(1.0, places, 1, 4), islands, Placement(cluster, HWDB))
    own, others = tuple(range(32, 40)), tuple(range(8, 24))
    if any(sequences):
        (other,) = joint.beside
        assert (joint.island, joint.ranks, joint.layout, joint.sequences) == ("g1", own, WIDE, 3)
        assert (other.island, other.ranks, other.layout, other.sequences) == ("g0", others, PLAIN, 5)
        assert other.runs == (LayoutRun(10, 16, SHARDED),)
    else:
        assert (joint.island, joint.ranks, joint.layout) == ("g1+g0", (*others, *own), WIDE)
        assert joint.beside == ()
    assert (joint.start, joint.stop) == (10, 16)

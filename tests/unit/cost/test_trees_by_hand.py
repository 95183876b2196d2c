"""Plans on a small tree, every figure counted by hand.

A core over two switches: `near` with 2 leaves of 1 s a byte under a link of 5, `far` with 3 leaves of 2 s a
byte under a link of 7. The buffer is 10 bytes.
"""

from dataclasses import replace

import pytest

from tangram_sim.cost.genmodel import GenModelParameters
from tangram_sim.cost.gentree import fixed_plan, gentree
from tangram_sim.cost.switchtree import Tree, tree_of
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import cluster_from_dict
from tests.neutral import neutral_hwdb

NEAR = Tree("near", GenModelParameters(1, 1, 0.5, 0.25, 2, 3), leaves=2, up_s_per_byte=5)
FAR = Tree("far", GenModelParameters(2, 2, 0.25, 0.5, 1, 4), leaves=3, up_s_per_byte=7)
CORE = Tree("core", GenModelParameters(3, 0, 0.125, 0.125, 0.5, 5), children=(NEAR, FAR))


def test_what_is_read_off_the_tree() -> None:
    """Sizes, levels, slowest links, links as ranges of leaves, and the worst parameters anywhere."""
    assert (CORE.size, CORE.depth, NEAR.depth) == (5, 2, 1)
    assert (CORE.widest_leaf_s_per_byte, CORE.slowest_link_s_per_byte, FAR.slowest_link_s_per_byte) == (
        2,
        7,
        2,
    )
    assert list(CORE.uplinks()) == [(0, 2, 5), (2, 5, 7)]
    above = Tree("above", CORE.at, children=(FAR, replace(CORE, up_s_per_byte=9)))
    assert list(above.uplinks(1)) == [(1, 4, 7), (4, 9, 9), (4, 6, 5), (6, 9, 7)]
    assert (above.size, above.depth) == (8, 3)
    assert CORE.worst == GenModelParameters(3, 2, 0.5, 0.5, 2, 3)
    slow = CORE.with_parameters(alpha_s=4.0)
    assert [tree.at.alpha_s for tree in (slow, *slow.children)] == [4, 4, 4]
    assert slow.children[1].at.beta_s_per_byte == 2 and slow.size == 5


@pytest.mark.parametrize("given", [{}, {"children": (NEAR,), "leaves": 2}, {"leaves": -1}])
def test_a_switch_is_over_children_or_over_leaves(given: dict[str, object]) -> None:
    with pytest.raises(BadInputError, match="switch odd"):
        Tree("odd", CORE.at, **given)  # type: ignore[arg-type]


def test_an_uplink_is_a_finite_figure() -> None:
    assert replace(FAR, up_s_per_byte=0.0).up_s_per_byte == 0
    for wrong in (-1.0, float("inf")):
        with pytest.raises(BadInputError, match="switch far"):
            replace(FAR, up_s_per_byte=wrong)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        # 8 rounds of 3 s; 2 x 4/5 of 10 bytes over the slowest link; 8 bytes added at .5, 24 moved at .5.
        ("ring", 24 + 112 + 4 + 12),
        # 2 rounds; far's link carries 3 x 2 / 5 of the buffer each way; 12 bytes moved; four senders where
        # three are free: 16 bytes at 2 s more.
        ("colocated-ps", 6 + 168 + 4 + 6 + 32),
        # The first leaf is the root: far's three buffers cross its link, there and back.
        ("reduce-broadcast", 6 + 420 + 20 + 30 + 160),
        # 4 and one that folds in: 6 rounds; halves cross far's link (7 x 5 bytes), then quarters, as
        # if of five ranks (16/15), and the fold itself over a leaf's link: 2 x (56 + 20).
        ("halving-doubling", 18 + 152 + 9 + 27),
    ],
)
def test_flat_plans(name: str, seconds: float) -> None:
    assert fixed_plan(name, CORE, 10.0).seconds == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("op", "seconds"), [("reduce_scatter", 12 + 56 + 4 + 12), ("all_gather", 12 + 56)])
def test_half_of_a_ring(op: str, seconds: float) -> None:
    """Half of the rounds and bytes; a gather adds nothing."""
    assert fixed_plan("ring", CORE, 10.0, op).seconds == pytest.approx(seconds, rel=1e-12)


def test_what_flat_plans_leave_behind() -> None:
    """A fifth of the buffer a leaf, so 3/5 of it below far's link; a root keeps all."""
    spread, rooted = fixed_plan("ring", CORE, 10.0), fixed_plan("reduce-broadcast", CORE, 10.0)
    assert (spread.largest_share, rooted.largest_share) == (1 / 5, 1)
    assert spread.density_s_per_byte == pytest.approx(7 * 3 / 5) and rooted.density_s_per_byte == 7
    # Where leaves' own links are the slow ones, a fifth of 2 s a byte below them, or all of it.
    quick = replace(CORE, children=tuple(replace(child, up_s_per_byte=0.1) for child in CORE.children))
    for name, density in (("ring", 2 / 5), ("reduce-broadcast", 2)):
        assert fixed_plan(name, quick, 10.0).density_s_per_byte == pytest.approx(density)
    (step,) = spread.steps
    assert (step.switch, step.level, step.members, step.flat, step.rearranged) == ("core", 2, 5, True, False)


def test_rings_at_every_level() -> None:
    """near: 2 + 10 + 2.5 + 3.75 s. far, at the same time: 4 x 2 + 40/3 x 2 + 20/3 / 4 + 20 / 2.

    Then two halves over far's link of 7: 2 x 3 + 70, half of 5 bytes added and half of 15 moved at 1/8.
    """
    below = 8 + 80 / 3 + 5 / 3 + 10
    found = fixed_plan("hierarchical-ring", CORE, 10.0)
    assert found.seconds == pytest.approx(below + 6 + 70 + 0.3125 + 0.9375, rel=1e-12)
    assert [(step.switch, step.level, step.switches) for step in found.steps] == [
        ("near", 1, 1), ("far", 1, 1), ("core", 2, 1)
    ]  # fmt: skip
    assert [step.seconds for step in found.steps] == pytest.approx([18.25, below, 77.25])
    assert not any(step.flat or step.rearranged for step in found.steps)
    assert (found.largest_share, found.density_s_per_byte) == (pytest.approx(1 / 4), pytest.approx(3.5))


def test_blocks_are_gathered_first_where_that_is_faster() -> None:
    """At 4 s a byte beyond one sender, far's two owners to near's one cost 20 s more; gathering costs less.

    A sixth of 10 bytes over far's links of 2 s a byte after one of its rounds, there and back: 32/3 s.
    """
    busy = replace(CORE, at=GenModelParameters(3, 0, 0.125, 0.125, 4, 1))
    found = fixed_plan("hierarchical-ring", busy, 10.0)
    below = 8 + 80 / 3 + 5 / 3 + 10
    assert found.steps[-1].rearranged and not any(step.rearranged for step in found.steps[:-1])
    assert found.seconds == pytest.approx(below + 32 / 3 + 77.25, rel=1e-12)
    calm = replace(CORE, at=GenModelParameters(3, 0, 0.125, 0.125, 2, 1))  # 10 s: less than gathering
    assert fixed_plan("hierarchical-ring", calm, 10.0).seconds == pytest.approx(below + 87.25, rel=1e-12)


def scaled(tree: Tree, factor: float) -> Tree:
    """Every figure in seconds so many times as long."""
    at = tree.at
    figures = (
        at.alpha_s,
        at.beta_s_per_byte,
        at.gamma_s_per_byte,
        at.delta_s_per_byte,
        at.epsilon_s_per_byte,
    )
    return replace(
        tree,
        at=GenModelParameters(*(factor * figure for figure in figures), at.senders),
        children=tuple(scaled(child, factor) for child in tree.children),
        up_s_per_byte=factor * tree.up_s_per_byte,
    )


def test_plans_take_a_thousandth_where_every_figure_is_a_thousandth() -> None:
    busy = replace(CORE, at=GenModelParameters(3, 0, 0.125, 0.125, 4, 1))
    for tree in (CORE, busy):
        for name in ("hierarchical-ring", "ring", "reduce-broadcast", "halving-doubling"):
            slow, quick = (fixed_plan(name, item, 10.0) for item in (tree, scaled(tree, 1e-3)))
            assert quick.seconds == pytest.approx(slow.seconds / 1000, rel=1e-9), name
            assert [step.rearranged for step in quick.steps] == [step.rearranged for step in slow.steps]


def test_who_has_as_large_blocks_as_anybody_gathers_nothing() -> None:
    """near's owners have a half each already: its rounds of 1,000 s are those of its own ring only."""
    far_off = replace(NEAR, at=replace(NEAR.at, alpha_s=1000))
    busy = replace(CORE, at=GenModelParameters(3, 0, 0.125, 0.125, 4, 1), children=(far_off, FAR))
    found = fixed_plan("hierarchical-ring", busy, 10.0)
    assert found.seconds == pytest.approx(2 * 1000 + 10 + 2.5 + 3.75 + 32 / 3 + 77.25, rel=1e-12)


def test_twice_as_many_owners_are_one_sender_each() -> None:
    """Four leaves to two: a quarter of 10 bytes from one other owner, which the receiver hears at no cost.

    Four: 6 rounds of 2 s, 15 bytes at 2, 7.5 added at .25, 22.5 moved at .5; gathering takes a round and
    5 s, there and back; then two rounds and 10 halved bytes over the link of 7.
    """
    four = replace(FAR, leaves=4, at=replace(FAR.at, epsilon_s_per_byte=50.0, senders=1))
    busy = replace(CORE, at=GenModelParameters(3, 0, 0.125, 0.125, 40, 1), children=(NEAR, four))
    found = fixed_plan("hierarchical-ring", busy, 10.0)
    assert found.steps[-1].rearranged
    assert found.seconds == pytest.approx(12 + 30 + 1.875 + 11.25 + 2 * (2 + 5) + 77.25, rel=1e-12)


def test_a_root_sends_over_its_own_link() -> None:
    """Behind quick uplinks the first leaf's link carries four buffers each way, or the slowest leaf's one."""
    near, far = (replace(tree, up_s_per_byte=0.1) for tree in (NEAR, FAR))
    free = replace(CORE, children=(near, far))
    other = replace(CORE, children=(far, near))
    seconds = [fixed_plan("reduce-broadcast", tree, 10.0).seconds for tree in (free, other)]
    assert seconds == pytest.approx([6 + 2 * 10 * 4 * 1 + 20 + 30 + 160, 6 + 2 * 10 * 4 * 2 + 20 + 30 + 160])


def test_unequal_subtrees_leave_no_equal_blocks() -> None:
    """Quarters and sixths of the buffer are not fifths."""
    with pytest.raises(BadInputError, match="unequal blocks"):
        fixed_plan("hierarchical-ring", CORE, 10.0, "reduce_scatter")


def test_a_subtree_may_best_be_served_as_if_it_were_flat() -> None:
    """Two racks of two: a ring over all four sends 3/2 of the buffer over leaves of 1 s a byte.

    By racks it is one buffer over leaves and one over links of .6; servers would hear three where one is
    free. Below one more switch, behind a link that nothing has to cross, nothing changes.
    """
    at = GenModelParameters(0.0, 1.0, epsilon_s_per_byte=9.0, senders=1)
    rack = Tree("rack", at, leaves=2, up_s_per_byte=0.6)
    core = Tree("core", replace(at, beta_s_per_byte=0.0), children=(rack, rack), up_s_per_byte=100.0)
    for tree in (core, Tree("top", core.at, children=(core,))):
        found = gentree(tree, 10.0)
        assert found.seconds == pytest.approx(15.0)
        assert [(step.switch, step.plan.name, step.flat) for step in found.steps] == [("core", "ring", True)]


def test_gathering_waits_for_receivers_that_many_send_to() -> None:
    """far hears one sender more than it can at no cost: 5/3 of a byte at 100 s more, twice."""
    deaf = replace(FAR, at=replace(FAR.at, epsilon_s_per_byte=1.0, senders=0))
    busy = replace(CORE, at=GenModelParameters(3, 0, 0.125, 0.125, 40, 1), children=(NEAR, deaf))
    alone = 8 + 80 / 3 + 5 / 3 + 10 + 40 / 3  # one sender too many in its own ring
    found = fixed_plan("hierarchical-ring", busy, 10.0)
    assert found.seconds == pytest.approx(alone + 32 / 3 + 2 * 5 / 3 + 77.25, rel=1e-12)


def test_equal_switches_are_one_step() -> None:
    """Two racks alike do the same at once; a rack of one leaf does nothing."""
    both = Tree("core", CORE.at, children=(NEAR, NEAR))
    steps = fixed_plan("hierarchical-colocated-ps", both, 10.0).steps
    assert [(step.switch, step.switches) for step in steps] == [("near", 2), ("core", 1)]
    lone = Tree("core", CORE.at, children=(replace(NEAR, leaves=1), replace(NEAR, leaves=1)))
    assert [step.switch for step in fixed_plan("hierarchical-ring", lone, 10.0).steps] == ["core"]


def test_one_leaf_costs_nothing_by_any_plan() -> None:
    alone = replace(NEAR, leaves=1)
    assert gentree(alone, 10.0).seconds == 0
    for name in ("ring", "halving-doubling", "colocated-ps", "reduce-broadcast"):
        assert fixed_plan(name, alone, 10.0).seconds == 0
    pair = replace(
        alone, leaves=2
    )  # two rounds, all of the buffer there and back, added in one pass of three
    assert fixed_plan("reduce-broadcast", pair, 10.0).seconds == pytest.approx(2 + 20 + 5 + 7.5)


@pytest.mark.parametrize("size", [0.0, -1.0, float("inf"), float("nan")])
def test_a_buffer_has_a_size(size: float) -> None:
    with pytest.raises(BadInputError, match="size above zero"):
        gentree(CORE, size)
    assert gentree(CORE, 0.5).seconds > 0


def test_a_cluster_of_one_box_is_a_switch_over_its_gpus() -> None:
    """Half of a link's hop and one step of a ring; a pass over memory at the share that is reached."""
    hwdb = neutral_hwdb()
    box = tree_of(cluster_from_dict({"nodes": [{"count": 1, "node": "DGX-A100-80GB"}]}, hwdb), hwdb)
    gpu, link = hwdb.gpu("A100-SXM4-80GB"), hwdb.link("NVLink3")
    reached = hwdb.efficiency(gpu, gpu.peaks[0][0]).memory_efficiency.value
    assert (box.leaves, box.children, box.up_s_per_byte) == (8, (), 0)
    assert 1 / box.at.delta_s_per_byte == pytest.approx(gpu.memory_bytes_per_s * reached)
    assert box.at.alpha_s == pytest.approx(link.latency_s / 2 + 0.6e-6, rel=1e-9, abs=0)
    lone = {"gpu": gpu.name, "gpus": 1, "intra_link": link.name, "nic_gbps": 200, "count": 2}
    single = tree_of(cluster_from_dict({"nodes": [lone]}, hwdb), hwdb).children[0]
    assert single.at.alpha_s == 0 and single.at.beta_s_per_byte == single.up_s_per_byte > 0
    two = tree_of(cluster_from_dict({"nodes": [{"count": 2, "node": "DGX-A100-80GB"}]}, hwdb), hwdb)
    assert [child.leaves for child in two.children] == [8, 8] and two.at.beta_s_per_byte == 0
    assert two.at.alpha_s > box.at.alpha_s and two.at.delta_s_per_byte == box.at.delta_s_per_byte
    # Of two kinds the one with the slower memory is waited for.
    kinds = [{"count": 1, "node": name} for name in ("DGX-A100-80GB", "DGX-H100")]
    for order in (kinds, kinds[::-1]):
        mixed = tree_of(cluster_from_dict({"nodes": order}, hwdb), hwdb)
        assert mixed.at.delta_s_per_byte == box.at.delta_s_per_byte


@pytest.mark.parametrize(
    ("leaves", "links", "size", "seconds"),
    [
        # Three leaves and one: in either step one of the three has its partner on the other side, so the link
        # of 5 carries a half, then a quarter, there and back.
        ((3, 1), (5.0, 1.0), 8.0, 2 * (4 * 5 + 2 * 5)),
        # Three and three are four, of two pairs each: the pair of leaves 2 and 3 folds over both links; then
        # two partners each cross with a quarter, counted as of six ranks.
        ((3, 3), (5.0, 7.0), 9.0, 2 * (9 / 4 * 2 * 7 * (5 / 6) / (3 / 4) + 9 * 7)),
        ((3, 3), (7.0, 5.0), 9.0, 2 * (9 / 4 * 2 * 7 * (5 / 6) / (3 / 4) + 9 * 7)),
        # Five and one: leaves 0 to 3 fold in pairs below the link of 5, at no cost. Of the four that go on
        # one is alone: in either step it and its partner cross the link of 7, with a half, then a quarter.
        ((5, 1), (5.0, 7.0), 9.0, 2 * (9 / 2 + 9 / 4) * 7 * (5 / 6) / (3 / 4)),
        # Two and four: the first pair folds on one side, the second on the other.
        ((2, 4), (5.0, 7.0), 9.0, 2 * (9 / 2 + 9 / 4) * 7 * (5 / 6) / (3 / 4)),
    ],
)
def test_halving_where_partners_stand_on_different_sides(
    leaves: tuple[int, int], links: tuple[float, float], size: float, seconds: float
) -> None:
    free = GenModelParameters(0.0, 0.0)
    below = tuple(
        Tree(f"of {n} at {place}", free, leaves=n, up_s_per_byte=up)
        for place, (n, up) in enumerate(zip(leaves, links, strict=True))
    )
    found = fixed_plan("halving-doubling", Tree("core", free, children=below), size)
    assert found.seconds == pytest.approx(seconds, rel=1e-12)

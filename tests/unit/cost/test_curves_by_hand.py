"""Each collective's curve at figures small enough to be worked out by hand.

Inside a domain (`PATH`): 10 s to begin, 1 s a step, 4 s to fill, 8 bytes/s, 16 s to copy a byte. Between
domains (`NETWORK`): 3 s a step, 9 s to fill, 2 bytes/s of which a tree reaches half. A curve is (start,
root, slope); the root stands squared here, fill x slope, as squares can be written down.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tangram_sim.cost.collectives import curves
from tangram_sim.cost.collectives.curves import Curve, GroupNetwork, Path
from tangram_sim.cost.collectives.groups import Group
from tangram_sim.cost.collectives.operations import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    send_receive_s,
    transfer_s,
)

PATH = Path(10.0, 1.0, 4.0, 8.0, 16.0)
NETWORK = GroupNetwork(3.0, 9.0, 2.0, 0.5)
FAST = NETWORK._replace(bytes_per_s=32.0, tree_share=1.0)


def held(curve: Curve, start: float, squared: float, slope: float) -> None:
    """Compare one curve with figures by hand."""
    assert float(np.squeeze(curve.start)) == pytest.approx(start, rel=1e-12)
    assert float(np.squeeze(curve.root)) ** 2 == pytest.approx(squared, rel=1e-12)
    assert float(np.squeeze(curve.slope)) == pytest.approx(slope, rel=1e-12)


def of(*values: float) -> tuple[Any, ...]:
    return tuple(np.array([float(value)]) for value in values)


@pytest.mark.parametrize(
    ("ranks", "domains", "rounds", "network", "expected"),
    [
        # 3 steps inside; 3/4 of S at 8 bytes/s; a quarter of S copied.
        (4, 1, 1, NETWORK, (13, 4 * 0.75 / 8, 0.75 / 8 + 4)),
        # 6 steps, 2 of them across, at the slower of the two rates.
        (4, 2, 2, NETWORK, (10 + 4 * 1 + 2 * 3, 9 * 1.5 / 2, 1.5 / 2 + 4)),
        # The network is faster: links inside bind where two share a domain, not where each is alone.
        (4, 2, 1, FAST, (10 + 2 * 1 + 1 * 3, 9 * 0.75 / 8, 0.75 / 8 + 4)),
        (4, 4, 1, FAST, (10 + 3 * 3, 9 * 0.75 / 32, 0.75 / 32 + 4)),
        # Two ranks in a box, and each in a box of its own.
        (2, 1, 2, NETWORK, (12, 4 * 1 / 8, 1 / 8 + 8)),
        (2, 2, 2, NETWORK, (16, 9 * 1 / 2, 1 / 2 + 8)),
    ],
)
def test_rings(ranks: int, domains: int, rounds: int, network: GroupNetwork, expected: Any) -> None:
    """`rounds (n - 1)` steps, of which `rounds (m - 1)` cross; `rounds (n - 1) / n` of the bytes."""
    held(curves.ring(*of(ranks, domains), rounds, PATH, network), *expected)


CHAIN = 2 / (0.87 * 8)  # seconds a byte of a chain down and up again, but for (n - 1) / n


@pytest.mark.parametrize(
    ("ranks", "inside", "domains", "network", "expected"),
    [
        (8, 4, 2, NETWORK, (10 + 2 * 3 * 1 + 2 * 1 * 3, 9 * 1, 1.0)),  # S each way at 2 x .5 bytes/s
        (16, 4, 4, NETWORK, (10 + 2 * 3 * 1 + 2 * 2 * 3, 9 * 2, 2.0)),  # four domains: 2 S
        (12, 4, 3, NETWORK, (10 + 2 * 3 * 1 + 2 * 2 * 3, 9 * 2, 2.0)),  # three: as many levels as four
        (8, 4, 2, FAST, (10 + 6 + 6, 9 * CHAIN * 7 / 8, CHAIN * 7 / 8)),  # the chain inside binds
        (4, 4, 1, NETWORK, (10 + 6, 4 * CHAIN * 3 / 4, CHAIN * 3 / 4)),
        (2, 2, 1, NETWORK, (10 + 2, 4 * CHAIN / 2, CHAIN / 2)),
        (4, 1, 4, FAST, (10 + 2 * 2 * 3, 9 * 2 / 32, 2 / 32)),  # alone in a box: no chain
    ],
)
def test_trees(ranks: int, inside: int, domains: int, network: GroupNetwork, expected: Any) -> None:
    """A chain in each domain at .87 of its links, 2 log2(m) crossings; S bytes over two domains, else 2 S."""
    held(curves.tree(*of(ranks, inside, domains), PATH, network), *expected)


@pytest.mark.parametrize(
    ("domains", "network", "expected"),
    [
        (1, NETWORK, (10, 4 / 8, 1 / 8)),
        (2, NETWORK, (10 + 2 * 3, 9 / 2, 1 / 2)),
        (4, NETWORK, (10 + 2 * 2 * 3, 9 * 2 / 2, 2 / 2)),
        (3, FAST, (10 + 2 * 2 * 3, 9 / (0.9 * 8), 1 / (0.9 * 8))),  # the switch shares two kernels' traffic
    ],
)
def test_reduction_in_the_switch(domains: int, network: GroupNetwork, expected: Any) -> None:
    """S bytes a rank inside; a tree of switches beyond one domain."""
    held(curves.in_switch(*of(domains), PATH, network), *expected)


@pytest.mark.parametrize(
    ("ranks", "domains", "rounds", "network", "expected"),
    [
        # 8 ranks: 3 levels, one of them across, twice; a ring's bytes.
        (8, 2, 2, NETWORK, (10 + 2 * (2 * 1 + 1 * 3), 9 * 1.75 / 2, 1.75 / 2 + 2)),
        (8, 1, 1, NETWORK, (10 + 3 * 1, 4 * (7 / 8) / 8, (7 / 8) / 8 + 2)),
        # 6 ranks are 4 and two that fold in: two steps more, 3/4 of S and 2 S.
        (6, 2, 1, NETWORK, (10 + 2 * 1 + 1 * 3 + 2 * 3, 9 * (5 / 6) / 2, 0.75 / 2 + 1 + 16 / 6)),
        (6, 3, 1, NETWORK, (10 + 1 * 1 + 2 * 3 + 2 * 3, 9 * (5 / 6) / 2, 0.75 / 2 + 1 + 16 / 6)),
        (6, 1, 2, NETWORK, (10 + 2 * 3 * 1 + 2 * 1, 4 * (10 / 6) / 8, 1.5 / 8 + 2 / 8 + 16 / 6)),
        (6, 2, 1, FAST, (10 + 2 * 1 + 1 * 3 + 2 * 3, 9 * (5 / 6) / 8, 0.75 / 8 + 2 / 8 + 16 / 6)),
    ],
)
def test_halving(ranks: int, domains: int, rounds: int, network: GroupNetwork, expected: Any) -> None:
    """log2(n) steps a round; ranks beyond a power of two fold in with two steps and 2 S more."""
    held(curves.halving_doubling(*of(ranks, domains), rounds, PATH, network), *expected)


def test_hierarchies() -> None:
    """Inside twice a ring of one round (13 s, 4.09375 s a byte), across 2 (m - 1) steps, that / m of S."""
    inside = 4 * 0.75 / 8
    both = curves.hierarchical(*of(8, 4, 2), PATH, NETWORK)
    held(both, 2 * 13 + 2 * 3, (2 * inside**0.5 + (9 * 1 / 2) ** 0.5) ** 2, 2 * (0.75 / 8 + 4) + 1 / 2)
    held(curves.hierarchical(*of(4, 4, 1), PATH, NETWORK), 26, 4 * inside, 2 * (0.75 / 8 + 4))
    held(curves.hierarchical(*of(4, 1, 4), PATH, NETWORK), 10 + 2 * 3 * 3, 9 * 1.5 / 2, 1.5 / 2)
    pairs = curves.hierarchical(*of(6, 2, 3), PATH, NETWORK)
    across = (9 * (4 / 3) / 2) ** 0.5
    held(pairs, 2 * 11 + 4 * 3, (2 * (4 * 0.5 / 8) ** 0.5 + across) ** 2, 2 * (0.5 / 8 + 8) + (4 / 3) / 2)


@pytest.mark.parametrize(("ranks", "levels"), [(8, 3), (6, 3), (3, 2)])
def test_aggregated_trees(ranks: int, levels: int) -> None:
    """log2(n) steps at 1/3.5 of a hop, 2.8 us a rank, three quarters of the rate."""
    wire = (ranks - 1) / ranks / (0.75 * 2)
    start = 10 + levels * 3 / 3.5 + 2.8e-6 * ranks
    held(curves.pat(*of(ranks), PATH, NETWORK), start, 9 * wire, wire + 16 / ranks)


@pytest.mark.parametrize(
    ("ranks", "domains", "network", "expected"),
    [
        (4, 1, NETWORK, (13, 4 / 8, 1 / 8)),
        (8, 2, NETWORK, (10 + 6 * 1 + 1 * 3, 9 / 2, 1 / 2)),
        (4, 2, FAST, (10 + 2 * 1 + 1 * 3, 9 / 8, 1 / 8)),
        (4, 4, FAST, (10 + 3 * 3, 9 / 32, 1 / 32)),
    ],
)
def test_broadcasts(ranks: int, domains: int, network: GroupNetwork, expected: Any) -> None:
    """n - 1 steps, m - 1 of them across; S bytes over every link."""
    held(curves.broadcast(*of(ranks, domains), PATH, network), *expected)


def test_a_curve_is_a_start_a_root_and_a_slope() -> None:
    """At 16 bytes 1 + 2 x 4 + 3 x 16; and a tree's share of the network is all of it unless said."""
    assert Curve(*of(1, 2, 3)).seconds(16.0) == 1 + 8 + 48
    assert GroupNetwork(1.0, 1.0, 1.0).tree_share == 1


def mates(ranks: Any, inside: Any, **changes: Any) -> Group:
    """A group of those figures whose pairs move 5 bytes/s and of which a rank's share of the network is 2."""
    sizes = (np.atleast_1d(np.asarray(item, dtype=np.float64)) for item in (ranks, inside))
    pairwise = Path(20.0, 2.0, 4.0, 5.0, 16.0)
    return replace(Group(*sizes, PATH, pairwise, PATH._replace(base_s=7.0), NETWORK, 2.0), **changes)


def test_an_all_to_all() -> None:
    """80 bytes a rank, 8 ranks in boxes of 4: 3/8 stay at 5 bytes/s (6 s), 4/8 leave at 2 (20 s) meanwhile.

    20 s and three steps of 2 to begin, 3 to cross, an eighth of the bytes copied at 16 s.
    """
    two = mates(8, 4)
    assert all_to_all_s(80.0, two)[0] == pytest.approx(20 + 6 + 3 + (9 * 20) ** 0.5 + 20 + 10 * 16)
    assert all_to_all_s(80.0, two, 1.5)[0] == pytest.approx(29 + (9 * 30) ** 0.5 + 30 + 15 * 16)
    wide = replace(two, outside_bytes_per_s=1000.0)
    assert all_to_all_s(80.0, wide)[0] == pytest.approx(29 + (4 * 6) ** 0.5 + 6 + 160)
    alone = mates(4, 4)
    assert all_to_all_s(80.0, alone)[0] == pytest.approx(26 + (4 * 12) ** 0.5 + 12 + 20 * 16)
    apart = mates(4, 1)
    assert all_to_all_s(80.0, apart)[0] == pytest.approx(20 + 3 + (9 * 30) ** 0.5 + 30 + 20 * 16)


def test_an_all_to_all_of_copies_sends_a_box_one_of_them() -> None:
    """Three copies to two boxes: 1 - 1/8 of two pieces leave, not three halves; inside 3/4 are handed on."""
    outer, inner = 20 * 2 * (7 / 8) / 3, 80 * 3 / 4 / 5
    found = all_to_all_s(80.0, mates(8, 4), copies=3)[0]
    assert found == pytest.approx(29 + (9 * outer) ** 0.5 + outer + 160)
    wide = mates(8, 4, outside_bytes_per_s=1000.0)
    assert all_to_all_s(80.0, wide, copies=3)[0] == pytest.approx(29 + (4 * inner) ** 0.5 + inner + 160)
    two = 20 * 2 * (1 - 1 / 4) / 2
    assert all_to_all_s(80.0, mates(8, 4), copies=2)[0] == pytest.approx(29 + (9 * two) ** 0.5 + two + 160)


def test_pairs_broadcasts_and_transfers() -> None:
    """100 bytes: over the pair's link, or one rank's share of the network; 16 bytes to three others."""
    assert send_receive_s(100.0, mates(2, 2))[0] == pytest.approx(20 + (4 * 100 / 5) ** 0.5 + 20)
    assert send_receive_s(100.0, mates(2, 1))[0] == pytest.approx(23 + (9 * 100 / 2) ** 0.5 + 50)
    assert broadcast_s(16.0, mates(4, 4))[0] == pytest.approx(13 + (4 * 16 / 8) ** 0.5 + 2)
    assert transfer_s(100.0, 8.0, 1.0) == 13.5
    assert transfer_s(100.0, 0.5, 1.0) == 101  # a rate below one byte a second counts as one
    assert transfer_s(0.5, 8.0, 1.0) == 1 + 1 / 16
    for nobody in (broadcast_s, send_receive_s, all_to_all_s):
        assert nobody(100.0, mates(1, 1))[0] == nobody(0.0, mates(2, 2))[0] == 0
        assert nobody(0.5, mates(2, 2))[0] > 0


def test_algorithms_by_name_are_their_curves() -> None:
    """16 bytes over 8 ranks in boxes of 4; a group of one rank is a pair's price set to nothing."""
    group, at = mates(8, 4), of(8, 4, 2)
    wanted = {
        "ring": curves.ring(at[0], at[2], 2, PATH, NETWORK),
        "tree": curves.tree(*at, PATH, NETWORK),
        "halving_doubling": curves.halving_doubling(at[0], at[2], 2, PATH, NETWORK),
        "hierarchical": curves.hierarchical(*at, PATH, NETWORK),
        "in_switch": curves.in_switch(at[2], group.switch, NETWORK),
    }
    for name, curve in wanted.items():
        assert all_reduce_s(16.0, group, name)[0] == curve.seconds(16.0)[0]
        assert all_reduce_s(16.0, mates(1, 1), name)[0] == 0
    fastest = min(wanted[name].seconds(16.0)[0] for name in ("ring", "tree", "in_switch"))
    assert all_reduce_s(16.0, group)[0] == fastest
    once = curves.halving_doubling(at[0], at[2], 1, PATH, NETWORK).seconds(16.0)[0]
    assert all_gather_s(16.0, group, "halving_doubling")[0] == once
    ring = curves.ring(at[0], at[2], 1, PATH, NETWORK).seconds(16.0)[0]
    assert all_gather_s(16.0, group, "ring")[0] == all_gather_s(16.0, group)[0] == ring


def test_which_algorithms_a_batch_of_groups_has() -> None:
    """Aggregated trees: ranks alone in their boxes, three or more. Trees: several boxes.

    In the switch: five ranks of a box, or two of each of several.
    """
    batch = mates([4, 4, 2, 3], [1, 4, 1, 1])
    aggregated, treed, switched = (
        batch.aggregated,
        batch.treed,
        mates([4, 5, 4, 2, 8], [4, 5, 2, 1, 4]).switched,
    )
    assert aggregated is not None and treed is not None and switched is not None
    assert np.isfinite(aggregated.start).tolist() == [True, False, False, True]
    assert np.isfinite(treed.start).tolist() == [True, False, True, True]
    assert np.isfinite(switched.start).tolist() == [False, True, True, False, True]
    inside = mates([4], [4])
    assert inside.aggregated is None and inside.treed is None and inside.switched is None
    assert mates(8, 8, switch=None).switched is None
    assert batch.domains.tolist() == [4, 1, 2, 3] and mates(9, 4).domains.tolist() == [3]
    assert mates([4, 8, 4, 2], [4, 4, 1, 2]).bytes_per_s.tolist() == [8, 2, 2, 8]
    fast = mates([4, 8, 4, 4], [4, 4, 1, 2], network=FAST)
    assert fast.bytes_per_s.tolist() == [8, 8, 32, 8]

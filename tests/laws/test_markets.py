"""Laws of money, services and memory (`benchmarks/anywhere/markets.py`) in a few worlds."""

from dataclasses import replace

import pytest

from benchmarks.anywhere.markets import LAWS, _covers, _within, told
from tangram_sim.hwdb import Hwdb
from tangram_sim.purchasing.front import Simulated

HWDB = Hwdb.load()
SEEDS = {"rentals": range(1, 2), "services": range(6), "memory": range(30), "purchases": range(1)}


@pytest.mark.parametrize("name", LAWS)
def test_laws_hold_in_small_worlds(name: str) -> None:
    found = list(told(name, SEEDS[name], HWDB))
    assert len(found) > 3 * len(SEEDS[name])
    assert [(seed, verdict) for seed, verdict in found if not verdict.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_laws_hold_in_more_worlds(name: str) -> None:
    many = range(100, 100 + 4 * len(SEEDS[name]))
    assert [(seed, verdict) for seed, verdict in told(name, many, HWDB) if not verdict.holds] == []


@pytest.mark.parametrize(
    ("base", "other", "least", "most", "holds"),
    [
        (2.0, 2.0, 1.0, 1.0, True), (2.0, 2.1, 0.0, 1.0, False), (2.0, 1.0, 0.0, 1.0, True),
        (2.0, 1.9, 1.0, float("inf"), False), (2.0, 4.0, 2.0, 2.0, True), (2.0, 3.9, 2.0, 2.0, False),
        (2.0, float("inf"), 1.0, float("inf"), True), (2.0, float("inf"), 0.0, 1.0, False),
        (float("inf"), 3.0, 0.0, 1.0, True), (float("inf"), 3.0, 1.0, float("inf"), False),
    ],
)  # fmt: skip
def test_the_comparison_sees_what_is_broken(
    base: float, other: float, least: float, most: float, holds: bool
) -> None:
    assert _within(base, other, least, most, 0.0) == holds


def test_a_front_covers_what_it_has_for_no_more() -> None:
    some = [Simulated((k,), "", float(k), 10.0 * k, 0.0, ()) for k in (1, 2, 3)]
    assert _covers("", "", some, some).holds
    assert not _covers("", "", some, some[1:]).holds
    dearer = [replace(simulated, cost=2 * simulated.cost) for simulated in some]
    slower = [replace(simulated, tokens_per_s=simulated.tokens_per_s - 1) for simulated in some]
    assert not _covers("", "", some, dearer).holds and not _covers("", "", some, slower).holds
    assert _covers("", "", slower, some).holds

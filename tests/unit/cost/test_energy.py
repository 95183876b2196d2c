"""Joules of a GPU: what it does adds up, the board's limit holds, kinds inherit, slower clocks draw less."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.cost.energy import Activity, gpu_power
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb

HWDB = Hwdb.load()
H100 = HWDB.gpu("H100-SXM5-80GB")
POWER = gpu_power(H100, HWDB)
shares = st.floats(0.0, 1.0)


def doing(running: float, arithmetic: float, memory: float, link: float, seconds: float = 2.0) -> Activity:
    return Activity(seconds, *(part * seconds for part in (running, arithmetic, memory, link)))


@given(shares, shares, shares, shares)
def test_watts_lie_between_idle_and_the_boards_limit(a: float, b: float, c: float, d: float) -> None:
    watts = float(POWER.watts(doing(a, b, c, d)))
    assert POWER.idle_w <= watts <= POWER.limit_w


@given(shares, shares, shares, st.floats(0.3, 1.0), st.floats(0.3, 1.0))
def test_a_lower_clock_never_draws_more(
    running: float, arithmetic: float, memory: float, low: float, high: float
) -> None:
    did = doing(running, arithmetic, memory, 0.0)
    assert POWER.joules(did, min(low, high)) <= POWER.joules(did, max(low, high)) * (1 + 1e-12)


def test_joules_are_linear_below_the_limit() -> None:
    item, two = doing(0.2, 0.1, 0.0, 0.1), doing(0.1, 0.0, 0.3, 0.0)
    both = Activity(*(getattr(item, name) + getattr(two, name) for name in Activity.__dataclass_fields__))
    assert POWER.joules(both) == pytest.approx(POWER.joules(item) + POWER.joules(two))


def test_watts_are_of_every_unit_as_long_as_it_works() -> None:
    did = Activity(1.0, 1.0, arithmetic_s=0.4, memory_s=0.25, link_s=0.1)
    expected = POWER.idle_w + POWER.running_w + 0.4 * POWER.arithmetic_w + 0.25 * POWER.memory_w
    assert POWER.watts(did) == pytest.approx(min(expected + 0.1 * POWER.link_w, POWER.limit_w))


def test_a_sister_kind_inherits_the_shares_of_its_architecture() -> None:
    h200 = gpu_power(HWDB.gpu("H200-SXM-141GB"), HWDB)
    nvl = gpu_power(HWDB.gpu("H100-NVL-94GB"), HWDB)
    assert h200.running_w / h200.limit_w == pytest.approx(POWER.running_w / POWER.limit_w)
    assert nvl.limit_w < POWER.limit_w
    assert nvl.running_w / nvl.limit_w == pytest.approx(POWER.running_w / POWER.limit_w)
    assert nvl.basis.startswith("Hopper")


def test_an_architecture_that_nobody_measured_has_shares_of_any_gpu() -> None:
    assert gpu_power(HWDB.gpu("V100-SXM2-16GB"), HWDB).basis.startswith("any GPU: inherited")


def test_an_unknown_power_limit_is_refused_by_name() -> None:
    with pytest.raises(BadInputError, match="power_w"):
        gpu_power(replace(H100, power_w=0.0), HWDB)

"""Cash of a run: its parts make the whole, month by month, whatever is bought and rented."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.hwdb import load_cluster
from tangram_sim.hwdb.prices import Figure
from tangram_sim.purchasing.billing import Bill, Charge
from tangram_sim.purchasing.cash import MONTH_DAYS, Payment, cash_of
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.pricefile import Economics, Prices
from tangram_sim.purchasing.rows import Throughput, WhatIfRow
from tests.unit.purchasing.shop import HWDB

PARTS = tuple(part.name for part in fields(Payment))
FLEET = Fleet.of(load_cluster("H100x8:1", HWDB))
KINDS = ("capital", "power", "hosting", "rent", "spot")
USD = st.sampled_from((0.0, 1.5, 40.0))


def _figure(value: float) -> Figure:
    return Figure(value, "stated")


@given(
    st.fixed_dictionaries(dict.fromkeys(KINDS, USD)),
    st.sampled_from((0.0, 90_000.0)),
    st.floats(0.1, 900.0),
    st.floats(0.2, 1.0),
    st.sampled_from((None, 1.0, 4.0)),
)
def test_parts_and_months_make_the_whole(
    hourly: dict[str, float], outlay: float, days: float, used: float, life: float | None
) -> None:
    """`days` of the calendar, of which the share `used` trains."""
    hours = days * 24 * used
    economics = Economics(
        upkeep_per_year=_figure(0.05), amortisation_years=None if life is None else _figure(life)
    )
    charges = tuple(Charge("n", kind, usd, False, "") for kind, usd in hourly.items() for _ in range(2))
    row = WhatIfRow(
        "row",
        FLEET,
        None,
        throughput=Throughput(1e6, 1e6, 1e6),
        bill=Bill(charges, outlay, ()),
        days_to_train=days,
    )
    cash = cash_of(row, 1e6 * 3600 * hours, Prices(economics=economics))
    expected = {
        "purchase": outlay,
        "rent": 2 * (hourly["rent"] + hourly["spot"]) * hours,
        "energy": 2 * hourly["power"] * hours,
        "hosting": 2 * hourly["hosting"] * hours + 0.05 * outlay * days / 365.25,
    }
    for part in PARTS:
        assert getattr(cash.total, part) == pytest.approx(expected[part])
        assert sum(getattr(paid, part) for _, paid in cash.months) == pytest.approx(expected[part])
    assert cash.total.total == pytest.approx(sum(expected.values()))
    assert cash.days == days
    labels = [label for label, _ in cash.months]
    whole = days / MONTH_DAYS
    assert len(labels) == (13 if whole > 12 else -(-days // MONTH_DAYS))
    assert labels[:12] == [f"month {number + 1}" for number in range(min(len(labels), 12))]
    assert labels[12:] == ["later"] * (whole > 12)
    first = cash.months[0][1]
    assert first.purchase == outlay
    assert first.rent == pytest.approx(expected["rent"] * min(1.0, 1 / whole))
    if not outlay:
        assert cash.residual_usd == 0.0
    elif life is None:
        assert cash.residual_usd is None
    else:
        assert cash.residual_usd == pytest.approx(max(0.0, outlay * (1 - days / 365.25 / life)))

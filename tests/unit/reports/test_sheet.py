"""The sheet to be signed: money adds up, months add up, and every purchase report begins with it."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb.prices import Figure
from tangram_sim.purchasing.billing import Terms
from tangram_sim.purchasing.cash import MONTH_DAYS, cash_of
from tangram_sim.purchasing.pricefile import Economics, Prices
from tangram_sim.reports.purchases import what_if_report
from tests.unit.reports.test_report import HWDB, hangs_on, study

__all__ = ["hangs_on", "study"]  # fixtures


def test_payments_by_month_add_up_to_the_total(study):
    for row in study.rows:
        for tokens in (study.billing.tokens, study.billing.tokens * 300):
            longer = replace(row, days_to_train=row.days_to_train * tokens / study.billing.tokens)
            cash = cash_of(longer, tokens, study.billing.prices)
            for kind in ("purchase", "rent", "energy", "hosting"):
                paid = sum(getattr(payment, kind) for _, payment in cash.months)
                assert paid == pytest.approx(getattr(cash.total, kind))
            assert len(cash.months) <= 13 and cash.total.total >= 0


def test_rent_is_of_the_hours_of_training_as_in_the_cost_of_the_run(study):
    row = next(row for row in study.rows if any(charge.kind == "rent" for charge in row.bill.charges))
    rents = tuple(charge for charge in row.bill.charges if charge.kind == "rent")
    economics = replace(study.billing.prices.economics, utilisation=Figure(0.5, "made up", "2026-11-01"))
    half = replace(row, bill=replace(row.bill, charges=rents), days_to_train=2 * row.days_to_train)
    cash = cash_of(half, study.billing.tokens, replace(study.billing.prices, economics=economics))
    usd_to_train = half.bill.usd_per_hour * study.billing.tokens / row.throughput.tokens_per_s / 3600
    assert cash.total.rent == pytest.approx(usd_to_train)


def test_a_run_longer_than_a_year_ends_with_what_is_later(study):
    row = replace(study.rows[0], days_to_train=20 * MONTH_DAYS)
    labels = [label for label, _ in cash_of(row, study.billing.tokens, study.billing.prices).months]
    assert labels[:2] == ["month 1", "month 2"] and labels[-1] == "later" and len(labels) == 13


def test_machines_lose_their_price_in_a_straight_line(study):
    row = next(row for row in study.rows if row.bill.outlay_usd)
    economics = study.billing.prices.economics
    outlay, years = row.bill.outlay_usd, economics.amortisation_years.value
    for share in (0.0, 0.5, 1.0, 2.0):
        aged = replace(row, days_to_train=share * years * 365.25)
        found = cash_of(aged, study.billing.tokens, study.billing.prices).residual_usd
        assert found == pytest.approx(outlay * max(0.0, 1.0 - share))
    unknown = Prices(study.billing.prices.nodes, Economics())
    assert cash_of(row, study.billing.tokens, unknown).residual_usd is None


def test_hosting_is_a_charge_of_what_is_not_rented(study):
    from tangram_sim.purchasing.billing import bill

    fee = replace(
        study.billing.prices.economics, hosting_usd_per_kw_month=Figure(150.0, "contract", "2026-11-01")
    )
    prices = replace(study.billing.prices, economics=fee)
    for row in study.rows:
        running = [use.nodes_used for use in row.uses]
        charged = bill(row.fleet.members, running, prices, study.billing.terms)
        plain = bill(row.fleet.members, running, study.billing.prices, study.billing.terms)
        hosted = [charge for charge in charged.charges if charge.kind == "hosting"]
        more = charged.usd_per_hour - plain.usd_per_hour
        assert sum(charge.usd_per_hour for charge in hosted) == pytest.approx(more)


def test_a_report_begins_with_the_sheet_and_its_money(study, hangs_on):
    text = what_if_report(study, hangs_on, HWDB)
    sheet = text[text.index('<section class="sheet">') : text.index("</section>")]
    for words in (
        "For decision", "Total outlay until the tokens are trained", "Cash by month", "What was assumed",
        "Residual value at the end", "Cost of a million tokens", "90 % interval", "Signature",
    ):  # fmt: skip
        assert words in sheet
    assert text.index('class="sheet"') < text.index("Candidates")


@pytest.mark.parametrize(
    ("figure", "terms"),
    [
        ("usd_per_kwh", Terms(fleet="owned")),
        ("pue", Terms(fleet="owned")),
        *(("", Terms(way, "owned")) for way in ("reserved", "spot")),
    ],
)
def test_a_sheet_without_a_price_says_floors_and_what_is_assumed(study, hangs_on, figure, terms):
    economics = replace(study.billing.prices.economics, **({figure: None} if figure else {}))
    prices = replace(study.billing.prices, economics=economics)
    billing = replace(study.billing, prices=prices, terms=terms)
    rows = tuple(billing.row(row.name, row.fleet, row.document, study.rows[0]) for row in study.rows[1:])
    text = what_if_report(replace(study, rows=rows, billing=billing), hangs_on, HWDB)
    sheet = text[text.index('<section class="sheet">') : text.index("</section>")].replace("\xa0", " ")
    for words in ("not stated", "100 % of what is stated", "not all costs are stated", "idle ones too"):
        assert words in sheet
    assert sheet.index("Efficiencies of") > sheet.index("What was assumed")

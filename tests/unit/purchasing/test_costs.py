"""Formulas of cost: against the papers they come from, a simulated machine that fails, and their own laws."""

import math
import random
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import Figure, node_prices
from tangram_sim.purchasing import costs
from tangram_sim.purchasing.billing import Terms, bill, break_even_of, goodput_of
from tangram_sim.purchasing.fleets import Member, named_purchase
from tangram_sim.purchasing.pricefile import Prices, load_prices
from tangram_sim.purchasing.sensitivity import with_figure
from tangram_sim.reliability.periods import daly_interval_s

HWDB = Hwdb.load()
MINUTE, HOUR = 60.0, 3600.0
FULL = """\
nodes:
  DGX-H100:
    {capital_usd: 300000, rack_units: 8, mtbf_hours: 4000, date: 2026-10-01, source: quote 7}
economics:
  amortisation_years: 4
  pue: 1.25
  usd_per_kwh: 0.1
  utilisation: 0.8
  checkpoint_s: 120
  restart_s: 600
  mtbf_hours: 5000
  date: 2026-10-01
  source: finance
"""


@pytest.mark.parametrize(
    ("mtbf_s", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)], ids=["24h", "6h", "15min"]
)
def test_the_checkpoint_interval_is_that_of_dalys_figures(mtbf_s, minutes):
    """Daly (2006), captions of figures 3 to 5: checkpoints of 5 minutes."""
    assert daly_interval_s(mtbf_s, 5 * MINUTE) / MINUTE == pytest.approx(minutes, rel=0.01)


def test_goodput_is_what_a_machine_that_fails_at_random_gets_done():
    rng, mtbf, checkpoint, restart = random.Random(0), 20 * HOUR, 5 * MINUTE, 15 * MINUTE
    expected = costs.goodput(mtbf, checkpoint, restart)
    wall = done = 0.0
    while done < 20_000 * expected.interval_s:
        left = rng.expovariate(1 / mtbf)  # Poisson failures have no memory: draw anew for each attempt
        attempt = expected.interval_s + checkpoint
        if left >= attempt:
            wall, done = wall + attempt, done + expected.interval_s
            continue
        wall += left
        while (again := rng.expovariate(1 / mtbf)) < restart:  # restarts fail too
            wall += again
        wall += restart
    assert done / wall == pytest.approx(expected.fraction, rel=0.003)


@given(st.floats(10, 1e7), st.floats(1e-3, 1e4), st.floats(0, 1e4))
def test_no_other_interval_does_much_better(mtbf_s, checkpoint_s, restart_s):
    chosen = costs.goodput(mtbf_s, checkpoint_s, restart_s)
    assert 0 <= chosen.fraction < 1
    if checkpoint_s > mtbf_s / 2 or restart_s > 100 * mtbf_s:
        return  # outside the expansion: hardly anything gets done
    scale = mtbf_s * math.exp(restart_s / mtbf_s)
    for factor in (0.3, 0.7, 1.4, 3.0):
        tau = chosen.interval_s * factor
        other = tau / (scale * math.expm1((tau + checkpoint_s) / mtbf_s))
        assert other <= chosen.fraction * 1.02


def test_failures_of_nodes_add_and_a_job_that_never_fails_loses_nothing():
    assert costs.system_mtbf_s([(8, 800.0), (1, 100.0)]) == pytest.approx(50.0)
    assert costs.goodput(math.inf, 60, 60).fraction == 1.0
    assert costs.goodput(1000.0, 0.0, 100.0).fraction == pytest.approx(math.exp(-0.1))


def test_money_by_hand():
    # 350,640 USD over 4 years of 8766 h are 10 USD an hour, 12.5 when it trains 80 % of the time.
    assert costs.owned_usd_per_hour(350_640, 4, 0.0, 1.0) == pytest.approx(10.0)
    assert costs.owned_usd_per_hour(350_640, 4, 0.0, 0.8) == pytest.approx(12.5)
    assert costs.owned_usd_per_hour(350_640, 4, 0.25, 1.0) == pytest.approx(20.0)
    assert costs.power_usd_per_hour(10_000, 1.3, 0.1) == pytest.approx(1.3)
    assert costs.break_even_hours(300_000, 32, 2) == pytest.approx(10_000)
    assert costs.break_even_hours(300_000, 2, 2) == math.inf
    assert costs.usd_per_million_tokens(36, 10_000) == pytest.approx(1.0)
    assert costs.marginal_tokens_per_usd(1000, 36) == pytest.approx(100_000)
    assert costs.marginal_tokens_per_usd(1000, 0) == math.inf
    assert costs.days_to_train(86_400e6, 1e6, 0.5) == pytest.approx(2.0)


@given(st.floats(1e3, 1e7), st.floats(1, 20), st.floats(0.1, 500))
def test_at_break_even_buying_has_cost_what_renting_has(capital, running, rent):
    hours = costs.break_even_hours(capital, rent, running)
    if math.isfinite(hours):
        assert capital + running * hours == pytest.approx(rent * hours, rel=1e-6)
    else:
        assert rent <= running


class TestPrices:
    def test_shipped_prices_are_dated_sourced_and_those_of_the_nodes(self):
        prices = node_prices(HWDB)
        assert len(prices) >= 15
        for node, figures in prices.items():
            for figure in figures.values():
                assert date.fromisoformat(figure.date)
                assert figure.source
            row = HWDB.row("nodes", node)
            if "rent_usd_per_hour" in figures and row["price_date"]:
                assert figures["rent_usd_per_hour"].date >= min(row["price_date"], "2026-09-01")

    def test_a_later_price_wins_and_an_overlay_wins_over_both(self, tmp_path):
        (tmp_path / "prices.csv").write_text(
            "node,figure,value,date,source\n"
            "p5.48xlarge,rent_usd_per_hour,40,2026-01-02,a\np5.48xlarge,rent_usd_per_hour,44,2026-02-02,b\n"
        )
        found = node_prices(Hwdb.load((tmp_path,)))
        assert found["p5.48xlarge"]["rent_usd_per_hour"] == Figure(44.0, "b", "2026-02-02")

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("p5.48xlarge,rent_usd_per_hour,40,,quote", ["line 2", "date", "a day and a source"]),
            ("p5.48xlarge,rent_usd_per_hour,40,2026-01-01,", ["line 2", "source"]),
            ("p5.48xlarge,rent,40,2026-01-01,quote", ["unknown price 'rent'", "rent_usd_per_hour"]),
            ("p55.48xlarge,capital_usd,40,2026-01-01,quote", ["unknown node", "p5.48xlarge"]),
            ("p5.48xlarge,capital_usd,-4,2026-01-01,quote", ["-4", "above zero"]),
        ],
    )
    def test_a_bad_row_is_named(self, tmp_path, line, words):
        (tmp_path / "prices.csv").write_text(f"node,figure,value,date,source\n{line}\n")
        with pytest.raises(BadInputError) as caught:
            node_prices(Hwdb.load((tmp_path,)))
        assert all(word in str(caught.value) for word in words), caught.value

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("nodes: {DGX-H100: {capital_usd: 1}}", ["nodes.DGX-H100.date is missing", "day and a source"]),
            ("economics: {pue: 0.5, date: 2026-01-01, source: x}", ["economics.pue", "0.5"]),
            ("economics: {pues: 1.5, date: 2026-01-01, source: x}", ["unknown key 'pues'", "pue"]),
            (
                "nodes: {A: {capital: 1, date: 2026-01-01, source: x}}",
                ["unknown key 'capital'", "capital_usd"],
            ),
            ("- 1", ["a mapping"]),
        ],
    )
    def test_a_bad_price_file_is_explained(self, tmp_path, text, words):
        path = tmp_path / "prices.yaml"
        path.write_text(text)
        with pytest.raises(BadInputError) as caught:
            load_prices(path, HWDB)
        assert all(word in str(caught.value) for word in [str(path), *words]), caught.value


class TestBills:
    @pytest.fixture
    def prices(self, tmp_path: Path):
        path = tmp_path / "prices.yaml"
        path.write_text(FULL)
        return load_prices(path, HWDB)

    def member(self, name: str, nodes: int, *, bought: bool) -> Member:
        return Member("x", name, nodes, bought, named_purchase(name, nodes, HWDB).node)

    def test_a_bought_node_costs_capital_and_power(self, prices):
        found = bill([self.member("DGX-H100", 2, bought=True)], [1], prices)
        capital, power = (charge.usd_per_hour for charge in found.charges)
        assert capital == pytest.approx(2 * 300_000 / 4 / 8766 / 0.8)
        assert power == pytest.approx(10.2 * 1.25 * 0.1), "only the node that runs draws power"
        assert (found.outlay_usd, found.missing) == (600_000, ())
        assert all("2026-10-01" in charge.basis for charge in found.charges)

    def test_an_owned_fleet_costs_power_alone_and_a_rented_one_its_rent(self, prices):
        owned = bill([self.member("p5.48xlarge", 1, bought=False)], [1], prices, Terms(fleet="owned"))
        rented = bill([self.member("p5.48xlarge", 1, bought=False)], [0], prices)
        assert [charge.kind for charge in owned.charges] == ["power"]
        assert rented.usd_per_hour == pytest.approx(55.04), "rent is paid whether a node runs or not"
        assert rented.outlay_usd == 0

    def test_what_is_missing_is_named(self):
        found = bill([self.member("DGX-H200", 1, bought=True)], [1], load_prices(None, HWDB))
        assert found.missing == ("nodes.DGX-H200.rent_usd_per_hour or nodes.DGX-H200.capital_usd",)
        assert found.outlay_usd is None
        bought = bill(
            [self.member("DGX-H200", 1, bought=True)], [1], load_prices(None, HWDB), Terms(acquire="buy")
        )
        assert set(bought.missing) == {
            "nodes.DGX-H200.capital_usd",
            "economics.amortisation_years",
            "economics.pue",
            "economics.usd_per_kwh",
        }

    def test_break_even_wants_both_prices_and_counts_power(self, prices):
        member = self.member("DGX-H100", 1, bought=True)
        assert break_even_of(member, prices) is None
        prices = with_figure(prices, "nodes.DGX-H100.rent_usd_per_hour", 50.0)
        assert break_even_of(member, prices) == pytest.approx(300_000 / (50 - 10.2 * 1.25 * 0.1))

    def test_goodput_wants_a_rate_of_failures_and_has_seconds_of_its_own(self, prices):
        members = [self.member("DGX-H100", 2, bought=True), self.member("DGX-A100-80GB", 1, bought=False)]
        found = goodput_of(members, [2, 1], prices, 1.0, 2.0)
        assert found is not None
        rate = 2 / 4000 + 1 / 5000
        assert found.fraction == pytest.approx(costs.goodput(3600 / rate, 120, 600).fraction)
        assert goodput_of(members, [2, 1], Prices(), 1.0, 2.0) is None
        assumed = goodput_of(members, [2, 1], load_prices(None, HWDB), 30.0, 60.0)
        assert assumed is not None and 0.9 < assumed.fraction < 1

    def test_unknown_terms_are_refused(self):
        with pytest.raises(UnknownNameError, match="borrow"):
            Terms(acquire="borrow")

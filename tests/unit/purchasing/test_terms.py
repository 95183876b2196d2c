"""What is rented costs by the days of its run: brute force over mixes, laws of bounds and of reservations."""

import math
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tangram_sim as ts
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import load_cluster
from tangram_sim.hwdb.prices import Figure, Rents, node_prices
from tangram_sim.purchasing.billing import Terms, bill, way_of
from tangram_sim.purchasing.catalogue import Limits, bought, mixes, priced_offers
from tangram_sim.purchasing.fleets import Fleet, Member, named_purchase
from tangram_sim.purchasing.front import Front, Simulated
from tangram_sim.purchasing.goal import Goal
from tangram_sim.purchasing.pricefile import NodeFacts, Prices, load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.recommend import recommend_mix
from tangram_sim.purchasing.sensitivity import with_figure
from tangram_sim.questions.estimate import EstimateQuestion
from tangram_sim.questions.power import PowerOptions
from tangram_sim.questions.shared_fields import Run
from tangram_sim.studies.training_run import rents_of, training_run
from tests.unit.purchasing.shop import HWDB
from tests.unit.purchasing.test_front import QUICK, WORK, planned_alone

NODE = "p5en.48xlarge"
SHIPPED = node_prices(HWDB)[NODE]
CATALOGUE = [(named_purchase(name, 1, HWDB), 2) for name in ("A10x4", "T4x4")]
prices = st.floats(0.1, 100).map(lambda usd: Figure(usd, "made up"))
terms = st.floats(0.0, 400).map(lambda days: Figure(days, "made up"))
term = st.tuples(terms, terms).map(lambda pair: sorted(pair, key=lambda each: each.value)).filter(
    lambda pair: pair[1].value >= 1
)  # fmt: skip
rents = st.builds(
    lambda rent, reserved, term, kept, share: Rents.of(
        rent, reserved, *(each if keep else None for each, keep in zip(term, kept, strict=True)), share
    ),
    prices | st.none(), prices, term, st.tuples(st.booleans(), st.booleans()), st.floats(0.1, 1),
)  # fmt: skip
lengths = st.floats(1e-3, 1000)


def stated(rent=None, reserved=None, least=None, most=None) -> NodeFacts:
    figures = (None if value is None else Figure(value, "made up") for value in (rent, reserved, least, most))
    return NodeFacts(*figures)


def alone(name: str, nodes: int = 1) -> Member:
    return Member(f"+{name}", name, nodes, bought=True, node=named_purchase(name, 1, HWDB).node)


class TestRents:
    @given(rents, lengths)
    def test_no_run_of_any_length_pays_less_than_the_bound(self, each, days):
        assert each.usd_per_hour(days) >= each.least_usd_per_hour * (1 - 1e-12)
        if each.most_usd_per_hour < 1e30:
            assert each.usd_per_hour(days) <= each.most_usd_per_hour * (1 + 1e-12)

    @given(rents, lengths)
    def test_a_longer_commitment_is_never_chosen_where_it_costs_more_for_that_run(self, each, days):
        if each.is_reserved(days):
            paid = max(each.least_days, math.ceil(days * (1 - 1e-12)) if each.least_days else days)
            if each.on_demand == math.inf:
                paid = max(paid, math.ceil(days / each.most_days * (1 - 1e-12)) * each.least_days)
            else:
                assert paid <= each.most_days and paid * each.reserved < days * each.on_demand
            assert each.usd_per_hour(days) * days == pytest.approx(paid * each.reserved)
        else:
            assert each.usd_per_hour(days) == each.on_demand

    @given(rents, lengths, lengths)
    def test_a_longer_run_costs_no_less_in_all(self, each, one, other):
        short, long = sorted((one, other))
        assert short * each.usd_per_hour(short) <= long * each.usd_per_hour(long) * (1 + 1e-9)

    def test_a_term_is_paid_for_as_a_whole_also_by_a_shorter_run(self):
        each = Rents.of(*(Figure(value, "made up") for value in (10.0, 4.0, 7.0, 30.0)))
        assert [each.is_reserved(days) for days in (2.0, 2.9, 30.0, 30.5)] == [False, True, True, False]
        assert each.usd_per_hour(3.5) == pytest.approx(8.0)
        assert each.usd_per_hour(7.5) == pytest.approx(4.0 * 8 / 7.5)

    @pytest.mark.parametrize(
        "least, most, paid",
        [
            (365.0, 365.0, {364.2: 365, 365.0: 365, 366.0: 730, 731.0: 1095}),
            (3.0, 10.0, {10.0: 10, 10.5: 11, 20.5: 21}),
            (None, 10.0, {0.2: 1, 10.5: 11}),
            (0.0, 10.0, {0.2: 0.2, 10.5: 10.5}),
        ],
    )
    def test_who_has_no_price_on_demand_reserves_again_for_a_term_at_the_least(self, least, most, paid):
        least, most = (None if value is None else Figure(value, "made up") for value in (least, most))
        each = Rents.of(None, Figure(4.0, "made up"), least, most)
        for days, total in paid.items():
            assert each.usd_per_hour(days) * days == pytest.approx(4.0 * total)
            assert (f"paid for {total:,} day" in each.beside_the_price(days)) == (total != days)

    def test_a_longest_term_below_the_shortest_is_refused(self):
        for least, most in ((365.0, 182.0), (0.0, 0.0)):
            with pytest.raises(BadInputError, match="reserved_most_days"):
                Rents.of(*(Figure(value, "made up") for value in (10.0, 4.0, least, most)))


class TestBills:
    def test_the_bill_of_a_run_is_at_the_price_that_its_days_allow(self):
        prices = Prices({"T4x4": stated(10.0, 4.0, 7.0, 30.0)})
        for days, kind, rate in ((1.0, "rent", 10.0), (3.5, "reserved", 8.0), (40.0, "rent", 10.0)):
            (charge,) = bill([alone("T4x4", 2)], [2], prices, days=days).charges
            assert (charge.kind, charge.usd_per_hour) == (kind, pytest.approx(2 * rate))
            assert ("paid for 7 days" in charge.basis) == (days == 3.5)
        assert way_of(alone("T4x4"), prices, Terms()) == "rent", "without an end no term is long enough"

    def test_who_asks_for_one_way_pays_that_way(self):
        prices = Prices({"T4x4": stated(10.0, 4.0, 7.0, 30.0)})
        for way, rate in (("rent", 10.0), ("reserved", 8.0)):
            (charge,) = bill([alone("T4x4")], [1], prices, Terms(way), days=3.5).charges
            assert (charge.kind, charge.usd_per_hour) == (way, pytest.approx(rate))

    def test_a_reservation_is_paid_for_while_nothing_trains(self):
        prices = with_figure(Prices({"T4x4": stated(reserved=4.0)}), "economics.utilisation", 0.5)
        (charge,) = bill([alone("T4x4")], [1], prices, days=9.0).charges
        assert charge.usd_per_hour == pytest.approx(8.0)
        assert charge.basis == "reserved 4 (made up), paid for also while nothing trains (utilisation 0.5)"

    def test_a_price_without_a_term_counts_only_where_there_is_no_other(self):
        for rent, way in ((10.0, "rent"), (None, "reserved")):
            prices = Prices({"T4x4": stated(rent, 4.0)})
            assert way_of(alone("T4x4"), prices, Terms(), 30.0) == way

    def test_a_price_that_is_varied_keeps_its_term(self):
        prices = Prices({"T4x4": stated(10.0, 4.0, 7.0, 30.0)})
        varied = with_figure(prices, "nodes.T4x4.reserved_usd_per_hour", 5.0)
        assert bill([alone("T4x4")], [1], varied, days=3.5).usd_per_hour == pytest.approx(10.0)
        assert way_of(alone("T4x4"), varied, Terms(), 3.6) == "reserved"

    def test_a_price_file_states_terms(self, tmp_path):
        path = tmp_path / "prices.yaml"
        path.write_text(
            f"nodes: {{{NODE}: {{rent_usd_per_hour: 50, reserved_usd_per_hour: 30, reserved_least_days: 30, "
            "reserved_most_days: 365, date: 2026-11-01, source: our contract}}\n"
        )
        prices = load_prices(path, HWDB)
        ways = [way_of(alone(NODE), prices, Terms(), days) for days in (17.0, 19.0, 365.0, 366.0)]
        assert ways == ["rent", "reserved", "reserved", "rent"]
        path.write_text(path.read_text().replace("most_days: 365", "most_days: 0"))
        with pytest.raises(BadInputError, match="reserved_most_days"):
            load_prices(path, HWDB)


def test_a_run_on_a_cluster_is_paid_for_by_its_days():
    cluster = load_cluster(f"{NODE}:1", HWDB)
    plan = ts.estimate("gpt3-1.3b", cluster, ts.Job(global_batch=64), ts.Uniform(dp=8), hwdb=HWDB).document
    tokens = 1e9 / training_run(plan, cluster, HWDB, 1e9).days
    for days, key, paid in (
        (0.9, "reserved", 1.0),
        (0.2, "rent", 0.2),
        (16.5, "reserved", 17),
        (365, "rent", 365),
    ):
        run = training_run(plan, cluster, HWDB, tokens * days)
        assert run.days == pytest.approx(days)
        assert run.usd == pytest.approx(paid * 24 * SHIPPED[f"{key}_usd_per_hour"].value)
        (line,) = (line for line in run.basis if line.startswith(f"{key} of {NODE}"))
        assert ("paid for 1 day" in line) == (days == 0.9) and ("paid for 17 days" in line) == (days == 16.5)
        assert run.usd_low <= run.usd <= run.usd_high
    assert rents_of(cluster, HWDB)(math.inf)[0] == SHIPPED["rent_usd_per_hour"].value


@pytest.mark.parametrize("days", [0.2, 0.9, 365.0])
def test_clocks_are_chosen_at_the_price_that_the_run_is_billed_at(days):
    power = PowerOptions(power_cap=("500W",), usd_per_kwh=0.1, pue=1.2)
    asked = EstimateQuestion("gpt3-1.3b", f"{NODE}:1", ts.Job(global_batch=64), layout=ts.Uniform(dp=8))

    def answered(tokens):
        return replace(asked, run=Run(tokens=tokens, power=power)).answer().document

    found = answered(1e9 / answered(1e9).run.days * days)
    assert found.run.days == pytest.approx(days)
    per_million = found.power.chosen.usd_per_million_tokens  # without failures
    assert per_million == pytest.approx(found.run.usd_per_million_tokens * found.run.goodput)


@pytest.fixture(scope="module")
def alone_tokens_per_s() -> dict[tuple[int, ...], float]:
    """Of every mix of up to two nodes of the catalogue, bought from nothing."""
    prices = Prices({name: stated(1.0) for name in ("A10x4", "T4x4")})
    offers, _ = priced_offers(CATALOGUE, prices, Terms(), Limits(), date(2026, 11, 1))
    return {
        mix: planned_alone(bought(Fleet.none(), offers, mix))
        for mix in mixes(offers, Limits(nodes=2)) if any(mix)
    }  # fmt: skip


# The A10 nodes reserved for a week or more, the T4 nodes only reserved; days of the slowest mix.
PRICES = Prices({"A10x4": stated(4.0, 1.5, 7.0, 20.0), "T4x4": stated(None, 1.2, 3.0)})


@pytest.mark.parametrize("days", [4.0, 15.0, 60.0])
class TestBruteForce:
    def costs(self, rates, days) -> tuple[float, dict[tuple[int, ...], float]]:
        """(tokens, USD an hour of every mix at the days of its run)."""
        tokens = min(rate for rate in rates.values() if rate) * days * 86400
        each = [PRICES.nodes["A10x4"], PRICES.nodes["T4x4"]]
        prices = [
            Rents.of(*(getattr(facts, name) for name in ("rent_usd_per_hour", "reserved_usd_per_hour",
                     "reserved_least_days", "reserved_most_days")))
            for facts in each
        ]  # fmt: skip
        return tokens, {
            mix: sum(
                count * float(price.usd_per_hour(tokens / rate / 86400))
                for count, price in zip(mix, prices, strict=True)
            )
            for mix, rate in rates.items() if rate
        }  # fmt: skip

    def test_the_front_is_complete_and_each_bill_is_that_of_its_run(self, alone_tokens_per_s, days):
        tokens, usd = self.costs(alone_tokens_per_s, days)
        study = purchase(
            [WORK], Fleet.none(), CATALOGUE, Limits(nodes=2), PRICES,
            ordered=date(2026, 11, 1), tokens=tokens, wishes=QUICK, hwdb=HWDB,
        )  # fmt: skip
        every = [(usd[mix], alone_tokens_per_s[mix]) for mix in usd]
        undominated = sorted(
            item
            for item in every
            if not any(c <= item[0] and r >= item[1] and (c, r) != item for c, r in every)
        )
        assert [(point.cost, point.tokens_per_s) for point in study.front.points] == [
            pytest.approx(item) for item in undominated
        ]
        assert all(study.front.is_proven(at) for at in range(len(study.points)))
        for point in study.points:
            assert point.rows[0].bill.usd_per_hour == pytest.approx(usd[point.simulated.mix])
        for offer in study.offers:
            mix = tuple(int(other is offer) for other in study.offers)
            assert offer.usd_per_hour <= usd[mix] * (1 + 1e-9), "the bound exceeds a bill"

    def test_the_recommendation_is_the_cheapest_and_no_bound_exceeds_a_bill(self, alone_tokens_per_s, days):
        tokens, usd = self.costs(alone_tokens_per_s, days)
        whole = {mix: usd[mix] * tokens / alone_tokens_per_s[mix] / 3600 for mix in usd}
        for within in (days * 1.01, days * 0.6):
            in_time = [mix for mix in usd if tokens / alone_tokens_per_s[mix] / 86400 <= within]
            study = recommend_mix(
                WORK, Fleet.none(), CATALOGUE, Limits(nodes=2), PRICES, Goal(tokens, days=within),
                wishes=QUICK, hwdb=HWDB,
            )  # fmt: skip
            least = min(whole[mix] for mix in in_time)
            assert study.best.usd_to_train == pytest.approx(least)
            assert study.searched.least_usd <= min(
                (whole[mix] for mix in in_time if whole[mix] not in _totals(study.rows)), default=math.inf
            ) * (1 + 1e-9)

    def test_what_costs_too_much_an_hour_in_a_run_as_short_as_its_own_is_not_listed(
        self, alone_tokens_per_s, days
    ):
        tokens, usd = self.costs(alone_tokens_per_s, days)
        most = sorted(usd.values())[len(usd) // 2]
        study = purchase(
            [WORK], Fleet.none(), CATALOGUE, Limits(nodes=2, budget_usd_per_hour=most), PRICES,
            ordered=date(2026, 11, 1), tokens=tokens, wishes=QUICK, hwdb=HWDB,
        )  # fmt: skip
        assert study.points and all(usd[point.simulated.mix] <= most * (1 + 1e-9) for point in study.points)
        fastest = max(alone_tokens_per_s[mix] for mix in usd if usd[mix] <= most)
        assert study.front.points[-1].tokens_per_s == pytest.approx(fastest)


def _totals(rows) -> list[object]:
    return [pytest.approx(row.usd_to_train) for row in rows]


def test_a_gap_is_open_where_the_price_of_an_unplanned_mix_may_place_it():
    points = [Simulated((k,), str(k), float(k), 10.0 * k, 99.0, ()) for k in (1, 2, 3)]
    front = replace(Front(points, points, 9, 0, 1), may_reach=((0.5, 1.5, 99.0),))
    assert [front.is_proven(at) for at in range(3)] == [False, True, True]

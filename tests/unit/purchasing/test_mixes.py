"""Fleets and mixes of a catalogue, before anything is simulated."""

import itertools
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, InfeasibleError, TangramError, UnknownNameError
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.hwdb.prices import gpu_rent
from tangram_sim.purchasing.billing import Terms
from tangram_sim.purchasing.catalogue import Limits, Offer, load_catalogue, mixes, priced_offers
from tangram_sim.purchasing.fleets import Fleet, parse_purchases, parse_retired
from tangram_sim.purchasing.front import Simulated, front_of
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.search import ModelToTrain, rate_of, work_bound
from tangram_sim.purchasing.sensitivity import with_figure
from tangram_sim.training.job import Job
from tests.unit.purchasing.shop import HWDB, TODAY, fleet_of


class TestFleets:
    def test_what_is_bought_stands_behind_the_old_groups(self, shop):
        grown = fleet_of(shop).with_purchases(parse_purchases(f"p4d.24xlarge:2+{shop}/V100x4.yaml:1", HWDB))
        assert [(group.name, group.count) for group in grown.cluster.groups] == [
            ("g0", 2), ("g1", 1), ("g2", 2), ("g3", 1),
        ]  # fmt: skip
        assert [member.label for member in grown.members] == ["g0", "g1", "+p4d.24xlarge", "+V100x4"]
        assert [member.bought for member in grown.members] == [False, False, True, True]

    def test_retired_groups_take_their_limits_with_them(self):
        cluster = load_cluster("azure-c3", HWDB)
        fleet = Fleet.of(cluster)
        rest = fleet.without({"g0": fleet.members[0].nodes})
        assert [group.name for group in rest.cluster.groups] == [
            f"g{i}" for i in range(len(cluster.groups) - 1)
        ]
        assert [member.label for member in rest.members] == [m.label for m in fleet.members[1:]]
        kept = [limit for limit in cluster.network.between if 0 not in limit.groups]
        assert len(rest.cluster.network.between) == len(kept)
        for old, new in zip(kept, rest.cluster.network.between, strict=True):
            assert tuple(group - 1 for group in old.groups) == new.groups

    def test_use_is_counted_rank_by_rank(self, shop):
        used = fleet_of(shop).used([0, 1, 4, 8, 9, 10, 11])
        assert used == ((3, 2), (4, 1))

    @pytest.mark.parametrize(
        ("item", "words"),
        [
            ("p5.48xlarge", "NODE:COUNT"),
            ("p5.48xlarge:0", "1 to 100000 nodes"),
            ("p5.48xlarge:many", "p5.48xlarge:many given; write NODE:COUNT"),
            ("p6.48xlarge:1", "p5.48xlarge"),
            ("H20Ox8:1", "H200-SXM"),
            ("L40S:1", "L40S is a GPU, and a node holds several: write L40Sx8"),
            ("nowhere.yaml:1", "nowhere.yaml"),
        ],
    )
    def test_a_bad_purchase_is_explained(self, item, words):
        with pytest.raises(TangramError, match=words.replace("(", r"\(")):
            parse_purchases(item, HWDB)

    def test_nodes_of_a_gpu_kind_are_those_of_a_cluster_on_one_line(self):
        bought = parse_purchases("l40sx4:2+p5.48xlarge:1", HWDB)
        assert [(item.name, item.count) for item in bought] == [("L40Sx4", 2), ("p5.48xlarge", 1)]
        assert bought[0].node == load_cluster("L40Sx4:2", HWDB).groups[0].node

    def test_a_bad_retirement_is_explained(self, shop):
        fleet = fleet_of(shop)
        with pytest.raises(UnknownNameError, match="g9"):
            parse_retired(["g9"], fleet)
        with pytest.raises(BadInputError, match="g0 has 2 nodes"):
            parse_retired(["g0:3"], fleet)
        with pytest.raises(BadInputError, match="leaves no node"):
            fleet.without({"g0": 2, "g1": 1})


class TestMixes:
    @given(
        st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=4),
        st.integers(0, 30),
        st.integers(0, 12),
    )
    def test_exactly_the_mixes_within_the_limits_are_listed(self, rows, budget, space):
        some = parse_purchases("p4d.24xlarge:1", HWDB)[0]
        offers = [
            Offer(str(i), some, most, usd, 0.0, 0.0, units, None) for i, (most, usd, units) in enumerate(rows)
        ]
        every = itertools.product(*(range(most + 1) for most, _, _ in rows))
        wanted = [
            mix
            for mix in every
            if sum(n * usd for n, (_, usd, _) in zip(mix, rows, strict=True)) <= budget
            and sum(n * units for n, (_, _, units) in zip(mix, rows, strict=True)) <= space
        ]
        assert mixes(offers, Limits(budget_usd_per_hour=budget, rack_units=space)) == wanted

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
    def test_the_front_holds_what_nothing_beats(self, pairs):
        every = [Simulated((i,), str(i), float(c), float(t), 9.0, ()) for i, (c, t) in enumerate(pairs)]
        front = front_of(every)
        for item in every:
            beaten = any(
                o.cost <= item.cost and o.tokens_per_s >= item.tokens_per_s
                and (o.cost, -o.tokens_per_s) != (item.cost, -item.tokens_per_s)
                for o in every
            )  # fmt: skip
            values = {(o.cost, o.tokens_per_s) for o in front}
            assert ((item.cost, item.tokens_per_s) in values) == (not beaten and item.tokens_per_s > 0)

    def test_late_nodes_are_left_out_and_scarce_ones_counted(self, shop):
        catalogue = load_catalogue(shop / "catalogue.yaml", HWDB)
        prices = load_prices(shop / "prices.yaml", HWDB)
        prices = with_figure(prices, "nodes.T4x4.available", 1.0)
        limits = Limits(deadline=date(2027, 2, 1))
        offers, notes = priced_offers(catalogue, prices, Terms(), limits, TODAY)
        assert [(offer.name, offer.most) for offer in offers] == [("V100x4", 1), ("T4x4", 1)]
        assert "A100x4 left out: it comes on 2027-05-20" in notes[0]
        with pytest.raises(InfeasibleError, match="comes in time"):
            priced_offers(catalogue[1:2], prices, Terms(), limits, TODAY)

    def test_missing_figures_are_named_together(self, shop):
        catalogue = load_catalogue(shop / "catalogue.yaml", HWDB)
        unpriced = replace(load_prices(None, HWDB), gpu_rents={})
        with pytest.raises(BadInputError) as caught:
            priced_offers(catalogue, unpriced, Terms(), Limits(), TODAY)
        for name in ("nodes.V100x4.rent_usd_per_hour or nodes.V100x4.capital_usd", "nodes.T4x4.capital_usd"):
            assert name in str(caught.value)
        with pytest.raises(BadInputError, match=r"economics\.amortisation_years"):
            priced_offers(catalogue, load_prices(None, HWDB), Terms(acquire="buy"), Limits(), TODAY)

    def test_an_offer_without_a_price_is_named_and_the_others_stay(self, shop):
        catalogue = load_catalogue(shop / "catalogue.yaml", HWDB)
        prices = load_prices(shop / "prices.yaml", HWDB)
        without = {name: node for name, node in prices.nodes.items() if name != "T4x4"}
        lacking = replace(prices, nodes=without, gpu_rents={})
        offers, notes = priced_offers(catalogue, lacking, Terms(), Limits(), TODAY)
        whole, nothing = priced_offers(catalogue, prices, Terms(), Limits(), TODAY)
        assert offers == [item for item in whole if item.name != "T4x4"] and not nothing
        assert notes == ["not compared, for want of rent_usd_per_hour or capital_usd: T4x4"]

    @pytest.mark.parametrize("acquire", ["auto", "buy", "rent"])
    def test_the_file_an_error_asks_for_is_enough_once_completed(self, shop, acquire):
        catalogue, terms = load_catalogue(shop / "catalogue.yaml", HWDB), Terms(acquire=acquire)
        unpriced = replace(load_prices(None, HWDB), gpu_rents={})
        with pytest.raises(BadInputError) as caught:
            priced_offers(catalogue, unpriced, terms, Limits(), TODAY)
        text = str(caught.value).partition(":\n")[2]
        for word, value in (("NUMBER", "2"), ("YYYY-MM-DD", "2026-11-01"), ("WHO SAYS SO", "me")):
            text = text.replace(word, value)
        (shop / "mine.yaml").write_text(text)
        offers, _ = priced_offers(catalogue, load_prices(shop / "mine.yaml", HWDB), terms, Limits(), TODAY)
        assert len(offers) == len(catalogue)

    def test_a_node_written_as_its_gpus_is_rented_at_the_lowest_rent_of_the_kind(self):
        prices = load_prices(None, HWDB)
        usd, source = gpu_rent(HWDB, "A100-SXM4-80GB")
        (node,) = parse_purchases("A100-SXM4-80GBx8:1", HWDB)
        rent = prices.of(node).rent_usd_per_hour
        assert rent.value == pytest.approx(8 * usd) and source.partition(",")[0] in rent.source and rent.date
        # A node file may bear any name: what is named as the GPUs of another kind has no rent of that kind.
        (other,) = parse_purchases("T4x4:1", HWDB)
        assert prices.of(replace(node, node=other.node)).rent_usd_per_hour is None
        assert prices.of(replace(node, name="nobodyx8")).rent_usd_per_hour is None

    def test_shares_of_tokens_mean_a_harmonic_mean(self):
        # 3 of 4 tokens at 100/s and 1 of 4 at 50/s: 4 tokens take 0.03 + 0.02 s.
        assert rate_of([100.0, 50.0], [3.0, 1.0]) == pytest.approx(80.0)
        assert rate_of([100.0, 0.0], [3.0, 1.0]) == 0.0


def test_the_bound_on_a_mix_does_not_hang_on_how_equal_nodes_are_grouped() -> None:
    """Groups that are joined are one island: an atom may be spread over all their GPUs."""
    work = ModelToTrain(load_model("gpt3-1.3b"), Job(4, 512))
    whole, parts = (
        load_cluster(text, HWDB)
        for text in ("H100x4:3+V100-SXM2-32GBx4:1", "H100x4:1+V100-SXM2-32GBx4:1+H100x4:2")
    )
    assert work_bound(work, parts, HWDB) == pytest.approx(work_bound(work, whole, HWDB), rel=1e-12)

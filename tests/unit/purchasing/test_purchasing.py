"""What-if and purchase: fleets, fronts against full enumeration, plans that replay, clear words."""

import itertools
import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError, InfeasibleError, TangramError, UnknownNameError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing.billing import Bill, Lack, Terms
from tangram_sim.purchasing.catalogue import Limits, Offer, bought, load_catalogue, mixes, priced_offers
from tangram_sim.purchasing.fleets import Fleet, parse_purchases, parse_retired
from tangram_sim.purchasing.notes import notes_of
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain, Simulated, front_of, rate_of, work_bound
from tangram_sim.purchasing.sensitivity import sensitivity, with_figure
from tangram_sim.purchasing.whatif import row_of, what_if
from tangram_sim.purchasing.words import hourly, outlay
from tangram_sim.studies import api
from tangram_sim.studies.planfile import read_plan
from tangram_sim.studies.sweep import Cache, Sweep
from tangram_sim.training.job import Job
from tests.commands import files, tangram

HWDB = Hwdb.load()
JOB = Job(global_batch=8, seq=1024)
TODAY = date(2026, 11, 1)
PRICES = """\
nodes:
  V100x4: {rent_usd_per_hour: 7, rack_units: 4, delivery_days: 30, date: 2026-11-01, source: quote 2}
  A100x4:
    {capital_usd: 90000, delivery_days: 200, rack_units: 8, power_kw: 2.5, date: 2026-11-01, source: quote 3}
  T4x4: {rent_usd_per_hour: 1.5, delivery_days: 1, rack_units: 2, date: 2026-11-01, source: quote 1}
economics: {amortisation_years: 4, pue: 1.3, usd_per_kwh: 0.1, date: 2026-11-01, source: finance}
"""
NODES = {
    "V100x4": "{name: V100x4, gpu: V100-SXM2-32GB, gpus: 4, intra_link: NVLink2, nic_gbps: 100}",
    "A100x4": "{name: A100x4, gpu: A100-SXM4-40GB, gpus: 4, intra_link: NVLink3, nic_gbps: 100}",
    "T4x4": "{name: T4x4, gpu: T4, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}",
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a model, a fleet, node files, a catalogue and prices."""
    files(tmp_path)
    (tmp_path / "prices.yaml").write_text(PRICES)
    for name, text in NODES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    offers = [{"node": f"{name}.yaml", "most": 2 if name == "T4x4" else 1} for name in NODES]
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump({"offers": offers}))
    return tmp_path


def fleet_of(folder: Path) -> Fleet:
    return Fleet.of(load_cluster(str(folder / "lab.yaml"), HWDB))


TWO = Limits(nodes=2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("answers")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    files(folder)
    (folder / "prices.yaml").write_text(PRICES)
    for name, text in NODES.items():
        (folder / f"{name}.yaml").write_text(text)
    adds = [parse_purchases(f"{folder}/{item}", HWDB) for item in ("A100x4.yaml:2", "V100x4.yaml:1")]
    prices = load_prices(folder / "prices.yaml", HWDB)
    return what_if(
        load_model(str(folder / "tiny.yaml")), fleet_of(folder), adds,
        retired={"g0": 1}, job=JOB, tokens=1e10, prices=prices, hwdb=HWDB,
        wishes=SearchOptions(sub_islands=False),
    )  # fmt: skip


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
            ("p5.48xlarge:0", "'0' is no count"),
            ("p5.48xlarge:many", "'many' is no count"),
            ("p6.48xlarge:1", "p5.48xlarge"),
            ("H20Ox8:1", "H200-SXM"),
            ("gpu_8x_v100:1", "nic_gbps"),
            ("nowhere.yaml:1", "nowhere.yaml"),
        ],
    )
    def test_a_bad_purchase_is_explained(self, item, words):
        with pytest.raises(TangramError, match=words.replace("(", r"\(")):
            parse_purchases(item, HWDB)

    def test_nodes_of_a_gpu_kind_are_those_of_a_cluster_on_one_line(self):
        bought = parse_purchases("l40sx4:2+p5.48xlarge:1", HWDB)
        assert [(one.name, one.count) for one in bought] == [("L40Sx4", 2), ("p5.48xlarge", 1)]
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
        for one in every:
            beaten = any(
                o.cost <= one.cost and o.tokens_per_s >= one.tokens_per_s
                and (o.cost, -o.tokens_per_s) != (one.cost, -one.tokens_per_s)
                for o in every
            )  # fmt: skip
            values = {(o.cost, o.tokens_per_s) for o in front}
            assert ((one.cost, one.tokens_per_s) in values) == (not beaten and one.tokens_per_s > 0)

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
        with pytest.raises(BadInputError) as caught:
            priced_offers(catalogue, load_prices(None, HWDB), Terms(), Limits(), TODAY)
        for name in ("nodes.V100x4.rent_usd_per_hour or nodes.V100x4.capital_usd", "nodes.T4x4.capital_usd"):
            assert name in str(caught.value)
        with pytest.raises(BadInputError, match=r"economics\.amortisation_years"):
            priced_offers(catalogue, load_prices(None, HWDB), Terms(acquire="buy"), Limits(), TODAY)

    @pytest.mark.parametrize("acquire", ["auto", "buy", "rent"])
    def test_the_file_an_error_asks_for_is_enough_once_completed(self, shop, acquire):
        catalogue, terms = load_catalogue(shop / "catalogue.yaml", HWDB), Terms(acquire=acquire)
        with pytest.raises(BadInputError) as caught:
            priced_offers(catalogue, load_prices(None, HWDB), terms, Limits(), TODAY)
        text = str(caught.value).partition(":\n")[2]
        for word, value in (("NUMBER", "2"), ("YYYY-MM-DD", "2026-11-01"), ("WHO SAYS SO", "me")):
            text = text.replace(word, value)
        (shop / "mine.yaml").write_text(text)
        offers, _ = priced_offers(catalogue, load_prices(shop / "mine.yaml", HWDB), terms, Limits(), TODAY)
        assert len(offers) == len(catalogue)

    def test_shares_of_tokens_mean_a_harmonic_mean(self):
        # 3 of 4 tokens at 100/s and 1 of 4 at 50/s: 4 tokens take 0.03 + 0.02 s.
        assert rate_of([100.0, 50.0], [3.0, 1.0]) == pytest.approx(80.0)
        assert rate_of([100.0, 0.0], [3.0, 1.0]) == 0.0


class TestPurchase:
    def ask(self, shop: Path, kept: Path, *, growth: bool, limits: Limits = TWO, **more):
        return purchase(
            [ModelToTrain(load_model(str(shop / "tiny.yaml")), JOB)],
            fleet_of(shop),
            load_catalogue(shop / "catalogue.yaml", HWDB),
            limits,
            load_prices(shop / "prices.yaml", HWDB),
            ordered=TODAY,
            hwdb=HWDB,
            sweep=Sweep(Cache(kept), jobs=1),
            growth=growth,
            **more,
        )

    @pytest.mark.slow
    def test_the_front_is_that_of_full_enumeration(self, shop, kept):
        """Both bounds leave mixes out; neither may lose a point."""
        catalogue, prices = (
            load_catalogue(shop / "catalogue.yaml", HWDB),
            load_prices(shop / "prices.yaml", HWDB),
        )
        offers, _ = priced_offers(catalogue, prices, Terms(), TWO, TODAY)
        every, model, fleet = [], load_model(str(shop / "tiny.yaml")), fleet_of(shop)
        for mix in mixes(offers, TWO):
            found = api.plan(
                model,
                bought(fleet, offers, mix).cluster,
                JOB,
                wishes=SearchOptions(sub_islands=False),
                hwdb=HWDB,
            )
            cost = sum(count * offer.usd_per_hour for count, offer in zip(mix, offers, strict=True))
            every.append((cost, JOB.tokens / found.document.step_s))
        wanted = sorted(
            (cost, rate)
            for cost, rate in every
            if not any(c <= cost and r >= rate and (c, r) != (cost, rate) for c, r in every)
        )
        for growth in (False, True):
            study = self.ask(shop, kept, growth=growth)
            points = [(point.simulated.cost, point.simulated.tokens_per_s) for point in study.points]
            assert points == [pytest.approx(one) for one in wanted]
            assert study.front.mixes == len(every) == len(study.front.simulated) + study.front.left_out
        assert study.front.left_out > 0, "the example must have something to leave out"

    @pytest.mark.slow
    def test_no_answer_beats_its_bound_and_every_gap_is_stated(self, shop, kept):
        study = self.ask(shop, kept, growth=False)
        for one in study.front.simulated:
            assert 0 < one.tokens_per_s <= one.bound_tokens_per_s
            assert one.gap == pytest.approx(one.bound_tokens_per_s / one.tokens_per_s - 1)

    @pytest.mark.slow
    def test_plans_of_the_front_replay_to_their_numbers(self, shop, kept, tmp_path):
        study = self.ask(shop, kept, growth=True)
        for point in study.points:
            for path, document in point.plan_files(tmp_path / "plans"):
                path.parent.mkdir(exist_ok=True)
                path.write_text(document.model_dump_json())
                played = api.simulate(path)
                differing = ("re-priced", "the file")  # what `simulate` says of a plan priced otherwise
                assert not [note for note in played.document.notes if note.startswith(differing)]
                assert played.document.step_s == document.step_s
                assert JOB.tokens / played.document.step_s == pytest.approx(
                    point.simulated.tokens_per_s, rel=1e-9
                )

    @pytest.mark.slow
    def test_a_repeated_search_asks_nothing_and_a_changed_row_asks_again(self, shop, kept, tmp_path):
        works = [ModelToTrain(load_model(str(shop / "tiny.yaml")), JOB)]
        catalogue = load_catalogue(shop / "catalogue.yaml", HWDB)
        prices = load_prices(shop / "prices.yaml", HWDB)
        asked = (works, fleet_of(shop), catalogue, Limits(nodes=1), prices)
        purchase(*asked, ordered=TODAY, hwdb=HWDB, sweep=Sweep(Cache(kept), jobs=1))
        again = Sweep(Cache(kept), jobs=1)
        purchase(*asked, ordered=TODAY, hwdb=HWDB, sweep=again)
        assert again.made == 0
        (tmp_path / "gpus.csv").write_text("name,memory_gb_per_s\nT4,300\n")
        changed = Sweep(Cache(kept), jobs=1)
        purchase(*asked, ordered=TODAY, hwdb=Hwdb.load((tmp_path,)), sweep=changed)
        assert changed.kept == 0
        assert changed.made > 0

    @pytest.mark.parametrize(
        ("table", "text"),
        [
            ("links.csv", "name,gb_per_s\nNVLink3,299\n"),
            ("prices.csv", ""),
            (
                "efficiency/x.csv",
                "gpu,dtype,kernel,stack,parameter,value,sigma,n,source\n"
                "T4,fp16,gemm,generic,efficiency,0.3,0.1,1,me\n",
            ),
            (
                "collectives/x.csv",
                "link,gpu,pattern,library,parameter,value,sigma,n,source\n"
                "NVLink3,*,ring,NCCL,hop_s,2e-6,0,1,me\n",
            ),
        ],
    )
    def test_every_row_that_a_plan_may_rest_on_is_in_the_key(self, tmp_path, table, text):
        """Prices are not: bills are made anew from the plans kept."""
        path = tmp_path / table
        path.parent.mkdir(exist_ok=True)
        shipped = (HWDB.folders[0] / "prices.csv").read_text().replace("3.06", "4.06")
        path.write_text(text or shipped)
        changed = Hwdb.load((tmp_path,)).digest_of_tables() != HWDB.digest_of_tables()
        assert changed == (table != "prices.csv")

    @pytest.mark.slow
    def test_what_spares_time_changes_no_plan(self, shop, monkeypatch):
        """A parallelizer shared between candidates, and first sweeps over whole islands and halves."""
        model, fleet = load_model(str(shop / "tiny.yaml")), fleet_of(shop)
        grown = fleet.with_purchases(parse_purchases(f"{shop}/V100x4.yaml:2", HWDB))
        shared = Grid()
        quick = [api.plan(model, one.cluster, JOB, hwdb=HWDB, parallelizer=shared) for one in (fleet, grown)]
        monkeypatch.setattr("tangram_sim.planners.tangram.composition.search.COARSE", ())
        slow = [api.plan(model, one.cluster, JOB, hwdb=HWDB) for one in (fleet, grown)]
        for one, other in zip(quick, slow, strict=True):
            assert one.document.pipelines == other.document.pipelines
            assert one.document.step_s == other.document.step_s

    @pytest.mark.slow
    def test_several_models_share_a_fleet(self, shop, kept):
        model = load_model(str(shop / "tiny.yaml"))
        alone = self.ask(shop, kept, growth=True, limits=Limits(nodes=1))
        both = purchase(
            [ModelToTrain(model, JOB, 3.0), ModelToTrain(model, Job(8, 512), 1.0)],
            fleet_of(shop),
            load_catalogue(shop / "catalogue.yaml", HWDB),
            Limits(nodes=1),
            load_prices(shop / "prices.yaml", HWDB),
            ordered=TODAY,
            hwdb=HWDB,
            sweep=Sweep(Cache(kept), jobs=1),
        )
        point = both.points[0]
        assert len(point.rows) == len(point.simulated.documents) == 2
        rates = [row.throughput.tokens_per_s for row in point.rows]
        assert point.simulated.tokens_per_s == pytest.approx(4 / (3 / rates[0] + 1 / rates[1]))
        assert rates[0] == pytest.approx(alone.points[0].simulated.tokens_per_s)

    def test_a_budget_that_buys_nothing_says_what_one_node_takes(self, shop, kept):
        with pytest.raises(InfeasibleError) as caught:
            self.ask(shop, kept, growth=True, limits=Limits(budget_usd_per_hour=1.0))
        assert "one T4x4: rate 1.5 of 1 USD/h" in str(caught.value)

    def test_tokens_per_s_mean_the_same_as_in_a_what_if(self, shop, kept):
        """Goodput is in both, or, where a figure of any node is missing, in neither."""
        text = PRICES.replace("pue: 1.3,", "pue: 1.3, checkpoint_s: 60, restart_s: 300, mtbf_hours: 50,")
        for whole in (True, False):
            (shop / "prices.yaml").write_text(text if whole else text.replace("restart_s: 300, ", ""))
            study = self.ask(shop, kept, growth=True, limits=Limits(nodes=1))
            compared = what_if(
                load_model(str(shop / "tiny.yaml")), fleet_of(shop),
                [parse_purchases(f"{shop}/{name}.yaml:1", HWDB) for name in NODES],
                job=JOB, prices=load_prices(shop / "prices.yaml", HWDB), hwdb=HWDB,
                sweep=Sweep(Cache(kept), jobs=1), wishes=SearchOptions(sub_islands=False),
            )  # fmt: skip
            assert study.failures == compared.failures == whole
            rates = {row.name.removeprefix("+ "): row for row in compared.rows}
            for point in study.points:
                row = rates["fleet" if point.simulated.name == "nothing" else point.simulated.name]
                shown = point.rows[0].throughput.tokens_per_s
                assert point.simulated.tokens_per_s == pytest.approx(shown, rel=1e-12)
                assert point.simulated.tokens_per_s == pytest.approx(row.throughput.tokens_per_s, rel=1e-12)
                raw = JOB.tokens / row.document.step_s
                assert (row.throughput.tokens_per_s < raw) == whole
                assert point.simulated.gap >= 0

    def test_outlay_can_be_the_cost(self, shop, kept):
        study = self.ask(shop, kept, growth=True, limits=Limits(nodes=1), by_outlay=True)
        assert {point.simulated.cost for point in study.points} <= {0.0, 90_000.0}


def test_work_bounds_grow_with_the_fleet():
    model, fleet = load_model("gpt3-1.3b"), Fleet.of(load_cluster("azure-c1-t4x4-v100x4", HWDB))
    rates = [
        work_bound(
            ModelToTrain(model, JOB),
            fleet.with_purchases(parse_purchases(f"p3dn.24xlarge:{n}", HWDB)).cluster,
            HWDB,
        )
        for n in (1, 2, 3)
    ]
    assert rates == sorted(rates)
    assert work_bound(ModelToTrain(model, Job(16, 1024, "nvfp4")), fleet.cluster, HWDB) == 0.0


class TestWhatIf:
    def test_rows_are_the_fleet_what_is_left_of_it_and_the_candidates(self, study):
        assert [row.name for row in study.rows] == [
            "fleet", "fleet - 1 x g0", "fleet - 1 x g0 + 2 x A100x4", "fleet - 1 x g0 + 1 x V100x4",
        ]  # fmt: skip

    def test_figures_of_a_row_agree_with_its_plan(self, study):
        for row in study.rows:
            assert row.throughput.tokens_per_s == pytest.approx(row.document.tokens_per_s)
            assert sum(use.gpus_used for use in row.uses) == row.document.gpus_used
            assert sum(use.gpus for use in row.uses) == row.document.gpus_total
            assert row.days_to_train == pytest.approx(1e10 / row.throughput.tokens_per_s / 86_400)
            assert row.usd_to_train == pytest.approx(row.usd_per_million_tokens * 1e4)

    def test_margins_are_differences_to_the_fleet(self, study):
        base, row = study.rows[0], study.rows[2]
        gained = row.throughput.tokens_per_s - base.throughput.tokens_per_s
        paid = row.bill.usd_per_hour - base.bill.usd_per_hour
        assert row.marginal_tokens_per_usd == pytest.approx(gained * 3600 / paid)
        assert base.marginal_tokens_per_usd is None

    def test_what_is_known_is_shown_and_what_is_not_is_named(self, study, tmp_path):
        """Without the price of power, a rented candidate still says what it adds, and what it brings."""
        (tmp_path / "prices.yaml").write_text("\n".join(PRICES.splitlines()[:2]))  # the rent of V100x4 alone
        prices, terms = load_prices(tmp_path / "prices.yaml", HWDB), Terms(fleet="owned")

        def row(old, base):
            return row_of(old.name, old.fleet, old.document, 1e10, prices, terms, base, failures=False)

        base = row(study.rows[1], None)
        bought, rented = (row(old, base) for old in study.rows[2:])
        assert [charge.usd_per_hour for charge in rented.bill.charges] == [7.0]
        assert (hourly(base), hourly(bought), hourly(rented)) == ("-", "-", "> 7")
        assert (outlay(bought), outlay(rented)) == ("-", "0")
        power = ("economics.pue", "economics.usd_per_kwh")
        assert rented.bill.missing == power
        assert bought.bill.missing == (*power, "nodes.A100x4.rent_usd_per_hour or nodes.A100x4.capital_usd")
        gained = rented.throughput.tokens_per_s - base.throughput.tokens_per_s
        assert rented.marginal_tokens_per_usd == pytest.approx(gained * 3600 / 7)
        assert bought.marginal_tokens_per_usd is None
        notes = notes_of([base, bought, rented], prices)
        assert f"costs leave out g1 in every row, for want of {', '.join(power)}" in notes
        assert any("leave out A100x4 in `fleet - 1 x g0 + 2 x A100x4`" in note for note in notes)
        assert not any(note.startswith("costs") and "V100x4" in note for note in notes)

    def test_old_gpus_that_nothing_uses_are_named(self, study):
        row = study.rows[3]
        uses = tuple(replace(use, gpus_used=0 if use.label == "g0" else use.gpus_used) for use in row.uses)
        (note,) = (note for note in notes_of([replace(row, uses=uses)], study.prices) if "uses g0" in note)
        assert f"`{row.name}`" in note

    def test_the_ranking_is_among_what_is_bought_and_billed(self, study):
        assert study.contenders == study.rows[2:], "the fleet as it stands is no purchase"
        unbilled = replace(study.rows[2], name="unbilled", bill=Bill((), None, (Lack("x", 1, 1, ("y",)),)))
        found = sensitivity(replace(study, rows=(*study.rows, unbilled)), HWDB)
        assert found.unpriced == ("unbilled",)
        assert {found.best, found.second} == {row.name for row in study.rows[2:]}

    def test_thresholds_are_where_the_ranking_flips(self, study):
        study = replace(study, rows=study.rows[2:])  # both bought: one for capital, one by the hour
        found = sensitivity(study, HWDB)
        by_name = {row.name: row for row in study.rows}
        best, second = by_name[found.best], by_name[found.second]
        assert found.score == "usd_per_million_tokens"
        assert found.tornado[0].width == max(swing.width for swing in found.tornado)
        bills = [flip for flip in found.flips if flip.input.row is None]
        assert bills, "some price must matter"
        for flip in bills:

            def lead(value, flip=flip):
                prices = with_figure(study.prices, flip.input.name, value)
                return [
                    row_of(
                        row.name, row.fleet, row.document, 1e10, prices, study.terms, None, failures=False
                    ).usd_per_million_tokens
                    for row in (best, second)
                ]  # fmt: skip

            step = 1e-6 * (1 if flip.change > 0 else -1)
            before, after = lead(flip.threshold * (1 - step)), lead(flip.threshold * (1 + step))
            assert before[0] <= before[1] * (1 + 1e-9)
            assert after[1] <= after[0] * (1 + 1e-9)

    def test_efficiencies_are_varied_within_their_standard_error(self, study):
        found = sensitivity(study, HWDB)
        rows = [swing.input for swing in found.tornado if swing.input.row is not None]
        assert rows
        for one in rows:
            assert one.low <= one.base <= one.high
            assert one.high - one.base <= one.row.number("sigma") * (1 + 1e-9)


class TestCommands:
    def test_what_if_writes_plans_that_replay(self, shop):
        done = tangram(
            "what-if", shop / "tiny.yaml", shop / "lab.yaml", "--add", f"{shop}/A100x4.yaml:1",
            "--global-batch", 8,
            "--cache", shop / "cache", "--jobs", 1, "-o", shop / "plans", "--json", "--tokens", "1e9",
        )  # fmt: skip
        assert (done.code, done.err) == (0, "")
        rows = done.json["candidates"]
        assert [row["name"] for row in rows] == ["fleet", "+ 1 x A100x4"]
        for row, name in zip(rows, ("fleet.json", "1_x_A100x4.json"), strict=True):
            assert read_plan(shop / "plans" / name).step_s == row["step_s"]
        assert rows[1]["missing"], "no price was given"
        assert rows[1]["usd_per_hour"] is None

    def test_a_disk_that_is_full_at_the_end_loses_no_answer(self, shop, monkeypatch):
        """The table stands before anything is written, and the answers are in the cache."""

        def full(path, text):
            raise BadInputError(f"{path}: cannot be written: No space left on device")

        monkeypatch.setattr("tangram_sim.datafiles.write_whole", full)
        words = (
            "what-if", shop / "tiny.yaml", shop / "lab.yaml", "--add", f"{shop}/A100x4.yaml:1",
            "--global-batch", 8, "--cache", shop / "cache", "--jobs", 1,
        )  # fmt: skip
        done = tangram(*words, "-o", shop / "plans")
        assert done.code == 2
        assert "No space left on device" in done.err
        assert "+ 1 x A100x4" in done.out
        assert "taken from the cache" in done.out
        assert "0 plans made" in tangram(*words).out

    def test_purchase_writes_its_front(self, shop):
        arguments = (
            "purchase", shop / "tiny.yaml", shop / "lab.yaml", "--catalogue", shop / "catalogue.yaml",
            "--prices", shop / "prices.yaml", "--max-nodes", 1, "--global-batch", 8,
            "--cache", shop / "cache", "--jobs", 1,
            "-o", shop / "out",
        )  # fmt: skip
        done = tangram(*arguments)
        assert (done.code, done.err) == (0, "")
        assert "the front of 4 mixes" in done.out
        front = json.loads((shop / "out" / "front.json").read_text())
        for point in front["front"]:
            for plan in point["plans"]:
                assert read_plan(shop / "out" / "plans" / plan).tokens_per_s == pytest.approx(
                    point["tokens_per_s"]
                )
        again = tangram(*arguments)
        assert "searched: 0 plans made" in again.out

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["what-if"], "nothing to compare"),
            (["what-if", "--add", "p5.48xlarge:1", "--tokens", "-1"], "--tokens -1"),
            (["what-if", "--add", "p5.48xlarge:1", "--acquire", "steal"], "steal"),
            (["what-if", "--add", "p5.48xlarge:1", "--jobs", "-2"], "--jobs -2"),
            (["what-if", "--add", "p5.48xlarge:1", "--cache", "x", "--no-cache"], "contradict"),
            (["what-if", "--add", "p5.48xlarge:1", "--prices", "none.yaml"], "none.yaml"),
            (["purchase", "--catalogue", "none.yaml"], "none.yaml"),
            (["purchase", "--catalogue", "catalogue.yaml", "--budget", "0"], "--budget 0"),
            (["purchase", "--catalogue", "catalogue.yaml", "--deadline", "soon"], "2027-03-01"),
            (["purchase", "--catalogue", "catalogue.yaml", "--weights", "1,2"], "--weights 1,2"),
            (["purchase", "--catalogue", "catalogue.yaml", "--cost", "blood"], "blood"),
            (["purchase", "--catalogue", "catalogue.yaml"], "cannot be priced without"),
            (["purchase", "--catalogue", "odd.yaml"], "unknown node"),
            (["purchase", "--catalogue", "twice.yaml"], "offered twice"),
            (["purchase", "--catalogue", "empty.yaml"], "offers"),
        ],
    )
    def test_bad_input_is_explained(self, shop, arguments, words, monkeypatch):
        monkeypatch.chdir(shop)
        (shop / "odd.yaml").write_text("offers: [{node: p55.48xlarge}]")
        (shop / "twice.yaml").write_text("offers: [{node: p5.48xlarge}, {node: p5.48xlarge}]")
        (shop / "empty.yaml").write_text("offers: []")
        done = tangram(arguments[0], "tiny.yaml", "lab.yaml", *arguments[1:])
        assert done.code == 2
        assert words in done.err
        assert "Traceback" not in done.err

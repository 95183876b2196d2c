"""What-if and purchase: fleets, fronts against full enumeration, plans that replay, clear words."""

from dataclasses import replace
from pathlib import Path

import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.budget import budget
from tangram_sim.planners.search_memory import SearchMemory
from tangram_sim.purchasing.catalogue import Limits, load_catalogue
from tangram_sim.purchasing.fleets import Fleet, parse_purchases
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain, work_bound
from tangram_sim.purchasing.whatif import what_if
from tangram_sim.studies import api
from tangram_sim.studies.sweep import Cache, Sweep
from tangram_sim.training.job import Job
from tests.remembered import searched_anew
from tests.unit.purchasing.shop import HWDB, JOB, NODES, PRICES, TODAY, TWO, fleet_of


class TestPurchase:
    def ask(self, shop: Path, kept: Path, *, limits: Limits = TWO, **more):
        return purchase(
            [ModelToTrain(load_model(str(shop / "tiny.yaml")), JOB)],
            fleet_of(shop),
            load_catalogue(shop / "catalogue.yaml", HWDB),
            limits,
            load_prices(shop / "prices.yaml", HWDB),
            ordered=TODAY,
            hwdb=HWDB,
            sweep=Sweep(Cache(kept), jobs=1),
            **more,
        )

    @pytest.mark.slow
    def test_no_answer_beats_its_bound_and_every_gap_is_stated(self, shop, kept):
        study = self.ask(shop, kept)
        for item in study.front.simulated:
            assert 0 < item.tokens_per_s <= item.bound_tokens_per_s
            assert item.gap == pytest.approx(item.bound_tokens_per_s / item.tokens_per_s - 1)

    @pytest.mark.slow
    def test_plans_of_the_front_replay_to_their_numbers(self, shop, kept, tmp_path):
        study = self.ask(shop, kept)
        for point in study.points:
            lasting = point.rows[0].goodput
            assert lasting is not None, "failures are counted by default"
            for path, document in point.plan_files(tmp_path / "plans"):
                path.parent.mkdir(exist_ok=True)
                path.write_text(document.model_dump_json())
                played = api.simulate(path)
                differing = ("re-priced", "the file")  # what `simulate` says of a plan priced otherwise
                assert not [note for note in played.document.notes if note.startswith(differing)]
                assert played.document.step_s == document.step_s
                assert lasting.fraction * JOB.tokens / played.document.step_s == pytest.approx(
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
        """A memory shared between candidates, and first sweeps over whole islands and halves."""
        model, fleet = load_model(str(shop / "tiny.yaml")), fleet_of(shop)
        grown = fleet.with_purchases(parse_purchases(f"{shop}/V100x4.yaml:2", HWDB))
        with searched_anew(), SearchMemory().in_use():
            quick = [api.plan(model, item.cluster, JOB, hwdb=HWDB) for item in (fleet, grown)]
        at_once = replace(budget("normal"), coarse_limits=())
        monkeypatch.setattr("tangram_sim.planners.tangram.engine.budget", lambda _: at_once)
        with searched_anew():
            slow = [api.plan(model, item.cluster, JOB, hwdb=HWDB) for item in (fleet, grown)]
        for item, other in zip(quick, slow, strict=True):
            assert item.document.pipelines == other.document.pipelines
            assert item.document.step_s == other.document.step_s

    @pytest.mark.slow
    def test_several_models_share_a_fleet(self, shop, kept):
        model = load_model(str(shop / "tiny.yaml"))
        alone = self.ask(shop, kept, limits=Limits(nodes=1))
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
            self.ask(shop, kept, limits=Limits(budget_usd_per_hour=1.0))
        assert "one T4x4: rate 1.5 of 1 USD/h" in str(caught.value)

    def test_tokens_per_s_mean_the_same_as_in_a_what_if(self, shop, kept):
        """Goodput is in both, whether its seconds are stated or follow from the plan's bytes."""
        text = PRICES.replace("pue: 1.3,", "pue: 1.3, checkpoint_s: 60, restart_s: 300, mtbf_hours: 50,")
        for whole in (True, False):
            (shop / "prices.yaml").write_text(text if whole else text.replace("restart_s: 300, ", ""))
            study = self.ask(shop, kept, limits=Limits(nodes=1))
            compared = what_if(
                load_model(str(shop / "tiny.yaml")), fleet_of(shop),
                [parse_purchases(f"{shop}/{name}.yaml:1", HWDB) for name in NODES],
                job=JOB, prices=load_prices(shop / "prices.yaml", HWDB), hwdb=HWDB,
                sweep=Sweep(Cache(kept), jobs=1),
            )  # fmt: skip
            assert study.billing.failures and compared.billing.failures
            rates = {row.name.removeprefix("+ "): row for row in compared.rows}
            for point in study.points:
                row = rates["fleet" if point.simulated.name == "nothing" else point.simulated.name]
                shown = point.rows[0].throughput.tokens_per_s
                assert point.simulated.tokens_per_s == pytest.approx(shown, rel=1e-12)
                assert point.simulated.tokens_per_s == pytest.approx(row.throughput.tokens_per_s, rel=1e-12)
                raw = JOB.tokens / row.document.step_s
                assert row.throughput.tokens_per_s < raw
                assert point.simulated.gap >= 0

    def test_outlay_can_be_the_cost(self, shop, kept):
        study = self.ask(shop, kept, limits=Limits(nodes=1), by_outlay=True)
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

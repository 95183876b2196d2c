"""What-if and purchase under limits on power: clocks, watts, bills, bounds; and prices that searches keep."""

from dataclasses import replace

import pytest

from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.hwdb.prices import Figure
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing import cases
from tangram_sim.purchasing.billing import Terms
from tangram_sim.purchasing.catalogue import Limits
from tangram_sim.purchasing.fleets import Fleet, named_purchase
from tangram_sim.purchasing.pricefile import Economics, NodeFacts, Prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain, work_bound
from tangram_sim.purchasing.whatif import what_if
from tangram_sim.questions.buying import Served
from tangram_sim.questions.power import PowerOptions
from tangram_sim.questions.what_if import WhatIfQuestion
from tangram_sim.studies import api
from tangram_sim.studies.training_power import PowerTerms
from tangram_sim.training.job import Job
from tests.unit.purchasing.shop import HWDB, TODAY

MODEL, JOB = load_model("gpt3-1.3b"), Job(global_batch=16, seq=2048)
QUICK = SearchOptions(effort="quick")
FLEET = Fleet.of(load_cluster("A100-80GBx4:1", HWDB))
OFFERS = [(named_purchase(name, 1, HWDB), 1) for name in ("H100x4", "A100-80GBx4")]
FREE = PowerTerms(pue=1.3)
ECONOMICS = replace(Economics(), pue=Figure(1.3, "made up"), usd_per_kwh=Figure(0.2, "made up"))
PRICES = Prices(
    {item.name: NodeFacts(rent_usd_per_hour=Figure(9.0, "made up")) for item, _ in OFFERS}, ECONOMICS
)


def studied(power):
    """The fleet, owned, and each offer beside it."""
    return what_if(
        MODEL, FLEET, [(item,) for item, _ in OFFERS],
        job=JOB, prices=PRICES, terms=Terms(fleet="owned", power=power), wishes=QUICK, hwdb=HWDB,
    )  # fmt: skip


@pytest.fixture(scope="module")
def free():
    return studied(FREE)


def test_candidates_are_held_below_the_power_of_the_site_and_billed_for_what_they_draw(free):
    limit_kw = 0.85 * free.rows[0].document.power.chosen.site_kw
    for row in studied(replace(FREE, site_w=limit_kw * 1000)).rows[:1]:
        power = row.document.power
        assert power.chosen.site_kw <= limit_kw * (1 + 1e-9)
        assert row.power_w * 1.3 / 1000 == pytest.approx(power.chosen.site_kw)
        (charge,) = [charge for charge in row.bill.charges if charge.kind == "power"]
        assert charge.usd_per_hour == pytest.approx(power.chosen.site_kw * 0.2)


def test_a_cap_of_a_kind_slows_the_candidates_that_have_it_and_no_others(free):
    capped = studied(replace(FREE, caps_w=(("H100-SXM5-80GB", 350.0),)))
    fleet, more_h100, more_a100 = zip(free.rows, capped.rows, strict=True)
    for before, after in (fleet, more_a100):
        assert after.throughput == before.throughput and after.power_w == before.power_w
    assert more_h100[1].throughput.tokens_per_s < more_h100[0].throughput.tokens_per_s
    assert more_h100[1].power_w < more_h100[0].power_w


def test_without_limits_on_power_plans_are_those_of_who_did_not_ask(free):
    plain = studied(None)
    for asked, row in zip(free.rows, plain.rows, strict=True):
        assert row.document.power is None
        assert asked.throughput == row.throughput and asked.document.pipelines == row.document.pipelines


def test_a_front_under_caps_is_what_plans_under_caps_say():
    """Every row is the plan of its fleet under the caps, and the bound on its work is lowered with them."""
    terms = PowerTerms(caps_w=(("", 250.0),))
    study = purchase(
        [ModelToTrain(MODEL, JOB)], FLEET, OFFERS, Limits(nodes=2), PRICES,
        ordered=TODAY, terms=Terms(power=terms), wishes=QUICK, hwdb=HWDB,
    )  # fmt: skip
    assert len(study.points) > 1
    for point in study.points:
        (document,), (row,) = point.simulated.documents, point.rows
        assert all(kind.cap_w == pytest.approx(250.0) for kind in document.power.kinds)
        work, cluster = ModelToTrain(MODEL, JOB), row.fleet.cluster
        bound = work_bound(work, cluster, HWDB, terms)
        assert document.tokens_per_s <= bound < work_bound(work, cluster, HWDB)


def test_the_question_takes_pue_from_the_price_file_and_refuses_what_serves(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("economics: {pue: 1.7, usd_per_kwh: 0.1, date: 2026-11-01, source: us}\n")
    asked = WhatIfQuestion(
        "gpt3-1.3b", "A100-80GBx4:1", add=("T4x4:1",), power=PowerOptions(power_cap=("300W",))
    )
    asked = replace(asked, money=replace(asked.money, prices=prices))
    found, terms = asked.under_power(asked.money.found_prices(HWDB), asked.money.terms, HWDB)
    assert terms.power.pue == 1.7 and found.economics.pue.value == 1.7
    stated = replace(asked, power=PowerOptions(pue=1.2))
    found, terms = stated.under_power(stated.money.found_prices(HWDB), stated.money.terms, HWDB)
    assert terms.power.pue == 1.2 and found.economics.pue.value == 1.2
    ideal = replace(asked, power=PowerOptions(pue=1.0, usd_per_kwh=0.0))  # also what is meant without a file
    found, terms = ideal.under_power(ideal.money.found_prices(HWDB), ideal.money.terms, HWDB)
    assert found.economics.pue.value == 1.0 and found.economics.usd_per_kwh.value == 0.0
    with pytest.raises(BadInputError, match="training alone"):
        serving = replace(asked, served=Served(serve="512:128:1"))
        serving.under_power(found, terms, HWDB)
    with pytest.raises(UnknownNameError):
        replace(asked, power=PowerOptions(power_cap=("H900=300W",))).under_power(found, terms, HWDB)


def test_prices_that_a_process_keeps_change_no_plan():
    """Fleets planned one after another, kept prices and all, have the plans that each has by itself."""
    cases.forget()
    for nodes in ("H100x4:1+A100-80GBx4:1", "A100-80GBx4:2", "H100x4:1+A100-80GBx4:2"):
        cluster = load_cluster(nodes, HWDB)
        case = cases.Case(MODEL, cluster, JOB, QUICK, ())
        kept = cases.outcome(cases.simulate_case(case, cases.Deadline())).document
        alone = api.plan(MODEL, cluster, JOB, wishes=replace(QUICK, only_shown=True), hwdb=HWDB).document
        assert kept.step_s == alone.step_s and kept.pipelines == alone.pipelines

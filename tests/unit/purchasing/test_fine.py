"""The fleet and the winners are planned as `plan` does; the others with whole islands, and say so."""

import pytest

from tangram_sim.hwdb import load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing.catalogue import Limits, load_catalogue
from tangram_sim.purchasing.fleets import parse_purchases
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain
from tangram_sim.purchasing.whatif import score, what_if
from tangram_sim.studies import api
from tests.unit.purchasing.shop import HWDB, JOB, TODAY, fleet_of

FINE, COARSE = SearchOptions(beside=False), SearchOptions(sub_islands=False)


@pytest.fixture
def asked(shop):
    adds = [parse_purchases(f"{shop}/{item}", HWDB) for item in ("A100x4.yaml:2", "T4x4.yaml:1")]
    prices = load_prices(shop / "prices.yaml", HWDB)

    def of(fine, wishes):
        model = load_model(str(shop / "tiny.yaml"))
        study = what_if(
            model, fleet_of(shop), adds, job=JOB, prices=prices, hwdb=HWDB, wishes=wishes, fine=fine
        )
        return model, study.rows, study.notes

    return of


def test_the_fleet_and_the_best_are_planned_as_plan_does(asked):
    model, rows, notes = asked(1, FINE)
    _, coarse, _ = asked(0, COARSE)
    best = min(coarse[1:], key=lambda row: score(row, coarse))
    assert [row.name for row in rows if not row.coarse] == ["fleet", best.name]
    for row, before in zip(rows, coarse, strict=True):
        if row.coarse:
            assert row.throughput == before.throughput
            assert row.marginal_tokens_per_usd == before.marginal_tokens_per_usd
        else:
            alone = api.plan(model, row.fleet.cluster, JOB, wishes=FINE, hwdb=HWDB)
            assert row.document.step_s <= alone.step_s * (1 + 1e-9)
            assert row.document.step_s <= before.document.step_s * (1 + 1e-9)
    assert any(note.startswith(f"planned as `plan` does: fleet, {best.name}; ") for note in notes)


def test_the_front_of_a_purchase_is_planned_as_plan_does(shop):
    model, prices = load_model(str(shop / "tiny.yaml")), load_prices(shop / "prices.yaml", HWDB)
    offers = load_catalogue(shop / "catalogue.yaml", HWDB)
    work, limits = ModelToTrain(model, JOB), Limits(nodes=1)

    def front(fine, wishes):
        found = purchase(
            [work], fleet_of(shop), offers, limits, prices, ordered=TODAY, hwdb=HWDB, wishes=wishes, fine=fine
        )
        return {one.mix: one for one in found.front.points}, found.notes

    (before, _), (after, notes) = front(0, COARSE), front(1, FINE)
    assert sum(one.fine for one in after.values()) == 1
    assert any("the front planned as `plan` does" in note for note in notes)
    for mix, one in after.items():
        if mix in before:
            assert one.tokens_per_s >= before[mix].tokens_per_s * (1 - 1e-9)

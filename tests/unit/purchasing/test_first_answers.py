"""The first answer of a purchase: the fleet's own plan, then mixes at costs spread over the catalogue."""

from dataclasses import replace
from datetime import date

import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.catalogue import Limits, load_catalogue
from tangram_sim.purchasing.fleets import parse_purchases
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain, _bisecting
from tangram_sim.purchasing.whatif import what_if
from tangram_sim.studies.sweep import Sweep
from tests.unit.purchasing.shop import HWDB, JOB, fleet_of

WHOLE = SearchOptions(sub_islands=False)


@pytest.fixture
def ended() -> Deadline:
    """Somebody pressed Ctrl-C before anything was looked at."""
    deadline = Deadline()
    deadline.interrupted = True
    return deadline


def front_of(shop, deadline: Deadline, model: str):
    return purchase(
        [ModelToTrain(load_model(model), JOB)],
        fleet_of(shop),
        load_catalogue(shop / "catalogue.yaml", HWDB),
        Limits(nodes=2),
        load_prices(shop / "prices.yaml", HWDB),
        ordered=date(2026, 11, 1),
        wishes=WHOLE,
        hwdb=HWDB,
        sweep=Sweep(jobs=1),
        deadline=deadline,
    )


def test_a_purchase_that_is_stopped_at_once_shows_the_fleet(shop, ended):
    """Its plan is a uniform one, and all that could be bought is said not to have been looked at."""
    found = front_of(shop, ended, str(shop / "tiny.yaml"))
    assert [point.simulated.mix for point in found.points] == [(0, 0, 0)]
    assert found.front.waiting == found.front.mixes - 1
    assert "stopped by hand: 1 of" in found.notes[0]


def test_where_the_fleet_holds_no_plan_the_largest_mix_is_tried(shop, ended):
    """Two questions, and no more: neither holds a model of 405 billion parameters."""
    with pytest.raises(InfeasibleError, match="no mix has a plan"):
        front_of(shop, ended, "llama3-405b")


def test_candidates_that_were_not_looked_at_show_the_fleets_plan(shop, ended):
    """The same step on more nodes, none of which it uses; the bill is the candidate's own."""
    added = [parse_purchases(f"{shop}/{name}.yaml:1", HWDB) for name in ("V100x4", "T4x4")]
    study = what_if(
        load_model(str(shop / "tiny.yaml")),
        fleet_of(shop),
        added,
        job=replace(JOB, seq=512),
        wishes=WHOLE,
        hwdb=HWDB,
        sweep=Sweep(jobs=1),
        deadline=ended,
    )
    fleet, *rest = study.rows
    assert [row.document.step_s for row in rest] == [pytest.approx(fleet.document.step_s)] * 2
    assert all(row.cut_short and not any(use.gpus_used for use in row.uses if use.bought) for row in rest)
    shown = "`+ 1 x V100x4`, `+ 1 x T4x4` show a plan of fewer nodes, no other was looked for"
    assert any(note.endswith(shown) for note in study.notes)


def test_costs_are_halved_where_the_gap_is_widest():
    assert [_bisecting(turn) for turn in range(8)] == [0, 1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8]

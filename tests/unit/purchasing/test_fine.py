"""The fleet and the winners are planned as `plan` does; the others with whole islands, and say so."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb import load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing import search, whatif
from tangram_sim.purchasing.candidate_plans import CandidatePlans
from tangram_sim.purchasing.catalogue import Limits, load_catalogue
from tangram_sim.purchasing.fleets import parse_purchases
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.search import ModelToTrain
from tangram_sim.purchasing.whatif import rank_key, what_if
from tangram_sim.studies import api
from tangram_sim.studies.sweep import Sweep
from tests.unit.purchasing.shop import HWDB, JOB, TODAY, fleet_of

FINE, COARSE = SearchOptions(beside=False), SearchOptions(sub_islands=False)


@pytest.fixture(autouse=True)
def many_gpus(monkeypatch):
    """Questions of any size are taken for large ones: few GPUs are planned finely at once."""
    for module in (search, whatif):
        monkeypatch.setattr(module, "SMALL_GPUS", 0)


@pytest.fixture
def asked(shop):
    prices = load_prices(shop / "prices.yaml", HWDB)

    def of(fine, wishes, items=("A100x4.yaml:2", "T4x4.yaml:1")):
        adds = [parse_purchases(f"{shop}/{item}", HWDB) for item in items]
        model = load_model(str(shop / "tiny.yaml"))
        study = what_if(
            model, fleet_of(shop), adds, job=JOB, prices=prices, hwdb=HWDB, wishes=wishes, fine=fine
        )
        return model, study.rows, study.notes

    return of


def test_the_fleet_and_the_best_are_planned_as_plan_does(asked):
    model, rows, notes = asked(1, FINE)
    _, coarse, _ = asked(0, COARSE)
    best = min(coarse[1:], key=lambda row: rank_key(row, coarse))
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


def test_no_starred_row_is_slower_than_the_fleet(asked, monkeypatch):
    """A fleet whose fine plan beats what whole islands of a larger one give is still in the larger one."""
    plan = CandidatePlans.planned

    def slow_where_coarse(self, numbers, wishes, deadline, before):
        found = plan(self, numbers, wishes, deadline, before)
        if wishes.sub_islands:
            return found
        slowed = {number: one.document.model_copy(update={"step_s": 9.9}) for number, one in found.items()}
        return {number: replace(found[number], document=one) for number, one in slowed.items()}

    monkeypatch.setattr(CandidatePlans, "planned", slow_where_coarse)
    _, rows, _ = asked(1, FINE, ("A100x4.yaml:2", "T4x4.yaml:1", "V100x4.yaml:1"))
    (starred,) = (row for row in rows if row.coarse)
    assert starred.document.step_s == pytest.approx(rows[0].document.step_s, rel=1e-9)
    assert starred.document.gpus_total > rows[0].document.gpus_total
    assert "the fleet's own plan: none that was found is as fast" in starred.document.notes
    assert starred.throughput == rows[0].throughput


def test_without_wishes_the_front_is_planned_finely_where_that_is_asked(shop, monkeypatch):
    looked = []
    run = search.simulate_case

    def looking(case, deadline):
        looked.append(case.wishes)
        return run(case, deadline)

    monkeypatch.setattr(search, "simulate_case", looking)
    model, prices = load_model(str(shop / "tiny.yaml")), load_prices(shop / "prices.yaml", HWDB)
    offers = load_catalogue(shop / "catalogue.yaml", HWDB)
    found = purchase(
        [ModelToTrain(model, JOB)],
        fleet_of(shop),
        offers,
        Limits(nodes=1),
        prices,
        ordered=TODAY,
        hwdb=HWDB,
        fine=1,
    )
    assert not looked[0].sub_islands
    assert sum(wishes.sub_islands for wishes in looked) == sum(one.fine for one in found.front.simulated) == 1


def test_mixes_that_time_ended_before_stay_coarse(shop, monkeypatch):
    """Asked about finely, but never answered: they are not said to be planned as `plan` does."""
    run = Sweep.run

    def coarse_only(self, work, cases, *given, **named):
        fine = any(case.wishes.sub_islands for case in cases)
        return [None] * len(cases) if fine else run(self, work, cases, *given, **named)

    monkeypatch.setattr(Sweep, "run", coarse_only)
    found = purchase(
        [ModelToTrain(load_model(str(shop / "tiny.yaml")), JOB)],
        fleet_of(shop),
        load_catalogue(shop / "catalogue.yaml", HWDB),
        Limits(nodes=1),
        load_prices(shop / "prices.yaml", HWDB),
        ordered=TODAY,
        hwdb=HWDB,
        wishes=FINE,
        fine=2,
    )
    assert found.front.points and not any(one.fine for one in found.front.simulated)
    assert any("of the front these have whole islands only: " in note for note in found.notes)


def test_rows_without_a_fine_plan_are_coarse(asked, monkeypatch):
    """Time ended before the best were planned again: their rows are those of whole islands, and say so."""
    plan = CandidatePlans.planned

    def cut(self, numbers, wishes, deadline, before):
        found = plan(self, numbers, wishes, deadline, before)
        if not wishes.sub_islands:
            return found
        return {number: replace(one, document=None, cut_short=True) for number, one in found.items()}

    monkeypatch.setattr(CandidatePlans, "planned", cut)
    _, rows, notes = asked(1, FINE)
    assert all(row.coarse and row.document is not None for row in rows)
    assert any(note.startswith("every row was planned with whole islands only, or shows") for note in notes)


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


def test_few_gpus_are_planned_finely_at_once(asked, shop, monkeypatch):
    for module in (search, whatif):
        monkeypatch.setattr(module, "SMALL_GPUS", 600)
    model, rows, _ = asked(1, FINE)
    assert not any(row.coarse for row in rows)
    for row in rows:
        alone = api.plan(model, row.fleet.cluster, JOB, wishes=FINE, hwdb=HWDB)
        assert row.document.step_s <= alone.step_s * (1 + 1e-9)
    prices, offers = load_prices(shop / "prices.yaml", HWDB), load_catalogue(shop / "catalogue.yaml", HWDB)
    works, two = [ModelToTrain(model, JOB)], Limits(nodes=2)
    found = purchase(works, fleet_of(shop), offers, two, prices, ordered=TODAY, hwdb=HWDB, fine=1)
    assert all(one.fine for one in found.front.simulated)


def test_a_candidate_that_is_slower_than_one_within_it_is_planned_finely(asked, monkeypatch):
    """Two nodes contain one: where whole islands make them slower, that is the search's fault, not theirs."""
    plan = CandidatePlans.planned

    def two_slow_where_coarse(self, numbers, wishes, deadline, before):
        found = plan(self, numbers, wishes, deadline, before)
        if not wishes.sub_islands:
            found[2] = replace(found[2], document=found[2].document.model_copy(update={"step_s": 9.9}))
        return found

    monkeypatch.setattr(CandidatePlans, "planned", two_slow_where_coarse)
    _, (_, one, two), _ = asked(1, FINE, ("A100x4.yaml:1", "A100x4.yaml:2"))
    assert not one.coarse and not two.coarse
    assert two.document.step_s <= one.document.step_s * (1 + 1e-9)


def test_a_mix_that_gains_as_others_did_is_planned_finely_beside_the_front(shop, monkeypatch):
    """With whole islands two nodes look slower than the one among them, so they are not on that front."""
    run, looked = search.simulate_case, []

    def two_slow_where_coarse(case, deadline):
        found = run(case, deadline)
        if case.wishes.sub_islands:
            looked.append(case.cluster.groups[-1].count)
        elif case.cluster.groups[-1].count == 2:
            found["document"]["tokens_per_s"] *= 0.01
        return found

    monkeypatch.setattr(search, "simulate_case", two_slow_where_coarse)
    offers = [(parse_purchases(f"{shop}/A100x4.yaml:1", HWDB)[0], 2)]
    works = [ModelToTrain(load_model(str(shop / "tiny.yaml")), JOB)]
    prices = load_prices(shop / "prices.yaml", HWDB)
    found = purchase(
        works, fleet_of(shop), offers, Limits(), prices, ordered=TODAY, hwdb=HWDB, wishes=FINE, fine=2
    )
    nothing, two = found.front.simulated
    assert (two.mix, two.fine) == ((2,), True)
    assert looked == [1, 2] and two.tokens_per_s >= nothing.tokens_per_s


def test_of_few_gpus_too_more_nodes_are_never_slower(asked, monkeypatch):
    """Whatever a search comes to: the plan of one node is one of two nodes'."""
    monkeypatch.setattr(whatif, "SMALL_GPUS", 600)
    plan = CandidatePlans.planned

    def two_slow(self, numbers, wishes, deadline, before):
        found = plan(self, numbers, wishes, deadline, before)
        found[2] = replace(found[2], document=found[2].document.model_copy(update={"step_s": 9.9}))
        return found

    monkeypatch.setattr(CandidatePlans, "planned", two_slow)
    _, (_, one, two), _ = asked(1, FINE, ("A100x4.yaml:1", "A100x4.yaml:2"))
    assert not two.coarse
    assert two.document.step_s == pytest.approx(one.document.step_s, rel=1e-9)


def test_a_fine_search_without_an_answer_leaves_the_plan_at_hand(asked, monkeypatch):
    plan = CandidatePlans.planned

    def in_vain(self, numbers, wishes, deadline, before):
        found = plan(self, numbers, wishes, deadline, before)
        if wishes.sub_islands and 2 in found:
            found[2] = replace(found[2], document=None, reason="stopped")
        elif 2 in found:
            found[2] = replace(found[2], document=found[2].document.model_copy(update={"step_s": 9.9}))
        return found

    monkeypatch.setattr(CandidatePlans, "planned", in_vain)
    _, (_, one, two), _ = asked(1, FINE, ("A100x4.yaml:1", "A100x4.yaml:2"))
    assert two.coarse
    assert two.document.step_s <= one.document.step_s * (1 + 1e-9)

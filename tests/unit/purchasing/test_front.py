"""The front is what `plan` says: brute force on generated catalogues, other offers beside, ended time."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import load_cluster
from tangram_sim.hwdb.prices import Figure
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing import cases
from tangram_sim.purchasing.catalogue import Limits, bought, mixes
from tangram_sim.purchasing.fleets import Fleet, Purchase, named_purchase
from tangram_sim.purchasing.front import Front, Simulated
from tangram_sim.purchasing.pricefile import NodeFacts, Prices
from tangram_sim.purchasing.purchase import PurchaseStudy, purchase
from tangram_sim.purchasing.search import ModelToTrain, work_bound
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tests.unit.purchasing.shop import HWDB, TODAY, TWO

_BLOCK = Block(Attention(16, 16, 128, 128), FeedForward(8192, gated=False))
WORK = ModelToTrain(Model("small", "gpt2", 2048, 8192, (_BLOCK,) * 4), Job(global_batch=256, seq=2048))
QUICK = SearchOptions(effort="quick")
KINDS = {"H100x4": 16.0, "A100-SXM4-40GBx4": 8.0, "L40Sx4": 4.0, "A10x4": 2.0, "T4x4": 1.0}


def rented(usd: dict[str, float]) -> Prices:
    """Prices in which nodes can be rented for so much an hour."""
    facts = {name: NodeFacts(rent_usd_per_hour=Figure(value, "made up")) for name, value in usd.items()}
    return Prices(facts)


def ask(
    fleet: Fleet,
    catalogue: Sequence[tuple[Purchase, int]],
    prices: Prices,
    limits: Limits = TWO,
    deadline: Deadline | None = None,
    tell: Callable[[PurchaseStudy], None] | None = None,
) -> PurchaseStudy:
    """The study of WORK, every mix planned as `plan` does with little effort."""
    return purchase(
        [WORK], fleet, catalogue, limits, prices,
        ordered=TODAY, hwdb=HWDB, wishes=QUICK, deadline=deadline, tell=tell,
    )  # fmt: skip


def generated(seed: int) -> tuple[Fleet, list[tuple[Purchase, int]], Prices]:
    """A fleet of one node, two or three kinds of node on offer, and their rents."""
    rng = random.Random(seed)
    own, *names = rng.sample(sorted(KINDS), rng.choice([3, 4]))
    catalogue = [
        (named_purchase(name, 1, HWDB, {"nic_gbps": rng.choice([25, 100])}), rng.choice([1, 2]))
        for name in names
    ]
    usd = {
        item.name: KINDS[name] * rng.uniform(0.3, 3.0)
        for name, (item, _) in zip(names, catalogue, strict=True)
    }
    return Fleet.of(load_cluster(f"{own}:1", HWDB)), catalogue, rented(usd)


def planned_alone(fleet: Fleet) -> float:
    """Tokens/s of what `plan` answers, by a parallelizer that has priced nothing; 0 without a plan."""
    try:
        found = api.plan(WORK.model, fleet.cluster, WORK.job, wishes=QUICK, hwdb=HWDB)
    except InfeasibleError:
        return 0.0
    return found.document.tokens_per_s


def check_against_brute_force(seed: int) -> Front:
    """The front of a generated catalogue, after every mix within the limits was planned by itself."""
    fleet, catalogue, prices = generated(seed)
    study = ask(fleet, catalogue, prices)
    every = [
        (reach_of(fleet, study, mix)[0], planned_alone(bought(fleet, study.offers, mix)))
        for mix in mixes(study.offers, study.limits)
    ]
    undominated = [
        (cost, rate)
        for cost, rate in sorted(every)
        if rate and not any(c <= cost and r >= rate and (c, r) != (cost, rate) for c, r in every)
    ]
    assert [(point.cost, point.tokens_per_s) for point in study.front.points] == [
        pytest.approx(item, rel=1e-9) for item in undominated
    ]
    assert all(study.front.is_proven(at) for at in range(len(study.points)))
    for mix in study.front.simulated:
        assert mix.tokens_per_s <= mix.bound_tokens_per_s == reach_of(fleet, study, mix.mix)[1]
    return study.front


def reach_of(fleet: Fleet, study: PurchaseStudy, mix: tuple[int, ...]) -> tuple[float, float]:
    """What a mix costs an hour, and tokens/s that none of its plans exceeds, from its own nodes."""
    usd = sum(offer.usd_per_hour * count for offer, count in zip(study.offers, mix, strict=True))
    return round(usd, 9), work_bound(WORK, bought(fleet, study.offers, mix).cluster, HWDB)


def test_nothing_undominated_is_missing_and_plan_beats_no_row() -> None:
    front = check_against_brute_force(2)
    assert front.left_out > 0, "some mix must be excluded by its bound"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 15))
def test_fronts_of_more_catalogues_are_those_of_brute_force(seed: int) -> None:
    check_against_brute_force(seed)


def test_what_else_is_on_offer_changes_no_figure() -> None:
    fleet, catalogue, prices = generated(2)
    for at in range(len(catalogue)):
        fewer = [item for number, item in enumerate(catalogue) if number != at]
        beside = {simulated.name: simulated for simulated in ask(fleet, catalogue, prices).front.simulated}
        alone = ask(fleet, fewer, prices).front.simulated
        both = [simulated for simulated in alone if simulated.name in beside]
        assert len(both) > 1
        assert all(simulated.documents == beside[simulated.name].documents for simulated in both)


def test_gaps_are_open_while_the_search_goes_on_and_proven_in_the_end() -> None:
    told: list[PurchaseStudy] = []
    fleet, *asked = generated(2)
    study = ask(fleet, *asked, tell=told.append)
    first, last = told[0].front, study.front
    known = {point.mix for point in first.simulated}
    others = [mix for mix in mixes(study.offers, study.limits) if mix not in known]
    reach = {reach_of(fleet, study, mix) for mix in others}
    assert {(round(usd, 9), bound) for usd, _, bound in first.may_reach} <= reach
    assert first.waiting and not first.is_proven(len(first.points) - 1)
    assert not last.waiting and all(last.is_proven(at) for at in range(len(last.points)))


def test_a_row_whose_search_was_cut_short_leaves_its_gap_open(monkeypatch: pytest.MonkeyPatch) -> None:
    run = cases.simulate_case

    def cut(case: cases.Case, deadline: Deadline) -> dict[str, object]:
        return run(case, deadline) | {"stopped": True}

    monkeypatch.setattr("tangram_sim.purchasing.search.simulate_case", cut)
    front = ask(*generated(2), Limits(nodes=1)).front
    assert not any(front.is_proven(at) for at in range(len(front.points)))


def test_a_gap_is_open_where_an_unplanned_mix_may_lie_in_it() -> None:
    points = [Simulated((k,), str(k), float(k), 10.0 * k, 99.0, ()) for k in (1, 2, 3)]
    front = Front(points, points, 9, 0, 1)
    assert [replace(front, may_reach=((2.5, 2.5, 21.0),)).is_proven(at) for at in range(3)] == [
        True,
        False,
        True,
    ]
    assert [replace(front, may_reach=((2.5, 2.5, 20.0),)).is_proven(at) for at in range(3)] == [True] * 3
    assert [replace(front, may_reach=((7.0, 7.0, 31.0),)).is_proven(at) for at in range(3)] == [
        True,
        True,
        False,
    ]


def test_a_site_whose_nodes_draw_more_than_it_may_is_told_so() -> None:
    fleet, catalogue, prices = generated(1)
    told = r"`power_kw=0\.1`: the nodes that are there draw [0-9.]+ kW"
    with pytest.raises(InfeasibleError, match=told):
        ask(fleet, catalogue, prices, replace(TWO, power_w=100.0))

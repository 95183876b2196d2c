"""A goal (tokens, by when, for how much) is reached by the best mix: brute force, laws of limits, clouds."""

import math
from dataclasses import replace
from datetime import date
from itertools import permutations, product

import numpy as np
import pytest

from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.hwdb.prices import Figure, node_prices
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.billing import Terms
from tangram_sim.purchasing.catalogue import Limits, beside, bought, mixes, priced_offers
from tangram_sim.purchasing.clouds import CLOUDS, cloud_catalogue, clouds_named, provider_of
from tangram_sim.purchasing.fleets import Fleet, named_purchase, standing_fleet
from tangram_sim.purchasing.goal import ASSUMED_DAYS, Goal, goal_of, slow_end_days, spent_usd
from tangram_sim.purchasing.goal_search import GoalSearch
from tangram_sim.purchasing.pricefile import Economics, NodeFacts, Preemption, load_prices
from tangram_sim.purchasing.recommend import Recommendation, _price_flip, recommend, recommend_mix
from tangram_sim.purchasing.rows import Billing, planned_goodput
from tangram_sim.purchasing.sensitivity import with_figure
from tangram_sim.studies.sweep import Sweep
from tangram_sim.studies.training_power import PowerTerms
from tangram_sim.studies.training_run import ranks_of
from tangram_sim.studies.usual_failures import RESTART_S, checkpoint_s, restart_s
from tangram_sim.units import days_of, usd_of
from tests.unit.purchasing.shop import HWDB
from tests.unit.purchasing.test_front import QUICK, WORK, generated, rented

TOKENS = 1e9


def found(fleet, catalogue, prices, goal, **others) -> Recommendation:
    limits = others.pop("limits", Limits(nodes=3))
    return recommend_mix(WORK, fleet, catalogue, limits, prices, goal, hwdb=HWDB, wishes=QUICK, **others)


PAIR = [(named_purchase("A100-SXM4-40GBx4", 1, HWDB), 2), (named_purchase("T4x4", 1, HWDB), 2)]
RENTS = rented({"A100-SXM4-40GBx4": 8.0, "T4x4": 1.0})


@pytest.fixture(scope="module")
def whole() -> Recommendation:
    """All mixes of the pair that can be of use, for a goal that any of them reaches."""
    return found(Fleet.none(), PAIR, RENTS, Goal(TOKENS, days=1e6))


class TestNothingOwned:
    def test_none_in_any_case_is_a_fleet_without_members(self):
        for given in ("none", "None", " NONE "):
            fleet = standing_fleet(given, HWDB)
            assert not fleet.members and not fleet.cluster.groups

    def test_what_is_bought_from_nothing_is_the_whole_cluster_and_names_it(self):
        grown = Fleet.none().with_purchases([named_purchase("p5.48xlarge", 2, HWDB)])
        assert grown.cluster.name == "p5.48xlarge:2" and grown.cluster.gpus == 16
        assert [member.bought for member in grown.members] == [True]

    @pytest.mark.parametrize(
        ("name", "goal", "limits"),
        [
            ("finish_within", Goal(TOKENS, days=1e-3), Limits(nodes=3)),
            ("budget", Goal(TOKENS, budget_usd=0.1), Limits(nodes=3)),
            ("power_kw", Goal(TOKENS, days=1e6), Limits(power_w=100.0)),
        ],
    )
    def test_a_refusal_names_the_limit_that_binds_and_the_least_that_would_do(self, name, goal, limits):
        """Raised to what is said, the limit is no longer in the way: a mix is planned."""
        with pytest.raises(InfeasibleError, match=f"whatever the plan. One of .*`{name}=` of") as refused:
            found(Fleet.none(), PAIR, RENTS, goal, limits=limits)
        amount = str(refused.value).split(f"`{name}=` of ")[1]
        least = float(amount.lstrip("$").split()[0].replace(",", ""))
        if name == "power_kw":
            limits = replace(limits, power_w=least * 1000)
        else:
            goal = replace(goal, **{"days" if name == "finish_within" else "budget_usd": least})
        assert found(Fleet.none(), PAIR, RENTS, goal, limits=limits).searched.planned

    def test_what_does_not_fit_by_two_limits_is_refused_with_each_of_them(self):
        said = r"More than one limit.*`finish_within=` of.*`power_kw=` of"
        with pytest.raises(InfeasibleError, match=said):
            found(Fleet.none(), PAIR, RENTS, Goal(TOKENS, days=1e-3), limits=Limits(power_w=100.0))

    def test_an_ended_search_still_recommends_what_it_planned(self):
        study = found(Fleet.none(), PAIR, RENTS, Goal(TOKENS, days=1e6), deadline=Deadline(0.0))
        assert study.reached and study.searched.planned == 1 and study.searched.waiting > 0
        assert any("more time may find a better mix" in note for note in study.notes)


class TestTheBestMix:
    def test_no_planned_mix_reaches_the_goal_for_less(self, whole):
        costs = [row.usd_to_train for row in whole.rows if whole.reaches(row)]
        assert whole.reached and whole.best.usd_to_train == min(costs)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(8))
    def test_brute_force_finds_nothing_cheaper_than_the_recommendation_admits(self, seed):
        _, catalogue, prices = generated(seed)
        fleet = Fleet.none()
        every = found(fleet, catalogue, prices, Goal(TOKENS, days=1e6), limits=Limits(nodes=2))
        fast = max(row.throughput.tokens_per_s for row in every.rows)
        goal = Goal(TOKENS, days=TOKENS / (0.8 * fast) / 86400)
        study = found(fleet, catalogue, prices, goal, limits=Limits(nodes=2))
        best = study.best.usd_to_train
        for row in every.rows:
            if study.reaches(row):
                assert row.usd_to_train >= min(best, study.searched.least_usd) * (1 - 1e-9), row.name

    def test_less_time_never_costs_less_and_more_money_is_never_slower(self, whole):
        days = sorted(row.days_to_train for row in whole.rows)
        costs = [
            found(Fleet.none(), PAIR, RENTS, Goal(TOKENS, days=limit * 1.001)).best.usd_to_train
            for limit in (days[0], days[-1])
        ]
        assert costs[0] >= costs[1] * (1 - 1e-9)
        spent = sorted(spent_usd(row, whole.goal) for row in whole.rows)
        times = [
            found(Fleet.none(), PAIR, RENTS, Goal(TOKENS, budget_usd=limit * 1.001)).best.days_to_train
            for limit in (spent[0], spent[-1])
        ]
        assert times[0] >= times[1] * (1 - 1e-9)

    def test_every_row_shown_is_planned_as_plan_plans_it(self, whole):
        assert not any(row.cut_short for row in whole.rows)
        assert all(row.document is not None for row in (whole.best, *whole.runner_ups))

    def test_a_rent_above_the_flip_changes_the_recommendation(self, whole):
        flips = [line for line in whole.changes() if line.startswith("at a rent of T4x4 above")]
        if not flips:
            pytest.skip("the recommendation has no runner-up of one other kind that reaches the goal")
        threshold = float(flips[0].split("$")[1].split()[0])
        for factor, same in ((0.98, True), (1.02, False)):
            prices = rented({"A100-SXM4-40GBx4": 8.0, "T4x4": threshold * factor})
            best = found(Fleet.none(), PAIR, prices, whole.goal).best
            assert (best.name == whole.best.name) == same

    @pytest.mark.parametrize("seed", [0, 1, 2, 3])
    def test_at_a_flip_both_mixes_cost_the_same(self, seed):
        """Also where the dearer one rents nodes of the kind whose rent changes."""
        _, catalogue, prices = generated(seed)
        goal = Goal(TOKENS, days=1e6)
        study = found(Fleet.none(), catalogue, prices, goal, limits=Limits(nodes=2))
        flips = 0
        for row, than in permutations(study.rows, 2):
            dearer = than.usd_to_train >= row.usd_to_train
            for line in _price_flip(row, than, study.billing, rises=dearer):
                kind = row.fleet.members[0].name
                rent = float(line.split("$")[1].split()[0].replace(",", ""))
                other = {kind: NodeFacts(rent_usd_per_hour=Figure(rent, "made up"))}
                billing = replace(study.billing, prices=replace(prices, nodes=prices.nodes | other))
                costs = [billing.row("", each.fleet, each.document).usd_to_train for each in (row, than)]
                assert costs[0] == pytest.approx(costs[1], rel=2e-3)
                flips += 1
        assert flips

    @pytest.mark.parametrize("seed", [0, 1])
    def test_at_a_flip_both_mixes_cost_the_same_whatever_is_reserved(self, seed):
        """By their days they may pay in different ways, and in others at another price."""
        _, catalogue, prices = generated(seed)
        study = found(Fleet.none(), catalogue, prices, Goal(TOKENS, days=1e6), limits=Limits(nodes=2))
        slowest, flips = min(row.throughput.tokens_per_s for row in study.rows), 0
        for share, term, days in product((0.5, 0.7, 0.9), ((3, 10), (7, 30), (5, 6)), (2, 5, 8, 12)):
            least, most = (Figure(value, "made up") for value in term)
            nodes = {
                name: replace(
                    facts,
                    reserved_usd_per_hour=Figure(facts.rent_usd_per_hour.value * share, "made up"),
                    reserved_least_days=least,
                    reserved_most_days=most,
                )
                for name, facts in prices.nodes.items()
            }
            termed, tokens = replace(prices, nodes=nodes), slowest * days * 86400
            billing = replace(study.billing, prices=termed, tokens=tokens)
            rows = [billing.row(row.name, row.fleet, row.document) for row in study.rows]
            for row, than in permutations(rows, 2):
                for line in _price_flip(row, than, billing, rises=True):
                    figure = "rent" if line.startswith("at a rent") else "reserved"
                    name = f"nodes.{row.fleet.members[0].name}.{figure}_usd_per_hour"
                    flip = float(line.split("$")[1].split()[0].replace(",", ""))
                    at = replace(billing, prices=with_figure(termed, name, flip))
                    costs = [at.row("", each.fleet, each.document).usd_to_train for each in (row, than)]
                    assert costs[0] == pytest.approx(costs[1], rel=2e-3), line
                    flips += 1
        assert flips

    @pytest.mark.parametrize(
        ("standing", "hold", "stated_w"),
        [("none", "auto", None), ("T4x4:1", "owned", 99.0), ("T4x4:1", "rented", 9e3)],
    )
    def test_a_search_counts_as_bills_do_whatever_watts_nodes_state(self, standing, hold, stated_w):
        economics = replace(
            Economics(*(Figure(value, "made up") for value in (4.0, 1.2, 3.0))),
            hosting_usd_per_kw_month=Figure(5000.0, "made up"),
        )
        stated = NodeFacts(
            capital_usd=Figure(20000.0, "made up"),
            rent_usd_per_hour=Figure(5.0, "made up"),
            power_w=Figure(stated_w, "made up") if stated_w else None,
        )
        nodes = dict.fromkeys(("g0", *(purchase.name for purchase, _ in PAIR)), stated)
        prices = replace(RENTS, economics=economics, hwdb=HWDB, nodes=nodes)
        fleet, goal = standing_fleet(standing, HWDB), Goal(TOKENS, days=1e6)
        limits = Limits(nodes=2 - len(fleet.members))
        terms = Terms(fleet=hold, power=PowerTerms(caps_w=(("", 150.0),)))
        offers, _ = priced_offers(PAIR, prices, terms, limits, date(2026, 11, 1))
        billing = Billing(TOKENS, prices, terms, failures=False)
        search = GoalSearch(
            [WORK], fleet, offers, mixes(offers, limits), HWDB, Sweep(jobs=1),
            billing=billing, wishes=QUICK, goal=goal,
        )  # fmt: skip
        least_usd, least_spent = search.usd(search.bound), search.spent_usd(search.bound)
        most_an_hour, able = search._costs[1], np.flatnonzero(search.bound > 0)
        search._simulate(able, len(able))
        for at, (answer,) in search.answers.items():
            if answer.document is not None:
                row = billing.row("", bought(fleet, offers, search.mixes[at]), answer.document)
                spent = spent_usd(row, goal)
                assert least_spent[at] <= spent * (1 + 1e-9)
                assert search.spent_usd(search.rate)[at] == pytest.approx(spent)
                new = sum(charge.usd_per_hour for charge in row.bill.charges if charge.bought)
                assert search.cost[at] == pytest.approx(new) and new <= most_an_hour[at] * (1 + 1e-9)
                assert least_usd[at] <= row.usd_to_train * (1 + 1e-9)
                assert search.usd(search.rate)[at] == pytest.approx(row.usd_to_train)
        assert (search.rate > 0).sum() == len(able) >= 3

    def test_hosting_counts_against_a_budget(self):
        """The mix that is within it is found although a larger one would be, without hosting."""
        fee = Figure(1e8, "made up")
        facts = NodeFacts(capital_usd=Figure(1.0, "made up"), power_w=Figure(1000.0, "made up"))
        prices = load_prices(None, HWDB)
        economics = replace(
            prices.economics, hosting_usd_per_kw_month=fee, pue=fee, usd_per_kwh=fee, amortisation_years=fee
        )
        prices = replace(prices, economics=economics, nodes={purchase.name: facts for purchase, _ in PAIR})
        every = found(Fleet.none(), PAIR, prices, Goal(TOKENS, days=1e6))
        budget_usd = min(spent_usd(row, every.goal) for row in every.rows) * 1.001
        assert found(Fleet.none(), PAIR, prices, Goal(TOKENS, budget_usd=budget_usd)).reached

    def test_no_mix_is_listed_with_nodes_that_stand_idle(self, whole):
        for row in whole.rows:
            used = row.fleet.used(ranks_of(row.document))
            assert [nodes for _, nodes in used] == [member.nodes for member in row.fleet.members]

    def test_one_kind_at_a_time_where_a_cloud_is_asked(self):
        study = found(Fleet.none(), PAIR, RENTS, Goal(TOKENS, days=1e6), one_kind=True)
        assert all(len(row.fleet.members) == 1 for row in study.rows)

    def test_the_slow_end_takes_longer(self, whole):
        assert slow_end_days(whole.best) > whole.best.days_to_train


class TestLimits:
    def test_power_is_that_of_the_site(self):
        fleet = standing_fleet("DGX-H100:2", HWDB)
        pue = Economics(pue=Figure(1.5, "made up"))
        left = beside(Limits(power_w=50_000), fleet, replace(RENTS, economics=pue))
        assert left.power_w == pytest.approx(50_000 - 2 * 10_200 * 1.5)

    def test_money_is_purchases_and_rents_until_the_tokens_are_trained(self):
        goal = Goal(3.6e9)
        assert goal.spent_usd(1000.0, 20.0, 1e6) == pytest.approx(1000.0 + 20.0)
        assert math.isinf(goal.spent_usd(0.0, 1.0, 0.0))

    @pytest.mark.parametrize(
        ("given", "days"),
        [
            ("14d", 14),
            ("36h", 1.5),
            ("2w", 14),
            ("3 days", 3),
            ("10", 10),
            ("1 month", 30.4375),
            ("2mo", 60.875),
        ],
    )
    def test_times_are_read_as_people_write_them(self, given, days):
        assert days_of(given) == pytest.approx(days)

    @pytest.mark.parametrize("given", ["soon", "-3d", "0", "3 parsecs", "inf", "", "30m"])
    def test_other_words_are_no_time(self, given):
        with pytest.raises(BadInputError, match="give a time like 14d"):
            days_of(given)

    def test_money_is_read_as_people_write_it(self):
        assert [usd_of(item) for item in ("250k", "$1.5M", "1,000", "2e5")] == [250e3, 1.5e6, 1e3, 2e5]
        for bad in ("0", "-5", "much", "nan"):
            with pytest.raises(BadInputError, match="budget="):
                usd_of(bad)


class TestClouds:
    def test_every_cloud_offers_whole_machines_of_its_own(self):
        for cloud in CLOUDS:
            offers, _ = cloud_catalogue([cloud], HWDB)
            assert len(offers) >= 5
            for purchase, most in offers:
                assert provider_of(purchase.name, HWDB) == cloud and most >= 1
                assert not HWDB.row("nodes", purchase.name)["slice_of"]

    def test_machines_without_a_stated_network_stand_alone(self):
        offers, notes = cloud_catalogue(["lambda"], HWDB)
        assert {most for _, most in offers} == {1} and "gpu_8x_h100_sxm5" in notes[0]

    def test_clouds_have_many_names(self):
        assert clouds_named(["Amazon", "google", "Oracle"]) == ("aws", "gcp", "oci")
        assert clouds_named(["all"]) == CLOUDS
        with pytest.raises(UnknownNameError, match="azure"):
            clouds_named(["azur"])

    def test_a_node_that_is_only_reserved_is_rented_that_way(self):
        prices = load_prices(None, HWDB)
        assert "rent_usd_per_hour" not in node_prices(HWDB)["a4-highgpu-8g"]
        offers, _ = cloud_catalogue(["gcp"], HWDB)
        chosen = [offer for offer in offers if offer[0].name == "a4-highgpu-8g"]
        study = found(
            Fleet.none(), chosen, prices, Goal(TOKENS, days=30), terms=Terms(), limits=Limits(nodes=1)
        )
        assert [charge.kind for charge in study.best.bill.charges] == ["reserved"]


class TestFailures:
    def test_failures_count_although_nobody_states_them(self, whole):
        prices = load_prices(None, HWDB)
        assert prices.economics.mtbf_hours is not None
        assert prices.economics.mtbf_hours.value == pytest.approx(24_000 / 3.79, rel=0.01)
        good = planned_goodput(whole.best.fleet, whole.best.document, prices)
        assert good is not None and 0.9 < good.fraction < 1

    def test_seconds_come_from_the_plans_own_bytes_over_its_nodes(self, whole):
        document = whole.best.document
        parameters = WORK.model.parameters
        assert checkpoint_s(document, 1) == pytest.approx(parameters * (2 + 4 + 8) / 1e9)
        assert checkpoint_s(document, 4) == pytest.approx(checkpoint_s(document, 1) / 4)
        assert restart_s(document, 1) == pytest.approx(RESTART_S + checkpoint_s(document, 1))

    def test_spot_nodes_cost_goodput_without_any_other_figure(self, whole):
        prices = load_prices(None, HWDB)
        steady = planned_goodput(whole.best.fleet, whole.best.document, prices)
        last = steady.fraction
        for losses in (0.06, 0.2, 1.4):
            spot = replace(prices, preemption=Preemption(losses, 600.0, "restart"))
            good = planned_goodput(whole.best.fleet, whole.best.document, spot)
            assert good.fraction < last
            last = good.fraction


@pytest.mark.parametrize("given", ["-1B", "0", "nan"])
def test_tokens_are_a_finite_number_above_zero(given):
    with pytest.raises(BadInputError, match="give a finite number above zero"):
        recommend("gpt3-1.3b", tokens=given)


def test_a_time_is_assumed_only_where_neither_time_nor_money_is_given() -> None:
    for days, usd in product((None, 3.0), (None, 100.0)):
        goal, notes = goal_of(1e9, days, usd, rented({}))
        assumed = days is None and usd is None
        assert bool(notes) == assumed
        assert goal.days == (ASSUMED_DAYS if assumed else days or math.inf)
        assert goal.budget_usd == (usd or math.inf)

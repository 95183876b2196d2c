"""Laws of recommendations and of energy: the recommended is the least, and one fleet has one energy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tangram_sim as ts
from tangram_sim.hwdb.prices import Figure
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing.billing import Terms
from tangram_sim.purchasing.catalogue import Limits
from tangram_sim.purchasing.fleets import named_purchase, standing_fleet
from tangram_sim.purchasing.goal import Goal, reaches
from tangram_sim.purchasing.pricefile import Economics, load_prices
from tangram_sim.purchasing.purchase import purchase
from tangram_sim.purchasing.recommend import recommend_mix
from tangram_sim.purchasing.whatif import what_if
from tangram_sim.reliability.periods import lost_shares, useful_share
from tangram_sim.studies.power_choice import SITE_NOT_BINDING, plan_under_power
from tangram_sim.studies.training_power import PowerTerms, cluster_watts
from tangram_sim.studies.training_run import training_run
from tests.unit.purchasing.shop import HWDB, TODAY
from tests.unit.purchasing.test_front import QUICK, WORK, generated

TOKENS = 1e9
STATED = Economics(pue=Figure(1.3, "made up"), usd_per_kwh=Figure(0.2, "made up"))


@pytest.mark.parametrize("economics", [Economics(), STATED], ids=["partial bills", "whole bills"])
@pytest.mark.parametrize("seed", range(3))
def test_the_recommended_row_is_the_least_of_what_it_is_called_the_least_of(
    seed: int, economics: Economics
) -> None:
    fleet, catalogue, prices = generated(seed)
    prices, terms = replace(prices, economics=economics), Terms(fleet="owned")

    def answered(goal: Goal):
        return recommend_mix(
            WORK, fleet, catalogue, Limits(nodes=2), prices, goal, terms=terms, wishes=QUICK, hwdb=HWDB
        )

    cheapest = answered(Goal(TOKENS, days=1e6))
    assert cheapest.best.bill.known == (economics is STATED)
    listed = [row for row in (cheapest.best, *cheapest.runner_ups) if cheapest.reaches(row)]
    assert cheapest.best.usd_to_train_at_least == min(row.usd_to_train_at_least for row in listed)
    fastest = answered(Goal(TOKENS, budget_usd=1e9))
    listed = [row for row in (fastest.best, *fastest.runner_ups) if fastest.reaches(row)]
    assert fastest.best.days_to_train == min(row.days_to_train for row in listed)
    assert all(reaches(row, fastest.goal) for row in listed)


@pytest.mark.parametrize("pue", [None, 1.3])
@pytest.mark.parametrize("power", [None, PowerTerms(site_w=1e9)], ids=["no limit", "a limit that is far"])
def test_one_fleet_draws_the_same_in_every_verb(pue: float | None, power: PowerTerms | None) -> None:
    """What-if, purchase and recommendation have the watts and MWh of `plan`, whatever is asked beside."""
    fleet, offer = standing_fleet("A100-SXM4-40GBx4:1", HWDB), named_purchase("L40Sx4", 1, HWDB)
    prices = load_prices(None, HWDB)
    economics = replace(prices.economics, pue=None if pue is None else Figure(pue, "made up"))
    prices, limits = replace(prices, economics=economics), Limits(nodes=1)
    terms = Terms(fleet="owned", power=power and replace(power, pue=pue or 1.0))
    options = {"terms": terms, "wishes": QUICK, "hwdb": HWDB}
    studied = what_if(
        WORK.model, fleet, [(offer,)], job=WORK.job, tokens=TOKENS, prices=prices, **options
    ).rows
    front = purchase(
        [WORK], fleet, [(offer, 1)], limits, prices, ordered=TODAY, tokens=TOKENS, **options
    ).points
    best = recommend_mix(WORK, fleet, [(offer, 1)], limits, prices, Goal(TOKENS, days=1e6), **options)
    asked = PowerTerms(pue=pue or 1.0)
    drawn: dict[int, set[float]] = {}
    for row in (*studied, *(point.rows[0] for point in front), *best.rows):
        run = training_run(row.document, row.fleet.cluster, HWDB, TOKENS, power=asked)
        assert row.power_w == pytest.approx(run.kw * 1000)
        assert row.mwh == pytest.approx(run.mwh)
        assert row.site_kw == pytest.approx(run.mwh * 1e3 / (run.days * 24))
        drawn.setdefault(row.fleet.cluster.gpus, set()).add(round(row.power_w, 3))
    assert len(drawn) == 2 and all(len(watts) == 1 for watts in drawn.values())
    one, two = (next(iter(drawn[gpus])) for gpus in sorted(drawn))
    assert two > one  # idle nodes draw, too


@pytest.mark.parametrize("seed", range(6))
def test_no_end_of_an_interval_of_energy_is_beyond_power_times_time(seed: int) -> None:
    fleet, _, _ = generated(seed)
    document = ts.plan(
        WORK.model, fleet.cluster, WORK.job, wishes=SearchOptions(effort="quick"), hwdb=HWDB
    ).document
    most_w = cluster_watts(document, fleet.cluster, HWDB).most_w
    for wider in (1.0, 1.5, 4.0):  # also where nothing is known of the time
        ends = {"step_s_low": document.step_s_low / wider, "step_s_high": document.step_s_high * wider}
        run = training_run(document.with_fields(**ends), fleet.cluster, HWDB, TOKENS)
        assert run.mwh_low < run.mwh < run.mwh_high
        assert run.mwh_high <= most_w / 1e6 * run.days_high * 24 * (1 + 1e-9)
        assert run.kw * 1000 <= most_w


@given(
    st.floats(60.0, 1e7),
    st.floats(1.0, 1e4),
    st.floats(0.1, 600.0),
    st.floats(0.0, 3600.0),
    st.floats(0.0, 600.0),
)
def test_the_time_on_spot_is_useful_or_lost_to_something(
    mtbf_s: float, work_s: float, checkpoint_s: float, waiting_s: float, restart_s: float
) -> None:
    given_s = mtbf_s, work_s + checkpoint_s, checkpoint_s, waiting_s, restart_s
    lost = lost_shares(*given_s)
    assert all(share >= -1e-9 for share in lost.values())
    assert bool(lost) == (0 < useful_share(*given_s) < 1)
    if lost:
        assert sum(lost.values()) + useful_share(*given_s) == pytest.approx(1.0)


@pytest.mark.parametrize("factor", [0.8, 1.5])
def test_a_limit_of_the_site_is_said_not_to_bind_where_it_changes_nothing(factor: float) -> None:
    cluster = standing_fleet("A100-SXM4-40GBx4:1", HWDB).cluster

    def planned(where: ts.Cluster) -> ts.Result:
        return ts.plan(WORK.model, where, WORK.job, wishes=QUICK, hwdb=HWDB)

    site_w = cluster_watts(planned(cluster).document, cluster, HWDB).total_w * factor
    document = plan_under_power(cluster, PowerTerms(site_w=site_w), HWDB, planned).document
    (said,) = SITE_NOT_BINDING.among(document.findings) or [None]
    assert (said is not None) == (factor > 1)
    if said is not None:
        assert said.figures["limit_kw"] == pytest.approx(site_w / 1000)
        assert said.figures["drawn_kw"] <= said.figures["most_kw"] <= said.figures["limit_kw"] * 2

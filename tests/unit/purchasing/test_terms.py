"""Reserved prices: taken for runs of days that their terms allow, where they are lower."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tangram_sim as ts
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import load_cluster
from tangram_sim.hwdb.prices import Figure, is_better_reserved, node_prices
from tangram_sim.purchasing.billing import Terms, way_of
from tangram_sim.purchasing.fleets import Member, named_purchase
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.studies.training_run import rent_of, training_run
from tests.unit.purchasing.shop import HWDB

NODE = "p5en.48xlarge"
PRICES = node_prices(HWDB)[NODE]


@given(
    rent=st.floats(0.1, 100), reserved=st.floats(0.1, 100), days=st.floats(0.01, 400), least=st.floats(0, 30)
)
def test_a_reserved_price_is_taken_where_it_is_lower_and_its_term_allows_the_days(
    rent, reserved, days, least
):
    price = Figure(reserved, "made up", term_days=(least, 182.0))
    taken = is_better_reserved(price, Figure(rent, "made up"), days)
    assert taken == (reserved < rent and least <= max(days, 1.0) and days <= 182.0)
    assert is_better_reserved(price, None, days) and not is_better_reserved(
        None, Figure(rent, "made up"), days
    )
    unknown = replace(price, term_days=None)
    assert not is_better_reserved(unknown, Figure(rent, "made up"), days)
    assert not is_better_reserved(price, Figure(rent, "made up"), None)


def test_shipped_capacity_blocks_say_their_terms():
    assert PRICES["reserved_usd_per_hour"].term_days == (1.0, 182.0)
    assert PRICES["reserved_usd_per_hour"].value < PRICES["rent_usd_per_hour"].value


def test_a_run_of_sixteen_days_is_reserved_and_one_of_a_year_is_not():
    cluster = load_cluster(f"{NODE}:1", HWDB)
    plan = ts.estimate("gpt3-1.3b", cluster, ts.Job(global_batch=64), ts.Uniform(dp=8), hwdb=HWDB).document
    a_day = training_run(plan, cluster, HWDB, 1e9)
    tokens = 1e9 / a_day.days
    for days, price in ((16, "reserved_usd_per_hour"), (365, "rent_usd_per_hour")):
        run = training_run(plan, cluster, HWDB, tokens * days)
        assert run.days == pytest.approx(days)
        assert run.usd == pytest.approx(days * 24 * PRICES[price].value)
    assert rent_of(cluster, HWDB)[0] == PRICES["rent_usd_per_hour"].value


def test_a_price_file_states_terms(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(
        f"nodes: {{{NODE}: {{rent_usd_per_hour: 50, reserved_usd_per_hour: 30, reserved_days: [30, 365],"
        " date: 2026-11-01, source: our contract}}\n"
    )
    prices, node = load_prices(path, HWDB), named_purchase(NODE, 1, HWDB).node
    member = Member(f"+{NODE}", NODE, 1, bought=True, node=node)
    ways = [way_of(member, prices, Terms(days=days)) for days in (None, 29.0, 30.0, 365.0, 366.0)]
    assert ways == ["rent", "rent", "reserved", "reserved", "rent"]
    assert way_of(member, prices, Terms("rent", days=30.0)) == "rent"
    path.write_text(path.read_text().replace("[30, 365]", "[30]"))
    with pytest.raises(BadInputError, match="reserved_days"):
        load_prices(path, HWDB)

"""A day that serves and trains: never worse than two fleets apart, less what changing over loses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.purchasing.days import AT_ONCE, ChangeOver, trained_day
from tangram_sim.purchasing.served_day import DayTerms

DAY_S = 86_400
RATES = st.floats(0, 1e9)
HOURS = st.floats(0, 24)
SECONDS = st.floats(0, 20_000)
CHANGES = st.builds(ChangeOver, SECONDS, SECONDS, SECONDS, SECONDS)


@given(HOURS, RATES, RATES, CHANGES)
def test_sharing_is_never_worse_than_apart_less_changing_over(hours, rest, more, change):
    day = trained_day(hours, rest, rest + more, change)
    at_once = trained_day(hours, rest, rest + more, AT_ONCE)
    assert day.shared >= day.apart
    assert at_once.shared == pytest.approx(3600 * (hours * rest + (24 - hours) * (rest + more)))
    assert day.shared <= at_once.shared * (1 + 1e-9)
    if day.changes:
        assert day.shared + day.lost == pytest.approx(at_once.shared)
        lost_s = (change.rest_s + change.all_nodes_s) * (rest + more)
        assert day.lost <= lost_s * (1 + 1e-9)


@given(RATES, RATES, CHANGES)
def test_no_hour_and_every_hour_are_the_pure_cases(rest, more, change):
    assert trained_day(0, rest, rest + more, change).shared == pytest.approx(DAY_S * (rest + more))
    whole = trained_day(24, rest, rest + more, change)
    assert whole.shared == whole.apart == pytest.approx(DAY_S * rest)
    assert not whole.changes


@given(HOURS, RATES, RATES, CHANGES, st.floats(0, 1000))
def test_slower_changes_and_longer_service_never_train_more(hours, rest, more, change, slower):
    slow = ChangeOver(change.drain_s, change.checkpoint_s + slower, change.restart_s, change.load_s)
    day = trained_day(hours, rest, rest + more, change).shared
    assert trained_day(hours, rest, rest + more, slow).shared <= day * (1 + 1e-12)
    # Serving that takes all nodes: each hour more of it leaves less to train.
    assert (
        trained_day(min(24, hours + 1), 0, more, change).shared <= trained_day(hours, 0, more, change).shared
    )


def test_a_change_dearer_than_it_gains_is_left_out():
    day = trained_day(20, 90.0, 100.0, ChangeOver(600, 600, 600, 600))
    assert (day.changes, day.shared, day.lost) == (False, day.apart, 0.0)


@pytest.mark.parametrize(("hours", "load_s"), [(-1, 0), (25, 0), (12, -1), (12, 90_000)])
def test_terms_that_cannot_be(hours, load_s):
    with pytest.raises(BadInputError):
        DayTerms(hours, load_s)

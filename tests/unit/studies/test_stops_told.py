"""That a search was stopped is the first thing that is told of its plan, whatever else there is to tell."""

from dataclasses import replace
from typing import Any

import pytest

from tangram_sim.findings import Severity
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import BY_HAND, Deadline
from tangram_sim.planners.tangram.findings import NOTHING_SEARCHED
from tangram_sim.studies import api, tried
from tangram_sim.training.job import Job
from tests.contracts.test_planner_contract import HWDB, MIXED, small_model

JOB, WISHES = Job(8, 1024, "fp16"), SearchOptions(memory_margin=0.0)


def _by_hand() -> Deadline:
    """As after Ctrl-C: over before it begins."""
    stopped = Deadline()
    stopped.interrupted = True
    return stopped


def test_a_plan_says_first_that_its_search_was_stopped() -> None:
    told = api.plan(
        small_model(), MIXED, JOB, wishes=WISHES, hwdb=HWDB, deadline=_by_hand()
    ).document.findings
    assert told[0] == BY_HAND()
    assert len(told) > 1
    assert told.count(BY_HAND()) == 1


def test_a_plan_that_nothing_was_searched_for_says_so_first() -> None:
    none = replace(WISHES, time_limit_s=0.0)
    told = api.plan(small_model(), MIXED, JOB, wishes=none, hwdb=HWDB).document.findings
    assert [each for each in told if each.severity == Severity.STOPPED] == [NOTHING_SEARCHED()] == told[:1]


def test_a_plan_whose_search_ended_by_itself_tells_no_stop() -> None:
    told = api.plan(small_model(), MIXED, JOB, wishes=WISHES, hwdb=HWDB, deadline=Deadline(3600.0)).document
    assert not [each for each in told.findings if each.severity == Severity.STOPPED]


@pytest.mark.parametrize("moment", [1, 2])
def test_time_that_ends_beside_the_search_is_told_first_too(
    moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While layouts of frameworks are looked at the search has ended, and told nothing."""
    deadline = Deadline(3600.0)
    search = api.search_formats

    def then_over(*given: Any, **named: Any) -> object:
        found = search(*given, **named)
        deadline.interrupted = moment == 1
        return found

    def over_then(*given: Any, **named: Any) -> object:
        deadline.interrupted = True
        deadline.over()
        return choose(*given, **named)

    choose = api.choose
    monkeypatch.setattr(api, "search_formats", then_over)
    if moment == 2:
        monkeypatch.setattr(api, "choose", over_then)
    told = api.plan(small_model(), MIXED, JOB, wishes=WISHES, hwdb=HWDB, deadline=deadline).document.findings
    assert told[0] == BY_HAND()


def test_what_was_tried_is_told_behind_the_stop() -> None:
    auto = replace(JOB, schedule="auto")
    found = tried.plan(small_model(), MIXED, auto, wishes=WISHES, hwdb=HWDB, deadline=_by_hand())
    assert found.document.findings[0] == BY_HAND()
    assert found.document.findings[1] in tried.TRIED.among(found.document.findings)

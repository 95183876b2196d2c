"""Efforts in turn until a gap is proven: the first that suffices, never a slower plan, what is open."""

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import EFFORTS
from tangram_sim.questions.plan import PlanQuestion
from tangram_sim.studies.within_gap import GAP_OPEN, GAP_PROVEN
from tangram_sim.training.job import Job
from tests.commands import tangram

ASKED = {"model": "bert-large", "cluster": "azure-c1-t4x4-v100x4", "job": Job(16, 512, "fp16")}


def answered(**more):
    return PlanQuestion(**ASKED, **more).answer()


@pytest.fixture(scope="module")
def by_effort():
    return {effort: answered(search=SearchOptions(effort=effort)) for effort in EFFORTS}


def gap_of(result) -> float:
    return result.step_s / result.document.lower_bound_step_s - 1


def test_a_wide_gap_is_proven_by_the_first_effort(by_effort) -> None:
    quick = by_effort["quick"]
    found = answered(gap=gap_of(quick) + 0.01)
    assert found.step_s == quick.step_s
    (told,) = GAP_PROVEN.among(found.document.findings)
    assert told.figures["effort"] == "quick"
    assert told.figures["gap"] == pytest.approx(gap_of(found))


def test_a_gap_of_nothing_goes_through_every_effort_and_says_what_is_open(by_effort) -> None:
    found = answered(gap=0.0)
    assert found.step_s == min(item.step_s for item in by_effort.values())
    best = max(item.document.lower_bound_step_s for item in by_effort.values())
    assert found.document.lower_bound_step_s == best
    told = GAP_OPEN.among(found.document.findings) or GAP_PROVEN.among(found.document.findings)
    assert told[0].figures["gap"] == pytest.approx(found.step_s / best - 1)
    assert told[0].code == ("gap-open" if found.step_s > best else "gap-proven")


def test_percents_are_read_and_contradictions_refused() -> None:
    common = ("plan", "bert-large", "azure-c1-t4x4-v100x4", "--global-batch", 16, "--seq", 512)
    told = tangram(*common, "--gap", "900%", "--json")
    assert told.code == 0
    assert any("gap: quick effort proves" in note for note in told.json["notes"])
    for words, said in (
        (("--gap", "5%", "--effort", "quick"), "drop --effort"),
        (("--gap", "-1"), "above the lower bound"),
        (("--gap", "wide"), "give a share"),
        (("--gap", "5%", "--planner", "sailor"), "--gap"),
    ):
        found = tangram(*common, *words)
        assert found.code == 2
        assert said in found.err
    with pytest.raises(BadInputError, match="gap"):
        answered(gap=11.0)

"""Shipped schedules keep the contract; one of another package is found, priced, searched and replayed."""

from dataclasses import replace
from pathlib import Path

import pytest

from docs.snippets import blocks
from tangram_sim import registry
from tangram_sim.errors import BadInputError, TangramError, UnknownNameError
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import (
    SCHEDULES,
    Schedule,
    ScheduleOrder,
    check_schedule,
    schedule_named,
    schedule_names,
)
from tangram_sim.training.schedules.gpipe import GPipe
from tangram_sim.training.schedules.one_f_one_b import OneFOneB
from tests.places import ROOT

GUIDE = ROOT / "docs" / "how-to" / "add-a-schedule.md"


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_shipped_schedule_keeps_the_contract(name: str) -> None:
    check_schedule(schedule_named(name))


class _Forgetful(OneFOneB):
    """Says that it holds less than its order does."""

    name = "forgetful"

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:
        return min(super().in_flight(behind, depth, chunks, microbatches), 2)


class _Shrinking(GPipe):
    """Claims to hold less the more stages stand behind, far from the shapes that are played."""

    name = "shrinking"

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:
        return super().in_flight(behind, depth, chunks, microbatches) if behind < 12 else 1


class _Unsteady(OneFOneB):
    """Another order every time."""

    name = "unsteady"

    def __init__(self) -> None:
        self.asked = 0

    def order(self, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        self.asked += 1
        other = GPipe() if self.asked % 2 == 0 else super()
        return other.order(stages, microbatches, chunks)


class _AlwaysRounds(OneFOneB):
    """Says that it needs whole rounds, and runs without."""

    name = "always-rounds"
    whole_rounds = True


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (_Forgetful(), "in_flight says 2 for stage 0, its order holds 3"),
        (_Shrinking(), "in_flight falls"),
        (_Unsteady(), "two orders"),
        (_AlwaysRounds(), "must raise a TangramError"),
    ],
)
def test_the_contract_names_what_is_broken(broken: Schedule, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        check_schedule(broken)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule of the guide, in a folder that stands for an installed package."""
    (source,) = [block.text for block in blocks(GUIDE.read_text()) if block.mark == "file=eager.py"]
    (tmp_path / "eager.py").write_text(source)
    info = tmp_path / "eager-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eager\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tangram_sim.schedules]\neager-1f1b = eager:Eager1F1B\nmisnamed = eager:Eager1F1B\n"
        "no-schedule = pathlib:Path\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    schedule_named.cache_clear()
    yield
    schedule_named.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_schedule_of_another_package_is_estimated_planned_and_replayed() -> None:
    check_schedule(schedule_named("eager-1f1b"))
    model, cluster = load_model("gpt3-125m"), load_cluster("azure-c1-t4x4-v100x4")
    job = Job(global_batch=16, seq=1024, dtype="fp16")
    plain = api.plan(model, cluster, job, wishes=SearchOptions())
    eager = api.plan(model, cluster, replace(job, schedule="eager-1f1b"), wishes=SearchOptions())
    assert eager.document.job.schedule == "eager-1f1b"
    # What 1F1B waits for a transfer, eager forwards hide: never slower where memory is ample.
    assert eager.document.step_s <= plain.document.step_s * (1 + 1e-9)
    assert api.simulate(eager.document).document.step_s == pytest.approx(eager.document.step_s, rel=1e-12)


@pytest.mark.usefixtures("installed")
def test_names_are_listed_and_false_ones_refused() -> None:
    assert schedule_names()[-3:] == ("eager-1f1b", "misnamed", "no-schedule")
    assert registry.names(registry.SCHEDULES) == ("eager-1f1b", "misnamed", "no-schedule")
    with pytest.raises(TangramError, match="calls itself 'eager-1f1b'"):
        schedule_named("misnamed")
    with pytest.raises(TangramError, match="register a subclass of Schedule"):
        schedule_named("no-schedule")
    with pytest.raises(UnknownNameError, match=r"'eager'.*eager-1f1b"):
        schedule_named("eager")

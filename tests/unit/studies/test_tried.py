"""`--schedule auto` and `--parallelizer auto`: the fastest of what each of them gives."""

from dataclasses import replace

import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import api, tried
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
CLUSTER = load_cluster("azure-c1-t4x4-v100x4", HWDB)
MODEL = load_model("gpt3-350m")
JOB = Job(global_batch=4, seq=512, schedule=tried.AUTO)
FAST = SearchOptions(sub_islands=False, replicate=False, beside=False)


@pytest.mark.slow
def test_the_fastest_schedule_is_shown_and_all_are_told() -> None:
    """No schedule alone is faster, and the file replays under the one that was chosen."""
    found = tried.plan(MODEL, CLUSTER, JOB, wishes=FAST, hwdb=HWDB).document
    named = replace(JOB, schedule="zb-h1")
    alone = api.plan(MODEL, CLUSTER, named, wishes=FAST, hwdb=HWDB).document.step_s
    assert found.step_s <= alone * (1 + 1e-9)
    assert found.schedule in tried.SCHEDULES
    assert found.notes[0].startswith("tried: 1f1b ")
    assert api.simulate(found, hwdb=HWDB).document.step_s == pytest.approx(found.step_s, rel=1e-9)


@pytest.mark.slow
def test_parallelizers_are_tried_alike() -> None:
    """Grid is one of them: the answer is no slower than its own."""
    both = replace(FAST, parallelizer=tried.AUTO)
    job = replace(JOB, schedule="1f1b")
    found = tried.plan(MODEL, CLUSTER, job, wishes=both, hwdb=HWDB).document
    grid = api.plan(MODEL, CLUSTER, job, wishes=FAST, hwdb=HWDB).document
    assert found.step_s <= grid.step_s * (1 + 1e-9)
    assert found.notes[0].startswith("tried: grid ")


def test_time_is_shared_and_an_interrupt_ends_all() -> None:
    """What is over for the whole is over for every share."""
    whole = Deadline(1000.0)
    share = whole.share(10.0)
    assert 0 < share.left_s() <= 10.0
    whole.interrupted = True
    assert share.over()


def test_without_a_plan_the_first_reason_is_told() -> None:
    """As under a schedule that was named."""
    named = replace(JOB, schedule="1f1b")
    with pytest.raises(InfeasibleError, match="fits no plan"):
        tried.plan(load_model("gpt3-175b"), CLUSTER, named, wishes=FAST, hwdb=HWDB)

"""Layouts that no framework can be told are left out before they are bounded, and no others."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, launching
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.studies import launchable_layouts
from tangram_sim.studies.launchable import nearest
from tangram_sim.studies.launchable_layouts import LaunchLayouts
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
MODEL, CLUSTER = load_model("gpt3-350m"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
KNOWN = list(FRAMEWORKS.values())


def layouts_of(job: Job) -> LaunchLayouts:
    return LaunchLayouts(MODEL, CLUSTER, job, HWDB, SearchOptions(), KNOWN)


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "adafactor"])
@pytest.mark.parametrize(("dtype", "schedule"), [("fp16", "1f1b"), ("fp32", "gpipe"), ("fp32", "zb-h1")])
def test_exactly_what_a_framework_can_launch_is_offered(
    optimizer: str, dtype: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against every layout of every batch made without asking any framework first, one plan at a time."""
    job = Job(global_batch=8, seq=1024, dtype=dtype, optimizer=optimizer, schedule=schedule)
    made = layouts_of(job)
    offered = {one for batch in made.batches() for place in batch for one in made.savers(place)}
    monkeypatch.setattr(launchable_layouts, "takes", lambda *_, **__: True)
    monkeypatch.setattr(LaunchLayouts, "permits", lambda *_: True)
    made = layouts_of(job)
    every = {one for batch in made.batches() for place in batch for one in made.savers(place)}
    assert every
    assert offered == {one for one in every if launching(uniform_plan(MODEL, CLUSTER, one.job, one.layout))}


def test_adapters_are_launched_by_nobody() -> None:
    job = Job(global_batch=8, seq=1024, dtype="fp16", trainable=0.001)
    assert nearest(MODEL, CLUSTER, job, HWDB, SearchOptions()) is None
    assert nearest(MODEL, CLUSTER, replace(job, trainable=1.0), HWDB, SearchOptions()) is not None

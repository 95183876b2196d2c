"""Layouts that no framework can be told are left out before they are bounded, and no others."""

from dataclasses import replace
from itertools import product

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, launching
from tangram_sim.planners.uniform.layouts import uniform_plan
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
def test_exactly_what_a_framework_can_launch_is_offered(optimizer: str, dtype: str, schedule: str) -> None:
    """Every way of sharding, of one stage and of two: against the plan made and every framework asked."""
    job = Job(global_batch=8, seq=1024, dtype=dtype, optimizer=optimizer, schedule=schedule)
    made, offered = layouts_of(job), 0
    for degrees in made.degrees(CLUSTER.groups):
        for layout, pp in product(made.shardings(degrees), (1, 2)):
            launch_candidate = made.candidate(layout, degrees.size, pp)
            if layout.gpus * pp > CLUSTER.gpus:
                continue
            launched = launching(uniform_plan(MODEL, CLUSTER, launch_candidate.job, launch_candidate.layout))
            assert made.permits(launch_candidate) == bool(launched)
            offered += bool(launched)
    assert bool(offered) == (optimizer != "adafactor")


def test_adapters_are_launched_by_nobody() -> None:
    job = Job(global_batch=8, seq=1024, dtype="fp16", trainable=0.001)
    assert nearest(MODEL, CLUSTER, job, HWDB, SearchOptions()) is None
    assert nearest(MODEL, CLUSTER, replace(job, trainable=1.0), HWDB, SearchOptions()) is not None

"""Plans whose node groups differ in their degrees: what FlagScale launches beside equal degrees."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, plan_objections
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.launchable import nearest
from tangram_sim.studies.launchable_layouts import LaunchLayouts
from tangram_sim.studies.mesh_chains import MeshChains
from tangram_sim.training.job import Job

HWDB = Hwdb.load().filled_to(0.88)
FLAGSCALE = FRAMEWORKS["flagscale"]
MODEL, JOB = load_model("qwen3-30b-a3b"), Job(512, 8192, "bf16")
CLUSTER = cluster_from_dict(
    {
        "nodes": [
            {"count": 1, "gpu": "H200-SXM-141GB", "gpus": 8, "intra_link": "NVLink4", "nic_gbps": 400},
            {"count": 2, "gpu": "A100-SXM4-40GB", "gpus": 8, "intra_link": "NVLink3", "nic_gbps": 100},
        ]
    },
    HWDB,
)


def meshes(options: SearchOptions) -> MeshChains:
    return MeshChains(LaunchLayouts(MODEL, CLUSTER, JOB, HWDB, options, [FLAGSCALE]), FLAGSCALE)


@pytest.mark.slow
def test_groups_take_degrees_of_their_own_where_that_is_faster() -> None:
    """One layout for all groups needs the small GPUs' tensor degree on the large ones, too."""
    equal = nearest(MODEL, CLUSTER, JOB, HWDB, SearchOptions(), ("megatron",))
    found = nearest(MODEL, CLUSTER, JOB, HWDB, SearchOptions(), ("flagscale",))
    assert equal and found
    assert found.frameworks == ("flagscale",)
    assert found.forecast.step_s < 0.98 * equal.forecast.step_s
    plan = found.forecast.plan
    assert len({(stage.layout.tp, stage.layout.dp) for stage in plan.pipelines[0].stages}) > 1
    assert not plan_objections(FLAGSCALE, plan)
    layouts = {stage.parts[0].island: stage.layout for stage in plan.pipelines[0].stages}
    assert all(stage.layout == layouts[stage.parts[0].island] for stage in plan.pipelines[0].stages)


def test_a_plan_of_meshes_is_below_the_limit_and_keeps_what_is_fixed() -> None:
    plan = meshes(SearchOptions()).fastest(40.0)
    assert plan is not None
    assert forecast(plan, HWDB).step_s < 40.0 * 1.02
    assert meshes(SearchOptions()).fastest(5.0) is None
    fixed = SearchOptions(constraints=Constraints(fixed=(("tp", 4),)), exclude=("g1",))
    only = meshes(replace(fixed, exclude=())).fastest(60.0)
    assert only is not None
    assert {stage.layout.tp for stage in only.pipelines[0].stages} == {4}
    assert meshes(SearchOptions(constraints=Constraints(fixed=(("cp", 2),)))).fastest(60.0) is None
    alone = meshes(fixed).fastest(60.0)
    assert alone is None or {stage.parts[0].island for stage in alone.pipelines[0].stages} == {"g0"}


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_other_schedules_have_no_meshes(schedule: str) -> None:
    found = nearest(MODEL, CLUSTER, replace(JOB, schedule=schedule), HWDB, SearchOptions(), ("flagscale",))
    assert found is None or len(found.forecast.plan.pipelines[0].stages) == 1

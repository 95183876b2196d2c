"""The words of a request without a plan."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.tangram.infeasible import why_not
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
CLUSTER = load_cluster("A100-SXM4-80GBx8:4", HWDB)
JOB = Job(global_batch=2048, seq=8192, dtype="bf16")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"])
def test_only_what_holds_a_whole_step_is_told_of_a_schedule_that_does_not(schedule: str) -> None:
    """GPipe holds every microbatch; the others hold by depth, and another of them would not help."""
    job = replace(JOB, schedule=schedule)
    words = why_not(
        load_model("llama3-70b"), CLUSTER, job, find_islands(CLUSTER, "bf16"), HWDB, Constraints()
    )
    assert ("`schedule=1f1b`" in words) == (schedule == "gpipe")

"""`dtype=auto` where old GPUs lack bf16: both formats are planned, the faster wins and says so."""

import pytest

import tangram_sim as ts
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.studies.number_formats import formats
from tangram_sim.training.job import Job

MIXED, NEW, OLD = "H100x4:1+V100-SXM2-32GBx4:1", "H100x4:1+A100-SXM4-80GBx4:1", "T4x4:1+V100-SXM2-32GBx4:1"


def dtypes(cluster: str, wishes: SearchOptions | None = None, dtype: str = "auto") -> list[str]:
    return [one.dtype for one in formats(Job(dtype=dtype), load_cluster(cluster, Hwdb.load()), wishes)]


@pytest.mark.parametrize(
    ("cluster", "wishes", "wanted"),
    [
        (MIXED, SearchOptions(), ["fp16", "bf16"]),
        (NEW, SearchOptions(), ["bf16"]),
        (OLD, SearchOptions(), ["fp16"]),
        (MIXED, SearchOptions(exclude=("g1",)), ["bf16"]),
        (MIXED, SearchOptions(order=("g1",)), ["fp16"]),
        (MIXED, SearchOptions(frameworks=("torchtitan",)), ["bf16"]),
        (MIXED, SearchOptions(frameworks=("torchtitan", "megatron")), ["fp16", "bf16"]),
        (OLD, SearchOptions(frameworks=("torchtitan",)), ["fp16"]),
    ],
)
def test_what_auto_stands_for(cluster: str, wishes: SearchOptions, wanted: list[str]) -> None:
    assert dtypes(cluster, wishes) == wanted


def test_a_dtype_that_is_given_is_kept() -> None:
    assert dtypes(MIXED, dtype="fp16") == ["fp16"]


@pytest.mark.parametrize("cluster", ["H100x4:1+T4x2:1", "A100-SXM4-40GBx2:1+V100-SXM2-32GBx4:2"])
def test_auto_is_the_faster_format_and_fp16_only_where_old_gpus_are_used(cluster: str) -> None:
    """Old GPUs that are of little use do not decide for all; where they carry the step, they do."""
    job, wishes = Job(global_batch=16, seq=512), SearchOptions(beside=False)
    steps = {
        dtype: ts.plan("gpt3-350m", cluster, Job(16, 512, dtype), wishes=wishes).step_s
        for dtype in ("fp16", "bf16")
    }
    found = ts.plan("gpt3-350m", cluster, job, wishes=wishes).document
    taken = found.job.dtype
    assert found.step_s <= steps[taken] * (1 + 1e-9)
    if found.step_s > min(steps.values()) * (1 + 1e-9):  # no old GPU is used: nothing asks for fp16
        fp16 = ts.plan("gpt3-350m", cluster, Job(16, 512, "fp16"), wishes=wishes).document
        assert taken == "bf16" and not {stage.gpu for stage in fp16.stages} & {"T4", "V100-SXM2-32GB"}
    assert any(note.startswith(taken) and "loss scaling" in note for note in found.notes)


def test_the_first_reason_is_told_where_no_format_has_a_plan() -> None:
    wishes = SearchOptions(constraints=Constraints(fixed=(("tp", 8),)))
    with pytest.raises(InfeasibleError, match="8 GPUs or more"):
        ts.plan("gpt3-350m", MIXED, Job(16, 512), wishes=wishes)

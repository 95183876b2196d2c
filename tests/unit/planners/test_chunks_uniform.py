"""Schedules of several chunks where no plan of one chunk can be cut: uniform layouts that can."""

import pytest

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.api import Found, SearchOptions
from tangram_sim.planners.tangram import chunked as room
from tangram_sim.planners.tangram.chunked import NOTHING_CUT, CannotChunk, chunked
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
MODEL, CLUSTER = load_model("gpt3-350m"), load_cluster("A100-SXM4-80GBx2:1+H100x2:1", HWDB)


@pytest.fixture(autouse=True)
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the best depths do not divide the batch."""
    monkeypatch.setattr(room, "with_chunks", lambda *given: CannotChunk("microbatches are no multiple"))


def planned(batch: int, **given: object) -> Found:
    wishes = SearchOptions(effort="quick", memory_margin=0.0, **given)  # type: ignore[arg-type]
    return chunked(MODEL, CLUSTER, Job(batch, 512, "bf16", schedule="interleaved"), HWDB, wishes)


def test_a_uniform_layout_that_divides_the_batch_is_the_answer() -> None:
    found = planned(8)
    (pipeline,) = found.ranked[0].plan.pipelines
    assert all(len(stage.chunks) > 1 for stage in pipeline.stages)
    assert pipeline.microbatches % len(pipeline.stages) == 0
    assert NOTHING_CUT(schedule="interleaved") in found.findings


def test_groups_left_out_stay_so() -> None:
    found = planned(8, exclude=("g0",))
    used = {part.island for stage in found.ranked[0].plan.pipelines[0].stages for part in stage.parts}
    assert used == {"g1"}


def test_where_no_layout_divides_it_the_reason_is_said() -> None:
    with pytest.raises(InfeasibleError, match="microbatches are no multiple"):
        planned(1)

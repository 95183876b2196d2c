"""Plans under schedules of several chunks per stage: cut from the best simple ones, balanced, replayable."""

from dataclasses import replace
from pathlib import Path

import pytest

import tangram_sim as ts
from tangram_sim.planners.tangram.chunked import CannotChunk, layers_of, with_chunks
from tangram_sim.studies.planfile import read_plan
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import schedule_named

OPTIONS = ts.SearchOptions(constraints=ts.Constraints(fixed=(("tp", 4), ("pp", 1))))
JOB = Job(global_batch=64, dtype="bf16")


@pytest.mark.parametrize("schedule", ["interleaved", "zb-v"])
def test_a_chunked_plan_holds_every_layer_once_and_replays(schedule: str, tmp_path: Path) -> None:
    job = Job(global_batch=64, dtype="bf16", schedule=schedule)
    found = ts.plan("gpt3-6.7b", "azure-c2-a100x4-h100x4", job, wishes=OPTIONS)
    (pipeline,) = found.forecast.plan.pipelines
    runs = sorted(run for stage in pipeline.stages for run in stage.chunks)
    assert [start for start, _ in runs] == [0, *(stop for _, stop in runs[:-1])]
    assert runs[-1][1] == found.forecast.plan.model.layers
    assert sum(layers_of(pipeline)) == found.forecast.plan.model.layers
    assert pipeline.stages[0].head == (schedule == "zb-v")
    path = tmp_path / "plan.json"
    path.write_text(found.document.model_dump_json())
    assert ts.simulate(read_plan(path)).step_s == pytest.approx(found.step_s, rel=1e-9)
    assert any(schedule in note for note in found.document.notes)


def test_what_cannot_be_cut_says_why() -> None:
    plan = ts.plan("gpt3-6.7b", "azure-c2-a100x4-h100x4", JOB, wishes=OPTIONS).forecast.plan
    depth = len(plan.pipelines[0].stages)
    assert depth > 1
    many = with_chunks(plan, JOB, schedule_named("interleaved"), 1000)
    assert isinstance(many, CannotChunk) and "fewer layers" in many.reason
    flat = ts.estimate("gpt3-6.7b", "azure-c2-a100x4-h100x4", JOB, ts.Uniform(tp=8)).forecast.plan
    whole = with_chunks(flat, JOB, schedule_named("zb-v"), 2)
    assert isinstance(whole, CannotChunk) and "one stage" in whole.reason


@pytest.mark.slow
def test_where_nothing_that_was_cut_fits_a_uniform_layout_may() -> None:
    """Chunks in a V hold on every stage what 1F1B holds on the first: too much for its best plans."""
    found = ts.plan("gpt3-13b", "azure-c1", Job(global_batch=64, schedule="zb-v")).document
    assert any("the best uniform layout" in note for note in found.notes)
    assert all(stage.peak_memory_bytes <= stage.memory_capacity_bytes for stage in found.stages)


def test_estimate_takes_two_chunks_where_the_schedule_has_two() -> None:
    job = Job(global_batch=32, schedule="zb-v")
    layouts = [ts.Uniform(pp=2, tp=2), ts.Uniform(pp=2, tp=2, vpp=2)]
    item, two = ts.estimate_many("gpt3-1.3b", "azure-c1-t4x4-v100x4", job, layouts)
    alone = ts.estimate("gpt3-1.3b", "azure-c1-t4x4-v100x4", job, layouts[0])
    assert item.step_s == two.step_s == pytest.approx(alone.step_s, rel=1e-6)
    assert [stage.head for stage in alone.document.stages] == [True, False]


def test_of_plans_that_are_known_nothing_is_searched() -> None:
    """What a search under 1F1B ranked is cut into what the search under chunks would have found."""
    plain, own = JOB, Job(global_batch=64, dtype="bf16", schedule="interleaved")
    cluster, wishes = "azure-c2-a100x4-h100x4", replace(OPTIONS, beside=False)
    simple = ts.plan("gpt3-6.7b", cluster, plain, wishes=replace(wishes, kept=24)).ranked
    alone = ts.plan("gpt3-6.7b", cluster, own, wishes=wishes)
    cut = ts.plan("gpt3-6.7b", cluster, own, wishes=wishes, known=simple)
    assert len(simple) > 1
    assert cut.document.partial_plans.asked == 0 < alone.document.partial_plans.asked
    assert cut.step_s <= alone.step_s * (1 + 1e-9)

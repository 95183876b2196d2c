"""Stages that compute nothing while they send: the passes take the sends' time, in both ways of pricing."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.sim.fast import makespan
from tangram_sim.studies import api
from tangram_sim.studies.batch_estimates import Estimate
from tangram_sim.training.job import Job
from tangram_sim.training.schedules.step import StageTimes, step_template


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (3, 4), (4, 9)])
def test_equal_stages_take_slots_that_hold_both_sends(stages: int, microbatches: int) -> None:
    """An inner stage's slot is f + b + 2 s; the ends send once."""
    template = step_template("1f1b", stages, microbatches)
    times = StageTimes.equal(
        stages, forward_s=1.0, backward_input_s=2.0, backward_weight_s=0.0, send_s=0.25
    ).blocking(template.order.places)
    assert times.forward_s.ravel().tolist() == [1.25] * (stages - 1) + [1.0]
    assert times.backward_input_s.ravel().tolist() == [2.0] + [2.25] * (stages - 1)
    step = makespan(template.with_durations(times))
    slots = microbatches + stages - 1
    assert slots * 3.25 - 0.5 - 1e-9 <= step <= slots * 3.5
    if microbatches == 1:
        assert step == pytest.approx(stages * 3.0 + 2 * (stages - 1) * 0.25)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-v", 2)]
)
def test_every_send_is_paid_by_the_pass_that_makes_it(schedule: str, chunks: int, stages: int) -> None:
    """Whatever boundary a send crosses, and however chunks lie: seconds of work stay, no send is free."""
    random = np.random.default_rng(stages)
    template = step_template(schedule, stages, 2 * stages, chunks)
    passes = StageTimes.equal(stages, chunks, forward_s=1.0, backward_input_s=2.0, backward_weight_s=1.0)
    free = replace(
        passes, send_forward_s=random.uniform(1, 2, stages), send_backward_s=random.uniform(3, 4, stages)
    )
    blocked = template.durations(free.blocking(template.order.places))
    assert blocked.sum() == pytest.approx(template.durations(free).sum())
    assert makespan(template.graph.with_durations(blocked)) >= makespan(template.with_durations(free))


def test_the_stack_is_slower_over_slow_links_and_priced_alike_in_batches() -> None:
    hwdb = Hwdb.load()
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", hwdb)
    layout = Uniform(pp=2, tp=4)
    steps = {}
    for stack in ("generic", "deepspeed-pipeline"):
        job = Job(global_batch=16, stack=stack)
        steps[stack] = api.estimate(model, cluster, job, layout, hwdb=hwdb).step_s
        (batched,) = api.estimate_many(model, cluster, job, [layout], hwdb=hwdb)
        assert isinstance(batched, Estimate)
        assert batched.step_s == pytest.approx(steps[stack], rel=1e-6)
    assert steps["deepspeed-pipeline"] > steps["generic"]

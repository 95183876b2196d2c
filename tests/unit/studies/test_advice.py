"""What limits a step, in one sentence that is true of the figures it is made from."""

import pytest

from tangram_sim.hwdb import ReadSet
from tangram_sim.layouts import Layout
from tangram_sim.studies.advice import advice
from tangram_sim.studies.documents import LiveputDocument, PlanDocument
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.training.plan import Share, pipeline_of_shares
from tests.unit.export.plans import HWDB, plan_of


@pytest.fixture(scope="module")
def base() -> PlanDocument:
    shares = [[Share("g0", (2 * s, 2 * s + 1), 2, Layout(dp=2))] for s in range(2)]
    plan = plan_of((pipeline_of_shares(4, (0, 2, 4), shares),), 4, 4)
    return document(forecast(plan, HWDB), HWDB, ReadSet(), 0.001)


def changed(base: PlanDocument, stage: dict[str, object] | None = None, **document: object) -> PlanDocument:
    """The document with figures of its own, and of all stages."""
    quiet = {
        "gradient_sync_s": 0.0,
        "forward_s": 0.1,
        "backward_s": 0.1,
        "limited_by": "gemm",
        "limited_by_share": 0.6,
        **(stage or {}),
    }
    stages = [stage_forecast.model_copy(update=quiet) for stage_forecast in base.stages]
    return base.model_copy(update={"step_s": 1.0, "bubble_fraction": 0.1, "stages": stages, **document})


def test_kernels_limit_a_step_that_waits_for_nothing(base: PlanDocument) -> None:
    assert advice(changed(base, work_bound_step_s=0.98)) == (
        "limited by matrix products on stage 0 (60 % of its time); to go faster: more or faster GPUs: "
        "`tangram what-if` says which pay"
    )


def test_a_layout_that_nobody_searched_is_to_be_searched(base: PlanDocument) -> None:
    assert "`tangram plan` looks for another layout (100 % above" in advice(
        changed(base, work_bound_step_s=0.5)
    )


def test_a_layout_chosen_for_what_losses_leave_was_searched(base: PlanDocument) -> None:
    chosen = LiveputDocument(
        losses_per_hour=1.0,
        liveput_tokens_per_s=1.0,
        share_left=0.9,
        fastest_step_s=1.0,
        fastest_liveput_tokens_per_s=0.9,
        compared=2,
    )
    assert "tangram plan" not in advice(changed(base, work_bound_step_s=0.5, liveput=chosen))


def test_kernels_shorter_than_their_launch_ask_for_longer_ones_not_for_faster_gpus(
    base: PlanDocument,
) -> None:
    said = advice(changed(base, {"limited_by": "dispatch", "limited_by_share": 0.98}, work_bound_step_s=0.5))
    assert "launching kernels" in said and "a larger batch (`global_batch=16`) for longer kernels" in said
    assert "faster GPUs would not help" in said and "what-if" not in said


def test_few_microbatches_ask_for_a_larger_batch(base: PlanDocument) -> None:
    words = advice(changed(base, bubble_fraction=0.6))
    assert words.startswith("limited by waiting (60 % of the GPUs' time), as 4 microbatches")
    assert f"`global_batch={2 * base.job.global_batch}`" in words and "`schedule=zb-h1`" in words


def test_waiting_with_many_microbatches_is_for_slower_stages(base: PlanDocument) -> None:
    long = [base.pipelines[0].model_copy(update={"microbatches": 64})]
    assert "waiting (60 % of the GPUs' time) for slower stages" in advice(
        changed(base, bubble_fraction=0.6, pipelines=long)
    )


def test_gradients_on_the_network_are_named_with_their_stage(base: PlanDocument) -> None:
    slow = changed(base)
    slow.stages[1] = slow.stages[1].model_copy(update={"gradient_sync_s": 0.7})
    assert advice(slow).startswith(
        "limited by gradients on the network after the last microbatch of stage 1 (70 %"
    )


@pytest.mark.parametrize(
    ("limited_by", "words"),
    [
        (
            "tensor_parallel",
            "tensor-parallel traffic on stage 0 (90 % of its time); to go faster: faster links",
        ),
        (
            "data_parallel",
            "gathering sharded weights on stage 0 (90 % of its time); to go faster: a larger batch",
        ),
    ],
)
def test_traffic_is_named(base: PlanDocument, limited_by: str, words: str) -> None:
    assert words in advice(changed(base, {"limited_by": limited_by, "limited_by_share": 0.9}))


def test_what_does_not_fit_says_by_how_much(base: PlanDocument) -> None:
    full = changed(
        base, {"peak_memory_bytes": 44 * 2**30, "memory_capacity_bytes": 40 * 2**30}, feasible=False
    )
    assert advice(full).startswith("does not fit: stage 0 lacks 4.0 GiB; to make it fit: `recompute=full`")

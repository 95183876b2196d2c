"""A planned run trains the same model as a single process: every sharding, schedule and re-sharding."""

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="real runs need the [validate] extra")

from tangram_validate.testbed.errors import RankDiedError, TestbedError
from tangram_validate.testbed.launch import Ranks, free_port
from tangram_validate.testbed.runner import RunRequest, run_plan, single_process_losses

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.hwdb.model_file import from_model_file
from tangram_sim.layouts import Layout
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayerLayout, Part, Plan, Stage

TOLERANCE = 5e-6  # relative; a wrong gradient changes the second loss by 1e-4 and more
WORLD = 5
DENSE = {"feed_forward": {"width": 128}}
EXPERTS = {"experts": {"count": 4, "active": 2, "width": 64}}


def _model(kv_heads=4, part=None, **facts):
    layer = {"count": 4, "attention": {"heads": 4, "kv_heads": kv_heads}, **(part or DENSE)}
    return from_model_file({"hidden": 64, "vocab": 256, "layers": [layer], **facts}, "test", "tiny")


@pytest.fixture(scope="module")
def cluster():
    node = {"count": 1, "gpu": "A100-SXM4-80GB", "gpus": 8, "intra_link": "NVLink3", "nic_gbps": 100}
    return cluster_from_dict({"name": "box", "nodes": [node]}, Hwdb.load(), "test")


@pytest.fixture(scope="module")
def ranks():
    with Ranks(WORLD, timeout_s=120) as up:
        yield up


def _uniform(cluster, model=None, schedule="1f1b", **layout) -> Plan:
    job = Job(8, 32, "fp32", "adamw", schedule)
    return uniform_plan(model or _model(), cluster, job, Uniform(**{"dp": 1, **layout}))


def _stages(plan: Plan, *stages) -> Plan:
    """The plan with other stages: (ranks, layout, first block, last block) each."""
    pipeline, made = plan.pipelines[0], []
    for number, (ranks, layout, start, stop) in enumerate(stages):
        part = Part("g0", ranks, pipeline.microbatch, (LayerLayout((start, stop), layout),))
        made.append(Stage(((start, stop),), number == 0, number == len(stages) - 1, (part,)))
    return replace(plan, pipelines=(replace(pipeline, stages=tuple(made)),))


COVER = {
    "uneven 1f1b": lambda c: _uniform(c, pp=2, layers=(1, 3)),
    "gpipe": lambda c: _uniform(c, schedule="gpipe", pp=4),
    "interleaved, replicas": lambda c: _uniform(c, schedule="interleaved", pp=2, vpp=2, dp=2),
    "ddp in a pipeline": lambda c: _uniform(c, pp=2, dp=2),
    "zero 1": lambda c: _uniform(c, pp=2, dp=2, zero_stage=1),
    "zero 2": lambda c: _uniform(c, dp=2, zero_stage=2),
    "zero 3 in a pipeline": lambda c: _uniform(c, pp=2, dp=2, zero_stage=3),
    "tensor parallel": lambda c: _uniform(c, tp=2),
    "sequence parallel": lambda c: _uniform(c, tp=2, pp=2, sequence_parallel=True),
    "tensor parallel replicas": lambda c: _uniform(c, tp=2, dp=2),
    "tensor parallel, zero 3": lambda c: _uniform(c, tp=2, dp=2, zero_stage=3),
    "full recompute": lambda c: _uniform(c, pp=2, dp=2, recompute="full"),
    "selective recompute": lambda c: _uniform(c, pp=2, recompute="selective"),
    "uneven shares of a microbatch": lambda c: _stages(
        replace(_uniform(c, micro_batch=4)), ((0, 1, 2), Layout(dp=3), 0, 2), ((3,), Layout(), 2, 4)
    ),
    "tensor to data parallel": lambda c: _stages(
        _uniform(c, micro_batch=2), ((0, 1), Layout(tp=2), 0, 1), ((2, 3), Layout(dp=2), 1, 4)
    ),
    "three layouts": lambda c: _stages(
        _uniform(c, micro_batch=2),
        ((0, 1), Layout(dp=2, zero_stage=3, recompute="full"), 0, 1),
        ((2, 3), Layout(tp=2), 1, 3),
        ((4,), Layout(), 3, 4),
    ),
    "tied embeddings": lambda c: _uniform(c, _model(tied=True, positions=64), pp=2, dp=2),
    "experts, grouped queries": lambda c: _uniform(c, _model(kv_heads=2, part=EXPERTS), pp=2, tp=2),
}
FAST = ("uneven 1f1b", "zero 3 in a pipeline", "tensor to data parallel")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in COVER]
)
def test_a_planned_run_has_the_losses_of_a_single_process(name, ranks, cluster):
    request = RunRequest(COVER[name](cluster), steps=2)
    assert run_plan(ranks, request).losses == pytest.approx(single_process_losses(request), rel=TOLERANCE)


def test_repeated_work_slows_a_rank_and_changes_nothing_else(ranks, cluster):
    plan = _uniform(cluster, pp=2)
    slowed = RunRequest(plan, 1, repeats=(1, 3, 1, 1, 1))
    assert run_plan(ranks, slowed).losses == pytest.approx(single_process_losses(slowed), rel=TOLERANCE)


def test_peak_memory_is_measured_on_request(ranks, cluster):
    report = run_plan(ranks, RunRequest(_uniform(cluster, pp=2), 1, memory=True))
    weights = 4 * _model().parameters / 2
    assert all(weights < rank.peak_memory_bytes < 100 * weights for rank in report.ranks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "zb-h1"}, "schedule 'zb-h1'"),
        ({"dtype": "fp8"}, "dtype 'fp8'"),
        ({"optimizer": "lamb"}, "optimizer 'lamb'"),
    ],
)
def test_plans_that_cannot_be_executed_are_named(change, said, ranks, cluster):
    plan = _uniform(cluster, pp=2)
    with pytest.raises(BadInputError, match=said):
        run_plan(ranks, RunRequest(replace(plan, job=replace(plan.job, **change)), 1))


def test_a_plan_with_more_ranks_than_there_are_is_refused(ranks, cluster):
    with pytest.raises(TestbedError, match="uses rank 7; there are 5 ranks"):
        run_plan(ranks, RunRequest(_uniform(cluster, pp=4, dp=2), 1))


def _dies(rank_that_dies):
    import os
    import signal

    import torch.distributed as dist

    if dist.get_rank() == rank_that_dies:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_rank_that_dies_ends_the_run_with_its_name_and_leaves_no_process():
    with Ranks(3, timeout_s=30) as up:
        started = list(up._processes)
        with pytest.raises(RankDiedError, match="rank 1 of 3 died by SIGKILL"):
            up.run(_dies, 1)
    assert not any(process.is_alive() for process in started)


def test_a_port_in_use_is_named():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TestbedError, match=f"--port {port}: in use"):
            free_port(port)

"""What replicas take and hold over models, degrees, engines and formats: as recorded (`tests/records`)."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from tangram_sim.hwdb import load_model
from tangram_sim.serving.batch_times import batch_curve
from tangram_sim.serving.build import deployment_of, gpu_island, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import ClosedClients, Load, closed_loop, greatest_throughput, open_loop
from tangram_sim.serving.costs import LayerStepCost, ranks_of
from tangram_sim.serving.deployment import Deployment, ReplicaStage, Speculation
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.forward import block_times, end_times
from tangram_sim.serving.kv import capacity_of, stage_memory
from tests.records import HWDB, hold

FITS = CalibrationTable.load(HWDB)
# Name: (model, GPU, engine, precision, degrees).
REPLICAS: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "llama": ("llama3-8b", "H100-SXM5-80GB", "vllm", "bf16", {}),
    "llama, sglang": ("llama3-8b", "A100-SXM4-80GB", "sglang", "bf16", {"tp": 2}),
    "llama, trtllm, fp8": ("llama3-70b", "H100-SXM5-80GB", "trtllm", "fp8", {"tp": 4}),
    "llama, PCIe": ("llama3-8b", "A100-PCIe-80GB", "vllm", "fp8", {"tp": 4}),
    "llama, pipeline": ("llama3-8b", "L40S", "vllm", "int4", {"pp": 3}),
    "llama, drafts": (
        "llama3-70b", "H200-SXM-141GB", "vllm", "fp8", {"tp": 4, "speculation": Speculation(3, 0.8)},
    ),
    "opt, no units": ("opt-350m", "T4", "vllm", "bf16", {"tp": 2}),
    "gpt-oss, windows": ("gpt-oss-20b", "H100-SXM5-80GB", "vllm", "fp4", {"tp": 2}),
    "qwen, experts": (
        "qwen3-30b-a3b", "H100-SXM5-80GB", "sglang", "bf16", {"tp": 2, "attention_dp": 2, "ep": 4},
    ),
    "qwen, experts split": ("qwen3-30b-a3b", "H100-SXM5-80GB", "vllm", "fp8", {"tp": 4, "ep": 2}),
    "deepseek, latent": (
        "deepseek-v2-lite", "H100-SXM5-80GB", "sglang", "bf16", {"tp": 2, "attention_dp": 4, "ep": 4},
    ),
    "glm-5, indexer": ("glm-5", "B200-HGX", "vllm", "fp8", {"tp": 8, "attention_dp": 2, "ep": 16}),
    "qwen3.5, linear": ("qwen3.5-397b-a17b", "H200-SXM-141GB", "vllm", "fp8", {"tp": 8, "ep": 8}),
}  # fmt: skip
# Iterations: decodes alone, prompts alone, both; contexts from short to long.
ROWS = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 700.0, 4096.0, 300.0, 8192.0])
BEFORE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1000.0, 64.0, 0.0])
DECODES = np.array([1.0, 3.0, 40.0, 700.0, 0.0, 0.0, 0.0, 20.0, 130.0])
CONTEXTS = DECODES * np.array([10.0, 500.0, 3000.0, 900.0, 0.0, 0.0, 0.0, 100.0, 20_000.0])
SCORES = ROWS * (BEFORE + ROWS / 2)
LOADS = Load.of(
    np.array([1500.0, 300.0, 8000.0]), np.array([400.0, 30.0, 900.0]), np.array([0.0, 100.0, 4000.0])
)


def deployment(name: str) -> Deployment:
    model, gpu, engine, precision, degrees = REPLICAS[name]
    shape, kind = load_model(model), HWDB.gpu(gpu)
    rules = engine_defaults(HWDB, engine, kind)
    return deployment_of(shape, gpu, HWDB, rules, precision=precision_of(precision, shape), **degrees)


def unequal() -> Deployment:
    """Two stages on unequal GPUs of unequal degrees."""
    model = load_model("llama3-8b")
    stages = (
        ReplicaStage(gpu_island("A100-SXM4-80GB", 2, HWDB), 0, 24, 2),
        ReplicaStage(gpu_island("L40S", 1, HWDB), 24, 32, 1),
    )
    rules = engine_defaults(HWDB, "vllm", stages[0].island.gpu)
    return Deployment(model, stages, precision_of("bf16", model), rules)


def columns(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def figures(where: Deployment) -> dict[str, Any]:
    """Parts of every kind of block and of the ends, memory, steps, their table, steady loads, a batch."""
    fit = FITS.fit_of(where)
    cost = LayerStepCost(where, HWDB, fit)
    work = cost.work(ROWS, SCORES, DECODES, CONTEXTS)
    ranks = ranks_of(where, where.stages[0], HWDB)
    memories = [stage_memory(where, stage, HWDB, fit) for stage in where.stages]
    capacity = capacity_of(where, memories, 12_000)
    table = cost.table(64, 2048)
    steady = [
        closed_loop(cost, where, capacity, LOADS, 48, ClosedClients.of(fit)),
        closed_loop(cost, where, capacity, LOADS, 3),
        open_loop(cost, where, capacity, LOADS, np.array([0.05, 2.0, 50.0])),
        greatest_throughput(cost, where, capacity, LOADS),
    ]
    found: dict[str, Any] = {
        "blocks": [
            {name: np.broadcast_to(part, work.rows.shape)[1::3] for name, part in columns(times).items()}
            for times in (block_times(ranks, block, work) for block in dict.fromkeys(where.model.blocks))
        ],
        "ends": [
            [
                np.broadcast_to(part, work.rows.shape).sum()
                for part in columns(end_times(ranks, work, *ends)).values()
            ]
            for ends in ((True, False), (False, True))
        ],
        "memory": [columns(memory) for memory in memories],
        "blocks held": capacity.blocks,
        "steps": cost.step_s(ROWS, SCORES, DECODES, CONTEXTS),
        "table": {name: np.atleast_1d(part)[::7] for name, part in columns(table).items()},
        "steady": [
            [None if np.isnan(part).any() else part for part in columns(item).values()] for item in steady
        ],
    }  # fmt: skip
    if where.pp == 1 and where.attention_dp == 1:
        curve = batch_curve(cost, where, capacity, LOADS, np.array([[0.5, 0.3, 0.2]]))
        found["batch"] = [curve.requests[:, ::9], curve.seconds[:, ::9], curve.rate]
    return found


def services() -> dict[str, Callable[[], dict[str, Any]]]:
    """Every case by name."""
    cases = {name: lambda name=name: figures(deployment(name)) for name in REPLICAS}  # type: ignore[misc]
    return {**cases, "unequal stages": lambda: figures(unequal())}


CASES = services()


@pytest.mark.parametrize("name", CASES)
def test_services_are_those_recorded(name: str) -> None:
    hold("services", name, CASES[name]())

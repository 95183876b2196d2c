"""Prices of stages over models, layouts and software: every column as recorded (`tests/records`)."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tangram_sim.clusters import Cluster, Island, NodeGroup
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.layers.atoms import Slice, atom_kinds, atoms_of, borrowers
from tangram_sim.layers.chain import class_seconds
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan, Share, pipeline_of_shares
from tangram_sim.training.stage.peaks import allocated_bytes, capacity_bytes, device_bytes, reserved_bytes
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.runs import parameters_of
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.step.ideal import ideal_seconds, model_flop
from tangram_sim.training.step.intervals import uncertainty
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import price_plan
from tests.records import HWDB, hold
from tests.slices import chain_graph

PLAIN = Job(seq=2048, dtype="bf16")
OLD = replace(PLAIN, dtype="fp16", flash_attention=False)

DENSE = (
    Layout(tp=1, dp=8), Layout(tp=2, dp=4, zero_stage=1), Layout(tp=4, dp=2, sequence_parallel=True),
    Layout(tp=2, dp=4, zero_stage=2, recompute="selective"), Layout(dp=8, zero_stage=3, recompute="full"),
    Layout(tp=2, dp=2, cp=2, zero_stage=3, slices=2), Layout(cp=4, dp=2, zero_stage=1, recompute="full"),
)  # fmt: skip
MIXTURE = (
    Layout(dp=8, ep=4), Layout(tp=2, dp=4, ep=2, zero_stage=1, recompute="full"),
    Layout(dp=8, ep=2, zero_stage=3, fsep=True), Layout(dp=8, ep=8, zero_stage=2, recompute="selective"),
    Layout(tp=2, cp=2, dp=2, ep=2, zero_stage=1, sequence_parallel=True), Layout(dp=8, ep=1, fsep=True),
)  # fmt: skip


def island(gpu: str = "A100-SXM4-80GB", link: str = "NVLink3") -> Island:
    return Island("i", HWDB.gpu(gpu), 2, 4, HWDB.link(link), 25e9, 10e-6)


def cut(model: Model, blocks: int) -> Model:
    """The first and last blocks of a deep model: what differs between its layers stays."""
    kept = model.blocks[: blocks - 2] + model.blocks[-2:]
    return replace(model, blocks=kept)


# Name: (model, layouts, job, GPU, link, sequences of a microbatch).
SETTINGS: dict[str, tuple[str, tuple[Layout, ...], Job, str, str, int]] = {
    "llama": ("llama3-8b", DENSE, PLAIN, "A100-SXM4-80GB", "NVLink3", 8),
    "llama, megatron": ("llama3-8b", DENSE, replace(PLAIN, stack="megatron"), "H100-SXM5-80GB", "NVLink4", 9),
    "llama, deepspeed": (
        "llama3-8b", DENSE, replace(PLAIN, stack="deepspeed"), "A100-SXM4-80GB", "NVLink3", 8,
    ),
    "llama, hybrid fsdp": (
        "llama3-8b", DENSE, replace(PLAIN, stack="fsdp", shard_ranks=4), "A100-SXM4-80GB", "NVLink3", 8,
    ),
    "llama, adapters": ("llama3-8b", DENSE, replace(PLAIN, trainable=0.01), "A100-SXM4-80GB", "NVLink3", 8),
    "llama, fp8": ("llama3-8b", DENSE, replace(PLAIN, dtype="fp8"), "H100-SXM5-80GB", "NVLink4", 8),
    "opt, tied, dropout": ("opt-350m", DENSE, OLD, "V100-SXM2-32GB", "NVLink2", 8),
    "opt, blocking": (
        "opt-350m", DENSE, replace(OLD, stack="megatron", launch_blocking=True),
        "V100-SXM2-32GB", "NVLink2", 8,
    ),
    "opt, captured": ("opt-350m", DENSE, replace(PLAIN, cuda_graphs=True), "A100-PCIe-80GB", "PCIe4x16", 8),
    "bert": ("bert-large", DENSE[:5], replace(PLAIN, seq=512), "A100-SXM4-80GB", "NVLink3", 16),
    "gemma, windows": ("gemma2-2b", DENSE[:6], replace(PLAIN, seq=8192), "A100-SXM4-80GB", "NVLink3", 4),
    "mixtral": ("mixtral-8x7b", MIXTURE, PLAIN, "A100-SXM4-80GB", "NVLink3", 8),
    "mixtral, fp8": (
        "mixtral-8x7b", MIXTURE, replace(PLAIN, dtype="fp8", stack="megatron"),
        "H100-SXM5-80GB", "NVLink4", 8,
    ),
    "deepseek": ("deepseek-v2-lite", MIXTURE, PLAIN, "A100-SXM4-80GB", "NVLink3", 8),
    "glm-5, indexer": ("glm-5", MIXTURE, PLAIN, "H100-SXM5-80GB", "NVLink4", 8),
    "qwen3.5, hybrid layers": ("qwen3.5-397b-a17b", MIXTURE, PLAIN, "H100-SXM5-80GB", "NVLink4", 8),
}  # fmt: skip


def setting(name: str) -> Setting:
    model, layouts, job, gpu, link, microbatch = SETTINGS[name]
    return Setting(cut(load_model(model), 6), island(gpu, link), job, microbatch, layouts, HWDB)


def priced(name: str) -> dict[str, Any]:
    """Every column of five slices by layout, and what the parts of a chain take."""
    pricer = Pricer(setting(name))
    slices = [(0, 1), (0, 3), (2, 6), (6, 8), (0, 8)]
    found = pricer.price_many(slices)
    figures: dict[str, Any] = {field.name: getattr(found, field.name).sum(axis=0) for field in fields(found)}
    figures["of slices"] = {field.name: getattr(found, field.name).sum(axis=1) for field in fields(found)}
    figures["alone"] = pricer.atom_seconds
    figures["computing"] = pricer.compute_s.sum(axis=1)
    figures["added"] = pricer.added_s(pricer.atoms[2])
    figures["classes"] = {
        way: class_seconds(pricer.programs(pricer.atoms, way)).sum(axis=0) for way in ("forward", "backward")
    }
    figures["parameters"] = [parameters_of(pricer.setting, atom) for atom in pricer.atoms]
    item = pricer.setting
    asked = item.model, item.island.gpu, item.job, HWDB
    figures["at least"] = [ideal_seconds(*asked), model_flop(item.model, item.job, item.island.gpu, HWDB)]
    if item.model.tied:
        for end in ("embedding", "head"):
            lent = pricer.price(0, 8, end)  # type: ignore[arg-type]
            figures[f"{end} borrows"] = [getattr(lent, field.name).sum() for field in fields(lent)]
    return figures


def chain() -> dict[str, Any]:
    """The ops of a chain, their names, streams and waits; atoms and what is said of slices of them."""
    pricer = Pricer(setting("llama"))
    atoms = pricer.atoms[:3]
    graph = chain_graph(pricer.programs(atoms, "backward"), ["a", "b", "c"], 4)
    model = pricer.setting.model
    slices = [Slice(model, *ends) for ends in ((0, 0), (0, 1), (0, 8), (3, 8), (2, 5), (8, 8))]
    tied = replace(model, tied=True)
    return {
        "ops": [graph.op(index).label for index in range(len(graph))],
        "streams": graph.resource,
        "waits": [graph.pred_ptr, graph.pred],
        "seconds": graph.duration_s,
        "kinds": atom_kinds(model),
        "parameters": [atom.parameters for atom in (atoms_of(model)[0], atoms_of(model)[-1])],
        "slices": [
            [len(item), item.layers, item.embedding, item.head, item.lone_end, item.signature]
            for item in slices
        ],
        "lone": [Slice(tied, *ends).lone_end for ends in ((0, 0), (0, 1), (0, 8), (3, 8), (2, 5))],
        "borrowers": [borrowers(tied, runs) for runs in ([(0, 8)], [(0, 4), (4, 8)], [(0, 4)], [(2, 8)])],
    }


def places(*kinds: tuple[str, int]) -> Cluster:
    groups = tuple(NodeGroup(f"g{n}", count, HWDB.node(name)) for n, (name, count) in enumerate(kinds))
    return Cluster("mixed", groups)


def ranks(start: int, stop: int) -> tuple[int, ...]:
    return tuple(range(start, stop))


def mixed(job: Job, layouts: tuple[Layout, Layout], model: Model, *, alike: bool) -> dict[str, Any]:
    """Two stages, the first of a part of V100s and one of T4s; pipelines beside each other where `alike`."""
    where = places(("p3.8xlarge", 3), ("g4dn.12xlarge", 3))
    first = [Share("g0", ranks(0, 4), 6, layouts[0]), Share("g1", ranks(12, 16), 2, layouts[1])]
    second = [Share("g0", ranks(4, 8), 8, layouts[0])]
    made: list[Pipeline] = [pipeline_of_shares(3, [0, 3, 6], [first, second])]
    if alike:
        beside = [Share("g0", ranks(8, 12), 4, layouts[0])], [Share("g1", ranks(16, 20), 4, layouts[1])]
        made.append(pipeline_of_shares(2, [0, 4, 6], list(beside)))
    decided = Plan(model, where, job, tuple(made))
    lowering = Lowering.of(decided, HWDB)
    found = price_plan(decided, HWDB, lowering)
    graph = found.graph()
    doubts = [uncertainty(step, lowering) for step in found.steps]
    peaks = allocated_bytes, reserved_bytes, device_bytes
    return {
        "links": [[link.name, link.bytes_per_s] for link in graph.links],
        "on links": [graph.link[::5], graph.link_weight[::5], graph.bytes[::5]],
        "doubts": [[doubt.sigma, doubt.factor_s, doubt.factor_sigma] for doubt in doubts],
        "step": found.step_s(),
        "peaks": [[of(stage, 3) for of in peaks] for step in found.steps for stage in step.prices],
        "room": [capacity_bytes(stage) for step in found.steps for stage in step.prices],
        "steps": [[getattr(step.times, field.name) for field in fields(step.times)] for step in found.steps],
        "memory": [
            [[chunk.static_bytes, chunk.activation_bytes, chunk.transient_bytes] for chunk in stage]
            for step in found.steps
            for stage in step.prices
        ],
    }


def plain(schedule: str, cluster: str, cuts: list[int]) -> dict[str, Any]:
    """Stages on unequal islands of a cluster with limits between groups: links, doubts, the step."""
    model = cut(load_model("opt-350m"), 6)
    where = load_cluster(cluster, HWDB)
    layouts = Layout(tp=2, dp=2, zero_stage=1), Layout(dp=4)
    last = where.gpus
    shares = [
        [Share("g0", ranks(0, 4), 4, layouts[0])],
        [Share("g1", ranks(last - 4, last), 4, layouts[1])],
    ]
    job = replace(OLD, global_batch=24, schedule=schedule)
    decided = Plan(model, where, job, (pipeline_of_shares(6, cuts, shares, len(cuts) // 2),))
    lowering = Lowering.of(decided, HWDB)
    (step,) = price_plan(decided, HWDB, lowering).steps
    graph = step.graph()
    doubt = uncertainty(step, lowering)
    return {
        "links": [[link.name, link.bytes_per_s] for link in graph.links],
        "on links": [graph.link[::5], graph.link_weight[::5], graph.bytes[::5]],
        "doubts": [doubt.sigma, doubt.factor_s, doubt.factor_sigma],
        "times": {field.name: getattr(step.times, field.name) for field in fields(step.times)},
        "memory": [graph.memory_initial_bytes, graph.memory_start_bytes.sum(), graph.memory_end_bytes.sum()],
        "fits": step.fits(),
    }


def prices() -> dict[str, Callable[[], dict[str, Any]]]:
    """Every case by name."""
    cases: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in SETTINGS:
        cases[name] = lambda name=name: priced(name)  # type: ignore[misc]
    cases["a chain of ops"] = chain
    for schedule, cuts in (
        ("1f1b", [0, 3, 6]),
        ("gpipe", [0, 3, 6]),
        ("zb-h1", [0, 3, 6]),
        ("interleaved", [0, 2, 3, 4, 6]),
    ):
        for cluster in ("azure-c3-t4x4-a100x4-v100x8", "dgx-a100-h100"):
            cases[f"{schedule} on {cluster}"] = lambda asked=(schedule, cluster, cuts): plain(*asked)  # type: ignore[misc]
    tied, mixture = cut(load_model("opt-350m"), 6), cut(load_model("mixtral-8x7b"), 6)
    for zero in (0, 1, 2, 3):
        layouts = Layout(tp=2, dp=2, zero_stage=zero), Layout(tp=1, dp=4, zero_stage=min(zero, 1))
        cases[f"parts, ZeRO {zero}"] = lambda layouts=layouts: mixed(  # type: ignore[misc]
            replace(OLD, global_batch=24), layouts, tied, alike=False
        )
        cases[f"pipelines, ZeRO {zero}"] = lambda layouts=layouts: mixed(  # type: ignore[misc]
            replace(OLD, global_batch=32), layouts, tied, alike=True
        )
    experts = Layout(dp=4, ep=2, zero_stage=1), Layout(dp=4, ep=2, zero_stage=1)
    small = replace(mixture, hidden=1024)
    cases["parts with experts"] = lambda: mixed(replace(OLD, global_batch=24), experts, small, alike=False)
    uneven = Layout(tp=2, dp=2, ep=2, zero_stage=1), Layout(dp=4, ep=2, zero_stage=1)
    wide = Layout(dp=4, ep=4), Layout(tp=2, dp=2, ep=2)
    narrow = Layout(tp=2, dp=2, ep=1), Layout(tp=2, dp=2, ep=2)
    for name, layouts in (("tp", uneven), ("ep and tp", wide), ("ep", narrow)):
        cases[f"parts with experts of unequal {name}"] = lambda layouts=layouts: mixed(  # type: ignore[misc]
            replace(OLD, global_batch=32, stack="megatron"), layouts, small, alike=True
        )
    return cases


CASES = prices()


@pytest.mark.parametrize("name", CASES)
def test_prices_are_those_recorded(name: str) -> None:
    hold("prices", name, CASES[name]())


def test_equal_atoms_are_equal_wherever_they_stand() -> None:
    """An independent look at what the records rest on: blocks of one kind have one number."""
    model = load_model("llama3-8b")
    assert atom_kinds(model) == (0, *[1] * 32, 2)
    assert np.unique(atom_kinds(cut(load_model("deepseek-v2-lite"), 6))).tolist() == [0, 1, 2, 3]

"""Cells: exports of shipped models in representative layouts, and what the framework must make of them."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tangram_sim.errors import TangramError
from tangram_sim.export.formats import export
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.models import Model
from tangram_sim.planners.uniform.frameworks import VERSIONS, Framework
from tangram_sim.planners.uniform.layouts import Uniform, settle_chunks, uniform_plan
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

MODELS = (
    "llama3-8b",
    "llama3-70b",
    "qwen3-8b",
    "qwen2.5-7b",
    "mistral-nemo-12b",
    "gemma2-9b",
    "gemma3-12b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "glm-4.5-air",
    "deepseek-v3",
    "kimi-k2.5",
    "gpt-oss-120b",
    "llama4-scout",
)
CLUSTERS = {"equal": "H100-SXM5-80GBx8:8", "mixed": "H100-SXM5-80GBx8:4+A100-SXM4-80GBx8:4"}
JOB = Job(256, 4096, "bf16")
# By a name: what is asked of a layout. `uneven` moves a layer from the first stage to the last.
LAYOUTS: dict[str, Uniform] = {
    "pp1-zero1": Uniform(dp=8, zero_stage=1),
    "pp1-zero2": Uniform(dp=8, zero_stage=2),
    "pp1-zero3": Uniform(dp=8, zero_stage=3, recompute="full"),
    "pp1-zero0": Uniform(dp=8),
    "pp1-tp2-zero1": Uniform(tp=2, dp=4, zero_stage=1, sequence_parallel=True),
    "pp1-tp2-zero3": Uniform(tp=2, dp=4, zero_stage=3, sequence_parallel=True),
    "pp2-zero1": Uniform(pp=2, dp=4, zero_stage=1),
    "pp2-zero2-uneven": Uniform(pp=2, dp=4, zero_stage=2),
    "pp2-tp2-zero1-uneven": Uniform(tp=2, pp=2, dp=2, zero_stage=1, sequence_parallel=True),
    "pp2-tp2-zero3-uneven": Uniform(tp=2, pp=2, dp=2, zero_stage=3, sequence_parallel=True),
    "pp2-cp2-zero1-uneven": Uniform(cp=2, pp=2, dp=2, zero_stage=1, recompute="selective"),
    "pp2-cp2-zero3-uneven": Uniform(cp=2, pp=2, dp=2, zero_stage=3, recompute="selective"),
    "pp2-ep4-zero1-uneven": Uniform(pp=2, dp=4, ep=4, zero_stage=1),
    "pp2-ep4-zero3-uneven": Uniform(pp=2, dp=4, ep=4, zero_stage=3),
    "pp1-ep4-zero1": Uniform(dp=8, ep=4, zero_stage=1),
    "pp2-vpp2-zero1": Uniform(pp=2, dp=4, vpp=2, zero_stage=1),
    "pp2-vpp2-zero3": Uniform(pp=2, dp=4, vpp=2, zero_stage=3),
}


@dataclass(frozen=True)
class Cell:
    """One export: a model's plan in a layout, for a version of a framework."""

    model: str
    framework: Framework
    layout: str
    cluster: str

    @property
    def name(self) -> str:
        """A name for its folder."""
        return f"{self.framework.name}-{self.framework.version}-{self.model}-{self.layout}-{self.cluster}"


def cells(models: tuple[str, ...] = MODELS) -> Iterator[Cell]:
    """Every cell; mixed clusters with stages alone, where they differ in nothing but the order of kinds."""
    for model in models:
        for framework in VERSIONS:
            for layout in LAYOUTS:
                for cluster in CLUSTERS if layout.startswith("pp2") else ("equal",):
                    yield Cell(model, framework, layout, cluster)


def plan_of(cell: Cell, hwdb: Hwdb) -> Plan:
    """The plan of a cell. Raises TangramError where the model does not divide so."""
    model, wanted = load_model(cell.model), LAYOUTS[cell.layout]
    if wanted.ep > 1 and not any(hasattr(block.feed_forward, "experts") for block in model.blocks):
        raise TangramError("a dense model has no experts to spread")
    half = model.layers // 2
    if "uneven" in cell.layout:
        wanted = replace(wanted, layers=(half - 1, model.layers - half + 1))
    if True not in cell.framework.sequence_parallel:
        wanted = replace(wanted, sequence_parallel=False)
    job, wanted = settle_chunks(JOB, wanted)
    cluster = load_cluster(CLUSTERS[cell.cluster], hwdb)
    if cell.cluster == "mixed":  # half of each stage's GPUs would be idle in file order: one stage per kind
        wanted = replace(wanted, stage_groups=("g0", "g1"))
    return uniform_plan(model, cluster, job, wanted)


def parameters_by_stage(plan: Plan) -> list[int]:
    """Weights of every stage of the first pipeline, unsharded; a tied vocabulary counts at both ends."""
    model, found = plan.model, []
    for stage in plan.pipelines[0].stages:
        blocks = [block for start, stop in stage.chunks for block in model.blocks[start:stop]]
        count = sum(block.parameters(model.hidden) for block in blocks)
        one_stage = stage.embedding and stage.head
        count += model.embedding_parameters if stage.embedding else 0
        if stage.head:
            count += model.head_only_parameters if model.tied and one_stage else model.head_parameters_total
        found.append(count)
    return found


def correction_biases(model: Model, layers: list[tuple[int, int]]) -> int:
    """Biases that frameworks keep as buffers: of routers that balance loads by them."""
    if not model.details.router_correction:
        return 0
    return sum(
        getattr(block.feed_forward, "experts", 0)
        for start, stop in layers
        for block in model.blocks[start:stop]
    )


def write(folder: Path, hwdb: Hwdb, models: tuple[str, ...] = MODELS) -> dict[str, dict[str, Any]]:
    """Write every cell's files into a folder; what is expected of each by name, or why it is refused."""
    expected: dict[str, dict[str, Any]] = {}
    for cell in cells(models):
        try:
            plan = plan_of(cell, hwdb)
        except TangramError:
            continue  # no such layout of this model
        row: dict[str, Any] = {
            "model": cell.model,
            "framework": cell.framework.name,
            "version": cell.framework.version,
            "layout": cell.layout,
            "cluster": cell.cluster,
        }
        try:
            files = export(plan, cell.framework.name, version=cell.framework.version).files
        except TangramError as error:
            reasons = [line[4:] for line in str(error).splitlines() if line.startswith("  - ")]
            expected[cell.name] = row | {"refused": reasons}
            continue
        for name, text in files.items():
            path = folder / cell.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        stages = plan.pipelines[0].stages
        buffers = [correction_biases(plan.model, list(stage.chunks)) for stage in stages]
        expected[cell.name] = row | {
            "world": plan.gpus_used,
            "vocab": plan.model.vocab,
            "layers": plan.model.layers,
            "latent": bool(plan.model.blocks[0].attention.kv_rank),
            "capability": 8 if cell.cluster == "mixed" else 9,
            "environment": environment_of(files["launch.sh"]),
            "stages": parameters_by_stage(plan),
            "buffers": buffers,
            "pp": len(stages),
            "dp": stages[0].layout.dp,
        }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    return expected


def digest(folder: Path) -> str:
    """A short digest of a cell's files, but for those that no framework reads."""
    text = "".join(
        f"{path.relative_to(folder)}\n{path.read_text()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".args", ".toml", ".py", ".json")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def environment_of(script: str) -> dict[str, str]:
    """The variables that a launch script exports."""
    words = [shlex.split(line)[1] for line in script.splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for word in words if "=" in word)

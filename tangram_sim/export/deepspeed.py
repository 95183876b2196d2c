"""DeepSpeed: its JSON configuration, and the arguments of its `PipelineModule` (0.19.8).

Ranks of `ProcessTopology(axes=[pipe, data, model])` count model fastest, then data, pipe, as in plans. Its
partitions spread layers evenly over stages (`PipelineModule._partition_layers`), so no other cut can be
requested; ZeRO 2 and 3 cannot be combined with stages (`PipelineEngine`).
"""

import json
from typing import Any

from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError
from tangram_sim.export.megatron import chunks_of
from tangram_sim.export.uniform import check_ranks
from tangram_sim.planners.uniform.framework_models import AUTOEP_PRESETS
from tangram_sim.planners.uniform.shape import Shape, UniformPlan

FILE, PIPELINE_FILE = "ds_config.json", "pipeline.json"
LEARNING_RATE = 3e-4  # stated, for DeepSpeed takes 1e-3 where none is; yours to change
_DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": ""}
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lamb": "Lamb", "sgd": "SGD", "lion": "Lion"}


def config(plan: UniformPlan) -> dict[str, Any]:
    """DeepSpeed's JSON configuration of the plan, as a mapping."""
    shape, job = plan.shape, plan.job
    # One replica has nothing to shard: stage 1 keeps its gradients in fp32, which stage 0 does not in bf16.
    zero = plan.layout.zero_stage or (1 if job.dtype == "bf16" and shape.dp == 1 else 0)
    found: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": plan.microbatch_per_rank,
        "gradient_accumulation_steps": plan.microbatches,
        "optimizer": {"type": _OPTIMIZERS[job.optimizer], "params": {"lr": LEARNING_RATE}},
        "zero_optimization": {"stage": zero},
    }
    if zero == 1 and job.dtype == "bf16":
        found["data_types"] = {"grad_accum_dtype": "fp32"}  # as plans count them; else bf16
    if shape.ep > 1:
        found["expert_parallel"] = {
            "enabled": True,
            "autoep_size": shape.ep,
            "preset_model": AUTOEP_PRESETS[plan.model.family],
        }
    if _DTYPES[job.dtype]:
        found[_DTYPES[job.dtype]] = {"enabled": True}
    if shape.tp > 1 and shape.pp == 1:
        found["tensor_parallel"] = {"autotp_size": shape.tp}
    return found


def pipeline(plan: UniformPlan) -> dict[str, Any]:
    """Arguments for DeepSpeed's `ProcessTopology` and `PipelineModule`; `layers` are transformer blocks."""
    shape = plan.shape
    return {
        "topology": {"axes": ["pipe", "data", "model"], "dims": [shape.pp, shape.dp, shape.tp]},
        "partition_method": "type:Block",
        "activation_checkpoint_interval": 1 if plan.layout.recompute == "full" else 0,
        "layers": shape.blocks,
    }


def write(plan: UniformPlan) -> tuple[dict[str, str], list[str]]:
    """(file text by name, notes to the user)."""
    files = {FILE: json.dumps(config(plan), indent=1) + "\n"}
    files[PIPELINE_FILE] = json.dumps(pipeline(plan), indent=1) + "\n"
    notes = [
        f"the learning rate in {FILE} is {LEARNING_RATE:g}: change it to yours",
        f"{PIPELINE_FILE} holds arguments for `PipelineModule` and its topology: your program passes them; "
        "put the name of your block's class behind `type:`",
    ]
    if plan.shape.pp == 1:
        notes.append(
            "recomputation is your model's to switch on: whole layers in this plan"
            if plan.layout.recompute == "full"
            else "nothing is recomputed in the plan: leave your model's activation checkpointing off"
        )
    return files, notes


def read(text: str, pipeline_text: str, ranks: tuple[int, ...]) -> Shape:
    """The parallel shape described by the files and by `ranks`, the launch order. Raises BadInputError."""
    try:
        whole, found = parse_json(text, FILE), parse_json(pipeline_text, PIPELINE_FILE)
        axes = dict(zip(found["topology"]["axes"], found["topology"]["dims"], strict=True))
        pp, dp, tp, blocks = axes["pipe"], axes["data"], axes["model"], int(found["layers"])
        ep = int(whole.get("expert_parallel", {}).get("autoep_size", 1))
        batch = whole["train_micro_batch_size_per_gpu"] * whole["gradient_accumulation_steps"] * dp
        agrees = batch == whole["train_batch_size"] and not blocks % pp
    except (ArithmeticError, ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{FILE} or {PIPELINE_FILE}: malformed: {error}") from None
    if not agrees:
        raise BadInputError(f"{FILE}: batch sizes or layers do not agree with dp {dp} and pp {pp}")
    shape = Shape(tp, 1, dp, ep, chunks_of([blocks // pp] * pp, pp), ranks)
    check_ranks(shape)
    return shape

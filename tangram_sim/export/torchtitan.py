"""TorchTitan: sections of its configuration as TOML, as 0.2 reads it (`torchtitan/config/job_config.py`).

Ranks count tp, cp, dp, pp from fastest to slowest (torchtitan.distributed.parallel_dims: mesh pp, batch, cp,
tp), as plans do. Cuts are `module_fqns_per_model_part`: the modules of every place, all first chunks first.
"""

import json
import tomllib
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.export.megatron import chunks_of
from tangram_sim.export.uniform import check_ranks, require
from tangram_sim.planners.uniform.frameworks import TORCHTITAN
from tangram_sim.planners.uniform.shape import Shape, UniformPlan

FILE = "torchtitan.toml"
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
# Activation checkpointing from 0.3 on (torchtitan.distributed.activation_checkpoint).
_RECOMPUTED = {"none": "None", "selective": "`SelectiveAC.Config()`", "full": "`FullAC.Config()`"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
_EMBEDDING, _NORM, _HEAD = "tok_embeddings", "norm", "output"


def sections(plan: UniformPlan) -> dict[str, dict[str, Any]]:
    """The sections `training`, `parallelism` and `activation_checkpoint`. Raises CannotExportError."""
    shape, job = plan.shape, plan.job
    require(TORCHTITAN, plan)
    sharded = plan.zero_stage > 0
    # Without stages it accumulates over batches; with them one batch is cut into microbatches.
    local = plan.microbatch_per_rank * (plan.microbatches if shape.pp > 1 else 1)
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if sharded else shape.dp,
        "data_parallel_shard_degree": shape.dp if sharded else 1,
        "fsdp_reshard_after_forward": {2: "never", 3: "always"}.get(plan.zero_stage, "default"),
        "tensor_parallel_degree": shape.tp,
        "context_parallel_degree": shape.cp,
        "expert_parallel_degree": shape.ep,
        "pipeline_parallel_degree": shape.pp,
    }
    if shape.pp > 1:
        parallelism |= {
            "pipeline_parallel_schedule": SCHEDULES[job.schedule],
            "pipeline_parallel_microbatch_size": plan.microbatch_per_rank,
            "module_fqns_per_model_part": modules_of(shape),
        }
    training = {
        "local_batch_size": local,
        "global_batch_size": job.global_batch,
        "seq_len": job.seq,
        "mixed_precision_param": _DTYPES[job.dtype],
    }
    checkpoint = {"mode": plan.recompute}
    return {"training": training, "parallelism": parallelism, "activation_checkpoint": checkpoint}


def modules_of(shape: Shape) -> list[list[str]]:
    """Module names of every chunk, all first chunks first, as TorchTitan's models name them."""
    found = []
    for chunk in range(shape.vpp):
        for chunks in shape.layers:
            start, stop = chunks[chunk] if chunk < len(chunks) else (0, 0)
            found.append([f"layers.{block}" for block in range(start, stop)])
    found[0].insert(0, _EMBEDDING)
    found[-1] += [_NORM, _HEAD]
    return found


def write(plan: UniformPlan) -> tuple[str, list[str]]:
    """(file text, notes to the user). Raises CannotExportError."""
    lines = []
    for name, values in sections(plan).items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        lines.append("")
    notes = [
        "0.2: `--job.config_file torchtitan.toml`, with your `[model]` name and flavor; 0.3 reads no TOML: "
        "put `training` and `parallelism` into the config of your recipe, where the head is called lm_head "
        f"and activation checkpointing is {_RECOMPUTED[plan.recompute]}"
    ]
    return "\n".join(lines), notes


def read(text: str, ranks: tuple[int, ...], blocks: int) -> Shape:
    """The parallel shape given by the file and by `ranks`, the launch order; `blocks` is the model's depth.

    Raises BadInputError for malformed text.
    """
    try:
        found = tomllib.loads(text)["parallelism"]
        tp, cp, ep, pp = (
            int(found[f"{name}_parallel_degree"]) for name in ("tensor", "context", "expert", "pipeline")
        )
        dp = int(found["data_parallel_replicate_degree"]) * int(found["data_parallel_shard_degree"])
        parts = found.get("module_fqns_per_model_part")
    except (tomllib.TOMLDecodeError, KeyError, ValueError, TypeError) as error:
        raise BadInputError(f"{FILE}: malformed: {error}") from None
    if parts is None:
        sizes = [blocks]
    else:
        sizes = [sum(name.startswith("layers.") for name in part) for part in parts]
    shape = Shape(tp, cp, dp, ep, chunks_of(sizes, pp), ranks)
    check_ranks(shape)
    return shape

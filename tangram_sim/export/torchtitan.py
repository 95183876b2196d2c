"""TorchTitan: a TOML file for 0.2.2 or a Python recipe for 0.3.0, written and read back.

Ranks count tp, cp, dp, pp from fastest to slowest (torchtitan.distributed.parallel_dims: mesh pp, batch, cp,
tp), as in plans. Cuts are `module_fqns_per_model_part`: the modules of every chunk, all first chunks first.
"""

import ast
import json
import tomllib
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.export.megatron import chunks_of
from tangram_sim.export.uniform import check_ranks
from tangram_sim.planners.uniform.framework_models import Flavor, flavor_of
from tangram_sim.planners.uniform.frameworks import Framework
from tangram_sim.planners.uniform.shape import Shape, UniformPlan

TOML_FILE = "torchtitan.toml"
RECIPE = "tangram_recipe"
RECIPE_FILE = f"{RECIPE}/config_registry.py"
FUNCTION = "planned"
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
_EMBEDDING, _NORM = "tok_embeddings", "norm"
_HEADS = {"0.2.2": "output", "0.3.0": "lm_head"}
_CHECKPOINTS = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
# A function of each module's registry in 0.3.0 that ours starts from: not every flavour has its own.
_BASES = {
    "llama3": "llama3_8b",
    "qwen3": "qwen3_14b",
    "gpt_oss": "gpt_oss_120b",
    "deepseek_v3": "deepseek_v3_671b",
    "kimi_k2_7": "kimi_k2_5",
}


def _training(plan: UniformPlan) -> dict[str, Any]:
    # Without stages it accumulates over batches; with them one batch is cut into microbatches.
    local = plan.microbatch_per_rank * (plan.microbatches if plan.shape.pp > 1 else 1)
    return {
        "local_batch_size": local,
        "global_batch_size": plan.job.global_batch,
        "seq_len": plan.job.seq,
        "mixed_precision_param": _DTYPES[plan.job.dtype],
    }


def _parallelism(plan: UniformPlan, version: str) -> dict[str, Any]:
    shape, sharded = plan.shape, plan.layout.zero_stage > 0
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if sharded else shape.dp,
        "data_parallel_shard_degree": shape.dp if sharded else 1,
        "fsdp_reshard_after_forward": {2: "never", 3: "always"}.get(plan.layout.zero_stage, "default"),
        "tensor_parallel_degree": shape.tp,
        "context_parallel_degree": shape.cp,
        "expert_parallel_degree": shape.ep,
        "pipeline_parallel_degree": shape.pp,
    }
    if version == "0.2.2":
        found["expert_tensor_parallel_degree"] = shape.tp if shape.ep > 1 else 1
    else:
        found["enable_sequence_parallel"] = plan.layout.sequence_parallel or shape.tp == 1
    if shape.pp > 1:
        found |= {
            "pipeline_parallel_schedule": SCHEDULES[plan.job.schedule],
            "pipeline_parallel_microbatch_size": plan.microbatch_per_rank,
            "module_fqns_per_model_part": modules_of(shape, _HEADS[version]),
        }
    return found


def modules_of(shape: Shape, head: str) -> list[list[str]]:
    """Module names of every chunk, all first chunks first, as TorchTitan's models name them."""
    found = []
    for chunk in range(shape.vpp):
        for chunks in shape.layers:
            start, stop = chunks[chunk] if chunk < len(chunks) else (0, 0)
            found.append([f"layers.{block}" for block in range(start, stop)])
    found[0].insert(0, _EMBEDDING)
    found[-1] += [_NORM, head]
    return found


def write(framework: Framework, plan: UniformPlan) -> tuple[dict[str, str], tuple[str, ...], list[str]]:
    """(file text by name, arguments of `torchtitan.train`, notes to the user)."""
    flavor = flavor_of(plan.model, framework.version)
    if framework.version == "0.2.2":
        return {TOML_FILE: _toml(plan, flavor)}, ("--job.config_file", TOML_FILE), _notes(flavor)
    files = {RECIPE_FILE: _recipe(plan, flavor), f"{RECIPE}/__init__.py": ""}
    return files, ("--module", RECIPE, "--config", FUNCTION), _notes(flavor)


def _notes(flavor: Flavor | None) -> list[str]:
    if flavor is None:
        return ["no flavour is the planned model: name yours in place of `YOUR_MODULE` and `YOUR_FLAVOR`"]
    if flavor.more > 0:
        return [f"its flavour has {flavor.more:,} parameters more (a vision encoder) on its first stage"]
    return []


def _named(flavor: Flavor | None) -> tuple[str, str]:
    return (flavor.module, flavor.name) if flavor else ("YOUR_MODULE", "YOUR_FLAVOR")


def _toml(plan: UniformPlan, flavor: Flavor | None) -> str:
    module, name = _named(flavor)
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": module, "flavor": name},
        "optimizer": {"name": {"adamw": "AdamW", "adam": "Adam"}[plan.job.optimizer]},
        "training": _training(plan),
        "parallelism": _parallelism(plan, "0.2.2"),
        "activation_checkpoint": {"mode": plan.layout.recompute},
    }
    lines = []
    for title, values in sections.items():
        lines.append(f"[{title}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


_RECIPE = '''\
"""The planned run as TorchTitan 0.3.0 reads it: `--module {recipe} --config {function}`."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module} import model_registry
from torchtitan.models.{module}.config_registry import {base}
from torchtitan.trainer import Trainer

TRAINING = {training}
PARALLELISM = {parallelism}
LEARNING_RATE = 3e-4


def {function}() -> Trainer.Config:
    """A run of {module} {name}; data and tokenizer are those of `{base}`."""
    base, model_spec = {base}(), model_registry("{name}")
    return Trainer.Config(
        model_spec=model_spec,
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))
        ),
        optimizer=default_adamw(lr=LEARNING_RATE),
        training=TrainingConfig(**TRAINING, steps=base.training.steps),
        parallelism=ParallelismConfig(**PARALLELISM),
        activation_checkpoint={checkpoint},
        hf_assets_path=base.hf_assets_path,
        tokenizer=base.tokenizer,
        dataloader=base.dataloader,
        lr_scheduler=base.lr_scheduler,
        checkpoint=base.checkpoint,
        metrics=base.metrics,
        compile=base.compile,
    )


__all__ = ["FullAC", "SelectiveAC", "{function}"]
'''


def _recipe(plan: UniformPlan, flavor: Flavor | None) -> str:
    module, name = _named(flavor)
    training = _training(plan)
    if plan.shape.pp > 1 or plan.shape.ep > 1:
        training["disable_cuda_graphs"] = True  # they know neither stages nor its usual expert dispatch
    return _RECIPE.format(
        recipe=RECIPE,
        function=FUNCTION,
        module=module,
        name=name,
        base=_BASES.get(module, "YOUR_FUNCTION"),
        training=_literal(training),
        parallelism=_literal(_parallelism(plan, "0.3.0")),
        checkpoint=_CHECKPOINTS[plan.layout.recompute],
    )


def _literal(values: dict[str, Any]) -> str:
    return "{\n" + "".join(f"    {key!r}: {value!r},\n" for key, value in values.items()) + "}"


def read(files: dict[str, str], ranks: tuple[int, ...], blocks: int) -> Shape:
    """The parallel shape given by the files and by `ranks`, the launch order; `blocks` is the model's depth.

    Raises BadInputError for malformed text.
    """
    name = TOML_FILE if TOML_FILE in files else RECIPE_FILE
    try:
        found = tomllib.loads(files[name])["parallelism"] if name == TOML_FILE else _read_recipe(files[name])
        tp, cp, ep, pp = (
            int(found[f"{name}_parallel_degree"]) for name in ("tensor", "context", "expert", "pipeline")
        )
        dp = int(found["data_parallel_replicate_degree"]) * int(found["data_parallel_shard_degree"])
        parts = found.get("module_fqns_per_model_part")
    except (tomllib.TOMLDecodeError, KeyError, ValueError, TypeError, SyntaxError) as error:
        raise BadInputError(f"{name}: malformed: {error}") from None
    if parts is None:
        sizes = [blocks]
    else:
        sizes = [sum(name.startswith("layers.") for name in part) for part in parts]
    shape = Shape(tp, cp, dp, ep, chunks_of(sizes, pp), ranks)
    check_ranks(shape)
    return shape


def _read_recipe(text: str) -> dict[str, Any]:
    """The literal `PARALLELISM` in a recipe; the file is parsed, not run."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "PARALLELISM" for target in node.targets
        ):
            found = ast.literal_eval(node.value)
            if isinstance(found, dict):
                return found
    raise KeyError("PARALLELISM")

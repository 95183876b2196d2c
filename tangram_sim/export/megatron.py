"""Megatron-LM: the arguments of `pretrain_gpt.py` (megatron/training/arguments.py, core_v0.16.1).

Ranks count tp, cp, dp, pp from fastest to slowest (megatron.core.parallel_state, order tp-cp-ep-dp-pp), as in
plans. Uneven cuts use `--pipeline-model-parallel-layout`: stages between bars, chunk by chunk when
interleaved; E embedding, t block, L loss.
"""

import shlex
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.export.megatron_model import model_words
from tangram_sim.export.uniform import check_ranks
from tangram_sim.models import Model
from tangram_sim.planners.uniform.shape import Shape, UniformPlan
from tangram_sim.training.job import Job

FILE = "megatron.args"
DTYPES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "bf16": (("--bf16", None),),
    "fp16": (("--fp16", None),),
    "fp32": (),
    "fp8": (("--bf16", None), ("--fp8-format", "hybrid")),
    "mxfp8": (("--bf16", None), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16", None), ("--fp4-format", "e2m1")),
}
_OPTIMIZERS = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "momentum": "sgd"}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def layout_text(layers: tuple[tuple[tuple[int, int], ...], ...]) -> str:
    """The value of `--pipeline-model-parallel-layout`: first chunks of all stages, then second ones.

    It has no `*`, which a shell would expand.
    """
    chunks = max(len(layer) for layer in layers) or 1
    places = [
        stage[chunk][1] - stage[chunk][0] if chunk < len(stage) else 0
        for chunk in range(chunks)
        for stage in layers
    ]
    words = ["t" * blocks for blocks in places]
    words[0], words[-1] = "E" + words[0], words[-1] + "L"
    return "|".join(words)


def write(plan: UniformPlan) -> tuple[str, list[str]]:
    """(file text, notes to the user) for a plan that meets the framework's rules."""
    shape, job = plan.shape, plan.job
    words: dict[str, Any] = {
        "--tensor-model-parallel-size": shape.tp,
        "--pipeline-model-parallel-size": shape.pp,
        "--context-parallel-size": shape.cp,
        "--expert-model-parallel-size": shape.ep,
        "--expert-tensor-parallel-size": shape.tp,
    }
    if shape.pp > 1 and (shape.vpp > 1 or not _even(shape)):
        words["--pipeline-model-parallel-layout"] = layout_text(shape.layers)
    shape_words, notes = model_words(plan.model, shape.tp)
    words |= shape_words | training_words(job, plan.model)
    words |= {"--micro-batch-size": plan.microbatch_per_rank, "--attention-backend": "auto"}
    words |= _states(plan.layout.zero_stage)
    if plan.layout.sequence_parallel:
        words["--sequence-parallel"] = None
    words |= _recomputed(plan.layout.recompute)
    if plan.layout.recompute == "none":
        notes.insert(0, "nothing is recomputed in the plan: leave `--recompute-granularity` out")
    words |= dict(DTYPES[job.dtype])
    lines = [name if value is None else f"{name} {_quoted(value)}" for name, value in words.items()]
    return "\n".join(lines) + "\n", notes


def training_words(job: Job, model: Model) -> dict[str, Any]:
    """Arguments of the job, whatever the layout: sequence, batch, optimizer, dropout."""
    words: dict[str, Any] = {}
    if not (job.dropout and all(block.usually_drops for block in model.blocks)):
        words |= {"--attention-dropout": 0.0, "--hidden-dropout": 0.0}  # 0.1 by Megatron-LM's default
    words |= {
        "--seq-length": job.seq,
        "--max-position-embeddings": max(job.seq, model.max_seq),
        "--global-batch-size": job.global_batch,
        "--optimizer": _OPTIMIZERS[job.optimizer],
    }
    if job.optimizer == "sgd":
        words["--sgd-momentum"] = 0.0
    return words


def _states(zero_stage: int) -> dict[str, Any]:
    """Flags for sharding weights, gradients and optimizer states, with overlapped transfers as in plans."""
    if zero_stage == 0:
        return {}
    if zero_stage == 1:
        return {
            "--use-distributed-optimizer": None,
            "--overlap-grad-reduce": None,
            "--overlap-param-gather": None,
        }
    return {
        "--use-megatron-fsdp": None,
        "--data-parallel-sharding-strategy": _SHARDING[zero_stage],
        "--ckpt-format": "fsdp_dtensor",
        "--no-gradient-accumulation-fusion": None,
    }


def _recomputed(recompute: str) -> dict[str, Any]:
    if recompute == "none":
        return {}
    if recompute == "selective":
        return {"--recompute-granularity": "selective"}
    return {
        "--recompute-granularity": "full",
        "--recompute-method": "uniform",
        "--recompute-num-layers": 1,
    }


def _quoted(value: Any) -> str:
    """A value as one shell word: layer patterns contain brackets and stars, layouts bars."""
    return shlex.quote(str(value))


def environment(plan: UniformPlan) -> tuple[tuple[str, str], ...]:
    """Environment variables that Megatron-LM requires (`validate_args`, megatron-core 0.16).

    On GPUs before Blackwell the kernels of tensor and context parallelism must be started in order; its FSDP
    refuses that setting.
    """
    fully_sharded = plan.layout.zero_stage > 1
    ordered = (plan.shape.tp > 1 or plan.shape.cp > 1) and not fully_sharded
    return (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),) if ordered else ()


def _even(shape: Shape) -> bool:
    sizes = {sum(stop - start for start, stop in chunks) for chunks in shape.layers}
    return len(sizes) == 1


def read(text: str, ranks: tuple[int, ...]) -> Shape:
    """The parallel shape given by the arguments and by `ranks`, the launch order. Raises BadInputError."""
    words = arguments(text)
    try:
        tp, pp, cp, ep, blocks = (
            int(words[f"--{name}"])
            for name in (
                "tensor-model-parallel-size",
                "pipeline-model-parallel-size",
                "context-parallel-size",
                "expert-model-parallel-size",
                "num-layers",
            )
        )
    except (KeyError, ValueError) as error:
        raise BadInputError(f"{FILE}: {error} is missing or no number") from None
    layout = words.get("--pipeline-model-parallel-layout")
    sizes = [stage.count("t") for stage in layout.split("|")] if layout else [blocks // pp] * pp
    if len(sizes) % pp or sum(sizes) != blocks:
        raise BadInputError(f"{FILE}: layout {layout} does not hold {blocks} layers on {pp} stages")
    shape = Shape(tp, cp, len(ranks) // (tp * cp * pp), ep, chunks_of(sizes, pp), ranks)
    check_ranks(shape)
    return shape


def chunks_of(sizes: list[int], pp: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Chunks of every stage, from block counts listed as all first chunks, then all second ones, etc."""
    layers: list[list[tuple[int, int]]] = [[] for _ in range(pp)]
    start = 0
    for place, size in enumerate(sizes):
        if size:
            layers[place % pp].append((start, start + size))
        start += size
    return tuple(map(tuple, layers))


def arguments(text: str) -> dict[str, str]:
    """Command-line flags and their values ("" for switches)."""
    words: dict[str, str] = {}
    name = ""
    for word in shlex.split(text):
        if word.startswith("--"):
            name = word
            words[name] = ""
        elif name:
            words[name] = word
    return words

"""Megatron-LM: the arguments of `pretrain_gpt.py` (megatron/training/arguments.py; megatron-core 0.16).

Ranks count tp, cp, dp, pp from fastest to slowest (megatron.core.parallel_state, order tp-cp-ep-dp-pp): as
plans do. Uneven cuts are `--pipeline-model-parallel-layout`: stages between bars, chunk by chunk when
interleaved; E embedding, t block, L loss.
"""

import shlex
from typing import Any

from tangram_sim.errors import BadInputError
from tangram_sim.export.megatron_model import model_words
from tangram_sim.export.uniform import check_ranks, require
from tangram_sim.planners.uniform.frameworks import MEGATRON
from tangram_sim.planners.uniform.shape import Shape, UniformPlan

FILE = "megatron.args"
_DTYPES = {
    "bf16": "--bf16",
    "fp16": "--fp16",
    "fp32": "",
    "fp8": "--bf16 --fp8-format hybrid",
    "mxfp8": "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
    "nvfp4": "--bf16 --fp4-format e2m1",
}
_OPTIMIZERS = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "momentum": "sgd"}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def layout_text(layers: tuple[tuple[tuple[int, int], ...], ...]) -> str:
    """The `--pipeline-model-parallel-layout` string: first chunks of all stages, then second ones.

    It has no `*`, which a shell would expand.
    """
    chunks = max(len(one) for one in layers) or 1
    places = [
        stage[chunk][1] - stage[chunk][0] if chunk < len(stage) else 0
        for chunk in range(chunks)
        for stage in layers
    ]
    words = ["t" * blocks for blocks in places]
    words[0], words[-1] = "E" + words[0], words[-1] + "L"
    return "|".join(words)


def write(plan: UniformPlan) -> tuple[str, list[str]]:
    """(file text, notes to the user). Raises CannotExportError."""
    shape, job = plan.shape, plan.job
    require(MEGATRON, plan)
    words: dict[str, Any] = {
        "--tensor-model-parallel-size": shape.tp,
        "--pipeline-model-parallel-size": shape.pp,
        "--context-parallel-size": shape.cp,
        "--expert-model-parallel-size": shape.ep,
    }
    if shape.pp > 1 and (shape.vpp > 1 or not _even(shape)):
        words["--pipeline-model-parallel-layout"] = layout_text(shape.layers)
    shape_words, notes = model_words(plan.model)
    words |= shape_words
    if not (job.dropout and all(block.usually_drops for block in plan.model.blocks)):
        words |= {"--attention-dropout": 0.0, "--hidden-dropout": 0.0}  # 0.1 by Megatron-LM's default
    words |= {
        "--seq-length": job.seq,
        "--max-position-embeddings": max(job.seq, plan.model.max_seq),
        "--micro-batch-size": plan.microbatch_per_rank,
        "--global-batch-size": job.global_batch,
        "--optimizer": _OPTIMIZERS[job.optimizer],
    }
    if job.optimizer == "sgd":
        words["--sgd-momentum"] = 0.0
    if plan.zero_stage == 1:
        words["--use-distributed-optimizer"] = None
    elif plan.zero_stage:
        words |= {
            "--use-megatron-fsdp": None,
            "--data-parallel-sharding-strategy": _SHARDING[plan.zero_stage],
            "--ckpt-format": "fsdp_dtensor",
        }
    if plan.sequence_parallel:
        words["--sequence-parallel"] = None
    if plan.recompute == "selective":
        words["--recompute-granularity"] = "selective"
    elif plan.recompute == "full":
        words |= {
            "--recompute-granularity": "full",
            "--recompute-method": "uniform",
            "--recompute-num-layers": 1,
        }
    else:
        notes.insert(0, "nothing is recomputed in the plan: leave `--recompute-granularity` out")
    lines = [name if value is None else f"{name} {value}" for name, value in words.items()]
    if _DTYPES[job.dtype]:
        lines.append(_DTYPES[job.dtype])
    return "\n".join(lines) + "\n", notes


def environment(plan: UniformPlan) -> tuple[tuple[str, str], ...]:
    """Environment variables without which Megatron-LM stops (`validate_args`, megatron-core 0.16).

    On GPUs before Blackwell kernels of tensor and context parallelism have to be started in order; its FSDP
    refuses the same.
    """
    fully_sharded = plan.zero_stage > 1
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

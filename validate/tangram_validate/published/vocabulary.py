"""Words that sources use for settings, as the product's own: recomputation, precision, sharding."""

import re
from typing import NamedTuple

from tangram_sim.clusters import Gpu
from tangram_sim.training.job import OPTIMIZER_STATE_BYTES
from tangram_validate.published import defaults
from tangram_validate.published.cells import CellError

YES, NO = ("yes", "true", "on", "1", "y", "enabled"), ("no", "false", "off", "0", "n", "none", "disabled")
# torchtitan's and Megatron's finer kinds: kept as the share of layers that recompute fully. Per-operator
# checkpointing (`selective-op`) keeps every second product, per-layer checkpointing every second layer.
_HALVES = re.compile(r"selective[-_ ]?(?:op|ac\b|layer)|every (?:2nd|second|other) layer")
_CHECKPOINTED = re.compile(r"full|block|uniform|checkpoint|\bgc\b|\bac\b|activation|recompute|every layer")
# Megatron-Core's `--recompute-modules` beside attention: norms, activations, up-projections. They cost a
# share of what whole layers do.
_CHEAP = re.compile(r"norm|\bact|_act|up_proj|silu|gelu|swiglu|modules|moe|\bmlp\b|shared_experts")
_ATTENTION = re.compile(r"attention|attn")
CHEAP_SHARE = 0.15
# "full on 20 of 80 layers", "full (20/80)", "21 layers", "block-wise 4", "recompute_num_layers=4"
_SOME_OF = re.compile(r"(\d+)\s*(?:of|/|out of)\s*(\d+)")
_SOME = re.compile(r"(\d+)\s*layers|(?:block(?:[-_ ]?wise)?|num[-_ ]?layers)\s*[=:]?\s*(\d+)")

# (pattern, recipe), first match wins: "fp4/fp8" means products in fp4 with the rest in fp8.
_DTYPES = (
    (r"mxfp8", "mxfp8"),
    (r"nvfp4|mxfp4|fp4", "nvfp4"),
    (r"fp8|e4m3|float8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"tf32", "tf32"),
    (r"fp16|float16|half", "fp16"),
    (r"fp32|float32|single", "fp32"),
)
# A feed-forward's form -> names of it, or of the activation that gives it away.
FEED_FORWARDS = {
    "plain": (
        "plain",
        "gelu",
        "relu",
        "relu2",
        "squared relu",
        "squared_relu",
        "mlp",
        "gelu_new",
        "gelu_tanh",
    ),
    "gated": ("gated", "glu", "swiglu", "geglu", "reglu", "silu", "swish", "gated mlp", "gated_gelu"),
}
# (pattern, optimizer with the same state), first match wins.
_OPTIMIZERS = (
    (r"(?:8[- ]?bit|bnb|fp8).*adam|adam.*(?:8[- ]?bit|bnb|fp8)", "adamw-8bit"),
    (r"adafactor|came|galore|apollo", "adafactor"),
    (r"lamb|lars", "lamb"),
    (r"lion|muon|signum", "lion"),
    (r"adam|sophia|soap|shampoo|novograd|adan|ademamix", "adamw"),
    (r"sgd.*mom|momentum", "momentum"),
    (r"sgd", "sgd"),
)
_MIXED = re.compile(r"amp|mixed|16[- ]?bit")
_GROUP = re.compile(r"group[-_ =]*(?:of )?(\d+)|(?:hsdp|hybrid[-_ ]shard|dp_shard)[-_ =]*(\d+)")
_STAGE = re.compile(r"(?:zero|ds|z)[-_ ]?(?:stage)?[-_ ]?(\d)|stage[-_ =]?(\d)")


class Recompute(NamedTuple):
    """What a cell says: kind, and how many layers of a stage do it fully (0: all)."""

    kind: str
    full_layers: int = 0


def recompute_of(text: str, layers: int, pp: int) -> Recompute:
    """Recomputation in a source's words, for a model of `layers` on `pp` stages. Raises CellError."""
    words = text.strip().lower()
    per_stage = max(-(-layers // pp), 1)
    if words in NO or words.startswith(("none", "no ")):
        return Recompute("none")
    if words in YES:
        return Recompute("full")
    if _HALVES.search(words):
        return _partly(per_stage / 2, per_stage)
    if _ATTENTION.search(words) or re.fullmatch(
        r"selective\W*(?:\(?-?-?recompute[-_]activations\)?)?", words
    ):
        return Recompute("selective")
    if _CHEAP.search(words):
        return _partly(CHEAP_SHARE * per_stage, per_stage)
    if words.startswith("selective"):
        return Recompute("selective")
    if share := _SOME_OF.search(words):
        some, whole = int(share[1]), int(share[2])
        if not 0 < some <= whole:
            raise CellError(f"recompute is {text!r}: {some} of {whole} layers")
        return _partly(some / whole * per_stage, per_stage)
    if some_of_stage := _SOME.search(words):
        return _partly(float(some_of_stage[1] or some_of_stage[2]), per_stage)
    if _CHECKPOINTED.search(words):
        return Recompute("full")
    raise CellError(
        f"recompute is {text!r}; known are none, selective, selective-op, selective-layer, full, on, off, "
        f"full on N layers (of a stage), full on N of M layers"
    )


def _partly(layers: float, per_stage: int) -> Recompute:
    whole = round(layers)
    if whole <= 0:
        return Recompute("none")
    return Recompute("full", whole if whole < per_stage else 0)


def dtype_of(text: str, run_by: defaults.Software, gpu: Gpu) -> tuple[str, str]:
    """(recipe in a source's words, why it is not what is written; "" where it is). Raises CellError."""
    words = text.strip().lower()
    for pattern, recipe in _DTYPES:
        if re.search(pattern, words):
            if recipe == "nvfp4" and not gpu.peak_flop_per_s("fp4") and re.search("fp8", words):
                return "fp8", f"{text} on a GPU without fp4"
            return recipe, "" if recipe == words else f"written {text}"
    if _MIXED.search(words):
        half = run_by.before(defaults.BF16_SINCE) or not gpu.peak_flop_per_s("bf16")
        return ("fp16" if half else "bf16"), f"{text}: mixed precision of that time and GPU"
    raise CellError(f"dtype is {text!r}; known are bf16, fp16, fp32, tf32, fp8, mxfp8, nvfp4, amp")


def shard_group_of(text: str, gpus_per_node: int) -> int:
    """Replicas in a group of hybrid sharding, in a source's words; 0 where all share.

    "zero1 group 8" and "hsdp 16" say it; hybrid sharding that does not is inside a node, FSDP's default.
    """
    words = text.strip().lower()
    if found := _GROUP.search(words):
        return int(found[1] or found[2])
    return gpus_per_node if re.search(r"hsdp|hybrid|within (?:a )?node|intra[-_ ]node", words) else 0


def optimizer_of(text: str) -> str:
    """The optimizer that has the state of the one a source names. Raises CellError.

    Fused, distributed, paged and offloaded variants are what they vary; Muon and other optimizers of whole
    matrices keep one moment of them, LION's size; second-order ones keep what Adam keeps.
    """
    words = text.strip().lower().replace("_", "-")
    for pattern, name in _OPTIMIZERS:
        if re.search(pattern, words):
            return name
    raise CellError(f"optimizer is {text!r}; known are {', '.join(OPTIMIZER_STATE_BYTES)}")


def zero_stage_of(text: str) -> int | None:
    """ZeRO stage in a source's words; None for a plain yes. Raises CellError for words that are not known."""
    words = text.strip().lower()
    if words in ("2", "3"):  # 0 and 1 are no and yes
        return int(words)
    if found := _STAGE.search(words):
        stage = int(found[1] or found[2])
        if stage > 3:
            raise CellError(f"sharding is {text!r}; ZeRO has stages 0 to 3")
        return stage
    if words in NO or words.startswith(("none", "ddp", "no_shard", "no shard", "replicat")):
        return 0
    if "grad_op" in words or "grad-op" in words:
        return 2
    if re.search(
        r"fsdp|hsdp|fully|full[-_ ]shard|hybrid|\bzero\b|mics|dp[-_]shard|optim_grads_params", words
    ):
        return 3
    if "optim_grads" in words:
        return 2
    if re.search(r"optim|dist[-_ ]?opt|\bdo\b", words) or words.startswith("os"):
        return 1
    if words in YES:
        return None
    raise CellError(f"sharding is {text!r}; give none, ddp, zero1, zero2, zero3, fsdp or hsdp")

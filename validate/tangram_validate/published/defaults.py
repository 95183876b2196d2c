"""What a published run leaves unsaid: documented defaults by framework, date, GPU and model shape.

Every rule is about software and hardware in general, never about one source or row. Each function says why
its value is the likeliest; a row lists the rules it needed as `assumed`.
"""

import math
import re
from dataclasses import dataclass

from tangram_sim.clusters import Gpu

# (family, words of the framework's name that give it away), first match wins.
_FAMILIES = (
    ("megatron-deepspeed", ("megatron-deepspeed", "deepspeed/megatron", "megatron/deepspeed")),
    ("fsdp", ("automodel",)),  # NeMo by name, PyTorch's FSDP underneath
    ("megatron-deepspeed", ("gpt-neox", "gptneox")),
    ("nemo", ("nemo", "megatron-bridge", "megatron bridge", "nvidia release", "ngc pytorch")),
    ("megatron", ("megatron", "primus", "flagscale", "mindspeed", "mcore")),
    (
        "fsdp",
        ("fsdp", "composer", "torchtitan", "torchtune", "llm-foundry", "axolotl", "fairscale", "metaseq"),
    ),
    ("fsdp", ("veomni", "xtuner")),
    ("jax", ("jax", "maxtext", "pax", "alpa", "levanter", "easylm", "t5x")),
    ("internevo", ("internevo", "internlm")),
    ("deepspeed", ("deepspeed",)),
    ("paddle", ("paddle",)),
    ("ddp", ("apex", "ddp")),
    ("torch", ("torch", "llmboost", "lightning", "accelerate", "transformers", "nanotron", "picotron")),
    (
        "torch",
        ("unsloth", "llama-factory", "llamafactory", "hugging face", "huggingface", "colossal", "nanogpt"),
    ),
)

# Word of a framework's name -> fork whose kernels and communication are not those of what it started from.
FORKS = {"amp": "amp", "sailor": "sailor", "pax": "pax", "paxml": "pax"}

HUGGING_FACE = ("transformers", "hugging", "accelerate", "axolotl", "llama-factory", "llamafactory", "trl")
KERNELS = ("liger", "unsloth")

FAMILIES = tuple(dict.fromkeys(name for name, _ in _FAMILIES))
UNKNOWN = "generic"  # the family of every other name

TRAINABLE_SHARE = 0.001  # of a model under LoRA: rank 16 on the attention of 7B to 70B models is 0.06-0.1 %
MICROBATCH = 1  # sequences per data-parallel rank: the choice of large models, and always feasible
FLASH_ATTENTION_SINCE = 2023.0  # first Megatron-LM and NeMo releases that call a fused kernel
SEQUENCE_PARALLEL_SINCE = 2022.3  # Korthikanti et al., May 2022
SHARDED_OPTIMIZER_SINCE = 2023.0  # Megatron's distributed optimizer
FULL_RECOMPUTE_HABIT = 0.7  # of fine-tunes under FSDP and DeepSpeed
FP8_RECIPES_SINCE = 2023.5  # Transformer Engine in NVIDIA's published recipes
NVFP4_SINCE_ROUND = 5.1  # of MLPerf Training
COMPILED_LOSS_SINCE = 2025.0  # torchtitan compiles its loss, NeMo AutoModel ships fused ones
BF16_SINCE = 2022.5  # before, mixed precision meant fp16
LLAMA2_SINCE = 2023.5
LLAMA3_SINCE = 2024.3

# Network of a node whose cell is blank and whose GPU no node of hwdb has: Gb/s per GPU by architecture.
NIC_GBPS_PER_GPU = {
    "Volta": 50.0,
    "Ampere": 200.0,
    "Hopper": 400.0,
    "Blackwell": 400.0,
    "Blackwell Ultra": 800.0,
    "CDNA3": 400.0,
    "CDNA4": 400.0,
}
NIC_GBPS_OF_OTHERS = 100.0  # per node: cards on PCIe, one port however many there are
DESKTOP_CARDS = ("RTX-20", "RTX-30", "RTX-40", "RTX-50", "Titan-RTX")


@dataclass(frozen=True, slots=True)
class Software:
    """The framework of a run: its family, the year (with fraction) of its date, 0 where unknown, its fork."""

    name: str
    family: str
    year: float
    fork: str = ""

    def before(self, year: float) -> bool:
        """Whether the run is known to be older than `year`."""
        return 0 < self.year < year


def software(framework: str, date: str) -> Software:
    """The software a framework's name and a date (2022-05, 2023-2024, v25.04, 2025) point at."""
    lowered = framework.lower()
    family = next((name for name, words in _FAMILIES if any(word in lowered for word in words)), UNKNOWN)
    return Software(framework, family, year_of(date) or year_of(_release(lowered)), _fork(lowered))


def _fork(framework: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in framework).split()
    for word, fork in FORKS.items():
        # "amp" alone is automatic mixed precision; the planner of that name has its fork of DeepSpeed.
        if word in words and (word != "amp" or "fork" in words or "deepspeed" in words):
            return fork
    return ""


def _release(framework: str) -> str:
    found = re.search(r"\b(2\d\.\d\d)\b", framework)  # calendar versions: NeMo 24.09, Release 25.04
    return f"v{found[1]}" if found else ""


def year_of(date: str) -> float:
    """The year of a date with its fraction, 0.0 where the text has none."""
    text = date.strip().lower()
    if version := re.match(r"v?(\d\d)\.(\d\d)\b", text):
        return 2000 + int(version[1]) + (int(version[2]) - 1) / 12
    if day := re.match(r"(20\d\d)(?:-(\d\d)\b)?", text):
        return int(day[1]) + (int(day[2] or 1) - 1) / 12
    return 0.0


def dtype(run_by: Software, gpu: Gpu) -> tuple[str, str]:
    """(recipe, why)."""
    if run_by.fork == "sailor":
        fast = gpu.peak_flop_per_s("tf32") > 0
        return ("tf32" if fast else "fp32"), "blocks profiled by Sailor run at the rates of 32-bit numbers"
    if not gpu.peak_flop_per_s("bf16"):
        half = gpu.peak_flop_per_s("fp16") > 0
        return (
            ("fp16", "the GPU has no bf16 units") if half else ("fp32", "the GPU has no 16-bit matrix units")
        )
    if run_by.family == "nemo" and gpu.peak_flop_per_s("fp8") and not run_by.before(FP8_RECIPES_SINCE):
        return "fp8", "NVIDIA's containers train in fp8 where the GPU has it, since mid-2023"
    if run_by.family == "megatron-deepspeed" or run_by.before(BF16_SINCE):
        return "fp16", "the scripts of that software and time run fp16"
    return "bf16", "usual since mid-2022"


def dtype_of_mlperf(run_by: Software, gpu: Gpu, source: str) -> tuple[str, str]:
    """(recipe, why) of a submission to MLPerf Training, where the fastest type that converges is taken.

    NVIDIA's containers, which others submit with, train language models in NVFP4 since round 5.1.
    """
    round_ = re.search(r"training_results_v(\d+\.\d+)", source)
    if round_ and float(round_[1]) >= NVFP4_SINCE_ROUND and gpu.architecture.startswith("Blackwell"):
        return "nvfp4", f"NVIDIA's code for MLPerf {round_[1]}"
    if gpu.peak_flop_per_s("fp8"):
        return "fp8", "submissions to MLPerf train in fp8 where the GPU has it"
    return dtype(run_by, gpu)


def vocab(run_by: Software, gated: bool, tp: int) -> tuple[int, str]:
    """(vocabulary, why)."""
    if not gated:
        unit = 128 * tp
        return -(-50257 // unit) * unit, "GPT-2's 50257, padded to a multiple of 128 x tp as Megatron does"
    if run_by.before(LLAMA3_SINCE):
        return 32000, "Llama's, before 2024-04"
    return 128256, "Llama 3's"


def sequence(run_by: Software, longest: int) -> int:
    """Tokens of a sequence where nothing is said: Llama's of the time, or the model's longest if less."""
    usual = 2048 if run_by.before(LLAMA2_SINCE) else 4096 if run_by.before(LLAMA3_SINCE) else 8192
    return min(usual, longest) if longest else usual


def sequence_parallel(run_by: Software, tp: int) -> tuple[bool, str]:
    """(whether norms and residuals are sharded over the tensor-parallel group, why)."""
    if tp == 1:
        return False, "means nothing without tensor parallelism"
    if run_by.family in ("nemo", "megatron") and not run_by.before(SEQUENCE_PARALLEL_SINCE):
        return True, "recipes of Megatron-Core and NeMo switch it on with tensor parallelism"
    if run_by.family == "fsdp":
        return True, "plans of tensor parallelism beside FSDP shard norms (torchtitan, NeMo AutoModel)"
    return False, f"{run_by.family} does not switch it on by itself"


def zero_stage(run_by: Software) -> tuple[int, str]:
    """(ZeRO stage, why)."""
    if run_by.family in ("fsdp", "jax"):
        return 3, "fully sharded by default"
    if run_by.family in ("deepspeed", "torch"):
        return 3, "without model parallelism of its own it shards everything"
    if run_by.family == "megatron" and run_by.before(SHARDED_OPTIMIZER_SINCE):
        return 0, "no distributed optimizer before 2023"
    if run_by.family in ("nemo", "megatron", "internevo"):
        return 1, "distributed optimizer by default"
    return 0, f"{run_by.family} shards only when told to"


def highest_zero(run_by: Software, usual: int, pp: int) -> int:
    """The ZeRO stage that a silent run may rise to where memory is short: what its software has.

    Megatron's kin and InternEvo shard optimizer state; DeepSpeed's engine shards gradients and weights too,
    but not under a pipeline; fully sharded stacks are there already.
    """
    if run_by.family in ("nemo", "megatron", "internevo"):
        return max(usual, 0 if run_by.before(SHARDED_OPTIMIZER_SINCE) else 1)
    if run_by.family in ("megatron-deepspeed", "deepspeed"):
        return max(usual, 1 if pp > 1 else 3)
    return usual


def full_recompute_habit(run_by: Software, task: str) -> float:
    """Share of silent runs that recompute fully whether they must or not.

    Recipes that fine-tune with FSDP or DeepSpeed switch gradient checkpointing on by default (torchtune's,
    axolotl's and TRL's configurations do); pre-training recipes switch on what memory asks for, and "PyTorch"
    names no recipe.
    """
    tuned = any(word in task.lower() for word in ("lora", "sft", "fine", "dpo"))
    return FULL_RECOMPUTE_HABIT if tuned and run_by.family in ("fsdp", "deepspeed") else 0.0


def gradient_bytes(run_by: Software) -> float:
    """Width of gradients in 16-bit training; 0.0 = as the recipe has it.

    Megatron-LM accumulates bf16 gradients in fp32; NeMo's recipes, DeepSpeed and InternEvo in 16 bits. AMP's
    configuration asks DeepSpeed for `fp32_allreduce`.
    """
    if run_by.fork == "amp":
        return 4.0
    return 2.0 if run_by.family in ("nemo", "megatron-deepspeed", "deepspeed", "internevo") else 0.0


def flash_attention(run_by: Software) -> bool:
    """Whether the software calls a fused attention kernel.

    Everything older than 2023 has none; nor has Megatron-DeepSpeed, where it is a switch, without a date, nor
    forks of it.
    """
    if run_by.family == "megatron-deepspeed":
        return not run_by.fork and run_by.year >= FLASH_ATTENTION_SINCE
    return not run_by.before(FLASH_ATTENTION_SINCE)


def fused_loss(run_by: Software) -> bool:
    """Whether recipes under FSDP compute the loss in place of the logits; other stacks do as their code."""
    return run_by.family != "fsdp" or not run_by.before(COMPILED_LOSS_SINCE)


def plain_operations(run_by: Software) -> bool:
    """Whether models are Hugging Face's own and no library of kernels is named (Liger, Unsloth)."""
    name = run_by.name.lower()
    return any(word in name for word in HUGGING_FACE) and not any(word in name for word in KERNELS)


def launch_blocking(run_by: Software) -> bool:
    """Whether the host's launches take their time on the device.

    AMP's `ds_config.json` sets DeepSpeed's `wall_clock_breakdown`, whose timers wait for the device.
    """
    return run_by.fork == "amp"


def dropout(run_by: Software) -> bool:
    """Whether blocks of GPT's and BERT's kind use dropout; Sailor's peaks have no room for its masks."""
    return run_by.fork != "sailor"


def chunks(run_by: Software, layers: int, pp: int, microbatches: int) -> tuple[int, str]:
    """(chunks per stage, why): NVIDIA's recipes interleave, two layers or more per chunk."""
    if pp == 1:
        return 1, "means nothing without a pipeline"
    per_stage = layers // pp
    if run_by.family not in ("nemo", "megatron") or microbatches % pp or per_stage < 4:
        return 1, "not interleaved"
    return max(count for count in range(1, per_stage // 2 + 1) if per_stage % count == 0), (
        "interleaved, the most chunks of two layers or more that divide a stage"
    )


def optimizer(run_by: Software) -> tuple[str, str]:
    """(optimizer, why)."""
    named = [name for name in ("lamb", "adafactor", "lion", "sgd") if name in run_by.name.lower()]
    return (named[0], "named with the framework") if named else ("adamw", "usual")


def heads(hidden: int, tp: int = 1) -> tuple[int, str]:
    """(attention heads, why): of the usual width, or of the nearest that tensor parallelism can share out.

    Whole heads go to ranks, and kernels want columns in eights: 13,824 columns on tp 8 are 96 heads of 144,
    as 108 of 128 cannot be shared out.
    """
    size = 64 if hidden < 2560 else 128
    usual = max(hidden // size, 1)
    if usual % tp == 0:
        return usual, f"{size} columns per head, usual at that width"
    shared = [
        count for count in range(tp, hidden // 8 + 1, tp) if hidden % count == 0 and hidden // count % 8 == 0
    ]
    if not shared:
        return usual, f"{size} columns per head, usual at that width"
    nearest = min(shared, key=lambda count: abs(math.log(hidden / count / size)))
    return nearest, f"{hidden // nearest} columns per head, the nearest to {size} that tp {tp} shares out"

"""What rows of measured services leave out, with its usual meaning: lengths, engines, degrees, limits."""

import re
from collections.abc import Mapping

from tangram_sim.clusters import Gpu
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.precision import Precision
from tangram_validate.published.blanks import named_gpu
from tangram_validate.serving.stand_ins import plain_names

# Words around a GPU's name that say nothing of the chip.
_AROUND = re.compile(
    r"\b(\d+ W cap|kind unstated|grace|hopper|superchip|blackwell|server|edition|workstation|cts|nps\d|"
    r"spx|nvda)\b",
    re.IGNORECASE,
)
_CAP = re.compile(r"\b(\d+) W cap\b", re.IGNORECASE)
# Mean prompt and output tokens of MLPerf's datasets (mlcommons/inference, README of language/*; outputs from
# `TOKENS_PER_SAMPLE` and its kin, prompts in round numbers).
MLPERF_LENGTHS: Mapping[str, tuple[float, float]] = {
    "gptj": (800.0, 69.0),
    "llama2-70b": (300.0, 294.0),
    "mixtral-8x7b": (300.0, 145.0),
    "llama3.1-405b": (9400.0, 684.0),
    "llama3.1-8b": (800.0, 128.0),
    "deepseek-r1": (800.0, 3880.0),
}
# Most seconds a token that MLPerf's rules allow, by model and scenario (mlcommons/inference_policies).
MLPERF_LIMITS: Mapping[tuple[str, str], float] = {
    ("llama2-70b", "MLPerf Server"): 0.2,
    ("llama2-70b", "MLPerf Interactive"): 0.04,
    ("mixtral-8x7b", "MLPerf Server"): 0.2,
    ("llama3.1-405b", "MLPerf Server"): 0.175,
    ("llama3.1-405b", "MLPerf Interactive"): 0.08,
    ("llama3.1-8b", "MLPerf Server"): 0.1,
    ("llama3.1-8b", "MLPerf Interactive"): 0.03,
    ("deepseek-r1", "MLPerf Server"): 0.08,
}
USUAL_PROMPT, USUAL_OUTPUT = 1024.0, 256.0
LARGEST_TP = 8
FILLED = 0.75  # of a GPU's memory that weights take at most in a usual layout
LENGTHS = "the row does not state all lengths: read with the usual ones of its benchmark"
ENGINE = "the row does not name a known engine: read as the usual one of its kind of GPU"
DEGREES = "the row does not state degrees: read as the fewest GPUs that hold the model"
PRECISION = "the row does not state a precision: read as the narrowest that is usual on its kind of GPU"
SPELLED = {"uint4": "int4", "unset": ""}


def read_gpu(text: str, hwdb: Hwdb) -> tuple[Gpu, float]:
    """(the GPU of a cell, watts that it was capped to or 0.0). Raises UnknownNameError."""
    cap = _CAP.search(text)
    gpu, _ = named_gpu(_AROUND.sub(" ", text), hwdb)
    return gpu, float(cap[1]) if cap else 0.0


def mlperf_model(row: Mapping[str, str]) -> str:
    """The name of a row's model as MLPerf's tables of lengths and limits have it, "" for other rows."""
    if not row.get("scenario", "").startswith("MLPerf"):
        return ""
    name = list(plain_names(row["model"].lower()))[-1]
    return {"gpt-j-6b": "gptj"}.get(name, name)


def mlperf_limit(row: Mapping[str, str]) -> float:
    """Most seconds a token that the row's scenario allows, 0.0 where there is no limit."""
    return MLPERF_LIMITS.get((mlperf_model(row), row.get("scenario", "")), 0.0)


def lengths(row: Mapping[str, str], isl: float, osl: float) -> tuple[float, float, tuple[str, ...]]:
    """(prompt tokens, output tokens, what was assumed): as stated, or usual where they are below 1."""
    if isl >= 1 and osl >= 1:
        return isl, osl, ()
    prompt, output = MLPERF_LENGTHS.get(mlperf_model(row), (USUAL_PROMPT, USUAL_OUTPUT))
    return isl if isl >= 1 else prompt, osl if osl >= 1 else output, (LENGTHS,)


def usual_engine(told: str, row: Mapping[str, str], gpu: Gpu) -> tuple[str, str]:
    """(engine, version) by the words of a cell; of submissions to MLPerf that name none, by vendor."""
    words = told.lower()
    found = re.search(r"vllm(?: v?(\d+(?:\.\d+)*))?", words)
    if found:
        return "vllm", found[1] or ""
    if "sglang" in words:
        return "sglang", ""
    if "tensorrt" in words or (mlperf_model(row) and gpu.vendor == "nvidia"):
        return "trtllm", ""
    return "vllm" if mlperf_model(row) or "unstated" in words else "", ""


def usual_precision(gpu: Gpu) -> str:
    """The narrowest precision that benchmarks of throughput usually run on `gpu`."""
    return next(
        (name for name, peak in (("fp4", "fp4"), ("fp8", "fp8")) if gpu.peak_flop_per_s(peak)), "fp16"
    )


def fewest_gpus(model: Model, precision: Precision, gpu: Gpu, gpus: int) -> int:
    """The least power of two of GPUs, up to those of a node and of the row, that holds the weights."""
    tp = 1
    weights = model.parameters * precision.expert_bytes
    while tp < min(LARGEST_TP, max(gpus, 1)) and weights > FILLED * tp * gpu.memory_bytes:
        tp *= 2
    return tp


def known_or_usual_engine(
    row: Mapping[str, str], told: str, known: tuple[str, ...], gpu: Gpu
) -> tuple[str, str, tuple[str, ...]]:
    """(engine, version, what was assumed) for words that may name an engine nobody has a row of."""
    if told in known:
        return told, "", ()
    engine, version = usual_engine(told, row, gpu)
    if engine not in known:
        raise TangramError(f"no row of defaults for the engine {told[:40]!r}")
    return engine, version, (ENGINE,)

"""Serving engines as data: one `EngineDefaults` per engine, version and class of card; no behaviour."""

import re
from dataclasses import dataclass

from tangram_sim.clusters import Gpu
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.serving import serving_rows
from tangram_sim.units import GIB

# Which prompts share an iteration with decoding requests.
PREFILL = ("mixed", "separate")
# When a waiting request is let in: its whole prompt fits (vLLM v1, `scheduler_reserve_full_isl`);
# prompt and a decaying share of the remaining outputs (SGLang); prompt and longest output
# (TensorRT-LLM, GUARANTEED_NO_EVICT).
ADMISSION = ("whole_prompt", "reserve_ratio", "reserve_longest")
# What happens when no block is free: the last running request is recomputed from its start
# (vLLM v1), requests are retracted and the ratio rises (SGLang), it cannot happen (TensorRT-LLM).
EXHAUSTION = ("recompute", "retract", "never")


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Default settings of one engine, version and class of card; `dataclasses.replace` sets others."""

    engine: str  # vllm, sglang, trtllm
    version: str  # from this version on
    max_batched_tokens: int  # token budget of one iteration; of a prefill chunk where prefill is separate
    max_sequences: int  # seats
    block_tokens: int  # tokens of one KV block
    memory_fraction: float  # of the card, or of what is free after the weights, given to the engine
    memory_fraction_of: str  # "card" or "free"
    prefill: str  # one of PREFILL
    admission: str  # one of ADMISSION
    exhaustion: str  # one of EXHAUSTION
    async_scheduling: bool  # the host prepares the next iteration while this one runs
    prefix_cache: bool
    graph_batch: int  # largest batch captured in a CUDA graph; larger ones launch kernel by kernel
    source: str = ""
    # SGLang's `--scheduler-recv-interval` (1 in every version and where others have no such setting): new
    # requests are looked for after so many iterations of decodes.
    recv_interval: int = 1


def engine_names(hwdb: Hwdb) -> tuple[str, ...]:
    """Engines that have default settings."""
    return tuple(dict.fromkeys(row["engine"] for _, row in serving_rows(hwdb, "engines")))


def engine_defaults(hwdb: Hwdb, name: str, gpu: Gpu, version: str = "") -> EngineDefaults:
    """Default settings of an engine on a GPU; of several rows that fit the card an overlay's, then the first.

    A version older than all rows gets the oldest row. Raises UnknownNameError and BadInputError.
    """
    rows = [(layer, row) for layer, row in serving_rows(hwdb, "engines") if row["engine"] == name]
    if not rows:
        raise unknown_name("engine", name, engine_names(hwdb))
    memory_gib = gpu.memory_bytes / GIB
    fitting = [
        (layer, row)
        for layer, row in rows
        if memory_gib >= row.number("least_memory_gib")
        and not any(gpu.name.startswith(start) for start in row["except_gpus"].split() if start)
    ]
    if not fitting:
        raise BadInputError(f"no row of {name} in serving/engines.csv is for {gpu.name}; add one")
    given = release(version)
    new_enough = [pair for pair in fitting if not given or release(pair[1]["version"]) <= given]
    candidates = new_enough or fitting
    newest = max((layer, release(row["version"])) for layer, row in candidates)
    row = next(row for layer, row in candidates if (layer, release(row["version"])) == newest)
    for column, known in (("prefill", PREFILL), ("admission", ADMISSION), ("exhaustion", EXHAUSTION)):
        if row[column] not in known:
            problem = unknown_name(column, row[column], known)
            raise BadInputError(f"{row.origins[column]}, column {column}: {problem}")
    return EngineDefaults(
        engine=name,
        version=version or row["version"],
        max_batched_tokens=int(row.number("max_batched_tokens")),
        max_sequences=int(row.number("max_sequences")),
        block_tokens=int(row.number("block_tokens")),
        memory_fraction=row.number("memory_fraction"),
        memory_fraction_of=row["memory_fraction_of"],
        prefill=row["prefill"],
        admission=row["admission"],
        exhaustion=row["exhaustion"],
        async_scheduling=row["async_scheduling"] == "yes",
        prefix_cache=row["prefix_cache"] == "yes",
        graph_batch=int(row.number("graph_batch")),
        source=row["source"],
    )


def drafts_refused(engine: str, *, stages: int = 1, attention_dp: int = 1) -> str:
    """Why an engine cannot be started with draft tokens on such a replica, to follow "which"; "" if it can.

    `serve plan`, `serve tune` and `serve export` ask this. SGLang docs, "Speculative Decoding": n-grams are
    not looked up with --enable-dp-attention.
    """
    if engine == "trtllm":
        return "trtllm-serve takes from a file alone (speculative_config)"
    if stages > 1:
        return "engines do not check in several stages"
    if engine == "sglang" and attention_dp > 1:
        return f"SGLang does not look up beside {attention_dp} groups of attention data parallelism"
    return ""


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "0.15.1" is (0, 15, 1); "nightly" is ()."""
    numbers = []
    for part in version.lstrip("v").split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        numbers.append(int(digits.group()))
        if digits.group() != part:
            break
    return tuple(numbers)

"""Commands that started a server, as benchmarks' rows quote them: what they set beside the columns."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Programs that start a server: vLLM's, SGLang's and TensorRT-LLM's.
PROGRAMS = re.compile(r"\b(?:vllm serve|sglang\.launch_server|trtllm-serve)\b")
_FLAG = re.compile(r"(?<![\w-])--?([a-z][\w-]*)(?:[= ]+([^\s;-][^\s;]*))?", re.IGNORECASE)
# What engines call the same limit; documented by each (vllm/engine/arg_utils.py, sglang/srt/server_args.py,
# tensorrt_llm/commands/serve.py).
_SEATS = ("max-num-seqs", "max-running-requests", "max-batch-size")
_BUDGET = ("max-num-batched-tokens", "chunked-prefill-size", "max-num-tokens")
_MEMORY = ("gpu-memory-utilization", "mem-fraction-static")
_MODEL = ("model-path", "model")


@dataclass(frozen=True, slots=True)
class BenchmarkCommand:
    """What a command sets; "" and 0: nothing is said."""

    model: str = ""
    max_sequences: int = 0
    max_batched_tokens: int = 0
    memory_fraction: float = 0.0
    expert_parallel: bool = False
    speculative: bool = False
    recv_interval: int = 0  # SGLang's alone
    async_scheduling: bool = False  # vLLM's alone


def launch_command(note: str) -> BenchmarkCommand:
    """The command in a row's note; an empty one where the note quotes none."""
    found = PROGRAMS.search(note)
    if found is None:
        return BenchmarkCommand()
    rest = note[found.end() :]
    flags = {name.lower().replace("_", "-"): value for name, value in _FLAG.findall(rest)}
    named = _first(flags, _MODEL) or rest.split()[:1]
    return BenchmarkCommand(
        model=named if isinstance(named, str) else "".join(named).rstrip(";"),
        max_sequences=_count(_first(flags, _SEATS)),
        max_batched_tokens=_count(_first(flags, _BUDGET)),
        recv_interval=_count(flags.get("scheduler-recv-interval", "")),
        memory_fraction=_share(_first(flags, _MEMORY)),
        async_scheduling="async-scheduling" in flags,
        expert_parallel="enable-expert-parallel" in flags,
        # Pages head commands by what is tried; some quote the command of the case before.
        speculative="speculative decoding" in note[: found.start()].lower()
        or any(name.startswith("speculative") for name in flags),
    )


def _first(flags: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((flags[name] for name in names if flags.get(name)), "")


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _share(text: str) -> float:
    return float(text) if re.fullmatch(r"0?\.\d+", text) else 0.0

"""What engines' own benchmarks write, as it is: `vllm bench serve --save-result`, `sglang.bench_serving`.

Both say lengths, rates and times, vLLM's not on which hardware: the caller does.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tangram_sim.datafiles import parse_json, read_text
from tangram_sim.errors import BadInputError

# Column of measured tables -> names in vLLM's and SGLang's results, in order of preference.
TIMES = {
    "ttft_ms": ("mean_ttft_ms",),
    "tpot_ms": ("mean_tpot_ms",),
    "e2e_ms": ("mean_e2el_ms", "mean_e2e_latency_ms"),
    "output_tok_s": ("output_throughput",),
}
ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "trt": "trtllm", "openai": ""}
_MOST = 1e18  # of requests and tokens
_NEEDED = ("completed", "total_input_tokens", "total_output_tokens")


def is_bench_json(path: Path) -> bool:
    """Whether a file is to be read as a benchmark's JSON, by its name."""
    return path.suffix.lower() in (".json", ".jsonl")


def read_bench_json(path: Path, setup: Mapping[str, str]) -> list[dict[str, str]]:
    """Rows as of measured tables, one for each run in the file; `setup` says gpu, tp, precision, engine, ...

    What the file itself says (SGLang's server arguments) stands where `setup` is silent. Raises
    BadInputError for a file of another kind, and where GPU or model are said nowhere.
    """
    text = read_text(path).strip()
    results: list[Any]
    try:
        whole = parse_json(text, path)
        results = whole if isinstance(whole, list) else [whole]
    except BadInputError:  # of several lines, or of too many digits or brackets
        results = []
        for number, line in enumerate(text.splitlines(), start=1):
            results.append(parse_json(line, path, line=number))
    return [_row(path, result, setup) for result in results]


def _row(path: Path, result: Any, setup: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(result, dict) or any(name not in result for name in _NEEDED):
        raise BadInputError(
            f"{path}: no result of a serving benchmark: it lacks {', '.join(_NEEDED)}; give what "
            "`vllm bench serve --save-result` or `python -m sglang.bench_serving --output-file` wrote"
        )
    completed = _number(path, result, "completed")
    if completed < 1:
        raise BadInputError(f"{path}: no request of this run completed; there is nothing to calibrate to")
    server = result.get("server_info")
    server = server if isinstance(server, dict) else {}
    rate, clients = result.get("request_rate"), result.get("max_concurrency")
    finite = isinstance(rate, int | float) and 0 < rate < float("inf")
    load = "closed loop" if clients else "open loop" if finite else "burst of all prompts at once"
    backend = str(result.get("backend", result.get("endpoint_type", ""))).lower()
    engine = next((name for mark, name in ENGINES.items() if mark in backend and name), "")
    row = {
        "model": str(result.get("model_id", server.get("model_path", ""))),
        "engine": engine,
        "engine_version": str(server.get("version", "")),
        "tp": str(server.get("tp_size", "1")),
        "scenario": load,
        "concurrency": str(clients or ""),
        "requests": str(completed),
        "failures": str(result.get("failed") or ""),
        "request_rate_rps": str(rate) if finite and not clients else "",
        "isl": str(_number(path, result, "total_input_tokens") / completed),
        "osl": str(_number(path, result, "total_output_tokens") / completed),
        "source": path.name,
    }
    for column, names in TIMES.items():
        row[column] = next((str(result[name]) for name in names if result.get(name) is not None), "")
    row |= {name: value for name, value in setup.items() if value}
    for name in ("gpu", "model", "engine"):
        if not row.get(name):
            raise BadInputError(f"{path}: the file does not say the {name}; give `{name}=`")
    return row


def _number(path: Path, result: Mapping[str, Any], name: str) -> float:
    value = result[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        raise BadInputError(f"{path}: {name} is {value!r}; a number of zero or more is wanted")
    return float(value)

"""Tables of measured serving runs, by their columns: benchmarks, and what vLLM printed at its start."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.models import Model
from tangram_sim.parallelizers.laws import tensor_law
from tangram_sim.precision import Precision
from tangram_sim.serving.build import precision_of
from tangram_sim.serving.engines import engine_names
from tangram_sim.validation.serving.placed_runs import is_placed_runs, read_placed_runs
from tangram_sim.validation.serving.request_logs import NEEDED, TIMES, by_setup, is_request_log, summary
from tangram_sim.validation.serving.runs import (
    CLOSED,
    FIRST,
    LOG,
    OFFLINE,
    OPEN,
    START,
    STATIC,
    LoggedRequest,
    RefusedRun,
    ServedRun,
)

# How scenarios of measured tables begin, and the load each is.
SCENARIOS = (
    ("closed", CLOSED),
    ("open loop", OPEN),
    ("offline", OFFLINE),
    ("static batch (no", STATIC),
    ("first token", FIRST),
)
LARGEST_NODE = 8
RACKS = ("GB200", "GB300")
_NEEDED = ("gpu", "model", "tp")
# Endings of checkpoints' names that say their precision.
ENDINGS = (
    *(("quantized.w8a8", "int8"), ("quantized.w4a16", "int4"), ("fp8-dynamic", "fp8"), ("-nvfp4", "nvfp4")),
    *(("-fp8", "fp8"), ("-awq", "int4"), ("-gptq", "int4")),
)
_UNSTATED = ("", "unstated", "unset", "auto", "nan")
# Publishers of quantised copies, and what their copies are called at home.
_FAMILIES = ("meta-llama/", "mistralai/", "Qwen/", "ibm-granite/", "deepseek-ai/", "openai/")
_LEAST, _MOST = 1e-15, 1e18  # of a figure that somebody measured, whatever its unit


def read_runs(path: Path, hwdb: Hwdb) -> list[ServedRun | RefusedRun]:
    """Every row of a table as a run, or why it is none; of a log of requests, all requests of a setup.

    Raises BadInputError for a file that is no such table.
    """
    rows = read_csv(path)
    columns = set(rows[0]) if rows else set()
    missing = [name for name in _NEEDED if name not in columns]
    if missing and not is_placed_runs(columns):
        raise BadInputError(
            f"{path}: no table of serving runs: it lacks {', '.join(missing) if rows else 'rows'}; "
            "wanted are the columns of measurements.csv (gpu, model, engine, scenario, tp, concurrency, isl, "
            "osl, tpot_ms, ...), of vllm_kv_capacity.csv (gpu, model, vllm, tp, kv_tokens, ...), of a log of "
            "requests (gpu, model, tp, arrival_s, input_toks, output_toks, ttft_ms, ...) or of runs of "
            "placed layers as in helix_runs.csv (kind, method, part, load, decode_tok_s, decode_mean_s, ...)"
        )
    if is_placed_runs(columns):
        return read_placed_runs(path, rows)
    if is_request_log(columns):
        return _logged_runs(rows, hwdb)
    return read_rows_as_runs(rows, hwdb)


def read_tables(paths: Sequence[Path], hwdb: Hwdb) -> list[ServedRun | RefusedRun]:
    """The rows of several tables as those of one; each knows its file where there are several.

    Raises what `read_runs` raises, and BadInputError for a table given twice.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise BadInputError(f"a table is given twice: {', '.join(map(str, paths))}")
    if len(paths) == 1:
        return read_runs(paths[0], hwdb)
    return [replace(run, table=path.name) for path in paths for run in read_runs(path, hwdb)]


def _logged_runs(rows: list[dict[str, str]], hwdb: Hwdb) -> list[ServedRun | RefusedRun]:
    """Logs of requests: a run for each setup; of a request that cannot be read, its whole run is refused."""
    reader = _Reader(hwdb)
    found: list[ServedRun | RefusedRun] = []
    for group in by_setup(rows):
        try:
            found.append(reader.log(group))
        except TangramError as error:
            found += [RefusedRun(line, _short(str(error))) for line, _ in group]
    return found


def read_rows_as_runs(rows: Iterable[dict[str, str]], hwdb: Hwdb) -> list[ServedRun | RefusedRun]:
    """Rows of either kind as runs, or with the reason why they are none; the first is line 2."""
    reader = _Reader(hwdb)
    found: list[ServedRun | RefusedRun] = []
    for number, row in enumerate(rows, start=2):
        try:
            found.append(reader.start(number, row) if "kv_tokens" in row else reader.run(number, row))
        except TangramError as error:
            found.append(RefusedRun(number, _short(str(error))))
    return found


def _short(text: str) -> str:
    """A reason without the suggestions that follow it."""
    for mark in (" Nearest", " Known", " Others"):
        text = text.partition(mark)[0]
    return text


class _RowError(TangramError):
    """A row cannot be read as a measured run; the message is the reason given to the user."""


class _Reader:
    """Reads rows; models and GPUs are looked up once."""

    def __init__(self, hwdb: Hwdb) -> None:
        self.hwdb = hwdb
        self.engines = engine_names(hwdb)
        self._models: dict[str, Model | TangramError] = {}

    def run(self, line: int, row: dict[str, str]) -> ServedRun:
        """A row of `measurements.csv` and its kind."""
        if row.get("mode", "agg") not in ("", "agg"):
            raise _RowError("prefill and decode on different replicas: played, not in closed form")
        scenario = row.get("scenario", "") or "closed"
        load = next((load for start, load in SCENARIOS if scenario.startswith(start)), "")
        if not load:
            raise _RowError(f"no closed form for the scenario {scenario!r}")
        engine = row.get("engine", "vllm") or "vllm"
        if engine not in self.engines:
            raise _RowError(f"no row of defaults for the engine {engine[:40]!r}")
        gpu = self.hwdb.gpu(row["gpu"]).name
        model = self.model(row["model"])
        precision = self.precision(row, model, engine)
        tp, dp, ep = _degrees(row, gpu)
        uneven = tensor_law(model, tp)
        if uneven:
            raise _RowError(f"{uneven}: degrees of another layout")
        clients, rate = _number(row, "concurrency"), _number(row, "request_rate_rps")
        if load in (CLOSED, STATIC) and not clients:
            raise _RowError("the row does not state how many requests are in flight")
        if load == OPEN and not rate:
            raise _RowError("the row does not state the rate of requests")
        isl, osl = _number(row, "isl"), _number(row, "osl")
        if isl < 1 or osl < 1:
            raise _RowError("the row does not state the lengths of prompts and outputs")
        if _number(row, "failures") > 0:
            raise _RowError("requests failed: their times are the client's limits")
        measured = {
            "tpot": _number(row, "tpot_ms") / 1e3,
            "ttft": _number(row, "ttft_ms") / 1e3,
            "e2e": _number(row, "e2e_ms") / 1e3,
            "output_tok_s": _number(row, "output_tok_s") if load in (OFFLINE, STATIC) else 0.0,
        }
        kept = tuple((name, value) for name, value in measured.items() if value > 0)
        if not kept:
            raise _RowError("the row has none of tpot_ms, ttft_ms, e2e_ms, output_tok_s to compare with")
        return ServedRun(
            line=line,
            gpu=gpu,
            model=model,
            precision=precision,
            engine=engine,
            version=_version(row.get("engine_version", ""), engine),
            tp=tp,
            pp=int(_number(row, "pp") or 1),
            attention_dp=dp,
            ep=ep,
            load=load,
            clients=clients,
            rate=rate,
            isl=isl,
            osl=osl,
            cached=min(_number(row, "prefix_tokens"), isl - 1),
            source=row.get("source", "")[:60],
            measured=kept,
            max_sequences=int(_number(row, "max_num_seqs")),
            max_batched_tokens=int(_number(row, "max_num_batched_tokens")),
            memory_fraction=_fraction(row),
        )

    def start(self, line: int, row: dict[str, str]) -> ServedRun:
        """A row of `vllm_kv_capacity.csv`."""
        tokens = _number(row, "kv_tokens")
        if not tokens:
            raise _RowError("the row has no kv_tokens to compare with")
        model = self.model(row["model"])
        return ServedRun(
            line=line,
            gpu=self.hwdb.gpu(row["gpu"]).name,
            model=model,
            precision=self.precision(row, model, "vllm"),
            engine="vllm",
            version=row.get("vllm", ""),
            tp=int(_number(row, "tp") or 1),
            pp=int(_number(row, "pp") or 1),
            attention_dp=1,
            ep=1,
            load=START,
            clients=0.0,
            rate=0.0,
            isl=1.0,
            osl=1.0,
            cached=0.0,
            source=row.get("source", "")[:60],
            measured=(("kv_tokens", tokens * (_number(row, "dp") or 1)),),
            memory_fraction=_fraction(row),
        )

    def log(self, group: list[tuple[int, dict[str, str]]]) -> ServedRun:
        """All requests of one setup in a log."""
        line, row = group[0]
        model, engine = self.model(row["model"]), row.get("engine", "") or "vllm"
        if engine not in self.engines:
            raise _RowError(f"no row of defaults for the engine {engine[:40]!r}")
        requests = tuple(
            LoggedRequest(_number(one, "arrival_s"), *(int(_number(one, name)) for name in NEEDED[1:]))
            for _, one in group
        )
        if any(one.input_tokens < 1 or one.output_tokens < 1 for one in requests):
            raise _RowError("a request of the log has no tokens in or out")
        measured: dict[str, float] = {}
        for column, metric in TIMES.items():
            seconds = [_number(one, column) / 1e3 for _, one in group if one.get(column)]
            measured |= summary([value for value in seconds if value > 0], metric)
        return ServedRun(
            line=line,
            gpu=self.hwdb.gpu(row["gpu"]).name,
            model=model,
            precision=self.precision(row, model, engine),
            engine=engine,
            version=row.get("vllm", "") or _version(row.get("engine_version", ""), engine),
            tp=int(_number(row, "tp") or 1),
            pp=int(_number(row, "pp") or 1),
            attention_dp=1,
            ep=1,
            load=LOG,
            clients=0.0,
            rate=0.0,
            isl=sum(one.input_tokens for one in requests) / len(requests),
            osl=sum(one.output_tokens for one in requests) / len(requests),
            cached=0.0,
            source=row.get("source", "")[:60],
            measured=tuple(measured.items()),
            max_sequences=int(_number(row, "max_num_seqs")),
            max_batched_tokens=int(_number(row, "max_num_batched_tokens")),
            memory_fraction=_fraction(row),
            requests=requests,
        )

    def model(self, name: str) -> Model:
        """A shipped model by any of its names, or by that of a quantised copy."""
        if name not in self._models:
            try:
                self._models[name] = _find(name)
            except TangramError as error:
                self._models[name] = error
        found = self._models[name]
        if isinstance(found, TangramError):
            raise found
        return found

    def precision(self, row: dict[str, str], model: Model, engine: str) -> Precision:
        """What weights and caches are in: stated, told by the checkpoint's name, or 16 bits.

        TensorRT-LLM's fp8 and fp4 checkpoints carry scales for an fp8 cache and use it.
        """
        stated = next(
            (
                row[name].lower()
                for name in ("quantization", "precision", "dtype")
                if row.get(name, "").lower() not in _UNSTATED
            ),
            "",
        )
        told = next((kind for end, kind in ENDINGS if row["model"].lower().endswith(end)), "")
        cache = row.get("kv_cache_dtype", "auto") or "auto"
        found = precision_of(told or stated or "bf16", model, "auto" if cache == "auto" else cache)
        if cache == "auto" and engine == "trtllm" and found.weights in ("fp8", "nvfp4"):
            return replace(found, kv="fp8")
        return found


def _find(name: str) -> Model:
    base = name
    for end, _ in ENDINGS:
        if base.lower().endswith(end):
            base = base[: -len(end)].rstrip("-")
    tail = base.split("/")[-1]
    tries: Iterable[str] = (name, base, tail, *(family + tail for family in _FAMILIES))
    tries = (*tries, *(one.replace("Meta-", "") for one in tries))
    for one in tries:
        try:
            return load_model(one)
        except TangramError:
            continue
    return load_model(name)


def _number(row: dict[str, str], column: str) -> float:
    """A cell as a number, 0.0 where it is empty or absent."""
    cell = row.get(column, "")
    if not cell:
        return 0.0
    try:
        value = float(cell)
    except ValueError:
        raise _RowError(f"column {column} holds {cell[:20]!r}, which is no number") from None
    if not math.isfinite(value) or value < 0:
        raise _RowError(f"column {column} holds {cell[:20]}, a number of zero or more is wanted")
    if value and not _LEAST <= value <= _MOST:
        raise _RowError(f"column {column} holds {cell[:20]}; {_LEAST:g} to {_MOST:g} can be meant")
    return value


def _fraction(row: dict[str, str]) -> float:
    value = _number(row, "gpu_memory_utilization")
    if value > 1:
        raise _RowError(f"gpu_memory_utilization {value:g} is more than the whole card")
    return value


def _degrees(row: dict[str, str], gpu: str) -> tuple[int, int, int]:
    """(tp, attention dp, ep) of a row.

    InferenceX's expert-parallel degree was multiplied into others where tables were made of it: rows of r
    ranks with ep = r are listed with r x r GPUs. They are read as r ranks.
    """
    tp, dp, ep = (max(int(_number(row, name)), 1) for name in ("tp", "dp", "ep"))
    ranks = tp * dp
    if tp == dp > 1 and ep == ranks:
        return 1, dp, dp
    if ranks == ep * ep and ranks > LARGEST_NODE and gpu not in RACKS:
        return (1, ep, ep) if tp == 1 else (ep, 1, ep)
    if ranks % ep:
        raise _RowError(f"ep {ep} does not divide tp x dp, {ranks}")
    return tp, dp, ep


def _version(text: str, engine: str) -> str:
    """The engine's own version out of lists of several engines'; "" where none is told."""
    marks = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
    if marks[engine] in text:
        text = text.split(marks[engine])[1].lstrip(": v").split(";")[0]
    return text.split(" ")[0].lstrip("v")

"""Tables of measured serving runs, by their columns: benchmarks, and what vLLM printed at its start."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tangram_sim.clusters import Gpu
from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.parallelizers.laws import tensor_law
from tangram_sim.precision import Precision
from tangram_sim.serving.build import precision_of
from tangram_sim.serving.engines import engine_names
from tangram_validate.serving import fleets, unstated
from tangram_validate.serving.apart import Row, apart_layout, is_apart, known_layouts
from tangram_validate.serving.cells import (
    SCENARIOS,
    RowError,
    arrivals,
    dataset,
    degrees,
    fraction,
    number,
    version,
)
from tangram_validate.serving.commands import launch_command
from tangram_validate.serving.copies import doubting_copies
from tangram_validate.serving.energy_rows import energy_run, is_energy
from tangram_validate.serving.placed_runs import is_placed_runs, read_placed_runs
from tangram_validate.serving.request_logs import NEEDED, TIMES, by_setup, is_request_log, summary
from tangram_validate.serving.runs import (
    APART,
    BURST,
    CLOSED,
    DECODE,
    LIMITED,
    LOG,
    OFFLINE,
    OPEN,
    START,
    STATIC,
    LoggedRequest,
    RefusedRun,
    ServedRun,
)
from tangram_validate.serving.stand_ins import ENDINGS, shipped_model, stand_in

_NEEDED = ("gpu", "model", "tp")
# Engines under other names, and their versions: Splitwise's authors measured on the vLLM of autumn 2023.
NAMED = {"vllm (Splitwise, ISCA24)": ("vllm", "0.2")}
MOST_SENT = 1_000_000  # requests of a burst, played one by one
FAR = 1.5  # times its own first token and tokens: more, and an end-to-end time is of something else
OTHER_REQUESTS = "e2e_ms is not of the requests of ttft_ms and tpot_ms, or was cut short: not compared"
DRAFTED = "the row's server guessed tokens ahead, and the row does not say how many were right"
FAILED = "requests failed: the times of others are bounded by the client's patience"
# Published in fp8 (DeepSeek-V3 report, arXiv:2412.19437, section 3.3): rows name the type of the rest.
NATIVE_FP8 = ("deepseek-v3", "deepseek-r1")
# Meta's own fp8 checkpoints keep attention in 16 bits (arXiv:2407.21783, section 6.2).
META_FP8 = "meta-llama/Llama-3.1-405B"
RANKS = "the row's degrees do not divide the heads: read as ranks with attention data parallelism"
# Rows of InferenceX as collected by aiconfigurator: its scripts start vLLM with asynchronous scheduling.
INFERENCEX = "aiconfigurator silicon_sample"
# Mean of the lengths that InferenceX's clients draw, 0.8 to 1 of those stated (RANDOM_RANGE_RATIO of its
# scripts), and how its files in that collection are called: all others sweep one model at lengths as stated.
DRAWN, DRAWN_FILES = 0.9, ("source_file=", "db-dump/")
UNKNOWN_MODEL = "the model is not shipped: read as the nearest one, grown or cut to its size"
_UNSTATED = ("", "unstated", "unset", "auto", "nan")


def read_runs(path: Path, hwdb: Hwdb) -> list[ServedRun | RefusedRun]:
    """Every row of a table as a run, or why it is none; of a log of requests, all requests of a setup.

    Raises BadInputError for a file that is no such table.
    """
    rows = read_csv(path)
    columns = set(rows[0]) if rows else set()
    missing = [name for name in _NEEDED if name not in columns]
    if missing and not is_placed_runs(columns) and not columns >= fleets.NEEDED:
        raise BadInputError(
            f"{path}: no table of serving runs: it lacks {', '.join(missing) if rows else 'rows'}; "
            "wanted are the columns of measurements.csv (gpu, model, engine, scenario, tp, concurrency, isl, "
            "osl, tpot_ms, ...), of vllm_kv_capacity.csv (gpu, model, vllm, tp, kv_tokens, ...), of a log of "
            "requests (gpu, model, tp, arrival_s, input_toks, output_toks, ttft_ms, ...), of fleets (model, "
            "placement_details, throughput_rps, ...) or of runs of placed layers as in helix_runs.csv (kind, "
            "method, part, load, decode_tok_s, decode_mean_s, ...)"
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
    rows = list(rows)
    reader = _Reader(hwdb, known_layouts(rows))
    found: list[ServedRun | RefusedRun] = []
    for line, row in enumerate(rows, start=2):
        try:
            found.append(reader.any_run(line, row))
        except TangramError as error:
            found.append(RefusedRun(line, _short(str(error))))
    return doubting_copies(found)


def _limit(given: float) -> int:
    """A limit of an engine; what no engine comes near is none, and fits into its players' integers."""
    return int(min(given, MOST_SENT * 1000))


def _short(text: str) -> str:
    """A reason without the suggestions that follow it."""
    for mark in (" Nearest", " Known", " Others"):
        text = text.partition(mark)[0]
    return text


class _Reader:
    """Reads rows; models and GPUs are looked up once."""

    def __init__(self, hwdb: Hwdb, layouts: Mapping[tuple[str, ...], Row] | None = None) -> None:
        self.hwdb = hwdb
        self.layouts = layouts or {}
        self.engines = engine_names(hwdb)
        self._models: dict[str, Model | TangramError] = {}

    def any_run(self, line: int, row: dict[str, str]) -> ServedRun:
        """A row of any of the tables of single runs, told by its columns."""
        if "kv_tokens" in row:
            return self.start(line, row)
        if row.keys() >= fleets.NEEDED:
            return self.run(line, defaultdict(str, fleets.row_of_replica(row, self.hwdb)))
        return self.energy(line, row) if is_energy(row) else self.run(line, row)

    def energy(self, line: int, row: dict[str, str]) -> ServedRun:
        """A row of `energy_serving.csv`: seats always taken, watts of all GPUs measured."""
        model, stood_in = self.model_or_stand_in(row)
        run = energy_run(line, row, self.hwdb.gpu(row["gpu"]).name, model, self.precision(row, model, "vllm"))
        return replace(run, assumed=(*stood_in, *run.assumed))

    def run(self, line: int, row: dict[str, str]) -> ServedRun:
        """A row of `measurements.csv` and its kind."""
        if row.get("mode", "agg") not in ("", "agg", "disagg"):
            raise RowError(f"mode {row['mode'][:20]!r}; agg and disagg are known")
        scenario = row.get("scenario", "") or "closed"
        load = next((load for start, load in SCENARIOS if scenario.startswith(start)), "")
        if not load:
            raise RowError(f"no closed form for the scenario {scenario!r}")
        isl, osl, assumed = unstated.lengths(row, number(row, "isl"), number(row, "osl"))
        source, _, file = row.get("source", "").partition("; ")
        if source.startswith(INFERENCEX) and file.startswith(DRAWN_FILES):
            isl, osl = DRAWN * isl, DRAWN * osl
        device, cap_w = unstated.read_gpu(row["gpu"], self.hwdb)
        gpu = device.name
        engine, release, usual = self.engine(row, device)
        model, stood_in = self.model_or_stand_in(row)
        assumed = (*assumed, *usual, *stood_in)
        command = launch_command(row.get("note", ""))
        if unstated.mlperf_model(row) and not stated_precision(row):
            row = row | {"precision": unstated.usual_precision(device)}
            assumed = (*assumed, unstated.PRECISION)
        precision = self.precision(row, model, engine, command.model)
        copies = 1.0
        if not row["tp"]:
            every = max(int(number(row, "n_gpus")), 1)
            tp = unstated.fewest_gpus(model, precision, device, every)
            row, copies = row | {"tp": f"{tp}"}, max(every / tp, 1.0)
            assumed = (*assumed, unstated.DEGREES)
        apart = apart_layout(row, model, self.layouts) if is_apart(row) and load == CLOSED else None
        tp, dp, ep = (apart.tp, apart.attention_dp, apart.ep) if apart else degrees(row, gpu)
        uneven = tensor_law(model, tp)
        doubt = apart.doubt if apart else DRAFTED if command.speculative else ""
        if uneven and not apart and any(block.attention.kv_rank for block in model.blocks):
            # Engines serve latent attention with ranks that share no heads; rows list these as tp.
            tp, dp, ep, doubt, uneven = 1, tp * dp, tp * dp, RANKS, None
        if command.expert_parallel and ep == 1 and not apart:
            ep = tp * dp
        if uneven:
            raise RowError(f"{uneven}: degrees of another layout")
        clients, rate = number(row, "concurrency"), number(row, "request_rate_rps")
        if load == BURST:
            sent, rate = arrivals(scenario)
            clients = sent or number(row, "requests") or clients
        if load in (CLOSED, STATIC, BURST, DECODE) and not clients:
            raise RowError("the row does not state how many requests are in flight")
        if load == BURST and not 1 <= clients <= MOST_SENT:
            raise RowError(f"a burst of {clients:g} requests: 1 to {MOST_SENT:,} are played")
        if load == OPEN and not rate:
            raise RowError("the row does not state the rate of requests")
        if number(row, "failures") > 0:
            doubt = doubt or FAILED
        told = load in (OFFLINE, STATIC, BURST, DECODE, LIMITED)
        measured = {
            "tpot": number(row, "tpot_ms") / 1e3,
            "ttft": number(row, "ttft_ms") / 1e3,
            "e2e": number(row, "e2e_ms") / 1e3,
            "output_tok_s": number(row, "output_tok_s") / copies if told else 0.0,
        }
        alone = measured["ttft"] + (osl - 1.0) * measured["tpot"]
        dropped: tuple[str, ...] = ()
        whole = measured["e2e"] > 0 and measured["ttft"] > 0 and measured["tpot"] > 0
        if whole and not alone / FAR <= measured["e2e"] <= alone * FAR:
            measured["e2e"], dropped = 0.0, (OTHER_REQUESTS,)
        kept = tuple((name, value) for name, value in measured.items() if value > 0)
        if not kept:
            raise RowError("the row has none of tpot_ms, ttft_ms, e2e_ms, output_tok_s to compare with")
        return ServedRun(
            line=line,
            gpu=gpu,
            model=model,
            precision=precision,
            engine=engine,
            version=release,
            tp=tp,
            pp=int(number(row, "pp") or 1),
            attention_dp=dp,
            ep=ep,
            load=APART if apart else load,
            clients=clients,
            rate=rate,
            isl=isl,
            osl=osl,
            cached=min(number(row, "prefix_tokens"), isl - 1),
            source=row.get("source", "")[:60],
            measured=kept,
            max_sequences=_limit(number(row, "max_num_seqs") or command.max_sequences),
            max_batched_tokens=_limit(number(row, "max_num_batched_tokens") or command.max_batched_tokens),
            memory_fraction=fraction(row) or command.memory_fraction,
            recv_interval=_limit(command.recv_interval),
            async_scheduling=command.async_scheduling or row.get("source", "").startswith(INFERENCEX),
            workers=apart.workers if apart else 1,
            prompts=apart.prompts if apart else None,
            doubt=doubt,
            dropped=dropped,
            dataset=dataset(row) if load in (BURST, OPEN) else "",
            sent=number(row, "requests") if load == OPEN else 0.0,
            tpot_limit_s=unstated.mlperf_limit(row),
            power_cap_w=cap_w,
            assumed=assumed,
        )

    def start(self, line: int, row: dict[str, str]) -> ServedRun:
        """A row of `vllm_kv_capacity.csv`."""
        tokens = number(row, "kv_tokens")
        if not tokens:
            raise RowError("the row has no kv_tokens to compare with")
        model, assumed = self.model_or_stand_in(row)
        return ServedRun(
            line=line,
            assumed=assumed,
            gpu=unstated.read_gpu(row["gpu"], self.hwdb)[0].name,
            model=model,
            precision=self.precision(row, model, "vllm"),
            engine="vllm",
            version=row.get("vllm", ""),
            tp=int(number(row, "tp") or 1),
            pp=int(number(row, "pp") or 1),
            attention_dp=1,
            ep=1,
            load=START,
            clients=0.0,
            rate=0.0,
            isl=1.0,
            osl=1.0,
            cached=0.0,
            source=row.get("source", "")[:60],
            measured=(("kv_tokens", tokens * (number(row, "dp") or 1)),),
            memory_fraction=fraction(row),
        )

    def log(self, group: list[tuple[int, dict[str, str]]]) -> ServedRun:
        """All requests of one setup in a log."""
        line, row = group[0]
        model, engine = self.model(row["model"]), row.get("engine", "") or "vllm"
        if engine not in self.engines:
            raise RowError(f"no row of defaults for the engine {engine[:40]!r}")
        requests = tuple(
            LoggedRequest(number(item, "arrival_s"), *(int(number(item, name)) for name in NEEDED[1:]))
            for _, item in group
        )
        if any(request.input_tokens < 1 or request.output_tokens < 1 for request in requests):
            raise RowError("a request of the log has no tokens in or out")
        measured: dict[str, float] = {}
        for column, metric in TIMES.items():
            seconds = [number(item, column) / 1e3 for _, item in group if item.get(column)]
            measured |= summary([value for value in seconds if value > 0], metric)
        return ServedRun(
            line=line,
            gpu=self.hwdb.gpu(row["gpu"]).name,
            model=model,
            precision=self.precision(row, model, engine),
            engine=engine,
            version=row.get("vllm", "") or version(row.get("engine_version", ""), engine),
            tp=int(number(row, "tp") or 1),
            pp=int(number(row, "pp") or 1),
            attention_dp=1,
            ep=1,
            load=LOG,
            clients=0.0,
            rate=0.0,
            isl=sum(request.input_tokens for request in requests) / len(requests),
            osl=sum(request.output_tokens for request in requests) / len(requests),
            cached=0.0,
            source=row.get("source", "")[:60],
            measured=tuple(measured.items()),
            max_sequences=int(number(row, "max_num_seqs")),
            max_batched_tokens=int(number(row, "max_num_batched_tokens")),
            memory_fraction=fraction(row),
            requests=requests,
        )

    def engine(self, row: dict[str, str], gpu: Gpu) -> tuple[str, str, tuple[str, ...]]:
        """(the engine of a row, its version, what was assumed)."""
        told = row.get("engine", "vllm") or "vllm"
        if told in NAMED:
            return *NAMED[told], ()
        name, release, assumed = unstated.known_or_usual_engine(row, told, self.engines, gpu)
        return name, release if assumed else version(row.get("engine_version", ""), name), assumed

    def model(self, name: str) -> Model:
        """A shipped model by any of its names, or by that of a quantised copy."""
        if name not in self._models:
            try:
                self._models[name] = shipped_model(name)
            except TangramError as error:
                self._models[name] = error
        found = self._models[name]
        if isinstance(found, TangramError):
            raise found
        return found

    def model_or_stand_in(self, row: dict[str, str]) -> tuple[Model, tuple[str, ...]]:
        """The row's model, or the nearest shipped one of its size and words that say so."""
        name = row["model"]
        try:
            return self.model(name), ()
        except TangramError:
            model = stand_in(name, number(row, "params_b"), number(row, "active_b"))
            return model, (UNKNOWN_MODEL,)

    def precision(self, row: dict[str, str], model: Model, engine: str, launched: str = "") -> Precision:
        """What weights and caches are in: stated, told by the checkpoint's name, or 16 bits.

        TensorRT-LLM's fp8 and fp4 checkpoints carry scales for an fp8 cache and use it.
        """
        stated = stated_precision(row)
        names = (row["model"].lower(), launched.lower())
        told = next((kind for end, kind in ENDINGS for name in names if name.endswith(end)), "")
        if model.family == "gpt_oss" and not told:
            # All of its checkpoints have experts in mxfp4 (arXiv:2508.10925, section 2.1); rows name the type
            # of the rest.
            told = "mxfp4"
        if model.name.startswith(NATIVE_FP8) and (told or stated) in ("", "bf16", "bfloat16", "fp16"):
            told = "fp8"
        cache = row.get("kv_cache_dtype", "auto") or "auto"
        found = precision_of(told or stated or "bf16", model, "auto" if cache == "auto" else cache)
        if found.name == "fp8" and row["model"].startswith(META_FP8):
            found = replace(found, attention="bf16", attention_compute="bf16")
        if cache == "auto" and engine == "trtllm" and found.weights in ("fp8", "nvfp4"):
            return replace(found, kv="fp8")
        return found


def stated_precision(row: dict[str, str]) -> str:
    """The precision that a row's cells name, "" where they name none."""
    for column in ("quantization", "precision", "dtype"):
        if (told := row.get(column, "").lower()) not in _UNSTATED:
            return unstated.SPELLED.get(told, told)
    return ""

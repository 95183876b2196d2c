"""Predictions of measured serving runs, each under its own load."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.energy import gpu_power
from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import (
    ClosedClients,
    Load,
    Steady,
    closed_loop,
    greatest_throughput,
    open_loop,
    seats,
)
from tangram_sim.serving.energy import replica_power
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.stepcost import KvCapacity
from tangram_validate.serving.disaggregated_steady_state import ApartClients, apart_loop
from tangram_validate.serving.placed_runs import PlacedRun
from tangram_validate.serving.replicas import DeploymentRuns, column, prompt_station, replicas
from tangram_validate.serving.request_logs import bursts, replayed
from tangram_validate.serving.runs import (
    APART,
    BURST,
    CLOSED,
    DECODE,
    ENERGY,
    FIRST,
    JOULES,
    JOULES_AT_SPEED,
    LIMITED,
    LOG,
    METRICS,
    OFFLINE,
    OPEN,
    START,
    STATIC,
    WATTS,
    RefusedRun,
    ServedRun,
)

Progress = Callable[[int, int, str], None]
INTERVAL = 1.645  # standard deviations either side of 90 %
CLIENTS_TRIED = np.geomspace(1e-3, 1.0, 24)  # parts of the seats
CROWDED = 0.9  # part of the seats from which on requests of an open loop may wait for one
MOST_PLAYED = 100_000  # requests of an open loop, played one by one
ASSUMED_WIDER = 1.2  # times wider, for each thing that a row does not say


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """One metric of one run: measured, predicted, and the interval that should hold it nine times of ten."""

    run: ServedRun
    metric: str
    measured: float
    predicted: float
    low: float
    high: float
    null: float = 0.0  # what the null model says; 0.0 until it was fitted


def predict(
    runs: Iterable[ServedRun], hwdb: Hwdb, table: CalibrationTable, progress: Progress | None = None
) -> tuple[list[PredictedRun], list[RefusedRun]]:
    """Every measured metric of every run that can be predicted, and the refusals, in order of lines.

    `progress(runs looked at, all runs, what)` is told how far it is.
    """
    found: list[PredictedRun] = []
    refused: list[RefusedRun] = []
    runs, done = list(runs), 0

    def told(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, len(runs), "runs predicted")

    for run in runs:
        if run.placed is not None:
            found += _placed(run, run.placed, table)
            told(1)
    for replica in replicas((run for run in runs if run.placed is None), hwdb, table):
        told(1 if isinstance(replica, RefusedRun) else len(replica.runs))
        if isinstance(replica, RefusedRun):
            refused.append(replica)
            continue
        for load in dict.fromkeys(run.load for run in replica.runs):
            same = replace(replica, runs=tuple(run for run in replica.runs if run.load == load))
            try:
                values = _values(same, load, hwdb)
            except TangramError as error:
                refused += [RefusedRun(run.line, str(error), run.table) for run in same.runs]
                continue
            found += _rows(same, values, _stretched(same, values, hwdb))
    found.sort(key=lambda one: (one.run.table, one.run.line, METRICS.index(one.metric)))
    return found, sorted(refused, key=lambda refused_run: (refused_run.table, refused_run.line))


def _placed(run: ServedRun, placed: PlacedRun, table: CalibrationTable) -> list[PredictedRun]:
    """What was measured of a run of placed layers beside the same run played."""
    played = placed.played()
    values = {"output_tok_s": played.tokens_per_s, "tpot": played.token_s, "ttft": played.prompt_s}
    fit = table.fit(run.engine)
    return [
        _row(run, metric, measured, values[metric], fit.residuals[f"residual_{metric}"])
        for metric, measured in run.measured
        if np.isfinite(values[metric])
    ]


def residual(replica: DeploymentRuns, run: ServedRun, metric: str) -> float:
    """Standard deviation of the logarithm of a prediction's error."""
    fit = replica.fit.residuals
    if metric not in (WATTS, JOULES, JOULES_AT_SPEED):
        return fit[residual_name(run.load, metric)]
    power = max(gpu_power(stage.island.gpu, replica.cost.hwdb).sigma for stage in replica.deployment.stages)
    # Power that flows whatever runs makes a token dearer as much as it is slower: more than half of it.
    return float(np.hypot(power, 0.6 * fit["residual_tpot"])) if metric == JOULES else power


def residual_name(load: str, metric: str) -> str:
    """The parameter that says how wide the errors of a metric are under a load."""
    kind = {BURST: "burst_", APART: "apart_"}.get(load, "")
    return f"residual_{kind}{metric.removesuffix('_p99')}"


def _row(run: ServedRun, metric: str, measured: float, value: float, spread: float) -> PredictedRun:
    reach = float(np.exp(INTERVAL * spread))
    return PredictedRun(run, metric, measured, value, value / reach, value * reach)


def _stretched(
    replica: DeploymentRuns, values: dict[str, Floats], hwdb: Hwdb
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Values if iterations took as little, and as long, as they may: in open loops queues grow by more.

    A server that takes f times as long is the same one under f times the rate, on a clock f times as slow.
    """
    runs = replica.runs
    if runs[0].load != OPEN:
        return values, values
    spread = replica.fit.residuals["residual_tpot"]
    factors = [float(np.exp(INTERVAL * spread * ASSUMED_WIDER ** len(run.assumed))) for run in runs]
    ends = []
    for sign in (-1.0, 1.0):
        longer = np.array(factors) ** sign
        rated = tuple(replace(run, rate=run.rate * f) for run, f in zip(runs, longer, strict=True))
        same = replace(replica, runs=rated)
        ends.append({metric: value * longer for metric, value in _values(same, OPEN, hwdb).items()})
    return ends[0], ends[1]


def _rows(
    replica: DeploymentRuns, values: dict[str, Floats], ends: tuple[dict[str, Floats], dict[str, Floats]]
) -> list[PredictedRun]:
    found = []
    for place, run in enumerate(replica.runs):
        for metric, measured in run.measured:
            if metric not in values or not 0.0 < values[metric][place] < np.inf:
                continue
            spread = residual(replica, run, metric) * ASSUMED_WIDER ** len(run.assumed)
            row = _row(run, metric, measured, float(values[metric][place]), spread)
            low, high = (float(end[metric][place]) for end in ends)
            found.append(replace(row, low=min(row.low, low), high=max(row.high, high)))
    return found


def _values(replica: DeploymentRuns, load: str, hwdb: Hwdb) -> dict[str, Floats]:
    """Predictions of runs that all have the same kind of load. Arrays over the runs."""
    cost, deployment, runs = replica.cost, replica.deployment, replica.runs
    if load == LOG:
        return replayed(replica, hwdb)
    if load == START:
        capacity = kv_capacity(deployment, hwdb, replica.fit)
        return {"kv_tokens": np.full(len(runs), float(capacity.tokens))}
    capacity, lengths = replica.capacity(hwdb), replica.load
    habits = ClosedClients.of(replica.fit)
    if load == APART:
        station = prompt_station(replica, hwdb)
        clients = ApartClients(replica.fit["client_s"], replica.fit["wave_apart"])
        workers = runs[0].workers
        return _times(apart_loop(cost, workers, station, lengths, column(runs, "clients"), clients))
    if load == BURST:
        return bursts(replica, hwdb)
    if load == ENERGY:
        return _energy(replica)
    if load == DECODE:
        running = column(runs, "clients")
        step = cost.step_s(0.0, 0.0, running, running * lengths.context)
        return {"tpot": step, "output_tok_s": running / step}
    if load == FIRST:
        alone = cost.step_s(lengths.rows, lengths.scores, 0.0, 0.0)
        return {"ttft": alone}
    if load == OPEN:
        steady = open_loop(cost, deployment, capacity, lengths, column(runs, "rate"))
        crowded = steady.running >= CROWDED * seats(deployment, capacity, lengths)
        return _with_queues(replica, _times(steady), crowded, hwdb)
    if load == CLOSED:
        capacity = _that_held(runs, capacity)
        steady = closed_loop(cost, deployment, capacity, lengths, column(runs, "clients"), habits)
        return _times(steady)
    if load == OFFLINE:
        return {"output_tok_s": _rate(greatest_throughput(cost, deployment, capacity, lengths), lengths)}
    if load == LIMITED:
        return {"output_tok_s": _limited(replica, capacity)}
    if load == STATIC:
        steady = closed_loop(cost, deployment, capacity, lengths, column(runs, "clients"))
        return {"output_tok_s": steady.running / steady.tpot_s, "tpot": steady.tpot_s}
    raise ValueError(f"no closed form for load {load!r}")


def _with_queues(
    replica: DeploymentRuns, values: dict[str, Floats], crowded: NDArray[np.bool_], hwdb: Hwdb
) -> dict[str, Floats]:
    """The means of runs whose seats are taken and that say how many requests they sent: those played.

    More come than leave, so the queue is as long as the run, and no steady state describes it.
    """
    places = [k for k, run in enumerate(replica.runs) if crowded[k] and 1.0 <= run.sent <= MOST_PLAYED]
    if places:
        played = bursts(replace(replica, runs=tuple(replica.runs[k] for k in places)), hwdb)
        for metric, value in values.items():
            value[places] = played[metric]
    return values


def _limited(replica: DeploymentRuns, capacity: KvCapacity) -> Floats:
    """Tokens/s with as many requests at once as keep the seconds a token below each run's limit."""
    lengths, limit = replica.load, column(replica.runs, "tpot_limit_s")
    most = greatest_throughput(replica.cost, replica.deployment, capacity, lengths)
    best = np.zeros_like(limit)
    for part in CLIENTS_TRIED:
        clients = np.maximum(most.running * part, 1.0)
        found = closed_loop(replica.cost, replica.deployment, capacity, lengths, clients)
        speed = found.running / found.tpot_s
        best = np.where((limit <= 0) | (found.tpot_s <= limit) | (best <= 0), np.maximum(best, speed), best)
    return best


def _energy(replica: DeploymentRuns) -> dict[str, Floats]:
    """Tokens/s, watts and joules per token of runs whose requests all decode at once."""
    steady = at_seats(replica)
    lengths, runs = replica.load, replica.runs
    speed = steady.request_rate * lengths.osl
    watts = replica_power(replica.cost, lengths, steady).gpu_w
    told = np.array([run.value("output_tok_s") for run in runs])
    stretched = at_speed(steady, lengths, np.where(told > 0, told, speed))
    # The median gap between two tokens has no prompt in it unless most iterations do.
    prompts = -np.expm1(-steady.running / lengths.osl)
    return {
        "tpot": np.where(prompts > 0.5, steady.tpot_s, steady.step_s),
        "output_tok_s": speed,
        WATTS: watts,
        JOULES: watts / speed,
        JOULES_AT_SPEED: replica_power(replica.cost, lengths, stretched).gpu_w
        / np.where(told > 0, told, speed),
    }


def at_seats(replica: DeploymentRuns) -> Steady:
    """The runs' steady state with as many requests decoding as the rows say."""
    count = column(replica.runs, "clients")
    block = replica.deployment.engine.block_tokens
    whole = KvCapacity(int(np.max(count * (replica.load.isl + replica.load.osl)) // block) + 1, block)
    engine = replace(replica.deployment.engine, max_sequences=int(np.max(count)) + 1)
    return closed_loop(replica.cost, replace(replica.deployment, engine=engine), whole, replica.load, count)


def at_speed(steady: Steady, lengths: Load, output_tok_s: Floats) -> Steady:
    """The same work at another speed: iterations and prompts take as much longer as tokens are slower."""
    rate = output_tok_s / lengths.osl
    longer = steady.request_rate / rate
    return replace(
        steady, request_rate=rate, step_s=steady.step_s * longer, prompt_s=steady.prompt_s * longer
    )


def _that_held(runs: Sequence[ServedRun], counted: KvCapacity) -> KvCapacity:
    """KV memory, raised to what all clients need where rows leave out the engine's share of the card.

    Benchmarks of closed loops are laid out so that nobody waits for memory.
    """
    if any(run.memory_fraction for run in runs):
        return counted
    wanted = max(run.clients * (run.isl + run.osl) for run in runs)
    return KvCapacity(max(counted.blocks, int(wanted // counted.block_tokens) + 1), counted.block_tokens)


def _times(steady: Steady) -> dict[str, Floats]:
    return {"tpot": steady.tpot_s, "ttft": steady.ttft_s, "e2e": steady.e2e_s}


def _rate(steady: Steady, lengths: Load) -> Floats:
    return steady.request_rate * lengths.osl

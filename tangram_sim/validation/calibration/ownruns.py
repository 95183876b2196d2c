"""A user's own measured steps shift the predictions of a stack on a GPU kind: scale and host time, shrunk.

Per (stack, GPU kind, dtype) two logarithms are estimated from n measured steps: a scale on all costs that
the stack touches, and, from three rows on, one more factor on the host's time per kernel. Both have a normal
prior around 0 whose width is what the database says of the stack's error, so that one row is taken with
doubt and three are mostly believed (docs/how-to/calibrate-with-your-runs.md).
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.opgraph import FloatArray
from tangram_sim.validation.calibration.plausible import LIMIT, implausible
from tangram_sim.validation.published.predict import Prediction, Predictor
from tangram_sim.validation.published.reading import Run
from tangram_sim.validation.published.table import Problem

HEADER = ("gpu", "dtype", "kernel", "stack", "version", "parameter", "value", "sigma", "n", "source", "date")
SCALED = ("time_scale", "tensor_exposed", "data_exposed")  # of kernel `stack`
HOST_ROWS = 3  # rows from which host time is told apart from scale
HOST_SIGMA = 0.8  # log standard deviation of stacks' host times around the database's
NEAR = 0.5  # of the device's time: where the host's begins to matter
SMALL = 0.01  # steps of logarithms below which a search has ended
HOST_STARTS = (0.0, 1.6)  # device-bound and host-bound optima can both be local ones
DEGREES = 3.0  # measured rows that the database's spread between plans counts for
CARRIED = 0.7  # share of a log scale that is taken over to other GPU kinds and dtypes of the stack
SOURCE = "runs of one's own: tangram calibrate run"


class Key(NamedTuple):
    """What one calibration holds for; `dtype` is the column of gpus.csv that its GEMMs run at."""

    stack: str
    gpu: str
    dtype: str


def key_of(run: Run) -> Key:
    """The calibration that a run belongs to."""
    gpu = run.cluster.groups[0].node.gpu.name
    return Key(run.job.stack, gpu, run.job.recipe.gemm_dtype)


@dataclass(frozen=True, slots=True)
class Shift:
    """What the rows of one key say."""

    key: Key
    n: int
    log_scale: float
    log_host: float  # on host time, on top of the scale
    prior_sigma: float  # log standard deviation of the common error before
    sigma: float  # the same after
    spread: float  # log standard deviation from plan to plan
    factors: float  # the part of `prior_sigma` that kernels, links and the stack's parameters explained

    @property
    def prior_share(self) -> float:
        """What is left of the doubt about those factors."""
        return min(self.sigma / self.prior_sigma, 1.0)

    @property
    def residual(self) -> float:
        """Log standard deviation of a step beside those factors: together they have `sigma` and `spread`."""
        beside = self.sigma**2 - (self.prior_share * self.factors) ** 2
        return math.sqrt(self.spread**2 + max(beside, 0.0))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The answer of `calibrate`: shifts, the rows they came from before and after, and what was not used."""

    shifts: tuple[Shift, ...]
    before: tuple[Prediction, ...]
    after: tuple[Prediction, ...]  # of the same rows
    problems: tuple[Problem, ...]
    overlay: str  # text of efficiency/calibrated.csv
    hwdb: Hwdb  # the database under that overlay


def calibrate(rows: Sequence[Mapping[str, str]], hwdb: Hwdb, keep: Sequence[str] = ()) -> Calibrated:
    """Shift and narrow the predictions of `hwdb` to measured rows (columns of published runs).

    Rows that look mistyped are left out with their reason, unless `keep` names them (`all`: every one).
    """
    predictor = Predictor(hwdb)
    found = [predictor.predict_row(row, number) for number, row in enumerate(rows, 1)]
    problems = [one for one in found if isinstance(one, Problem)]
    usable = [one for one in found if isinstance(one, Prediction)]
    problems += [
        Problem(
            one.run.id, one.run.source_id, "no measured step time: give iter_time_s or tokens_per_s_per_gpu"
        )
        for one in usable
        if one.error is None
    ]
    measured = [one for one in usable if one.error is not None]
    odd = {id(one): why for one, why in implausible(list(_by_key(measured).values()), keep)}
    problems += odd.values()
    return calibrate_predictions([one for one in measured if id(one) not in odd], hwdb, problems)


def calibrate_predictions(
    measured: Sequence[Prediction], hwdb: Hwdb, problems: Sequence[Problem] = ()
) -> Calibrated:
    """The same from predictions that have measured steps."""
    shifts = tuple(_shift(key, group, hwdb) for key, group in sorted(_by_key(measured).items()))
    lines = overlay_rows(shifts, hwdb)
    text = overlay_text(lines)
    database = hwdb.with_efficiency(_rows(lines))
    predictor = Predictor(database)
    both = [(one, predictor.predict(one.run)) for one in measured]
    pairs = [(one, again) for one, again in both if isinstance(again, Prediction)]
    return Calibrated(
        shifts,
        tuple(one for one, _ in pairs),
        tuple(again for _, again in pairs),
        tuple(problems),
        text,
        database,
    )


def _by_key(measured: Sequence[Prediction]) -> dict[Key, list[Prediction]]:
    groups: dict[Key, list[Prediction]] = {}
    for one in measured:
        groups.setdefault(key_of(one.run), []).append(one)
    return groups


def _shift(key: Key, group: Sequence[Prediction], hwdb: Hwdb) -> Shift:
    """The most probable scale and host time of one key, by a Gauss-Newton search from several starts."""
    gpu = group[0].run.cluster.groups[0].node.gpu
    total = float(np.median([one.sigma for one in group]))
    # Between plans lies half of the doubt's variance at most: rows of the user's own are to be believed.
    spread = max(min(hwdb.residuals(gpu, key.dtype, key.stack).plan, total / math.sqrt(2.0)), 0.01)
    prior = math.sqrt(max(total**2 - spread**2, 0.02**2))
    runs = [one.run for one in group]
    target = np.log([one.run.measured.step_s for one in group])
    free = len(group) >= HOST_ROWS
    width = np.array([prior, HOST_SIGMA if free else 1e-6])

    def logs(at: FloatArray) -> FloatArray:
        lines = _parameter_rows(key, float(at[0]), float(at[1]), hwdb, 0.0, 0)
        predictor = Predictor(hwdb.with_efficiency(_rows(lines)))
        found = [predictor.predict(run) for run in runs]
        return np.log([one.step_s if isinstance(one, Prediction) else 1.0 for one in found])

    def loss(at: FloatArray, error: FloatArray) -> float:
        size = np.abs(error) / spread
        huber = np.where(size < 2.0, size**2, 4.0 * size - 4.0)
        return float(huber.sum() + ((at / width) ** 2).sum())

    # A slower host can only be seen where it comes near to what the device needs.
    load = max(one.parts.dispatch_s / max(one.parts.pass_s, 1e-12) for one in group)
    starts = [host for host in HOST_STARTS if host == 0 or (free and load * math.exp(host) > NEAR)]
    best = min(
        (_search(logs, loss, target, spread, width, start) for start in starts), key=lambda one: one[0]
    )
    _, at, error, slopes = best
    used = 2 if free and abs(at[1]) > 1e-3 else 1
    freedom = max(len(group) - used, 0)
    seen = (
        DEGREES * spread**2 + float((np.minimum(np.abs(error), 4 * spread) ** 2).sum() if freedom else 0.0)
    ) / (DEGREES + freedom)
    curvature = float((slopes[:, 0] ** 2).sum()) / seen + 1.0 / prior**2
    return Shift(
        key,
        len(group),
        float(at[0]),
        float(at[1]),
        prior,
        math.sqrt(1.0 / curvature),
        math.sqrt(seen),
        min(float(np.median([one.factors_sigma for one in group])), prior),
    )


def _search(
    logs: Callable[[FloatArray], FloatArray],
    loss: Callable[[FloatArray, FloatArray], float],
    target: FloatArray,
    spread: float,
    width: FloatArray,
    host: float,
) -> tuple[float, FloatArray, FloatArray, FloatArray]:
    """(least loss, where, log errors left, slopes) from one start of the host's factor."""
    at = np.array([0.0, host if width[1] > 1e-3 else 0.0])
    axes = (0, 1) if width[1] > 1e-3 else (0,)
    error = target - logs(at)
    best, slopes = loss(at, error), np.ones((len(target), 2))
    for _ in range(5):
        for axis in axes:
            aside = at.copy()
            aside[axis] += 0.05
            slopes[:, axis] = (target - error - logs(aside)) / -0.05
        if len(axes) == 1:
            slopes[:, 1] = 0.0
        weight = np.minimum(1.0, 2.0 * spread / np.maximum(np.abs(error), 1e-12)) / spread**2
        normal = (slopes * weight[:, None]).T @ slopes + np.diag(1.0 / width**2)
        move = np.linalg.solve(normal, slopes.T @ (weight * error) - at / width**2)
        improved = False
        for part in (1.0, 0.5, 0.2):
            trial = np.clip(at + part * move, -LIMIT, LIMIT)
            left = target - logs(trial)
            value = loss(trial, left)
            if value < best - 1e-9:
                best, at, error, improved = value, trial, left, True
                break
        if not improved or float(np.abs(move).max()) < SMALL:
            break
    return best, at, error, slopes


def _parameter_rows(
    key: Key, log_scale: float, log_host: float, hwdb: Hwdb, sigma: float | None, n: int
) -> list[tuple[str, ...]]:
    """Rows of the parameters of one key, scaled; a key of gpu `*` scales what its stack has for any GPU.

    `sigma` is the log standard deviation they get; None: as doubtful as before.
    """
    gpus = (key.gpu, "*") if key.gpu != "*" else ("*",)
    found = []
    for kernel, parameter in (*(("stack", name) for name in SCALED), ("dispatch", "seconds")):
        row = hwdb.efficiency_row(kernel, parameter, gpus, key.dtype, key.stack)
        now = row.number("value")
        doubt = row.number("sigma") / now if sigma is None and now else sigma or 0.0
        value = now * math.exp(log_scale + (log_host if kernel == "dispatch" else 0.0))
        value = min(max(value, 0.1 if parameter == "time_scale" else 0.0), 10.0 if kernel == "stack" else 1.0)
        found.append(
            (
                key.gpu,
                key.dtype,
                kernel,
                key.stack,
                "",
                parameter,
                f"{value:.6g}",
                f"{value * doubt:.3g}",
                str(n),
            )
        )
    return [(*line, SOURCE, "") for line in found]


def overlay_rows(shifts: Sequence[Shift], hwdb: Hwdb) -> list[tuple[str, ...]]:
    """Efficiency rows of an overlay, without its header."""
    lines: list[tuple[str, ...]] = []
    for stack in sorted({shift.key.stack for shift in shifts}):
        own = [shift for shift in shifts if shift.key.stack == stack]
        scale, host = (
            CARRIED * float(np.mean(values))
            for values in ([shift.log_scale for shift in own], [shift.log_host for shift in own])
        )
        n = sum(shift.n for shift in own)
        lines += _parameter_rows(Key(stack, "*", "*"), scale, host, hwdb, None, n)
    for shift in shifts:
        lines += _parameter_rows(shift.key, shift.log_scale, shift.log_host, hwdb, None, shift.n)
        for parameter, value in (
            ("residual", shift.residual),
            ("residual_unmeasured", 0.0),
            ("residual_mixture", 0.0),
            ("residual_plan", shift.spread),
            ("prior_share", shift.prior_share),
        ):
            key = shift.key
            lines.append(
                (
                    key.gpu,
                    key.dtype,
                    "stack",
                    key.stack,
                    "",
                    parameter,
                    f"{value:.4g}",
                    "0",
                    str(shift.n),
                    SOURCE,
                    "",
                )
            )
    return lines


def _rows(lines: Sequence[tuple[str, ...]]) -> list[Row]:
    """Rows as the database keeps them."""
    found = []
    for line in lines:
        cells = dict(zip(HEADER, line, strict=True))
        found.append(
            Row("efficiency", "/".join(line[:6]), {name: cell for name, cell in cells.items() if cell})
        )
    return found


def overlay_text(lines: Sequence[tuple[str, ...]]) -> str:
    """The overlay's CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(lines)
    return text.getvalue()


@dataclass(frozen=True, slots=True)
class FewRows:
    """Errors of the rest of each source once a few of its rows were calibrated to."""

    by_source: Mapping[str, tuple[int, float, float]]  # rows scored, median, 90th percentile of |error|
    macro_median: float
    macro_p90: float
    coverage: float  # of the 90 % intervals, every source the same weight


def score_few_rows(
    predictions: Sequence[Prediction], hwdb_of: Callable[[str], Hwdb], rows: int = 3, draws: int = 3
) -> FewRows:
    """Leave a source out, calibrate to `rows` of it, score its other rows; the mean over `draws` choices.

    `hwdb_of(source)` is the database whose rows that source never touched. Choices are the same on every
    call: rows in order of a hash of their configuration, `rows` neighbours at a time.
    """
    from tangram_sim.validation.calibration.folds import configuration

    by_source: dict[str, list[Prediction]] = {}
    for one in predictions:
        if one.error is not None:
            by_source.setdefault(one.run.source_id, []).append(one)
    found, covered = {}, []
    for source, group in sorted(by_source.items()):
        ordered = sorted(group, key=lambda one: (configuration(one.run), one.run.id))
        if len(ordered) <= rows:
            continue
        hwdb = hwdb_of(source)
        predictor = Predictor(hwdb)
        apes: list[float] = []
        inside: list[bool] = []
        for draw in range(min(draws, len(ordered) // rows)):
            picked = ordered[draw * rows : (draw + 1) * rows]
            rest = ordered[: draw * rows] + ordered[(draw + 1) * rows :]
            again = [predictor.predict(one.run) for one in picked]
            made = calibrate_predictions([one for one in again if isinstance(one, Prediction)], hwdb)
            scorer = Predictor(made.hwdb)
            for one in rest:
                after = scorer.predict(one.run)
                if isinstance(after, Prediction) and after.error is not None:
                    apes.append(abs(after.error))
                    inside.append(after.step_s_low <= after.run.measured.step_s <= after.step_s_high)
        found[source] = len(group) - rows, float(np.median(apes)), float(np.percentile(apes, 90))
        covered.append(float(np.mean(inside)))
    medians, ninetieths = np.array([figures[1:] for figures in found.values()]).T
    return FewRows(found, float(medians.mean()), float(ninetieths.mean()), float(np.mean(covered)))

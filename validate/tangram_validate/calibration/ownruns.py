"""A user's own measured steps shift the predictions of a stack on a GPU kind: scale and host time, shrunk.

Per (stack, GPU kind, dtype) two logarithms are estimated from n measured steps (`shifts`): a scale on all
costs that the stack touches, and, from four rows on, one more factor on the host's time per kernel. Both
have a normal prior around 0 whose width is what the database says of the stack's error, so that one row is
taken with doubt and three are mostly believed (docs/how-to/calibrate-with-your-runs.md). Other dtypes,
kinds and generations of the stack take over a share, the nearer the more.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.models import has_experts
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.factors import log_sigma
from tangram_validate.calibration.plausible import implausible
from tangram_validate.calibration.shifts import Doubt, most_probable
from tangram_validate.published.predict import Prediction, Predictor
from tangram_validate.published.reading import Run
from tangram_validate.published.table import Problem

HEADER = ("gpu", "dtype", "kernel", "stack", "version", "parameter", "value", "sigma", "n", "source", "date")
PARAMETERS = (
    ("stack", "time_scale"),
    ("stack", "tensor_exposed"),
    ("stack", "data_exposed"),
    ("dispatch", "seconds"),
)  # what a scale moves
# Log standard deviation of what hosts differ by beside what the database doubts of its own figure.
HOST_SIGMA = 0.5
# Shares of a log scale that are taken over: what stacks, generations and kinds differ by (stackfit's priors).
OTHER_DTYPE, OTHER_KIND, OTHER_GENERATION = 0.85, 0.7, 0.3
SOURCE = "runs of one's own: tangram calibrate run"


class Key(NamedTuple):
    """What one calibration holds for; `dtype` is the column of gpus.csv that its GEMMs run at."""

    stack: str
    gpu: str
    dtype: str


def key_of(run: Run) -> Key:
    """The calibration that a run belongs to."""
    gpu = run.cluster.groups[0].node.gpu.name
    return Key(run.job.stack, gpu, run.job.precision.compute)


@dataclass(frozen=True, slots=True)
class Shift:
    """The two log factors estimated from the measured rows of one key, with their standard deviations."""

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
        """`sigma` over `prior_sigma`, at most 1.0: the share of the prior's width that is left."""
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
    problems = [item for item in found if isinstance(item, Problem)]
    usable = [item for item in found if isinstance(item, Prediction)]
    problems += [
        Problem(
            prediction.run.id,
            prediction.run.source_id,
            "no measured step time: give iter_time_s or tokens_per_s_per_gpu",
        )
        for prediction in usable
        if prediction.error is None
    ]
    measured = [prediction for prediction in usable if prediction.error is not None]
    groups = list(_by_key(measured).values())
    doubts = [doubt_of(group, hwdb) for group in groups]
    odd = {id(prediction): why for prediction, why in implausible(groups, doubts, keep)}
    problems += odd.values()
    return calibrate_predictions(
        [prediction for prediction in measured if id(prediction) not in odd], hwdb, problems
    )


def calibrate_predictions(
    measured: Sequence[Prediction], hwdb: Hwdb, problems: Sequence[Problem] = ()
) -> Calibrated:
    """Own runs from predictions that have measured steps."""
    shifts = tuple(_shift(key, group, hwdb) for key, group in sorted(_by_key(measured).items()))
    text, database = overlaid(hwdb, shifts)
    predictor = Predictor(database)
    both = [(prediction, predictor.predict(prediction.run)) for prediction in measured]
    pairs = [(prediction, again) for prediction, again in both if isinstance(again, Prediction)]
    return Calibrated(
        shifts,
        tuple(prediction for prediction, _ in pairs),
        tuple(again for _, again in pairs),
        tuple(problems),
        text,
        database,
    )


def _by_key(measured: Sequence[Prediction]) -> dict[Key, list[Prediction]]:
    groups: dict[Key, list[Prediction]] = {}
    for prediction in measured:
        groups.setdefault(key_of(prediction.run), []).append(prediction)
    return groups


def doubt_of(group: Sequence[Prediction], hwdb: Hwdb) -> Doubt:
    """Prior log standard deviations of one key, from the database; `group` are the key's predictions."""
    key, gpu = key_of(group[0].run), group[0].run.cluster.groups[0].node.gpu
    known = hwdb.residuals(gpu, key.dtype, key.stack)
    mixtures = all(has_experts(prediction.run.model) for prediction in group)
    host = hwdb.efficiency(gpu, key.dtype, key.stack).dispatch_s_per_kernel
    return Doubt(
        max(known.of(mixtures).source, 0.02), math.hypot(log_sigma(host), HOST_SIGMA), max(known.plan, 0.01)
    )


def _shift(key: Key, group: Sequence[Prediction], hwdb: Hwdb) -> Shift:
    """The most probable scale and host time of one key."""
    runs = [prediction.run for prediction in group]

    def logs(at: FloatArray) -> FloatArray:
        predictor = Predictor(moved(hwdb, [key], float(at[0]), float(at[1])))
        found = [predictor.predicted_s(run) for run in runs]
        return np.log([1.0 if isinstance(item, Problem) else item for item in found])

    doubt = doubt_of(group, hwdb)
    load = max(prediction.parts.dispatch_s / max(prediction.parts.pass_s, 1e-12) for prediction in group)
    target = np.log([prediction.run.measured.step_s for prediction in group])
    found = most_probable(logs, target, doubt, load)
    factors = min(float(np.median([prediction.factors_sigma for prediction in group])), doubt.common)
    return Shift(
        key, len(group), found.log_scale, found.log_host, doubt.common, found.common, found.plan, factors
    )


def moved(hwdb: Hwdb, keys: Sequence[Key], log_scale: float, log_host: float = 0.0) -> Hwdb:
    """The database with every key's times multiplied by exp(`log_scale`), and their errors set to zero."""
    lines = [line for key in keys for line in _own_rows(key, log_scale, log_host, hwdb, 0.0, 0)]
    return hwdb.with_efficiency(_rows(lines))


def overlaid(hwdb: Hwdb, shifts: Sequence[Shift]) -> tuple[str, Hwdb]:
    """The overlay's text, and the database under it."""
    lines = overlay_rows(shifts, hwdb)
    return overlay_text(lines), hwdb.with_efficiency(_rows(lines))


def _own_rows(
    key: Key, log_scale: float, log_host: float, hwdb: Hwdb, sigma: float | None, n: int
) -> list[tuple[str, ...]]:
    """Rows of the parameters of one key, scaled.

    `sigma` is the log standard deviation they get; None: the one they had.
    """
    return [
        _scaled(hwdb, (key.gpu, "*"), (key.gpu, key.dtype), key, name, log_scale, log_host, sigma, n)
        for name in PARAMETERS
    ]


def _carried_rows(key: Key, log_scale: float, log_host: float, hwdb: Hwdb, n: int) -> list[tuple[str, ...]]:
    """Rows of the stack on other dtypes, GPU kinds and generations; the nearer, the larger their share."""
    row = hwdb.gpu_row(key.gpu)
    here = f"arch:{row['architecture']}"
    named = [row for _, row in hwdb.efficiency_rows() if row["stack"] in (key.stack, "generic")]
    elsewhere = {row["gpu"] for row in named if row["gpu"].startswith("arch:") and row["kernel"] == "stack"}
    places: list[tuple[tuple[str, ...], str, float]] = [
        ((key.gpu, "*"), key.gpu, OTHER_DTYPE),
        ((here, "*"), here, OTHER_KIND),
    ]
    places += [((other, "*"), other, OTHER_GENERATION) for other in sorted(elsewhere - {here})]
    places.append((("*",), "*", OTHER_GENERATION))
    return [
        _scaled(hwdb, found, (at, "*"), key, name, share * log_scale, share * log_host, None, n)
        for found, at, share in places
        for name in PARAMETERS
        if name[1] == "time_scale" or not at.startswith("arch:") or at == here
    ]


def _scaled(
    hwdb: Hwdb,
    gpus: tuple[str, ...],
    place: tuple[str, str],
    key: Key,
    parameter: tuple[str, str],
    log_scale: float,
    log_host: float,
    sigma: float | None,
    n: int,
) -> tuple[str, ...]:
    """One row at `place` (gpu, dtype): the value of the first of `gpus` that has the parameter, scaled."""
    kernel, name = parameter
    row = hwdb.efficiency_row(kernel, name, gpus, place[1], key.stack)
    now = row.number("value")
    doubt = row.number("sigma") / now if sigma is None and now else sigma or 0.0
    value = now * math.exp(log_scale + (log_host if kernel == "dispatch" else 0.0))
    value = min(max(value, 0.1 if name == "time_scale" else 0.0), 10.0 if kernel == "stack" else 1.0)
    # A row that is carried over says of itself what the row it came from rests on.
    source = SOURCE if place[1] != "*" else f"{row['source']}; moved by {SOURCE}"
    figures = (f"{value:.6g}", f"{value * doubt:.3g}", str(n))
    return (*place, kernel, key.stack, "", name, *figures, source, "")


def overlay_rows(shifts: Sequence[Shift], hwdb: Hwdb) -> list[tuple[str, ...]]:
    """Efficiency rows of an overlay, without its header.

    Where several keys of a stack carry over to one place, the one of most rows does.
    """
    carried: dict[tuple[str, ...], tuple[str, ...]] = {}
    for shift in sorted(shifts, key=lambda item: item.n):
        for line in _carried_rows(shift.key, shift.log_scale, shift.log_host, hwdb, shift.n):
            carried[line[:6]] = line
    lines = list(carried.values())
    for shift in shifts:
        lines += _own_rows(shift.key, shift.log_scale, shift.log_host, hwdb, None, shift.n)
        known = hwdb.residuals(hwdb.gpu(shift.key.gpu), shift.key.dtype, shift.key.stack)
        for parameter, value in (
            ("residual", shift.residual),
            ("residual_unmeasured", 0.0),
            ("residual_mixture", 0.0),
            ("residual_source", shift.sigma),
            ("residual_plan", shift.spread),
            ("prior_share", known.prior_share * shift.prior_share),
        ):
            key = shift.key
            figures = (f"{value:.4g}", "0", str(shift.n))
            lines.append((key.gpu, key.dtype, "stack", key.stack, "", parameter, *figures, SOURCE, ""))
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

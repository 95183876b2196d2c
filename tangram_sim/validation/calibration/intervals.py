"""Residuals of intervals from errors of predictions left out: `python -m ... PREDICTIONS.csv [-o OUT.csv]`.

PREDICTIONS.csv is what `tangram validate published -o` writes, or any table of its columns `source_id, gpu,
stack, error` (or `log_error` = log(measured / predicted)), `factors_sigma, stack_known, measured_gpu` (yes or
no). To be honest, every prediction must come from parameters that its source never touched.
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangram_sim.datafiles import read_text, write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb.efficiency import CALIBRATED
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.intervals import Z90
from tangram_sim.validation.published.predict import Prediction

COVERED = 0.90
ROWS = 10  # independent rows that a source is taken for, however many it has
FEWEST_SOURCES = 3  # of a stratum that speaks for itself
STRATA = ((True, True), (True, False), (False, True), (False, False))  # stack known, GPU kind measured
SOURCE = "errors of published runs left out, tangram_sim.validation.calibration.intervals"
FITTED = "2026-11-21"  # the day of the fit; rows must not depend on the day they are written again
HEADER = (
    *("gpu", "dtype", "kernel", "stack", "version", "parameter", "value", "sigma", "n", "source", "date"),
    "note",
)


@dataclass(frozen=True, slots=True)
class Errors:
    """N predictions left out: log(measured / predicted), what explains it, where it comes from."""

    log_error: FloatArray
    factors_sigma: FloatArray
    source: NDArray[np.str_]
    stratum: NDArray[np.int64]  # into STRATA
    memory: FloatArray  # log(measured / predicted) of the peaks there are, any length
    memory_source: NDArray[np.str_]

    def take(self, mask: NDArray[np.bool_], memory: NDArray[np.bool_]) -> "Errors":
        """Some of them."""
        return Errors(
            self.log_error[mask],
            self.factors_sigma[mask],
            self.source[mask],
            self.stratum[mask],
            self.memory[memory],
            self.memory_source[memory],
        )

    def without(self, source: str) -> "Errors":
        """All but one source's."""
        return self.take(self.source != source, self.memory_source != source)


@dataclass(frozen=True, slots=True)
class Widths:
    """Log standard deviations: of a step beyond its factors by stratum, from plan to plan, of a peak."""

    residual: tuple[float, float, float, float]  # as STRATA
    plan: float
    memory: float

    def sigma(self, errors: Errors) -> FloatArray:
        """Of every step of `errors`, [N]."""
        total: FloatArray = np.hypot(errors.factors_sigma, np.array(self.residual)[errors.stratum])
        return total


def _weights(source: NDArray[np.str_]) -> tuple[FloatArray, float]:
    """(weights by which every source counts the same, rows they are worth)."""
    _, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    return 1.0 / counts[place], float(np.minimum(counts, ROWS).sum())


def conformal_residual(log_error: FloatArray, factors_sigma: FloatArray, source: NDArray[np.str_]) -> float:
    """The least residual under which 90 % of the rows lie inside, every source the same weight.

    Split conformal prediction with a scaled score (Lei et al., JASA 2018): the share asked for is
    ceil(0.9 (n + 1)) / n of n effective rows, so that a row not seen is inside in 90 % of the cases.
    """
    weights, n = _weights(source)
    share = min(math.ceil(COVERED * (n + 1)) / n, 1.0)

    def inside(residual: float) -> float:
        within = np.abs(log_error) <= Z90 * np.hypot(factors_sigma, residual) * (1 + 1e-12)
        return float(weights[within].sum() / weights.sum())

    low, high = 0.0, float(np.abs(log_error).max()) / Z90
    if inside(0.0) >= share:
        return 0.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if inside(middle) >= share - 1e-12 else (middle, high)
    return high


def plan_spread(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of rows around their source's median, the median over sources of three rows."""
    found = [
        1.4826 * float(np.median(np.abs(own - np.median(own))))
        for name in np.unique(source)
        if len(own := log_error[source == name]) >= 3
    ]
    return float(np.median(found)) if found else 0.0


def memory_residual(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of peaks whose upper 95 % point covers what was measured."""
    if not len(log_error):
        return 0.0
    weights, _ = _weights(source)
    order = np.argsort(log_error, kind="stable")
    heap = np.cumsum(weights[order])
    at = min(int(np.searchsorted(heap, 0.5 * (1 + COVERED) * heap[-1])), len(order) - 1)
    return max(float(log_error[order[at]]), 0.0) / Z90


def calibrate(errors: Errors) -> Widths:
    """Residuals by stratum.

    One seen in fewer than three sources borrows all rows, and none is narrower than one that knows more.
    """
    found = []
    for number in range(len(STRATA)):
        own = errors.stratum == number
        if len(np.unique(errors.source[own])) < FEWEST_SOURCES:
            own = np.ones(len(errors.stratum), bool)
        found.append(conformal_residual(errors.log_error[own], errors.factors_sigma[own], errors.source[own]))
    for less, more in ((1, 0), (2, 0), (3, 1), (3, 2)):
        found[less] = max(found[less], found[more])
    # Folds of a source on its own kind of GPU say nothing of other kinds without tables.
    found[1] = max(found[1], found[3])
    return Widths(
        (found[0], found[1], found[2], found[3]),
        plan_spread(errors.log_error, errors.source),
        memory_residual(errors.memory, errors.memory_source),
    )


@dataclass(frozen=True, slots=True)
class Coverage:
    """One source under the intervals of all others."""

    rows: int
    inside: float  # share
    width: float  # mean of (high - low) / prediction
    median_error: float


def left_out(errors: Errors, scored: NDArray[np.bool_] | None = None) -> dict[str, Coverage]:
    """Coverage of every source, of its rows that are `scored` (all), by residuals it had no part in."""
    scored = np.ones(len(errors.source), bool) if scored is None else scored
    found = {}
    for source in np.unique(errors.source).tolist():
        others, own = errors.without(source), (errors.source == source) & scored
        if not len(others.source) or not own.any():
            continue
        mine = errors.take(own, errors.memory_source == source)
        spread = Z90 * calibrate(others).sigma(mine)
        found[source] = Coverage(
            int(own.sum()),
            float((np.abs(mine.log_error) <= spread).mean()),
            float((2 * np.sinh(spread)).mean()),
            float(np.median(np.abs(np.expm1(-mine.log_error)))),
        )
    return found


def report_text(errors: Errors, scored: NDArray[np.bool_] | None = None) -> str:
    """Residuals in force if these errors are all there is, and each source left out: its rows `scored`."""
    widths, covered = calibrate(errors), left_out(errors, scored)
    lines = [
        f"stack {'known' if stack else 'never seen':10s}  "
        f"GPU kind {'measured' if gpu else 'unmeasured':10s}  "
        f"residual {value:.3f}  ({int((errors.stratum == number).sum())} rows)"
        for number, ((stack, gpu), value) in enumerate(zip(STRATA, widths.residual, strict=True))
    ]
    lines.append(f"plan to plan {widths.plan:.3f}   peak memory {widths.memory:.3f}")
    lines.append(f"\n{'source left out':24s}{'rows':>6s}{'inside':>9s}{'width':>9s}{'median error':>14s}")
    for source, one in covered.items():
        lines.append(
            f"{source:24s}{one.rows:6d}{100 * one.inside:7.1f} %{100 * one.width:7.1f} %"
            f"{100 * one.median_error:12.1f} %"
        )
    if covered:
        inside, width, error = np.mean(
            [(one.inside, one.width, one.median_error) for one in covered.values()], axis=0
        )
        lines.append(
            f"every source the same weight: {100 * inside:.1f} % inside, mean width {100 * width:.1f} %, "
            f"{width / error:.1f} x the median error of {100 * error:.1f} %"
        )
    return "\n".join(lines) + "\n"


def rows_text(errors: Errors) -> str:
    """The file hwdb/efficiency/intervals.csv."""
    widths = calibrate(errors)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)

    def write(kernel: str, stack: str, parameter: str, value: float, n: int, note: str) -> None:
        source, day = (SOURCE, FITTED) if n else ("assumed", "")
        writer.writerow(("*", "*", kernel, stack, "", parameter, f"{value:.3f}", 0, n, source, day, note))

    for number, (known, measured) in enumerate(STRATA):
        own = int((errors.stratum == number).sum())
        sources = len(np.unique(errors.source[errors.stratum == number]))
        note = f"stack {'with fitted rows' if known else 'never seen'}; "
        note += f"GPU kind with{'' if measured else 'out'} kernel tables; {sources} sources"
        note += "" if sources >= FEWEST_SOURCES else "; borrowed from all rows"
        parameter = "residual" if measured else "residual_unmeasured"
        n = own if sources >= FEWEST_SOURCES else len(errors.source)
        write("stack", CALIBRATED if known else "generic", parameter, widths.residual[number], n, note)
    for stack in ("generic", CALIBRATED):  # rows of one's own for `generic` must not speak for other stacks
        note = "median over sources of the spread around their median"
        write("stack", stack, "residual_plan", widths.plan, len(errors.source), note)
        write("stack", stack, "prior_share", 1.0, 0, "nothing calibrated to runs of one's own")
    note = "upper 95 % point of log(measured / predicted) over 1.645"
    write("memory", "generic", "residual", widths.memory, len(errors.memory), note)
    return text.getvalue()


def read_errors(path: Path) -> Errors:
    """Errors from a table of predictions; rows without a measured step count for memory only."""
    rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    needed = {"factors_sigma", "stack_known", "measured_gpu"}
    if not rows or not needed <= rows[0].keys() or not {"error", "log_error"} & rows[0].keys():
        raise BadInputError(
            f"{path}: not a table of predictions: it needs rows and the columns source_id, error (or "
            f"log_error), {', '.join(sorted(needed))}; write one with `tangram validate published RUNS.csv "
            f"-o {path.name}`"
        )

    def number(row: dict[str, str], column: str) -> float:
        try:
            value = float(row.get(column) or "nan")
        except ValueError:
            raise BadInputError(f"{path}: column {column}: {row[column]!r} is no number") from None
        return value

    steps, peaks = [], []
    for row in rows:
        source = row.get("source_id") or row.get("source") or ""
        error = number(row, "log_error") if "log_error" in row else -math.log1p(number(row, "error"))
        if math.isfinite(error):
            known, measured = (row[name].strip().lower() == "yes" for name in ("stack_known", "measured_gpu"))
            steps.append((error, number(row, "factors_sigma"), source, STRATA.index((known, measured))))
        memory = number(row, "memory_error")
        if math.isfinite(memory):
            peaks.append((-math.log1p(memory), source))
    if not steps:
        raise BadInputError(f"{path}: no row has both a prediction and a measured step")
    errors, factors, sources, strata = zip(*steps, strict=True)
    return Errors(
        np.array(errors),
        np.array(factors),
        np.array(sources),
        np.array(strata),
        np.array([memory for memory, _ in peaks]),
        np.array([source for _, source in peaks], dtype=np.str_),
    )


def errors_of(predictions: Sequence[Prediction], seconds: FloatArray, known: NDArray[np.bool_]) -> Errors:
    """Errors of measured predictions whose steps, left out, are `seconds` [N] (see `stackfit.left_out`).

    `known` [N]: the run's stack had other runs to be fitted to.
    """
    measured = np.array([one.run.measured.step_s for one in predictions])
    strata = [STRATA.index((bool(seen), one.measured)) for seen, one in zip(known, predictions, strict=True)]
    peaks = [
        (-math.log1p(one.memory_error), one.run.source_id)
        for one in predictions
        if one.memory_error is not None
    ]
    return Errors(
        np.log(measured / seconds),
        np.array([one.factors_sigma for one in predictions]),
        np.array([one.run.source_id for one in predictions]),
        np.array(strata),
        np.array([error for error, _ in peaks]),
        np.array([source for _, source in peaks], dtype=np.str_),
    )


def main(arguments: Sequence[str]) -> int:
    """Report, and write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_sim.validation.calibration.intervals", description=__doc__
    )
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS.csv")
    parser.add_argument(
        "-o", "--output", type=Path, help="gets the rows, such as hwdb/efficiency/intervals.csv"
    )
    given = parser.parse_args(arguments)
    try:
        errors = read_errors(given.predictions)
        sys.stdout.write(report_text(errors))
        if given.output is not None:
            write_whole(given.output, rows_text(errors))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

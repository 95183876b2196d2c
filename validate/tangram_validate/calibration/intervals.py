"""Residuals of intervals from errors of predictions left out: `python -m ... PREDICTIONS.csv [-o OUT.csv]`.

PREDICTIONS.csv is a record of errors at first sight (`calibration/first_sight.py`): of runs that moved no
parameter and no mechanism when they were predicted.
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

from tangram_sim.datafiles import naming_csv, read_text, write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb.efficiency import CALIBRATED, NOVELTY_STACKS
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.intervals import Z90
from tangram_validate.calibration.first_sight import COLUMNS
from tangram_validate.calibration.novelty import CLASSES
from tangram_validate.calibration.widths import Errors, calibrate, memory_residual

SOURCE = "errors of published runs at first sight, tangram_validate.calibration.intervals"
FITTED = "2026-11-27"  # the day of the fit; rows must not depend on the day they are written again
# Log error of peaks of sources left out of the fit of memory (2026-11-23), and how many there were.
FITTED_PEAKS, FITTED_ROWS = 0.081, 131
HEADER = (
    *("gpu", "dtype", "kernel", "stack", "version", "parameter", "value", "sigma", "n", "source", "date"),
    "note",
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often one source's steps lie inside 90 % intervals that were made from all other sources."""

    rows: int
    inside: float  # share
    width: float  # mean of (high - low) / prediction
    median_error: float


def spreads(errors: Errors) -> FloatArray:
    """Log half-width of every step's 90 % interval, [N], by residuals that its source had no part in."""
    found = np.full(len(errors.source), np.nan)
    for source in np.unique(errors.source).tolist():
        others, own = errors.without(source), errors.source == source
        if len(others.source):
            mine = errors.take(own, errors.memory_source == source)
            found[own] = Z90 * calibrate(others).sigma(mine)
    return found


def left_out(errors: Errors, scored: NDArray[np.bool_] | None = None) -> dict[str, Coverage]:
    """Coverage of every source, of its rows that are `scored` (all), by residuals it had no part in."""
    scored = np.ones(len(errors.source), bool) if scored is None else scored
    found, spread = {}, spreads(errors)
    for source in np.unique(errors.source).tolist():
        own = (errors.source == source) & scored & np.isfinite(spread)
        if own.any():
            error = errors.log_error[own]
            found[source] = Coverage(
                int(own.sum()),
                float((np.abs(error) <= spread[own]).mean()),
                float((2 * np.sinh(spread[own])).mean()),
                float(np.median(np.abs(np.expm1(-error)))),
            )
    return found


def peaks_exceeded(errors: FloatArray, source: NDArray[np.str_]) -> dict[str, float]:
    """Share of each source's peaks above the bound that the others' set: to hold in 19 cases of 20."""
    found = {}
    for name in np.unique(source).tolist():
        own = source == name
        if not own.all():
            bound = Z90 * memory_residual(errors[~own], source[~own])
            found[name] = float((errors[own] > bound).mean())
    return found


def report_text(errors: Errors, scored: NDArray[np.bool_] | None = None) -> str:
    """Text: residuals fitted to all errors, then the coverage of each left-out source's rows `scored`."""
    widths, covered = calibrate(errors), left_out(errors, scored)
    lines = [
        f"{name:22s} residual {value:.3f}, share {share:.2f}  ({int((errors.novelty == number).sum())} rows)"
        for number, (name, value, share) in enumerate(
            zip(CLASSES, widths.residual, widths.share, strict=True)
        )
    ]
    lines.append(
        f"GPU kind without tables adds {widths.unmeasured:.3f}, a mixture {widths.mixture[0]:.3f}, "
        f"under stacks that ran none {widths.mixture[-1]:.3f}"
    )
    lines.append(
        f"plan to plan {widths.plan:.3f}   peak memory {widths.memory:.3f}, of stacks whose peaks "
        f"nobody measured {widths.memory_unfitted:.3f}"
    )
    lines.append(f"\n{'source left out':24s}{'rows':>6s}{'inside':>9s}{'width':>9s}{'median error':>14s}")
    for source, coverage in covered.items():
        lines.append(
            f"{source:24s}{coverage.rows:6d}{100 * coverage.inside:7.1f} %{100 * coverage.width:7.1f} %"
            f"{100 * coverage.median_error:12.1f} %"
        )
    if covered:
        inside, width, error = np.mean(
            [(coverage.inside, coverage.width, coverage.median_error) for coverage in covered.values()],
            axis=0,
        )
        lines.append(
            f"every source the same weight: {100 * inside:.1f} % inside, mean width {100 * width:.1f} %, "
            f"{width / error:.1f} x the median error of {100 * error:.1f} %"
        )
    return "\n".join(lines) + "\n"


def rows_text(errors: Errors) -> str:
    """Text of hwdb/efficiency/intervals.csv: the residuals that these errors give, with counts and notes."""
    widths = calibrate(errors)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)

    def write(kernel: str, stack: str, parameter: str, value: float, n: int, note: str) -> None:
        source, day = (SOURCE, FITTED) if n else ("assumed", "")
        writer.writerow(("*", "*", kernel, stack, "", parameter, f"{value:.3f}", 0, n, source, day, note))

    for number, (name, of) in enumerate(zip(CLASSES, NOVELTY_STACKS, strict=True)):
        own = errors.novelty == number
        sources = len(np.unique(errors.source[own]))
        write("stack", of, "residual", widths.residual[number], int(own.sum()), f"{name}; {sources} sources")
    for name, of, value in zip(CLASSES, NOVELTY_STACKS, widths.source, strict=True):
        write("stack", of, "residual_source", value, len(errors.source), f"{name}; shared by a source's rows")
    unmeasured = int((~errors.measured).sum())
    note = "added: GPU kind without kernel tables"
    write("stack", "generic", "residual_unmeasured", widths.unmeasured, unmeasured, note)
    for name, of, value in zip(CLASSES, NOVELTY_STACKS, widths.mixture, strict=True):
        note = f"{name}; added: mixture of experts"
        write("stack", of, "residual_mixture", value, int(errors.mixture.sum()), note)
    for number, (name, of) in enumerate(zip(CLASSES, NOVELTY_STACKS, strict=True)):
        own = errors.novelty == number
        note = f"{name}; of what parameters are said to err by"
        write("stack", of, "prior_share", widths.share[number], int(own.sum()), note)
    for stack in ("generic", CALIBRATED):  # rows of one's own for `generic` must not speak for other stacks
        note = "median over sources of the spread around their median"
        write("stack", stack, "residual_plan", widths.plan, len(errors.source), note)
    note = "upper 95 % point of log(measured / predicted) over 1.645"
    write("memory", "generic", "residual", widths.memory_unfitted, len(errors.memory), note)
    note = "of stacks whose peaks were fitted, sources left out: what plans leave room for"
    write("memory", "generic", "residual_plan", FITTED_PEAKS, FITTED_ROWS, note)
    return text.getvalue()


def _records(path: Path) -> list[dict[str, str]]:
    with naming_csv(path):
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    if not rows or not set(COLUMNS) <= rows[0].keys():
        raise BadInputError(
            f"{path}: not a record of errors at first sight: it needs rows and the columns "
            f"{', '.join(COLUMNS)}; write one with `python -m tangram_validate.calibration.first_sight`"
        )
    return rows


def _number(row: dict[str, str], column: str, path: Path) -> float:
    try:
        return float(row[column] or "nan")
    except ValueError:
        raise BadInputError(f"{path}: column {column}: {row[column]!r} is no number") from None


def read_errors(path: Path) -> tuple[Errors, list[str]]:
    """(errors, names of the runs of its steps) of a record; rows without a step count for memory only.

    Raises BadInputError for a table that is no such record, or has no measured step.
    """
    steps, peaks = [], []
    for row in _records(path):
        error, memory = (_number(row, column, path) for column in ("log_error", "log_memory"))
        if math.isfinite(error):
            sigma = math.hypot(*(_number(row, column, path) for column in ("factors_sigma", "spread")))
            novelty, flags = int(_number(row, "novelty", path)), (row["measured_gpu"], row["mixture"])
            steps.append(
                (error, sigma, row["source_id"], novelty, *(flag == "yes" for flag in flags), row["id"])
            )
        if math.isfinite(memory):
            peaks.append((memory, row["source_id"]))
    if not steps:
        raise BadInputError(f"{path}: no row has both a prediction and a measured step")
    errors, factors, sources, classes, tabled, mixed, names = zip(*steps, strict=True)
    own = np.array([memory for memory, _ in peaks])
    found = Errors(
        np.array(errors),
        np.array(factors),
        np.array(sources),
        np.array(classes),
        np.array(tabled),
        np.array(mixed),
        own,
        np.array([source for _, source in peaks], dtype=np.str_),
        own,
    )
    return found, list(names)


def recorded_sigma(path: Path) -> FloatArray:
    """Log standard deviations [N] that the product of that day gave the steps of a record."""
    rows = [row for row in _records(path) if row["log_error"]]
    return np.array([_number(row, "sigma", path) for row in rows])


def main(arguments: Sequence[str]) -> int:
    """Report, and write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_validate.calibration.intervals", description=__doc__
    )
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS.csv")
    parser.add_argument(
        "-o", "--output", type=Path, help="gets the rows, such as hwdb/efficiency/intervals.csv"
    )
    given = parser.parse_args(arguments)
    try:
        errors, _ = read_errors(given.predictions)
        sys.stdout.write(report_text(errors))
        if given.output is not None:
            write_whole(given.output, rows_text(errors))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Residuals of intervals from errors of predictions left out: `python -m ... PREDICTIONS.csv [-o OUT.csv]`.

PREDICTIONS.csv is what `tangram validate published -o` writes, or any table of its columns `source_id, gpu,
stack, error` (or `log_error` = log(measured / predicted)), `factors_sigma, stack_known, measured_gpu` (yes or
no), and `mixture` (yes or no) where it has one. To be honest, every prediction must come from parameters that
its source never touched.
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangram_sim.datafiles import read_text, write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb.efficiency import CALIBRATED, NOVELTY_STACKS
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.intervals import Z90
from tangram_sim.validation.calibration.novelty import CLASSES

COVERED = 0.90
ROWS = 10  # independent rows that a source is taken for, however many it has
FEWEST_SOURCES = 3  # of a stratum that speaks for itself
FEWEST_ROWS = 20
BELIEVED = 0.5  # of what few sources say against the errors of factors
SLIPPED = 0.25  # log error of a peak
SOURCE = "errors of published runs left out, tangram_sim.validation.calibration.intervals"
FITTED = "2026-11-22"  # the day of the fit; rows must not depend on the day they are written again
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
    novelty: NDArray[np.int64]  # into novelty.CLASSES
    measured: NDArray[np.bool_]  # the GPU kind has kernel tables
    mixture: NDArray[np.bool_]  # of experts
    memory: FloatArray  # log(measured / predicted) of the peaks there are, any length
    memory_source: NDArray[np.str_]
    unfitted: FloatArray  # the same of those peaks under the assumed overheads, as of a stack never fitted
    whole: NDArray[np.bool_] | None = (
        None  # the whole source was left out, kernels and all; None: of all rows
    )

    def take(self, mask: NDArray[np.bool_], memory: NDArray[np.bool_]) -> "Errors":
        """The entries at `index`, an array of places or a mask."""
        return Errors(
            self.log_error[mask],
            self.factors_sigma[mask],
            self.source[mask],
            self.novelty[mask],
            self.measured[mask],
            self.mixture[mask],
            self.memory[memory],
            self.memory_source[memory],
            self.unfitted[memory],
            None if self.whole is None else self.whole[mask],
        )

    def without(self, source: str) -> "Errors":
        """These errors without those of one source."""
        return self.take(self.source != source, self.memory_source != source)


@dataclass(frozen=True, slots=True)
class Widths:
    """Log standard deviations: of a step beyond its factors, from plan to plan, of a peak.

    What a GPU kind without tables and a mixture of experts add is independent of the rest: variances add up.
    """

    residual: tuple[float, ...]  # as novelty.CLASSES
    share: tuple[float, ...]  # the same: of what factors are said to err by, 1 at most
    source: tuple[float, ...]  # the same: what the rows of one source share
    unmeasured: float
    mixture: float
    plan: float
    memory: float
    memory_unfitted: float  # of a stack whose peaks were never measured

    def sigma(self, errors: Errors) -> FloatArray:
        """Log standard deviation of every step of `errors`, [N]: factors, stack, what nobody measured."""
        added = np.where(errors.measured, 0.0, self.unmeasured**2) + np.where(
            errors.mixture, self.mixture**2, 0.0
        )
        own, share = np.array(self.residual)[errors.novelty], np.array(self.share)[errors.novelty]
        total: FloatArray = np.sqrt((share * errors.factors_sigma) ** 2 + own**2 + added)
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
    highest = float(np.abs(log_error).max()) / Z90
    return _least(lambda one: np.hypot(factors_sigma, one), highest, log_error, source)


def conformal_share(
    log_error: FloatArray, factors_sigma: FloatArray, residual: float, source: NDArray[np.str_]
) -> float:
    """The least share of what factors err by that holds as many rows inside, 1 at most.

    Errors of the parameters of stacks are priors' as much as fits': a class of runs may show that they are
    too wide.
    """
    return _least(lambda one: np.hypot(one * factors_sigma, residual), 1.0, log_error, source)


def _least(
    sigma_at: Callable[[float], FloatArray], highest: float, log_error: FloatArray, source: NDArray[np.str_]
) -> float:
    """The least number up to `highest` at which the sigmas [N] hold the share of rows asked for inside."""
    weights, n = _weights(source)
    share = min(math.ceil(COVERED * (n + 1)) / n, 1.0)

    def holds(number: float) -> bool:
        within = np.abs(log_error) <= Z90 * sigma_at(number) * (1 + 1e-12)
        return float(weights[within].sum() / weights.sum()) >= share - 1e-12

    low, high = 0.0, highest
    if holds(low):
        return low
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def plan_spread(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of rows around their source's median, the median over sources of three rows."""
    found = [
        1.4826 * float(np.median(np.abs(own - np.median(own))))
        for name in np.unique(source)
        if len(own := log_error[source == name]) >= 3
    ]
    return float(np.median(found)) if found else 0.0


def between_sources(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of the sources' medians around 0: root mean square, the worst fifth clipped."""
    medians = np.sort([abs(float(np.median(log_error[source == name]))) for name in np.unique(source)])
    if not len(medians):
        return 0.0
    clipped = np.minimum(medians, medians[int(0.8 * (len(medians) - 1))])
    return float(np.sqrt((clipped**2).mean()))


def memory_residual(log_error: FloatArray, source: NDArray[np.str_]) -> float:
    """Log standard deviation of peaks whose upper 95 % point covers what was measured.

    At least the root mean square of the errors, every source the same weight: with few sources, what the next
    one is off by is better told by the size of all errors than by the upper ones alone. Errors beyond
    `SLIPPED` are taken for a slip of the table.
    """
    if not len(log_error):
        return 0.0
    weights, _ = _weights(source)
    kept = np.clip(log_error, -SLIPPED, SLIPPED)
    order = np.argsort(kept, kind="stable")
    heap = np.cumsum(weights[order])
    at = min(int(np.searchsorted(heap, 0.5 * (1 + COVERED) * heap[-1] - 1e-9)), len(order) - 1)
    size = float(np.sqrt(weights @ kept**2 / weights.sum()))
    return max(float(kept[order[at]]) / Z90, size)


def calibrate(errors: Errors) -> Widths:
    """Residuals by novelty, of dense models on measured GPU kinds; then what other kinds and mixtures add.

    A class seen in fewer than three sources, or in few rows, borrows those of the classes that know less (of
    the last: all), and no residual is less than that of a class that knows more. Where enough whole sources
    were left out of a class, they must be held by themselves, too: stacks left out are seen in other rows of
    the same machine.
    """
    plain = errors.measured & ~errors.mixture
    whole = np.ones(len(plain), bool) if errors.whole is None else errors.whole

    def residual(use: NDArray[np.bool_], sigma: FloatArray) -> float:
        return conformal_residual(errors.log_error[use], sigma[use], errors.source[use])

    def enough(use: NDArray[np.bool_]) -> bool:
        return len(np.unique(errors.source[use])) >= FEWEST_SOURCES and int(use.sum()) >= FEWEST_ROWS

    def share(use: NDArray[np.bool_], beside: float) -> float:
        error, sigma = errors.log_error[use], errors.factors_sigma[use]
        return 1.0 - BELIEVED * (1.0 - conformal_share(error, sigma, beside, errors.source[use]))

    def between(use: NDArray[np.bool_]) -> float:
        return between_sources(errors.log_error[use], errors.source[use])

    found: list[float] = []
    shares: list[float] = []
    shared: list[float] = []
    for number in range(len(CLASSES)):
        own = plain & (errors.novelty == number)
        if not enough(own):
            own = plain & (errors.novelty >= number)
        if not enough(own):
            own = np.ones(len(plain), bool)
        of = [own, own & whole] if enough(own & whole) else [own]
        found.append(max(*(residual(one, errors.factors_sigma) for one in of), *found[-1:], 0.0))
        shares.append(max(share(one, found[-1]) for one in of))
        shared.append(max(*(between(one) for one in of), *shared[-1:], 0.0))
    widths = Widths(tuple(found), tuple(shares), tuple(shared), 0.0, 0.0, 0.0, 0.0, 0.0)
    dense = ~errors.measured & ~errors.mixture
    unmeasured = residual(dense, widths.sigma(errors)) if dense.any() else 0.0
    widths = replace(widths, unmeasured=unmeasured)
    mixture = residual(errors.mixture, widths.sigma(errors)) if errors.mixture.any() else 0.0
    return replace(
        widths,
        mixture=mixture,
        plan=plan_spread(errors.log_error, errors.source),
        memory=memory_residual(errors.memory, errors.memory_source),
        memory_unfitted=memory_residual(errors.unfitted, errors.memory_source),
    )


@dataclass(frozen=True, slots=True)
class Coverage:
    """One source under the intervals of all others."""

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
    """Residuals in force if these errors are all there is, and each source left out: its rows `scored`."""
    widths, covered = calibrate(errors), left_out(errors, scored)
    lines = [
        f"{name:22s} residual {value:.3f}, share {share:.2f}  ({int((errors.novelty == number).sum())} rows)"
        for number, (name, value, share) in enumerate(
            zip(CLASSES, widths.residual, widths.share, strict=True)
        )
    ]
    lines.append(f"GPU kind without tables adds {widths.unmeasured:.3f}, a mixture {widths.mixture:.3f}")
    lines.append(
        f"plan to plan {widths.plan:.3f}   peak memory {widths.memory:.3f}, of stacks whose peaks "
        f"nobody measured {widths.memory_unfitted:.3f}"
    )
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

    for number, (name, of) in enumerate(zip(CLASSES, NOVELTY_STACKS, strict=True)):
        own = errors.novelty == number
        sources = len(np.unique(errors.source[own]))
        write("stack", of, "residual", widths.residual[number], int(own.sum()), f"{name}; {sources} sources")
    for name, of, value in zip(CLASSES, NOVELTY_STACKS, widths.source, strict=True):
        write("stack", of, "residual_source", value, len(errors.source), f"{name}; shared by a source's rows")
    for parameter, value, own, note in (
        ("residual_unmeasured", widths.unmeasured, ~errors.measured, "added: GPU kind without kernel tables"),
        ("residual_mixture", widths.mixture, errors.mixture, "added: mixture of experts"),
    ):
        write("stack", "generic", parameter, value, int(own.sum()), note)
    for number, (name, of) in enumerate(zip(CLASSES, NOVELTY_STACKS, strict=True)):
        own = errors.novelty == number
        note = f"{name}; of what parameters are said to err by"
        write("stack", of, "prior_share", widths.share[number], int(own.sum()), note)
    for stack in ("generic", CALIBRATED):  # rows of one's own for `generic` must not speak for other stacks
        note = "median over sources of the spread around their median"
        write("stack", stack, "residual_plan", widths.plan, len(errors.source), note)
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
            mixture = (row.get("mixture") or "no").strip().lower() == "yes"
            novelty = 0 if known else len(CLASSES) - 1
            steps.append((error, number(row, "factors_sigma"), source, novelty, measured, mixture))
        memory = number(row, "memory_error")
        if math.isfinite(memory):
            peaks.append((-math.log1p(memory), source))
    if not steps:
        raise BadInputError(f"{path}: no row has both a prediction and a measured step")
    errors, factors, sources, classes, tabled, mixed = zip(*steps, strict=True)
    own = np.array([memory for memory, _ in peaks])
    return Errors(
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

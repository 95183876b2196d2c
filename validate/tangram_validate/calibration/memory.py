"""Fits memory.csv to published runs: `python -m tangram_validate.calibration.memory RUNS.csv OUT.csv`.

Two figures per software stack say what measured peaks hold beside the accounted tensors: workspaces, and what
the allocator caches beyond activations. A stack without runs borrows those of stacks with the same runtime.
Prints errors in-sample, on configurations left out and on sources left out, and the ten worst rows.
"""

import argparse
import csv
import io
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.stacks import STACKS
from tangram_sim.units import GIGA
from tangram_validate.calibration.folds import FOLDS, configuration
from tangram_validate.calibration.surfaces import HEADER
from tangram_validate.published.predict import Prediction, predict_rows
from tangram_validate.published.reading import MEMORY_KINDS, read_table
from tangram_validate.published.stacks import GENERIC

Mask = NDArray[np.bool_]

SOURCE = "fit to published runs, tangram_validate.calibration.memory"
FITTED = "2026-11-21"  # the day of the fit; rows must not depend on the day they are written again
# Stacks on one runtime: its buckets, buffers and use of the allocator are theirs.
RUNTIMES = {"megatron-deepspeed": "deepspeed", "deepspeed": "deepspeed", "sailor": "deepspeed"}
WIDTH = 0.05  # log errors well above this hardly pull
ROWS = 10.0  # independent rows that a source is taken for, however many it has
WORST = 10


class Overhead(NamedTuple):
    """What a stack holds beside accounted tensors."""

    workspace_bytes: float
    fragmentation: float  # share of activations


KEYS = ("memory_workspace_bytes", "memory_fragmentation")  # the efficiency row of each field
ASSUMED = Overhead(0.0, 0.10)
SIGMA = Overhead(4 * GIGA, 0.15)  # how far from the prior a stack may be
HIGHEST = Overhead(20 * GIGA, 0.8)
STEPS = Overhead(0.5 * GIGA, 0.02)  # of the search, and of the curvature


@dataclass(frozen=True, slots=True)
class MeasuredPeaks:
    """N measured peaks and the parts of their predictions."""

    name: tuple[str, ...]
    measured: FloatArray  # bytes
    kind: NDArray[np.int64]  # entry of MEMORY_KINDS
    static: FloatArray  # bytes of states
    activations: FloatArray  # bytes that come and go
    context: FloatArray  # bytes outside the allocator
    source: NDArray[np.str_]
    stack: NDArray[np.str_]
    fold: NDArray[np.int64]

    def peaks(self, overhead: Overhead) -> FloatArray:
        """Predicted bytes of the kind that each row measured, [N]."""
        cached = np.where(self.kind > 0, 1.0 + overhead.fragmentation, 1.0)
        outside = np.where(self.kind == len(MEMORY_KINDS) - 1, self.context, 0.0)
        total: FloatArray = self.static + overhead.workspace_bytes + cached * self.activations + outside
        return total


def cases(rows: Sequence[Mapping[str, str]], overlays: Sequence[Path] = ()) -> MeasuredPeaks:
    """The rows with a measured peak, predicted. Raises BadInputError where there is none."""
    rows = [row for row in rows if (row.get("peak_mem_gb") or "").strip()]
    found = predict_rows(rows, _separating(overlays))
    runs = [item for item in found if isinstance(item, Prediction) and item.memory_error is not None]
    if not runs:
        raise BadInputError("no row that can be predicted has a measured peak_mem_gb")
    cached = np.array([run.reserved_bytes - run.allocated_bytes for run in runs])
    activations = cached / ASSUMED.fragmentation
    return MeasuredPeaks(
        name=tuple(run.run.id for run in runs),
        measured=np.array([run.run.measured.peak_bytes for run in runs]),
        kind=np.array([MEMORY_KINDS.index(run.run.measured.memory) for run in runs]),
        static=np.array([run.allocated_bytes for run in runs]) - activations,
        activations=activations,
        context=np.array([run.device_bytes - run.reserved_bytes for run in runs]),
        source=np.array([run.run.source_id for run in runs]),
        stack=np.array([run.run.job.stack for run in runs]),
        fold=np.array([configuration(run.run) % FOLDS for run in runs]),
    )


def _separating(overlays: Sequence[Path]) -> Hwdb:
    """The database with every stack as assumed: reserved - allocated = .1 x activation bytes.

    Silent runs recompute what such stacks would, whatever is fitted.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for stack in STACKS:
        for parameter, value in zip(KEYS, ASSUMED, strict=True):
            writer.writerow(("*", "*", "stack", stack, "", parameter, value, 0, 0, "candidate", ""))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "efficiency"
        folder.mkdir()
        (folder / "candidate.csv").write_text(text.getvalue(), encoding="utf-8")
        return Hwdb.load([*overlays, Path(name)])


def _loss(cases: MeasuredPeaks, use: Mask, at: Overhead) -> float:
    """Negative log posterior: Cauchy's loss of log errors, every source the same weight, plus the prior's."""
    _, place, counts = np.unique(cases.source[use], return_inverse=True, return_counts=True)
    error = np.log(cases.peaks(at)[use] / cases.measured[use]) / WIDTH
    away = [(item - prior) / sigma for item, prior, sigma in zip(at, ASSUMED, SIGMA, strict=True)]
    return float((ROWS / counts[place]) @ np.log1p(0.5 * error * error)) + 0.5 * sum(x * x for x in away)


def fit(cases: MeasuredPeaks, use: Mask) -> Overhead:
    """The most probable overhead of the rows in use, ASSUMED where there are none: a compass search."""
    if not use.any():
        return ASSUMED
    at, step = ASSUMED, 4.0
    best = _loss(cases, use, at)
    while step > 0.02:
        moved = False
        for axis in range(len(KEYS)):
            for sign in (step, -step):
                trial = list(at)
                trial[axis] = min(max(at[axis] + sign * STEPS[axis], 0.0), HIGHEST[axis])
                value = _loss(cases, use, Overhead(*trial))
                if value < best - 1e-12:
                    at, best, moved = Overhead(*trial), value, True
        if not moved:
            step /= 2
    return at


def deviations(cases: MeasuredPeaks, use: Mask, at: Overhead) -> Overhead:
    """Standard deviations of a fit, from the curvature of the loss (finite differences)."""
    found = []
    for axis, (step, widest) in enumerate(zip(STEPS, SIGMA, strict=True)):
        aside = [Overhead(*(x + sign * step * (n == axis) for n, x in enumerate(at))) for sign in (1, -1)]
        curvature = sum(_loss(cases, use, item) for item in aside) - 2 * _loss(cases, use, at)
        found.append(min(step / math.sqrt(curvature), widest) if curvature > 0 else widest)
    return Overhead(*found)


def runs_behind(cases: MeasuredPeaks, stack: str, use: Mask) -> Mask:
    """Which rows [N] a stack is fitted to: its own, else those of stacks with its runtime, else none."""
    own: Mask = use & (cases.stack == stack)
    if own.any():
        return own
    kin = [other for other, runtime in RUNTIMES.items() if runtime == RUNTIMES.get(stack, "")]
    shared: Mask = use & np.isin(cases.stack, kin)
    return shared


def overhead(cases: MeasuredPeaks, stack: str, use: Mask) -> Overhead:
    """What a stack keeps by the rows in use.

    Its runtime's buffers are its own; how much an allocator caches depends on what else runs, so a stack
    without rows of its own has it as assumed.
    """
    found = fit(cases, runs_behind(cases, stack, use))
    return found if (use & (cases.stack == stack)).any() else Overhead(found[0], ASSUMED[1])


def predict(cases: MeasuredPeaks, use: Mask) -> FloatArray:
    """Peaks of all rows under the fits of the rows in use, [N]."""
    peaks = np.zeros(len(cases.measured))
    for stack in sorted(set(cases.stack.tolist())):
        mask = cases.stack == stack
        peaks[mask] = cases.peaks(overhead(cases, stack, use))[mask]
    return peaks


def left_out(cases: MeasuredPeaks, groups: NDArray[np.generic]) -> FloatArray:
    """Peaks of every row under fits without its group, [N]."""
    peaks = np.zeros(len(cases.measured))
    for group in np.unique(groups):
        out = groups == group
        peaks[out] = predict(cases, ~out)[out]
    return peaks


def splits(cases: MeasuredPeaks) -> dict[str, FloatArray]:
    """Peaks as assumed, in-sample, and left out in two ways, by the name of the split."""
    return {
        "assumed": cases.peaks(ASSUMED),
        "in-sample": predict(cases, np.ones(len(cases.measured), bool)),
        "5-fold": left_out(cases, cases.fold),
        "source left out": left_out(cases, cases.source),
    }


def accuracy(cases: MeasuredPeaks, peaks: FloatArray, use: Mask | None = None) -> tuple[float, float]:
    """(median, 90th percentile) of relative errors, means over sources."""
    use = np.ones(len(peaks), bool) if use is None else use
    error = np.abs(peaks / cases.measured - 1)
    by_source = [error[use & (cases.source == source)] for source in np.unique(cases.source[use])]
    return (
        float(np.mean([np.median(item) for item in by_source])),
        float(np.mean([np.percentile(item, 90) for item in by_source])),
    )


def fitted_stacks(cases: MeasuredPeaks) -> list[str]:
    """The stacks that get rows: with measured peaks, of their own or of their runtime."""
    everything = np.ones(len(cases.measured), bool)
    stacks = sorted({*cases.stack.tolist(), *RUNTIMES} - {GENERIC})
    return [stack for stack in stacks if runs_behind(cases, stack, everything).any()]


def rows_text(cases: MeasuredPeaks) -> str:
    """Efficiency rows of every stack that runs, its own or its runtime's, speak for: text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*HEADER, "note"))
    everything = np.ones(len(cases.measured), bool)
    for stack in fitted_stacks(cases):
        use = runs_behind(cases, stack, everything)
        at, own = fit(cases, use), bool((cases.stack == stack).any())
        spread = deviations(cases, use, at)
        note = f"sources: {' '.join(sorted(set(cases.source[use].tolist())))}"
        for parameter, value, sigma in zip(KEYS, at, spread, strict=True):
            if parameter == "memory_fragmentation" and not (own and cases.kind[use].any()):
                continue  # other stacks, and peaks of tensors, say nothing about its allocator
            figures = (f"{x:.2e}" if parameter.endswith("bytes") else f"{x:.3f}" for x in (value, sigma))
            writer.writerow(
                ("*", "*", "stack", stack, "", parameter, *figures, int(use.sum()), SOURCE, FITTED, note)
            )
    return text.getvalue()


def report_text(cases: MeasuredPeaks) -> str:
    """Errors in percent by split, source and kind, and the worst rows, as lines of text."""
    found = splits(cases)
    groups = {"every source the same weight": np.ones(len(cases.measured), bool)}
    groups |= {source: cases.source == source for source in sorted(set(cases.source.tolist()))}
    groups |= {kind: cases.kind == number for number, kind in enumerate(MEMORY_KINDS)}
    lines = [f"{'median / 90th percentile, %':30s}{'rows':>6s}" + "".join(f"{name:>18s}" for name in found)]
    for name, use in groups.items():
        if use.any():
            figures = (accuracy(cases, peaks, use) for peaks in found.values())
            cells = "".join(f"{100 * median:11.1f} /{100 * tail:5.1f}" for median, tail in figures)
            lines.append(f"{name:30s}{int(use.sum()):6d}{cells}")
    error = found["in-sample"] / cases.measured - 1
    lines.append(f"worst {WORST} in-sample: predicted, measured GB, error %")
    for row in np.argsort(-np.abs(error), kind="stable")[:WORST].tolist():
        peaks = f"{found['in-sample'][row] / GIGA:8.1f}{cases.measured[row] / GIGA:8.1f}"
        lines.append(f"{cases.name[row]:30s}{peaks}{100 * error[row]:+8.1f}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Fit, report, write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_validate.calibration.memory", description=__doc__
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.csv", help="measured training runs, one per row")
    parser.add_argument("out", type=Path, metavar="OUT.csv", nargs="?", help="gets the efficiency rows")
    parser.add_argument("--hwdb", type=Path, action="append", default=[], help="overlay folder, repeatable")
    given = parser.parse_args(arguments)
    try:
        found = cases(read_table(given.runs), given.hwdb)
        if given.out is not None:
            write_whole(given.out, rows_text(found))
        sys.stdout.write(report_text(found))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

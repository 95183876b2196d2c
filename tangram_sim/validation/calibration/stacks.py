"""Fits stacks.csv and intervals.csv: `python -m tangram_sim.validation.calibration.stacks RUNS.csv OUT_DIR`.

At most five parameters per software stack, none per run, GPU, model or source; prints how accurate they are
on the runs they were fitted to, on configurations left out and on whole sources left out.
"""

import argparse
import csv
import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.validation.calibration import intervals, memory, stackfit
from tangram_sim.validation.calibration.folds import FOLDS, configuration
from tangram_sim.validation.calibration.stackfit import Cases
from tangram_sim.validation.calibration.surfaces import HEADER, KEYS, Parameters, settled, surface
from tangram_sim.validation.published.predict import Prediction, Predictor, predict_rows
from tangram_sim.validation.published.reading import read_table
from tangram_sim.validation.published.stacks import DEEPSPEED, GENERIC

SOURCE = "fit to published runs, tangram_sim.validation.calibration.stacks"
FITTED = "2026-11-21"  # the day of the fit; rows must not depend on the day they are written again
MOST_ROWS = 120  # of one source that are used


def sample(predictions: Sequence[Prediction], most: int = MOST_ROWS) -> list[Prediction]:
    """At most `most` measured runs of every source, picked by their configurations."""
    by_source: dict[str, list[Prediction]] = {}
    for one in predictions:
        if one.error is not None:
            by_source.setdefault(one.run.source_id, []).append(one)
    return [
        one
        for source in sorted(by_source)
        for one in sorted(by_source[source], key=lambda one: configuration(one.run))[:most]
    ]


def cases(predictions: Sequence[Prediction], overlays: Sequence[Path]) -> Cases:
    """The runs of some predictions, ready to be fitted to."""
    runs = [settled(one) for one in predictions]
    return Cases(
        measured=np.array([run.measured.step_s for run in runs]),
        source=np.array([run.source_id for run in runs]),
        stack=np.array([run.job.stack for run in runs]),
        fold=np.array([configuration(one.run) % FOLDS for one in predictions]),
        surface=surface(runs, overlays),
    )


def rows_text(cases: Cases, fits: Mapping[str, Parameters]) -> str:
    """Efficiency rows of every stack, as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*HEADER, "note"))
    everyone = np.ones(len(cases.stack), bool)
    starts = stackfit.priors(cases, everyone)
    for stack in (GENERIC, *sorted(set(fits) - {GENERIC})):
        mask = everyone if stack == GENERIC else cases.stack == stack
        if not mask.any():  # known by its kin alone
            mask = np.isin(cases.stack, DEEPSPEED)
        prior, width = starts[stack], stackfit.LOOSE if stack == GENERIC else stackfit.TIGHT
        spread = stackfit.deviations(
            cases.surface.take(mask), cases.measured[mask], cases.source[mask], prior, width, fits[stack]
        )
        note = f"sources: {' '.join(sorted(set(cases.source[mask].tolist())))}"
        for (kernel, parameter), value, sigma in zip(KEYS, fits[stack], spread, strict=True):
            figures = (f"{x:.1e}" if parameter == "seconds" else f"{x:.3f}" for x in (value, value * sigma))
            writer.writerow(
                ("*", "*", kernel, stack, "", parameter, *figures, int(mask.sum()), SOURCE, FITTED, note)
            )
    return text.getvalue()


def report_text(cases: Cases, fits: Mapping[str, Parameters]) -> str:
    """Parameters, accuracy by source and split in percent, and intervals, as lines of text."""
    splits = {
        "assumed": cases.surface.seconds(stackfit.ASSUMED),
        "in-sample": stackfit.predict(cases, fits),
        "5-fold": stackfit.left_out(cases, cases.fold)[0],
        "source left out": stackfit.left_out(cases, cases.source)[0],
    }
    lines = [f"{'stack':20s}{'scale':>8s}{'attn':>7s}{'us/kernel':>11s}{'tp':>7s}{'dp':>7s}"]
    for stack, (scale, attention, dispatch, tensor, data) in fits.items():
        lines.append(f"{stack:20s}{scale:8.3f}{attention:7.2f}{dispatch * 1e6:11.1f}{tensor:7.2f}{data:7.2f}")
    found = {name: stackfit.accuracy(cases, seconds) for name, seconds in splits.items()}
    lines.append(f"\n{'split':20s}{'macro':>8s}{'medians':>9s}{'p90':>7s}{'bias':>7s}")
    for name, one in found.items():
        figures = (one.macro_median, one.median_of_medians, one.macro_p90, one.bias)
        lines.append(f"{name:20s}{{:8.1f}}{{:9.1f}}{{:7.1f}}{{:+7.1f}}".format(*(100 * x for x in figures)))
    lines.append(f"\n{'source':22s}{'rows':>5s}" + "".join(f"{name:>20s}" for name in found))
    for source, (n, *_) in found["in-sample"].by_source.items():
        cells = []
        for one in found.values():
            _, *of_source = one.by_source[source]
            cells.append("{:8.1f}{:6.0f}{:+6.0f}".format(*(100 * x for x in of_source)))
        lines.append(f"{source:22s}{n:5d}{''.join(cells)}")
    return "\n".join(lines) + "\n"


def errors_left_out(
    predictions: Sequence[Prediction],
    cases: Cases,
    rows: str,
    overlays: Sequence[Path],
    peaks: memory.Cases | None,
) -> tuple[intervals.Errors, NDArray[np.bool_]]:
    """Errors of runs left out with their source, then with their configuration; which are the former.

    The latter speak for stacks that are known; of the former only those whose stack other sources run. Errors
    of peaks are those of sources left out of the fit of memory.
    """
    with tempfile.TemporaryDirectory() as name:
        write_whole(Path(name) / "efficiency" / "stacks.csv", rows)
        predictor = Predictor(Hwdb.load([*overlays, Path(name)]))
    again = [predictor.predict(settled(one)) for one in predictions]
    both = [one for one in again if isinstance(one, Prediction)]
    by_source, known = stackfit.left_out(cases, cases.source)
    by_fold, seen = stackfit.left_out(cases, cases.fold)
    errors = intervals.errors_of(
        [*both, *both], np.concatenate([by_source, by_fold]), np.concatenate([known, seen])
    )
    if peaks:
        held = memory.left_out(peaks, peaks.source)
        errors = replace(errors, memory=np.log(peaks.measured / held), memory_source=peaks.source)
    return errors, np.arange(2 * len(both)) < len(both)


def main(arguments: Sequence[str]) -> int:
    """Fit, report, write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_sim.validation.calibration.stacks", description=__doc__
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.csv", help="measured training runs, one per row")
    parser.add_argument(
        "out_dir", type=Path, metavar="OUT_DIR", help="gets stacks.csv and intervals.csv; hwdb/efficiency"
    )
    parser.add_argument("--hwdb", type=Path, action="append", default=[], help="overlay folder, repeatable")
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help="most rows of one source")
    given = parser.parse_args(arguments)
    try:
        table = read_table(given.runs)
        results = predict_rows(table, Hwdb.load(given.hwdb))
        picked = sample([one for one in results if isinstance(one, Prediction)], given.rows)
        if not picked:
            raise BadInputError(f"{given.runs}: no row that can be predicted has a measured step time")
        found = cases(picked, given.hwdb)
        fits = stackfit.fit_stacks(found, np.ones(len(picked), bool))
        rows = rows_text(found, fits)
        measured = any(row.get("peak_mem_gb", "").strip() for row in table)
        peaks = memory.cases(table, given.hwdb) if measured else None
        errors, sources_out = errors_left_out(picked, found, rows, given.hwdb, peaks)
        write_whole(given.out_dir / "stacks.csv", rows)
        write_whole(given.out_dir / "intervals.csv", intervals.rows_text(errors))
        sys.stdout.write(report_text(found, fits) + "\n" + intervals.report_text(errors, sources_out))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

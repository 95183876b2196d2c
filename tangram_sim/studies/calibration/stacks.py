"""Writes stacks.csv from published runs: `python -m tangram_sim.studies.calibration.stacks RUNS.csv OUT.csv`.

At most four parameters per software stack, none per run, GPU, model or source; prints how accurate they are
on the runs they were fitted to, on configurations left out and on whole sources left out.
"""

import argparse
import csv
import hashlib
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.studies.calibration import stackfit
from tangram_sim.studies.calibration.stackfit import Cases
from tangram_sim.studies.calibration.surfaces import HEADER, KEYS, Parameters, settled, surface
from tangram_sim.studies.published.predict import Prediction, predict_rows
from tangram_sim.studies.published.reading import Run, read_table
from tangram_sim.studies.published.stacks import GENERIC

SOURCE = "fit to published runs, tangram_sim.studies.calibration.stacks"
FITTED = "2026-11-21"  # the day of the fit; rows must not depend on the day they are written again
MOST_ROWS = 120  # of one source that are used
FOLDS = 5


def configuration(run: Run) -> int:
    """A number that equal configurations share, whatever the row, the source and the model are called."""
    facts = (replace(run.model, name=""), run.cluster, run.job, run.layout, run.recompute, run.full_layers)
    return int(hashlib.sha256(repr(facts).encode()).hexdigest()[:12], 16)


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
        gpu_measured=np.array([one.measured for one in predictions]),
        surface=surface(runs, overlays),
    )


def rows_text(cases: Cases, fits: Mapping[str, Parameters]) -> str:
    """Efficiency rows of every stack, as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*HEADER, "note"))
    for stack in (GENERIC, *sorted(set(fits) - {GENERIC})):
        mask = np.ones(len(cases.stack), bool) if stack == GENERIC else cases.stack == stack
        prior, width = (
            (stackfit.ASSUMED, stackfit.LOOSE)
            if stack == GENERIC
            else (
                fits[GENERIC],
                stackfit.TIGHT,
            )
        )
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
    everyone, known = stackfit.left_out(cases, cases.source)
    splits = {
        "assumed": cases.surface.seconds(stackfit.ASSUMED),
        "in-sample": stackfit.predict(cases, fits),
        "5-fold": stackfit.left_out(cases, cases.fold)[0],
        "source left out": everyone,
    }
    lines = [f"{'stack':20s}{'scale':>8s}{'attn':>7s}{'us/kernel':>11s}{'tp':>7s}{'dp':>7s}"]
    for stack, (scale, attention, dispatch, tensor, data) in fits.items():
        lines.append(f"{stack:20s}{scale:8.3f}{attention:7.2f}{dispatch * 1e6:11.1f}{tensor:7.2f}{data:7.2f}")
    found = {name: stackfit.accuracy(cases, seconds) for name, seconds in splits.items()}
    lines.append(f"\n{'split':20s}{'macro':>8s}{'medians':>9s}{'p90':>7s}{'bias':>7s}")
    for name, one in found.items():
        figures = (one.macro_median, one.median_of_medians, one.macro_p90, one.bias)
        lines.append(f"{name:20s}{{:8.1f}}{{:9.1f}}{{:7.1f}}{{:+7.1f}}".format(*(100 * x for x in figures)))
    covered = stackfit.coverage(cases, everyone, known)
    lines.append(
        f"\n{'source':22s}{'rows':>5s}" + "".join(f"{name:>20s}" for name in found) + "  covered  width"
    )
    for source, (inside, width) in covered.items():
        cells = []
        for one in found.values():
            n, *of_source = one.by_source[source]
            cells.append("{:8.1f}{:6.0f}{:+6.0f}".format(*(100 * x for x in of_source)))
        lines.append(f"{source:22s}{n:5d}{''.join(cells)}{100 * inside:9.0f}{100 * width:7.0f}")
    mean_inside, mean_width = np.mean(list(covered.values()), axis=0)
    lines.append(
        f"covered, sources of equal weight: {100 * mean_inside:.1f} %, mean width {100 * mean_width:.0f} %"
    )
    level = stackfit.levels(known, cases.gpu_measured)
    ratio = np.log(cases.measured / everyone)
    for (on_stack, on_gpu), (low, high) in zip(
        stackfit.LEVELS, stackfit.factors(ratio, level, cases.source).tolist(), strict=True
    ):
        lines.append(
            f"interval, stack known {on_stack!s:5s} GPU measured {on_gpu!s:5s}: {low:.2f} to {high:.2f}"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Fit, report, write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_sim.studies.calibration.stacks", description=__doc__
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.csv", help="measured training runs, one per row")
    parser.add_argument("out", type=Path, metavar="OUT.csv", help="gets the efficiency rows")
    parser.add_argument("--hwdb", type=Path, action="append", default=[], help="overlay folder, repeatable")
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help="most rows of one source")
    given = parser.parse_args(arguments)
    try:
        results = predict_rows(read_table(given.runs), Hwdb.load(given.hwdb))
        picked = sample([one for one in results if isinstance(one, Prediction)], given.rows)
        if not picked:
            raise BadInputError(f"{given.runs}: no row that can be predicted has a measured step time")
        found = cases(picked, given.hwdb)
        fits = stackfit.fit_stacks(found, np.ones(len(picked), bool))
        write_whole(given.out, rows_text(found, fits))
        sys.stdout.write(report_text(found, fits))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

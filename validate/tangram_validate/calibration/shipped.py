"""What a change did, in seconds: `python -m tangram_validate.calibration.shipped RUNS.csv OUT.csv`.

Predicts a few runs of every source with the rows in force and prints their errors beside those that OUT.csv
recorded; `--write` records anew. No fit: the judge (`stacks`) says what is true of runs left out.
"""

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tangram_sim.datafiles import read_text, write_whole
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_validate.calibration.folds import configuration
from tangram_validate.published.predict import Prediction, Predictor
from tangram_validate.published.reading import Run, read_run, read_table

ROWS = 12  # of a source
COLUMNS = ("source", "rows", "median_error", "p90_error", "bias")
EVERY = "every source the same weight"

# Source -> median, 90th percentile and bias of its relative errors.
Errors = Mapping[str, tuple[int, float, float, float]]


def sample(table: Path, hwdb: Hwdb, most: int = ROWS) -> dict[str, list[Prediction]]:
    """Predictions of `most` measured runs of every source, picked by a hash; by source, in its order."""
    read = [read_run(row, hwdb, number) for number, row in enumerate(read_table(table), 1)]
    by_source: dict[str, list[Run]] = {}
    for run in read:
        if isinstance(run, Run) and run.measured.step_s:
            by_source.setdefault(run.source_id, []).append(run)
    predictor, found = Predictor(hwdb), dict[str, list[Prediction]]()
    for source, runs in sorted(by_source.items()):
        some = [predictor.predict(run) for run in sorted(runs, key=configuration)[:most]]
        both = predictor.beside_each_other(some)
        found[source] = [item for item in both if isinstance(item, Prediction) and item.error is not None]
    return {source: predictions for source, predictions in found.items() if predictions}


def errors(table: Path, hwdb: Hwdb) -> Errors:
    """Errors of the sample by source, and the means over sources."""
    found = {}
    for source, predictions in sample(table, hwdb).items():
        off = np.array([prediction.error for prediction in predictions])
        middle, tail = np.percentile(np.abs(off), (50, 90)).tolist()
        found[source] = len(off), middle, tail, float(np.median(off))
    means = np.mean([item[1:] for item in found.values()], axis=0).tolist()
    return {**found, EVERY: (sum(item[0] for item in found.values()), *means)}


def csv_text(found: Errors) -> str:
    """The record, as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for source, (rows, *figures) in found.items():
        writer.writerow((source, rows, *(f"{figure:.4f}" for figure in figures)))
    return text.getvalue()


def recorded(path: Path) -> Errors:
    """What a record says; empty where there is none."""
    if not path.is_file():
        return {}
    rows = csv.DictReader(io.StringIO(read_text(path)))
    return {
        row["source"]: (
            int(row["rows"]),
            float(row["median_error"]),
            float(row["p90_error"]),
            float(row["bias"]),
        )
        for row in rows
    }


def compared(now: Errors, then: Errors) -> str:
    """Lines of text: every source's figures and how they moved, percent."""
    lines = [f"{'source':30s}{'rows':>5s}{'median':>8s}{'p90':>8s}{'bias':>8s}   moved by"]
    for source, (rows, *figures) in now.items():
        cells = "".join(f"{100 * figure:8.1f}" for figure in figures)
        moved = ""
        if source in then:
            pairs = zip(figures, then[source][1:], strict=True)
            moved = "".join(f"{100 * (figure - before):+8.1f}" for figure, before in pairs)
        lines.append(f"{source:30s}{rows:5d}{cells}{moved}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print, and record if asked; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_validate.calibration.shipped", description=__doc__
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.csv")
    parser.add_argument("record", type=Path, metavar="OUT.csv", help="benchmarks/results/accuracy.csv")
    parser.add_argument("--hwdb", type=Path, action="append", default=[], help="overlay folder, repeatable")
    parser.add_argument("--write", action="store_true", help="record these figures")
    given = parser.parse_args(arguments)
    try:
        found = errors(given.runs, Hwdb.load(given.hwdb))
        sys.stdout.write(compared(found, recorded(given.record)))
        if given.write:
            write_whole(given.record, csv_text(found))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Errors at first sight: of runs predicted before anything was fitted to them.

`python -m tangram_validate.calibration.first_sight RUNS.csv... -o RECORD.csv` writes them.

What a user meets is the error on a source that nobody has looked at. It is recorded once, with the product of
that day, before rows of such a source move any parameter or are read for a mechanism; from it come the widths
of intervals (`calibration/intervals.py`), and how often they hold (`calibration/nested.py`).
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import has_experts
from tangram_validate.published.predict import Prediction, predict_rows
from tangram_validate.published.reading import read_table

COLUMNS = (
    *("id", "source_id", "stack", "novelty", "measured_gpu", "mixture", "factors_sigma", "spread", "sigma"),
    *("log_error", "log_memory", "memory_kind", "fits"),
)


def records(predictions: Sequence[Prediction], hwdb: Hwdb) -> list[dict[str, str]]:
    """A row of `COLUMNS` for every prediction; `factors_sigma` is before any share of it is taken."""
    found = []
    for prediction in predictions:
        run, measured = prediction.run, prediction.run.measured
        gpu = run.cluster.groups[0].node.gpu
        residuals = hwdb.residuals(gpu, run.job.precision.compute, run.job.stack)
        step = f"{math.log(measured.step_s / prediction.step_s):.4f}" if measured.step_s else ""
        memory = "" if prediction.memory_error is None else f"{-math.log1p(prediction.memory_error):.4f}"
        cells = (
            run.id,
            run.source_id,
            run.job.stack,
            str(residuals.novelty),
            "yes" if residuals.gpu_measured else "no",
            "yes" if has_experts(run.model) else "no",
            f"{prediction.factors_sigma / residuals.prior_share:.4f}",
            f"{prediction.spread:.4f}",
            f"{prediction.sigma:.4f}",
            step,
            memory,
            measured.memory if memory else "",
            "yes" if prediction.fits else "no",
        )
        found.append(dict(zip(COLUMNS, cells, strict=True)))
    return found


def main(arguments: Sequence[str]) -> int:
    """Predict and write; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_validate.calibration.first_sight", description=__doc__
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUNS.csv", help="runs nothing was fitted to")
    parser.add_argument("-o", "--output", type=Path, required=True, help="gets a row for each prediction")
    given = parser.parse_args(arguments)
    try:
        hwdb, text = Hwdb.load(), io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for path in given.runs:
            predicted = [
                predict_row
                for predict_row in predict_rows(read_table(path), hwdb)
                if isinstance(predict_row, Prediction)
            ]
            writer.writerows(records(predicted, hwdb))
        write_whole(given.output, text.getvalue())
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

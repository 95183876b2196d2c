"""Fits the constants of the AMP fork on its homogeneous T4 runs: `python -m benchmarks.mixed_fit RUNS.csv`.

Prints the best of a grid over (T4 time scale, seconds per kernel, tensor-parallel factor), each with its
median error; the best goes into hwdb/efficiency/pipe.csv by hand. Runs on mixed clusters take no part.
"""

import csv
import json
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tangram_validate.mixed_runs.predict import predict_row
from tangram_validate.published.table import Problem

from tangram_sim.hwdb import Hwdb

SOURCE, STACK, WIDTH = "amp_t4", "amp-pipe", 0.1
SCALES, LAUNCHES, FACTORS = (1.2, 1.3, 1.4, 1.5), (0.6e-4, 0.8e-4, 1.0e-4, 1.2e-4), (1.0, 1.15, 1.3, 1.45)
HEADER = "gpu,dtype,kernel,stack,version,parameter,value,sigma,n,source,date,note"


def homogeneous(path: Path) -> list[dict[str, str]]:
    """The T4 runs as rows of a table of mixed runs: one cluster of four g4dn.12xlarge, even cuts."""
    nodes = {"gpu": "T4-16GB", "nodes": 4, "gpus_per_node": 4, "instance": "g4dn.12xlarge"}
    rows = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["source_id"] == SOURCE:
                cuts = json.dumps([1] * 4 + [2] * 8 + [1] * 4) if row["pp"] == "16" else ""
                placed = {"cluster": json.dumps([nodes]), "stage_layers": cuts, "stage_placement": ""}
                rows.append({**row, **placed})
    return rows


def log_errors(rows: list[dict[str, str]], scale: float, launch: float, factor: float) -> list[float]:
    """Log errors of the runs under an overlay with these constants; a launch counts as on a T4."""
    given = (
        ("T4", "stack", "time_scale", scale),
        ("*", "launch", "seconds", launch / scale),
        ("*", "stack", "tensor_exposed", factor),
    )
    with TemporaryDirectory() as folder:
        (Path(folder) / "efficiency").mkdir()
        lines = [
            f"{gpu},*,{kernel},{STACK},,{parameter},{value},0.1,1,trial,2026-11-21,trial"
            for gpu, kernel, parameter, value in given
        ]
        (Path(folder) / "efficiency" / "trial.csv").write_text("\n".join([HEADER, *lines]) + "\n")
        hwdb = Hwdb.load([Path(folder)])
    found = [predict_row(row, hwdb, number) for number, row in enumerate(rows, 1)]
    return [
        float(np.log(1 + item.error))
        for item in found
        if not isinstance(item, Problem) and item.error is not None
    ]


def main() -> None:
    """Search the grid and print its best points."""
    rows = homogeneous(Path(sys.argv[1]))
    points = []
    for point in product(SCALES, LAUNCHES, FACTORS):
        errors = np.array(log_errors(rows, *point))
        loss = float(np.log1p(0.5 * (errors / WIDTH) ** 2).mean())
        points.append((loss, *point, float(np.median(np.abs(np.expm1(errors))))))
    for loss, scale, launch, factor, error in sorted(points)[:5]:
        sys.stdout.write(
            f"loss {loss:.4f}: time_scale {scale:g}, kernel {launch:.3g} s on a T4, tensor {factor:g}; "
            f"median error {100 * error:.1f} %\n"
        )


if __name__ == "__main__":
    main()

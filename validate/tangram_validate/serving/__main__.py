"""`python -m tangram_validate.serving TABLE.csv ...`: print calibration rows fitted to tables."""

import sys
from pathlib import Path

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_validate.serving.reading import read_runs
from tangram_validate.serving.runs import ServedRun
from tangram_validate.serving.tables import calibrate, calibration_csv

SOURCE = "fitted to tables of measured runs by python -m tangram_validate.serving"


def main(paths: list[str]) -> int:
    """Fit and print; exit code 2 with one message for tables that cannot be read."""
    try:
        hwdb = Hwdb.load()
        runs = [run for path in paths for run in read_runs(Path(path), hwdb) if isinstance(run, ServedRun)]
        rows = calibrate(runs, hwdb)
    except TangramError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(calibration_csv(rows, SOURCE))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

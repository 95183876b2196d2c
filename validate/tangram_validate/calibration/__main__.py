"""Writes kernels.csv from measurements: `python -m tangram_validate.calibration OUT_DIR [--quiet]`."""

import argparse
import sys
from pathlib import Path

from tangram_sim.datafiles import shipped, write_whole
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_validate.calibration import kinds, report, rows

NAME, TRACE, DONOR = "kernels.csv", "sailor/layer_profiles.csv", "H100-SXM5-80GB"


def main(arguments: list[str]) -> int:
    """Fit every measured kind and write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tangram_validate.calibration", description=__doc__)
    parser.add_argument("out_dir", type=Path, help="folder that gets kernels.csv, such as hwdb/efficiency")
    parser.add_argument("--quiet", action="store_true", help="write the file and print nothing")
    given = parser.parse_args(arguments)
    try:
        database = Hwdb.load()
        trace = shipped("traces") / TRACE
        fits = [rows.fit_kind(database, system) for system in kinds.SYSTEMS]
        write_whole(given.out_dir / NAME, rows.csv_text(rows.all_rows(fits, trace)))
        if not given.quiet:
            sys.stdout.write(report.fits_text(fits))
            sys.stdout.write(report.transfer_text(database, fits, DONOR))
            sys.stdout.write(report.left_out_text(database, fits))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Fits hwdb/collectives to the shipped medians: `python -m tangram_validate.collectives OUT_DIR`."""

import argparse
import sys
from pathlib import Path

from tangram_sim.datafiles import shipped, write_whole
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_validate.collectives import rows
from tangram_validate.collectives.points import Point, read_points

TRACE = "collectives/medians.csv"


def shipped_points(hwdb: Hwdb) -> list[Point]:
    """The medians that the shipped rows rest on."""
    read = read_points(shipped("traces") / TRACE, hwdb)
    return [point for point in read if isinstance(point, Point)]


def main(arguments: list[str]) -> int:
    """Fit every class of links and write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tangram_validate.collectives", description=__doc__)
    parser.add_argument("out_dir", type=Path, help="folder that gets the files, such as hwdb/collectives")
    parser.add_argument("--quiet", action="store_true", help="write the files and print nothing")
    given = parser.parse_args(arguments)
    try:
        sets = rows.fit_sets(shipped_points(Hwdb.load()))
        for name, text in rows.files(sets).items():
            write_whole(given.out_dir / name, text)
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not given.quiet:
        for one in sets:
            values = "  ".join(f"{name} {value:.3g}" for name, value in one.fitted.values.items())
            gpu = "" if one.gpu == "*" else f" {one.gpu}"
            head = (
                f"{one.link}{gpu} {one.pattern}: {one.fitted.n} points, error {100 * one.fitted.error:.1f} %"
            )
            sys.stdout.write(f"{head}  {values}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

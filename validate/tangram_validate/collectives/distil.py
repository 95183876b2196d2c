"""Measured points to medians: `python -m tangram_validate.collectives.distil POINTS.csv`.

Keeps what the fits need and nothing else: float types from 1 KiB on, the library's own choice of algorithm,
no point that is scored apart. Writes to standard output; `traces/collectives/medians.csv` was made so.
"""

import csv
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import MEGA
from tangram_validate.collectives.points import Point, read_points

HEADER = (
    *("gpu", "intra_link", "inter_link", "nodes", "ranks", "op", "dtype", "size_bytes", "time_us", "n"),
    *("lib", "lib_version", "source"),
)


def distil(points: Sequence[Point], intra: Sequence[str]) -> list[tuple[str, ...]]:
    """Rows of medians, sorted; `intra` holds the words of every point's intra-node link."""
    groups: dict[tuple[str, str, str, int, int, str, str, int], list[Point]] = {}
    for point, words in zip(points, intra, strict=True):
        if not point.apart and point.seconds > 0 and point.algorithm in ("", "auto"):
            size = int(point.size_bytes)
            key = (point.label, words, point.where, point.nodes, point.ranks, point.op, point.library, size)
            groups.setdefault(key, []).append(point)
    rows = []
    for key in sorted(groups):
        members = groups[key]
        label, words, where, nodes, ranks, op, library, size = key
        time = f"{statistics.median(point.seconds for point in members) * MEGA:.5g}"
        versions = ";".join(sorted({point.version for point in members} - {"", "unknown"}))
        sources = ";".join(sorted({point.source.split(" ")[0] for point in members}))
        cells = (label, words, where or "none", nodes, ranks, op, "float", size, time, len(members))
        rows.append((*map(str, cells), library, versions, sources))
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print the medians of one file; returns the exit status."""
    try:
        given = Path(arguments[0]) if len(arguments) == 1 else Path("POINTS.csv")
        read = read_points(given, Hwdb.load())
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with given.open(encoding="utf-8", newline="") as stream:
        words = [row["intra_link"].strip() for row in csv.DictReader(stream)]
    kept = [(point, name) for point, name in zip(read, words, strict=True) if isinstance(point, Point)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(distil([point for point, _ in kept], [name for _, name in kept]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

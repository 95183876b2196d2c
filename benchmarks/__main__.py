"""`python -m benchmarks`: run the cases, print one table of figures beside their targets."""

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cases import GROUPS
from benchmarks.measure import Row

WIDTHS = (66, 12, 10, 12, 7, 7, 9)
TITLES = ("case", "figure", "unit", "target", "ratio", "", "peak MB")


def main() -> None:
    """Run what is asked for; the exit code says only whether the cases ran, never how fast."""
    if sys.argv[1:2] == ["anywhere"]:  # worlds by seed, with options of their own
        from benchmarks.anywhere.run import main as anywhere

        anywhere(sys.argv[2:])
        return
    if sys.argv[1:2] == ["seeds"]:  # claims of the founding papers, a page of its own
        from benchmarks.seeds import main as seeds

        seeds(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"some of {', '.join(GROUPS)}; default: all"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    given = parser.parse_args()
    unknown = sorted(set(given.groups) - set(GROUPS))
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; known: {', '.join(GROUPS)}")

    sys.stdout.write(line(TITLES) + "\n" + "-" * (sum(WIDTHS) + 2 * len(WIDTHS)) + "\n")
    rows, broken = list[Row](), list[str]()
    with TemporaryDirectory() as folder:  # compiled code: the first case to need some makes it
        for name in given.groups or GROUPS:
            try:
                for row in GROUPS[name](Path(folder)):
                    show(row)
                    rows.append(row)
            except RuntimeError as error:  # a case that breaks does not take the others with it
                broken.append(name)
                sys.stdout.write(f"{name} broke: {error}\n")
    missed = [row.case for row in rows if row.verdict == "missed"]
    sys.stdout.write(f"{len(missed)} of {sum(bool(row.verdict) for row in rows)} targets missed\n")
    if given.json:
        machine = {
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
        }
        written = {"package_version": version("tangram-sim"), "machine": machine}
        given.json.write_text(
            json.dumps(written | {"rows": [row.as_dict() for row in rows]}, indent=1) + "\n"
        )
    sys.exit(1 if broken else 0)


def show(row: Row) -> None:
    """Print one row at once: a case takes seconds."""
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    target = "" if row.target is None else f"{'>=' if row.more_is_better else '<='} {number(row.target)}"
    peak = "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}"
    cells = (row.case, number(row.figure), row.unit, target, ratio, row.verdict, peak)
    sys.stdout.write(f"{line(cells)}  {row.note}".rstrip() + "\n")
    sys.stdout.flush()


def line(cells: tuple[str, ...]) -> str:
    """One line of the table: words to the left, figures to the right."""
    padded = [
        cell.ljust(width) if place in (0, 2, 5) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ]
    return "  ".join(padded).rstrip()


def number(value: float) -> str:
    """Three digits, large ones with separators."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


if __name__ == "__main__":
    main()

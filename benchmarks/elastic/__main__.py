"""`python -m benchmarks.elastic FIGURES.csv [--json] [--data FOLDER]`: every row that can be computed, held
against what was published.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError, error_of, read_figures, within
from benchmarks.elastic.groups import compute
from tangram_sim.errors import TangramError

_SHARED = Path(__file__).parents[3] / "shared" / "data" / "elastic"


def report(figures: list[Figure], data: Data) -> dict[str, list[dict[str, Any]]]:
    """Rows computed and rows refused."""
    rows: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for figure in figures:
        # A module never sees what it is held against.
        hidden = dataclasses.replace(figure, id="", value="")
        try:
            answer = compute(hidden, data)
        except (RefusedError, TangramError) as error:
            refused.append({"id": figure.id, "group": figure.group, "reason": str(error)})
            continue
        rows.append(_row(figure, answer))
    return {"rows": rows, "refused": refused}


def _row(figure: Figure, answer: Answer) -> dict[str, object]:
    try:
        value: float | str = float(figure.value)
    except ValueError:
        value = figure.value
    return {
        "id": figure.id,
        "group": figure.group,
        "metric": figure.metric,
        "value": value,
        "predicted": answer.value,
        "error": error_of(figure, answer),
        "within": within(figure, answer),
        **({"note": answer.note} if answer.note else {}),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the report; 2 where the table of figures cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic", description=__doc__)
    parser.add_argument("figures", type=Path, help="table of published figures")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--data", type=Path, help="where the files of the column `inputs` lie (default: beside it)"
    )
    given = parser.parse_args(arguments)
    folders = (given.data,) if given.data else (given.figures.resolve().parent, _SHARED)
    try:
        found = report(read_figures(given.figures), Data(folders))
    except TangramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    for row in found["rows"]:
        off = "" if row["error"] is None else f"{row['error']:.2g}"
        verdict = {True: "within", False: "OUTSIDE"}.get(row["within"], "no tolerance")
        shown = f"{row['value']!s:>12} {row['predicted']!s:>22} {off:>8}"
        note = f" ({row['note']})" if "note" in row else ""
        print(f"{row['id']:6} {row['group']:24} {row['metric']!s:44.44} {shown} {verdict}{note}")
    for row in found["refused"]:
        print(f"{row['id']:6} {row['group']:24} refused: {row['reason']}")
    fine = sum(row["within"] is True for row in found["rows"])
    print(f"{fine} of {len(found['rows'])} rows within their tolerance, {len(found['refused'])} refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`tangram validate published`, `collectives`, `published-mixed`: predictions beside measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.questions.shared_fields import Hardware

# Of the columns of scores, the first to go where a window is narrow.
_LEAVES = (8, 7, 3, 9, 6)


@derived
def published(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Measured training runs, one per row.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write every prediction to this CSV file.")
    ] = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Predict every run of RUNS.csv that can be predicted, and score step time and memory."""
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_validate.published import memory, report
    from tangram_validate.published.predict import predict_rows
    from tangram_validate.published.reading import read_table

    require_writable(output=output)
    rows = read_table(runs)
    results = predict_rows(rows, hardware.load())
    if output is not None:
        write_whole(output, report.predictions_csv(results))
    found = report.document(results)
    if shown.as_json:
        print_json(found)
        return
    right = tuple(range(1, len(report.COLUMNS) + 1))
    for title, part in (("GPU", "by_gpu"), ("source", "by_source"), ("tier", "by_tier")):
        print_table((title, *report.COLUMNS), report.table_rows(found, part), right, _LEAVES)
    overall = report.table_rows(found, "overall") + report.table_rows(found, "pooled")
    print_table(("every source the same weight, and every row", *report.COLUMNS), overall, right, _LEAVES)
    if found["memory"]:
        print_table(("peak memory", *memory.COLUMNS[1:]), memory.table_rows(found["memory"]), right[:5])
    print_line("Errors of the step time in percent of what was measured; bias is the median signed error.")
    _close(found, report.reasons(found), output)


@derived
def collectives(
    points: Annotated[Path, typer.Argument(metavar="POINTS.csv", help="Measured collectives, one per row.")],
    left_out: Annotated[
        str,
        typer.Option("--left-out", help="gpu or ranks: predict each from fits of POINTS.csv without it."),
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write every prediction to this CSV file.")
    ] = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Predict every point of POINTS.csv from its hardware, ranks, operation and size, and score the times."""
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_validate.collectives import leftout, report
    from tangram_validate.collectives.points import Point, RefusedRow, read_points
    from tangram_validate.collectives.predict import CollectivePrediction, predict

    require_writable(output=output)
    database = hardware.load()
    read = read_points(points, database)
    known = [item for item in read if isinstance(item, Point)]
    refused = [item for item in read if isinstance(item, RefusedRow)]
    if left_out:
        parts = leftout.left_out(known, left_out, database)
        predicted = [member for members in parts.values() for member in members]
        leaving = {name: report.score(members) for name, members in parts.items()}
    else:
        predicted, leaving = predict(known, database), {}
    both: list[CollectivePrediction | RefusedRow] = [*predicted, *refused]
    results = sorted(both, key=report.line_of)
    if output is not None:
        write_whole(output, report.predictions_csv(results))
    found = report.document(results) | ({"left_out": leaving} if left_out else {})
    if shown.as_json:
        print_json(found)
        return
    right = tuple(range(1, len(report.COLUMNS) + 1))
    if left_out:
        print_table((f"{left_out} left out", *report.COLUMNS), report.table_rows(leaving), right)
    for title, part in (
        ("link", "by_link"),
        ("GPU", "by_gpu"),
        ("operation", "by_op"),
        ("ranks", "by_ranks"),
    ):
        print_table((title, *report.COLUMNS), report.table_rows(found[part]), right)
    if found["multi_node"]:
        columns = ("several nodes", "n", "median", "p90", "GB/s bus", "predicted", "error")
        print_table(columns, report.fabric_rows(found["multi_node"]), tuple(range(1, len(columns))))
    print_table(
        ("all scored points", *report.COLUMNS), report.table_rows({"overall": found["overall"]}), right
    )
    if found["set_apart"]:
        apart = {f"{name}: {item['why']}": item for name, item in found["set_apart"].items()}
        print_table(("scored apart", *report.COLUMNS), report.table_rows(apart), right)
    print_line("Errors of the time in percent of what was measured; bias is the median signed error.")
    _close(found, report.reasons(found), output)


@derived
def published_mixed(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS.csv", help="Measured runs on clusters of several GPU kinds.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write every prediction to this CSV file.")
    ] = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Predict runs on mixed clusters; score step times and ranking beside the sources' own predictions."""
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_validate.mixed_runs import report
    from tangram_validate.mixed_runs.predict import predict_rows
    from tangram_validate.mixed_runs.reading import read_table
    from tangram_validate.published.report import reasons

    require_writable(output=output)
    rows = read_table(runs)
    results = predict_rows(rows, hardware.load())
    if output is not None:
        write_whole(output, report.predictions_csv(results))
    found = report.document(results)
    if shown.as_json:
        print_json(found)
        return
    titles = ("run", "predicted s", "measured s", "error %", "source's error %", "fits")
    print_table(titles, report.run_rows(results), (1, 2, 3, 4))
    scores = [(name, *report.cells_of(figures)) for name, figures in found["by_source"].items()]
    scores.append(("overall", *report.cells_of(found["overall"])))
    print_table(("source", *report.COLUMNS), scores, tuple(range(1, len(report.COLUMNS) + 1)))
    print_line(
        "Errors and regret in percent of what was measured; tau is Kendall's over runs of one workload."
    )
    _close(found, reasons(found), output)


def _close(found: dict[str, Any], reasons: Sequence[tuple[str, ...]], output: Path | None) -> None:
    """Print what all verbs end with: rows predicted, notes, reasons for those not predicted, the file."""
    without = found.get("without_measured_step", found.get("without_measured_time", 0))
    what = "step" if "without_measured_step" in found else "time"
    print_line(
        f"{found['rows']} rows: {found['predicted']} predicted, {without} of them without a measured {what}; "
        f"{len(found['unpredicted'])} not predicted."
    )
    for item in found.get("notes", ()):
        print_line(f"{item['rows']} rows: {item['note']}")
    if reasons:
        print_table(("rows", "first", "why not predicted"), list(reasons), (0,))
    if output is not None:
        print_line(f"predictions written to {output}")

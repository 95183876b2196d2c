"""`tangram validate`: predictions held against measurements."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table

app = typer.Typer(help="Hold predictions against measurements.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Hold predictions against measurements."""


@app.command("published")
def published(
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", help="Measured training runs, one per row.")],
    as_json: shared.AsJson = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write every prediction to this CSV file.")
    ] = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Predict every run of RUNS.csv that can be predicted, and score step time and memory."""
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_sim.studies.published import report
    from tangram_sim.studies.published.predict import predict_rows
    from tangram_sim.studies.published.reading import read_table

    require_writable(output=output)
    rows = read_table(runs)
    results = predict_rows(rows, shared.load_hwdb(hwdb))
    if output is not None:
        write_whole(output, report.predictions_csv(results))
    found = report.document(results)
    if as_json:
        print_json(found)
        return
    right = tuple(range(1, len(report.COLUMNS) + 1))
    for title, part in (("GPU", "by_gpu"), ("source", "by_source"), ("tier", "by_tier")):
        print_table((title, *report.COLUMNS), report.table_rows(found, part), right)
    overall = report.table_rows(found, "overall") + report.table_rows(found, "pooled")
    print_table(("every source the same weight, and every row", *report.COLUMNS), overall, right)
    print_line("Errors of the step time in percent of what was measured; bias is the median signed error.")
    print_line(
        f"{found['rows']} rows: {found['predicted']} predicted, {found['without_measured_step']} of them "
        f"without a measured step; {len(found['unpredicted'])} not predicted."
    )
    if found["unpredicted"]:
        print_table(("rows", "first", "why not predicted"), report.reasons(found), (0,))
    if output is not None:
        print_line(f"predictions written to {output}")


@app.command("published-mixed")
def published_mixed(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS.csv", help="Measured runs on clusters of several GPU kinds.")
    ],
    as_json: shared.AsJson = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write every prediction to this CSV file.")
    ] = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Predict runs on mixed clusters; score step times and ranking beside the sources' own predictions."""
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_sim.studies.mixed_runs import report
    from tangram_sim.studies.mixed_runs.predict import predict_rows
    from tangram_sim.studies.mixed_runs.reading import read_table
    from tangram_sim.studies.published.report import reasons

    require_writable(output=output)
    rows = read_table(runs)
    results = predict_rows(rows, shared.load_hwdb(hwdb))
    if output is not None:
        write_whole(output, report.predictions_csv(results))
    found = report.document(results)
    if as_json:
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
    print_line(
        f"{found['rows']} rows: {found['predicted']} predicted, {found['without_measured_step']} of them "
        f"without a measured step; {len(found['unpredicted'])} not predicted."
    )
    if found["unpredicted"]:
        print_table(("rows", "first", "why not predicted"), reasons(found), (0,))
    if output is not None:
        print_line(f"predictions written to {output}")

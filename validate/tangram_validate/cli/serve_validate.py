"""`tangram serve validate`: compares predictions with measured serving runs, beside a naive (null) model."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.questions.shared_fields import Hardware

Measured = Annotated[
    list[Path],
    typer.Argument(
        metavar="MEASURED.csv...",
        help="Measured runs, logs of requests, or what vLLM printed at its start; several tables are one.",
    ),
]
LeaveOut = Annotated[
    str,
    typer.Option(
        "--leave-out", help="gpu, model or source: predict each from rows fitted to the others of the table."
    ),
]
PredictionsOut = Annotated[
    Path | None, typer.Option("--predictions-out", help="Write every prediction to this CSV file.")
]

SHOWN = 10  # of the rows farthest off


@derived
def command(
    measured: Measured,
    leave_out: LeaveOut = "",
    predictions_out: PredictionsOut = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Predict every run of the tables, in closed form or played from its log, beside the null model."""
    from tangram_sim.cli.console import print_json, print_line, print_table
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_sim.errors import BadInputError
    from tangram_validate.serving import report
    from tangram_validate.serving.documents import ServeValidateDocument
    from tangram_validate.serving.reading import read_tables
    from tangram_validate.serving.runs import RefusedRun

    require_writable(predictions_out=predictions_out)
    database = hardware.load()
    read = read_tables(measured, database)
    with SlowProgress("validate") as progress:
        found, refused = report.predictions(read, database, leave_out, progress.report)
    if not found:
        reasons = [item.reason for item in (*read, *refused) if isinstance(item, RefusedRun)]
        said = "; ".join(dict.fromkeys(reasons)) or "no row has a figure to compare with"
        raise BadInputError(f"{', '.join(map(str, measured))}: none of its rows can be predicted: {said}")
    if predictions_out is not None:
        write_whole(predictions_out, report.predictions_csv(found))
    answer = report.document(read, found, refused, leave_out)
    if shown.as_json:
        print_json(ServeValidateDocument.model_validate(answer).model_dump())
        return
    how = f"each {leave_out} predicted from rows fitted to the others" if leave_out else "the shipped rows"
    print_line(f"{answer['rows_used']:,} of {answer['rows']:,} rows predicted with {how}")
    print_line()
    print_table(("metric", *report.SHOWN), report.table_rows(answer), right=range(1, 7))
    print_line(
        "Errors in percent of what was measured: median, 90th percentile, median signed error; coverage of"
    )
    print_line("the 90 % interval; median error of the null model, a regression without physics.")
    for order in answer["orders"]:
        print_line()
        ways = [
            (item["method"], f"{item['measured']:.1f}", f"{item['predicted']:.1f}") for item in order["ways"]
        ]
        heads = (f"{order['model']} {order['load']}, placed by", "measured tokens/s", "predicted")
        print_table(heads, ways, right=(1, 2))
        if order["tau"] is not None:
            print_line(f"order of the ways: Kendall's tau {order['tau']:.2f}")
    if answer["refused"]:
        print_line()
        rows = [(f"{item['count']:,}", item["reason"]) for item in answer["refused"]]
        print_table(("rows not predicted", "because"), rows, right=(0,))
    if answer["dropped"]:
        print_line()
        rows = [(f"{item['count']:,}", item["reason"]) for item in answer["dropped"]]
        print_table(("values left out", "because"), rows, right=(0,))
    farthest = [
        (
            f"{item['table']} {item['line']}".strip(),
            item["metric"],
            item["gpu"],
            f"{item['engine']} {item['version']}".strip(),
            item["model"],
            item["load"],
            f"{item['measured']:.4g}",
            f"{item['predicted']:.4g}",
        )
        for item in answer["worst"][:SHOWN]
    ]
    columns = ("line", "metric", "GPU", "engine", "model", "load", "measured", "predicted")
    print_table(("farthest off: " + columns[0], *columns[1:]), farthest, right=(6, 7), leaves=(5, 3))

"""`tangram serve calibrate`: corrects predictions from the user's own benchmark."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.questions.shared_fields import Hardware
from tangram_sim.units import percent

Mine = Annotated[
    Path,
    typer.Argument(
        metavar="MINE.csv",
        help="Runs with the columns of measured tables, or JSON of vLLM's or SGLang's `bench serve`.",
    ),
]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU kind, where the file does not say it.")]
Model = Annotated[str, typer.Option("--model", help="Model, where the file's name of it is not known.")]
Tp = Annotated[int | None, typer.Option("--tp", help="Tensor-parallel degree, where the file does not say.")]
Engine = Annotated[str, typer.Option("--engine", help="vllm, sglang or trtllm, where the file is silent.")]
Precision = Annotated[str, typer.Option("--precision", help="bf16, fp8, ..., where the file is silent.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Folder to write the overlay to, for --hwdb.")
]


@derived
def command(
    mine: Mine,
    gpu: Gpu = "",
    model: Model = "",
    tp: Tp = None,
    engine: Engine = "",
    precision: Precision = "",
    output: Output = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Fit the engine's shift and intervals to MINE.csv; the rows are an overlay for --hwdb."""
    from tangram_sim.cli.console import print_json, print_line, print_table
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.datafiles import write_whole
    from tangram_sim.errors import BadInputError
    from tangram_validate.serving.bench_json import is_bench_json, read_bench_json
    from tangram_validate.serving.documents import ServeCalibrateDocument
    from tangram_validate.serving.own import calibrate_to
    from tangram_validate.serving.reading import read_rows_as_runs, read_runs
    from tangram_validate.serving.runs import RefusedRun, ServedRun
    from tangram_validate.serving.tables import calibration_csv

    database = hardware.load()
    if is_bench_json(mine):
        given = {"gpu": gpu, "model": model, "tp": str(tp or ""), "engine": engine, "precision": precision}
        read = read_rows_as_runs(read_bench_json(mine, given), database)
    else:
        read = read_runs(mine, database)
    runs = [item for item in read if isinstance(item, ServedRun) and item.placed is None and not item.doubt]
    refused = [item for item in read if isinstance(item, RefusedRun)]
    placed = "layers placed on unlike nodes: no engine's parameters are in them"
    refused += [RefusedRun(item.line, placed) for item in read if isinstance(item, ServedRun) and item.placed]
    refused += [
        RefusedRun(item.line, item.doubt) for item in read if isinstance(item, ServedRun) and item.doubt
    ]
    if not runs:
        reasons = "; ".join(dict.fromkeys(refused_run.reason for refused_run in refused)) or "it has no rows"
        raise BadInputError(f"{mine}: none of its runs can be used: {reasons}")
    if output is not None and output.is_file():
        raise BadInputError(f"--output {output}: is a file; name a folder for the overlay")
    with SlowProgress("calibrate") as progress:
        found = calibrate_to(runs, database, progress.report)
    if output is not None:
        write_whole(
            output / "serving" / "calibration.csv", calibration_csv(found.rows, f"own runs: {mine.name}")
        )
    rows = [
        {
            "engine": row.engine,
            "parameter": row.parameter,
            "value": row.value,
            "sigma": row.sigma,
            "n": row.runs,
        }
        for row in found.rows
    ]
    if shown.as_json:
        told = ServeCalibrateDocument.model_validate(
            {
                "schema_version": 1,
                "runs": len(read),
                "runs_used": found.used,
                "refused": [
                    {"row": refused_run.line, "reason": refused_run.reason}
                    for refused_run in (*refused, *found.refused)
                ],
                "before": found.before,
                "after": found.after,
                "rows": rows,
            }
        )
        print_json(told.model_dump())
        return
    print_line(f"{found.used} of {len(read)} runs used")
    print_line()
    lines = [
        (
            metric,
            percent(found.before[metric]["median_ape"], 1),
            percent(found.before[metric]["bias"], 1, signed=True),
            f"+{percent(found.before[metric]['interval'])}",
            percent(found.after[metric]["median_ape"], 1),
            percent(found.after[metric]["bias"], 1, signed=True),
            f"+{percent(found.after[metric]['interval'])}",
        )
        for metric in found.before
    ]
    columns = ("metric", "error before", "bias", "interval", "after", "bias", "interval")
    print_table(columns, lines, right=range(1, 7))
    for refused_run in (*refused, *found.refused):
        print_line(f"row {refused_run.line} not used: {refused_run.reason}")
    if output is not None:
        print_line(f"wrote {output / 'serving' / 'calibration.csv'}; use it with --hwdb {output}")
    else:
        print_line("nothing was written: give -o FOLDER to keep the rows as an overlay for --hwdb")

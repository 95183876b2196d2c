"""`tangram rl calibrate`: fits the first steps of a user's own log, and predicts the rest of it."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.questions.shared_fields import Hardware

Log = Annotated[
    Path,
    typer.Argument(
        metavar="LOG.csv", help="One line a step: seconds of phases, mean_response, max_response_seen."
    ),
]
Setup = Annotated[
    Path | None,
    typer.Option("--setup", help="A table of runs with the set-up of this one; its phases become overheads."),
]
Run = Annotated[str, typer.Option("--run", help="The run to fit, where the log has several (`run_id`).")]
Steps = Annotated[int, typer.Option("--steps", min=3, help="Steps to fit; the others are predicted.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Folder to write the overlay to, for --hwdb.")
]


@derived
def command(
    log: Log,
    setup: Setup = None,
    run: Run = "",
    steps: Steps = 50,
    output: Output = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Fit phases and lengths of a log's first steps; predict its later ones; write overheads for --hwdb."""
    from tangram_sim.cli.console import print_json, print_line, print_table
    from tangram_sim.datafiles import write_whole
    from tangram_sim.errors import BadInputError, unknown_name
    from tangram_validate.post_training.calibrate import calibrate
    from tangram_validate.post_training.logs import read_logs
    from tangram_validate.post_training.reading import COLUMNS, TELLING
    from tangram_validate.published.table import read_rows

    logs = {read_log.run_id: read_log for read_log in read_logs(log)}
    if not run and len(logs) > 1:
        raise BadInputError(f"{log} has {len(logs)} runs: name one with --run, e.g. --run {next(iter(logs))}")
    if run and run not in logs:
        raise unknown_name("run of the log", run, logs)
    chosen = logs[run or next(iter(logs))]
    row = None
    if setup is not None:
        rows = read_rows(setup, COLUMNS, "post-training runs", telling=TELLING)
        named = {item.get("run_id", ""): item for item in rows}
        if chosen.run_id not in named and len(rows) > 1:
            raise unknown_name(f"run of {setup}", chosen.run_id, named)
        row = named.get(chosen.run_id, rows[0])
    if output is not None and output.is_file():
        raise BadInputError(f"--output {output}: is a file; name a folder for the overlay")
    if output is not None and setup is None:
        raise BadInputError("--output needs --setup RUNS.csv: overheads are measured phases over priced ones")
    found = calibrate(chosen, row, hardware.load(), steps)
    answer = found.document
    if output is not None:
        write_whole(output / "post_training" / "overheads.csv", found.overlay(f"own log: {log.name}"))
    if shown.as_json:
        print_json(answer.model_dump())
        return
    print_line(f"{answer.run_id}: {answer.fitted_steps} of {answer.steps} steps fitted")
    print_line()
    table = [
        (
            name,
            f"{rl_log_score.median_ape * 100:.1f} %",
            f"{rl_log_score.p90_ape * 100:.1f} %",
            f"{rl_log_score.bias * 100:+.1f} %",
        )
        for name, rl_log_score in answer.later.items()
    ]
    if answer.repeated is not None:
        rl_log_score = answer.repeated
        again = (
            f"{rl_log_score.median_ape * 100:.1f} %",
            f"{rl_log_score.p90_ape * 100:.1f} %",
            f"{rl_log_score.bias * 100:+.1f} %",
        )
        table.append(("the median step, repeated", *again))
    print_table(("later steps", "median error", "p90", "bias"), table, right=(1, 2, 3))
    if answer.factors:
        print_line()
        factors = [(name, f"{value:.2f}") for name, value in answer.factors.items()]
        print_table(("phase", "measured / predicted"), factors, right=(1,))
    if output is not None:
        print_line(f"wrote {output / 'post_training' / 'overheads.csv'}; use it with --hwdb {output}")

"""`tangram rl validate`: compares predicted post-training steps with measured ones, beside a simple floor."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.questions.shared_fields import Hardware

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUNS.csv...", help="Measured runs, one a row; several tables are read as one."),
]
LeaveOut = Annotated[
    str,
    typer.Option(
        "--leave-out",
        help="source or model: predict each run with overheads fitted to the others of the table.  "
        "[default: the shipped overheads]",
    ),
]


Syncs = Annotated[
    Path | None, typer.Option("--syncs", help="Measured weight syncs, one a row, to compare as well.")
]


@derived
def command(
    runs: Runs,
    leave_out: LeaveOut = "",
    syncs: Syncs = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Predict every measured post-training step of the tables; print errors, coverage and a floor beside."""
    from tangram_sim.cli.console import print_json, print_line, print_table
    from tangram_sim.errors import unknown_name
    from tangram_validate.post_training.documents import RlScoreDocument
    from tangram_validate.post_training.predict import LEAVE_OUT, predict_rows
    from tangram_validate.post_training.reading import COLUMNS, TELLING
    from tangram_validate.post_training.report import document
    from tangram_validate.post_training.syncs import COLUMNS as SYNC_COLUMNS
    from tangram_validate.post_training.syncs import score_syncs
    from tangram_validate.published.table import read_rows

    if leave_out not in LEAVE_OUT:
        raise unknown_name("group to leave out", leave_out, LEAVE_OUT[1:])
    rows = [row for path in runs for row in read_rows(path, COLUMNS, "post-training runs", telling=TELLING)]
    known = hardware.load()
    answer = document(predict_rows(rows, known, leave_out), leave_out)
    if syncs is not None:
        measured = read_rows(syncs, SYNC_COLUMNS, "weight syncs")
        answer = answer.with_fields(syncs=score_syncs(measured, known))
    if shown.as_json:
        print_json(answer.model_dump())
        return

    def line(name: str, rl_score: RlScoreDocument) -> tuple[str, ...]:
        parts = (rl_score.median_ape, rl_score.p90_ape, rl_score.bias, rl_score.interval_coverage)
        return (
            name,
            f"{rl_score.n}",
            *("" if value is None else f"{value * 100:.1f} %" for value in parts),
        )

    how = (
        f"each {leave_out} predicted with overheads fitted to the others"
        if leave_out
        else "shipped overheads"
    )
    print_line(f"{answer.overall.n} steps of {answer.rows} rows compared, {how}")
    print_line()
    table = [
        line("all", answer.overall),
        *(line(name, rl_score) for name, rl_score in answer.by_source.items()),
    ]
    table.append(line("floor: three constants", answer.floor))
    columns = ("steps", "n", "median error", "p90", "bias", "inside 90 %")
    print_table(columns, table, right=range(1, 6))
    if answer.by_phase:
        print_line()
        phases = [line(name, rl_score) for name, rl_score in answer.by_phase.items()]
        print_table(("phase", *columns[1:]), phases, right=range(1, 6))
    if answer.orders.n:
        right, close = answer.orders.right_order, answer.orders.within_fifth
        ordered = "" if right is None else f"{right * 100:.0f} % in the right order, "
        print_line()
        print_line(
            f"modes and splits on the same GPUs: {answer.orders.n} pairs of runs, {ordered}"
            f"{(close or 0.0) * 100:.0f} % of the ratios within 20 %"
        )
    if answer.syncs is not None and answer.syncs.n:
        print_line(
            f"weight syncs: {answer.syncs.n}, {(answer.syncs.within_factor or 0.0) * 100:.0f} % within a "
            f"factor of 1.5, bound below {(answer.syncs.bound_below or 0.0) * 100:.0f} %"
        )
    if answer.unpredicted:
        print_line()
        reasons: dict[str, int] = {}
        for rl_unpredicted in answer.unpredicted:
            reasons[rl_unpredicted.reason] = reasons.get(rl_unpredicted.reason, 0) + 1
        print_table(
            ("rows not predicted", "because"), [(f"{n}", why) for why, n in reasons.items()], right=(0,)
        )

"""`tangram calibrate`: predictions shifted and narrowed by what was measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.calibrate_collectives import collectives
from tangram_sim.cli.calibrate_failures import failures
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.plugins import VerbGroup

if TYPE_CHECKING:
    from tangram_sim.validation.calibration.ownruns import Calibrated

NAME = "calibrated.csv"
app = typer.Typer(
    cls=VerbGroup, help="Shift and narrow predictions by what was measured.", no_args_is_help=True
)


@app.callback()
def group() -> None:
    """Shift and narrow predictions by what was measured."""


app.command("collectives")(collectives)
app.command("failures")(failures)


@app.command("run")
def run(
    runs: Annotated[
        Path,
        typer.Argument(metavar="MINE.csv", help="Measured steps of your own; columns of published runs."),
    ],
    keep: Annotated[
        str,
        typer.Option("--keep", help="Rows (ids, or all) to believe although their step looks mistyped."),
    ] = "",
    as_json: shared.AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the shifted rows into this folder, for --hwdb."),
    ] = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Fit scale (and, from four rows on, host time) per software stack, GPU kind and dtype to MINE.csv.

    A row far from its prediction and from the other rows is left out, and said: mend it, or --keep it.
    """
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole
    from tangram_sim.errors import BadInputError
    from tangram_sim.validation.calibration.ownruns import calibrate
    from tangram_sim.validation.published.reading import read_table

    target = None if output is None else output / "efficiency" / NAME
    require_writable(output=target)
    kept = [name.strip() for name in keep.split(",") if name.strip()]
    found = calibrate(read_table(runs), shared.load_hwdb(hwdb), kept)
    if not found.shifts:
        reasons = "\n".join(f"{one.id}: {one.reason}" for one in found.problems)
        raise BadInputError(f"{runs}: no row can be used, nothing is calibrated\n{reasons}")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, found.overlay)
    if as_json:
        print_json(document(found, target))
    else:
        _print(found)
    if target is not None and not as_json:
        print_line(f"rows written to {target} (use them with --hwdb {output})")


def document(found: "Calibrated", target: Path | None) -> dict[str, Any]:
    """The JSON object of `calibrate run`."""
    pairs = list(zip(found.before, found.after, strict=True))
    return {
        "calibrated": [
            {
                "stack": shift.key.stack,
                "gpu": shift.key.gpu,
                "dtype": shift.key.dtype,
                "rows": shift.n,
                "scale": _exp(shift.log_scale),
                "host_scale": _exp(shift.log_scale + shift.log_host),
                "sigma_before": shift.prior_sigma,
                "sigma_after": shift.sigma,
                "plan_sigma": shift.spread,
            }
            for shift in found.shifts
        ],
        "rows": [
            {
                "id": before.run.id,
                "measured_s": before.run.measured.step_s,
                "before": _figures(before),
                "after": _figures(after),
            }
            for before, after in pairs
        ],
        "used": len(pairs),
        "unused": [{"id": one.id, "reason": one.reason} for one in found.problems],
        "notes": _notes(found),
        "overlay": None if target is None else str(target),
    }


def _exp(value: float) -> float:
    import math

    return math.exp(value)


def _figures(one: Any) -> dict[str, float]:
    return {
        "step_s": one.step_s,
        "step_s_low": one.step_s_low,
        "step_s_high": one.step_s_high,
        "error": one.error,
    }


def _print(found: "Calibrated") -> None:
    from tangram_sim.units import show_seconds

    shifts = [
        (
            f"{shift.key.stack} on {shift.key.gpu}, {shift.key.dtype}",
            str(shift.n),
            f"{_exp(shift.log_scale):.3f}",
            f"{_exp(shift.log_scale + shift.log_host):.3f}",
            f"{100 * shift.prior_sigma:.0f} %",
            f"{100 * shift.sigma:.1f} %",
        )
        for shift in found.shifts
    ]
    if shifts:
        print_table(
            ("stack, GPU kind, dtype", "rows", "all times x", "host time x", "sigma before", "after"),
            shifts,
            right=(1, 2, 3, 4, 5),
        )

    def cells(one: Any) -> tuple[str, str, str]:
        interval = f"{show_seconds(one.step_s_low)} to {show_seconds(one.step_s_high)}"
        return show_seconds(one.step_s), interval, f"{100 * one.error:+.1f} %"

    lines = [
        (before.run.id, show_seconds(before.run.measured.step_s), *cells(before), *cells(after))
        for before, after in zip(found.before, found.after, strict=True)
    ]
    if lines:
        columns = ("row", "measured", "before", "interval", "error", "after", "interval", "error")
        print_table(columns, lines, right=(1, 2, 4, 5, 7))
    if found.problems:
        print_table(("row", "why not used"), [(one.id, one.reason) for one in found.problems])
    print_line(f"{len(lines)} rows used, {len(found.problems)} not.")
    for note in _notes(found):
        print_line(f"{note['rows']} rows: {note['note']}")


def _notes(found: "Calibrated") -> list[dict[str, Any]]:
    from tangram_sim.validation.published.stacks import software_notes

    return software_notes(one.run.software for one in found.before)

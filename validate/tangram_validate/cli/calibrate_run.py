"""`tangram calibrate run`: from a table of measured runs, or from a plan with its step time or its log."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.errors import BadInputError
from tangram_sim.questions.shared_fields import Hardware

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_validate.calibration.ownplan import PlanStep
    from tangram_validate.calibration.ownruns import Shift
    from tangram_validate.published.predict import Prediction
    from tangram_validate.published.table import Problem

NAME = "calibrated.csv"


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One measured step time in seconds, with its predictions before and after calibration."""

    id: str
    measured_s: float
    before: "Prediction | PlanStep"
    after: "Prediction | PlanStep"


@dataclass(frozen=True, slots=True)
class CalibrationAnswer:
    """The result of a calibration, in one form for all three kinds of input."""

    shifts: "Sequence[Shift]"
    steps: Sequence[ComparedStep]
    problems: "Sequence[Problem]"
    notes: Sequence[dict[str, Any]]  # {"rows": count, "note": what to know of them}
    overlay: str


@derived
def run(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="MINE.csv|PLAN.json|LOG",
            help="Measured steps in columns of published runs; a plan file, with --step-s; a training log or "
            "a CSV of W&B, with --plan.",
        ),
    ],
    step_s: Annotated[
        float | None,
        typer.Option("--step-s", help="Seconds of one step of the plan file.", show_default=False),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            help="The plan file that the log is of (Megatron-LM, NeMo, torchtitan, DeepSpeed, W&B).",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option("--keep", help="Rows (ids, or all) to believe although their step looks mistyped."),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the shifted rows into this folder, for --hwdb."),
    ] = None,
    *,
    hardware: Hardware,
    shown: Shown,
) -> None:
    """Fit scale (and, from four rows on, host time) per software stack, GPU kind and dtype to MINE.csv.

    Of a plan file and its step, or a plan file and the log of its run, the scale alone. A row far from its
    prediction and from the other rows is left out, and said: mend it, or --keep it.
    """
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole

    target = None if output is None else output / "efficiency" / NAME
    require_writable(output=target)
    kept = [name.strip() for name in keep.split(",") if name.strip()]
    database = hardware.load()
    if step_s is not None and plan is not None:
        raise BadInputError(
            "--step-s and --plan exclude each other: give a plan file and --step-s, or a log and --plan"
        )
    if step_s is not None:
        found = _of_plan(runs, step_s, database, kept)
    elif plan is not None:
        found = _of_log(runs, plan, database, kept)
    else:
        found = _of_table(runs, database, kept)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, found.overlay)
    if shown.as_json:
        print_json(document(found, target))
    else:
        _print(found)
    if target is not None and not shown.as_json:
        print_line(f"rows written to {target} (use them with --hwdb {output})")


def _of_table(runs: Path, hwdb: "Hwdb", kept: Sequence[str]) -> CalibrationAnswer:
    """Calibrate from a table in the columns of published runs. Raises BadInputError if no row can be used."""
    from tangram_validate.calibration.ownruns import calibrate
    from tangram_validate.published.reading import read_table
    from tangram_validate.published.stacks import software_notes

    try:
        rows = read_table(runs)
    except BadInputError as error:
        raise BadInputError(f"{error}{_what_it_is(runs)}") from None
    found = calibrate(rows, hwdb, kept)
    if not found.shifts:
        reasons = "\n".join(f"{problem.id}: {problem.reason}" for problem in found.problems)
        raise BadInputError(f"{runs}: no row can be used, nothing is calibrated\n{reasons}")
    pairs = zip(found.before, found.after, strict=True)
    return CalibrationAnswer(
        found.shifts,
        [ComparedStep(before.run.id, before.run.measured.step_s, before, after) for before, after in pairs],
        found.problems,
        software_notes(prediction.run.software for prediction in found.before),
        found.overlay,
    )


def _what_it_is(path: Path) -> str:
    """A hint on what to type if the file is a plan or a log instead of a table; empty if it is neither."""
    from tangram_sim.datafiles import read_text
    from tangram_validate.calibration.logs import find_steps

    text = read_text(path)
    if text.lstrip().startswith("{") and '"schema_version"' in text:
        return f"; a plan file needs the step it took: tangram calibrate run {path} --step-s 34.5"
    logged = find_steps(text, str(path))
    if logged is None:
        return ""
    return (
        f"; a log of {logged.framework} ({len(logged.figures)} steps) needs the plan that it is of: "
        f"tangram calibrate run {path} --plan plan.json"
    )


def _of_plan(path: Path, step_s: float, hwdb: "Hwdb", kept: Sequence[str]) -> CalibrationAnswer:
    """Calibrate from a plan file and its measured step time in seconds."""
    from tangram_sim.studies.planfile import read_plan
    from tangram_validate.calibration.ownplan import calibrate_plan

    if list(kept) not in ([], ["all"]):
        raise BadInputError(f"--keep {','.join(kept)}: a plan's step has no id; give --keep all")
    found = calibrate_plan(read_plan(path), step_s, hwdb, str(path), keep=bool(kept))
    notes = []
    if all(shift.log_scale == 0 for shift in found.shifts):
        said = "no factor makes this step much more probable than none does, so nothing moves; measure more"
        notes.append({"rows": 1, "note": said})
    if len(found.shifts) > 1:
        kinds = " and ".join(shift.key.gpu for shift in found.shifts)
        together = "both" if len(found.shifts) == 2 else "all"
        said = f"one step cannot tell {kinds} apart: {together} move by the same factor"
        notes.append({"rows": 1, "note": said})
    step = ComparedStep(path.stem, step_s, found.before, found.after)
    return CalibrationAnswer(found.shifts, [step], (), notes, found.overlay)


def _of_log(path: Path, plan: Path, hwdb: "Hwdb", kept: Sequence[str]) -> CalibrationAnswer:
    """Calibrate from a plan and the log of its run: the step time is the median after the warm-up steps."""
    from tangram_sim.studies.planfile import read_plan
    from tangram_sim.units import show_seconds
    from tangram_validate.calibration.logs import read_log

    logged, made = read_log(path), read_plan(plan)
    try:
        step_s = logged.step_s(made.job.global_batch, made.job.seq, made.gpus_used)
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from None
    found = _of_plan(plan, step_s, hwdb, kept)
    said = (
        f"{show_seconds(step_s)} is the median of {len(logged.used)} of {len(logged.figures)} figures that "
        f"{logged.framework} logged ({logged.quantity.value}); the first are taken for warming up"
    )
    stack = made.job.stack
    return CalibrationAnswer(
        found.shifts,
        found.steps,
        found.problems,
        [
            *found.notes,
            {"rows": 1, "note": said},
            {"rows": 1, "note": f"it speaks for the plan's stack, {stack}"},
        ],
        found.overlay,
    )


def document(found: CalibrationAnswer, target: Path | None) -> dict[str, Any]:
    """The JSON object of `calibrate run`."""
    return {
        "calibrated": [
            {
                "stack": shift.key.stack,
                "gpu": shift.key.gpu,
                "dtype": shift.key.dtype,
                "rows": shift.n,
                "scale": math.exp(shift.log_scale),
                "host_scale": math.exp(shift.log_scale + shift.log_host),
                "sigma_before": shift.prior_sigma,
                "sigma_after": shift.sigma,
                "plan_sigma": shift.spread,
            }
            for shift in found.shifts
        ],
        "rows": [
            {
                "id": step.id,
                "measured_s": step.measured_s,
                "before": _figures(step.before),
                "after": _figures(step.after),
            }
            for step in found.steps
        ],
        "used": len(found.steps),
        "unused": [{"id": problem.id, "reason": problem.reason} for problem in found.problems],
        "notes": list(found.notes),
        "overlay": None if target is None else str(target),
    }


def _figures(one: "Prediction | PlanStep") -> dict[str, float | None]:
    return {
        "step_s": one.step_s,
        "step_s_low": one.step_s_low,
        "step_s_high": one.step_s_high,
        "error": one.error,
    }


def _print(found: CalibrationAnswer) -> None:
    from tangram_sim.reports.plan_words import count
    from tangram_sim.units import show_seconds

    shifts = [
        (
            f"{shift.key.stack} on {shift.key.gpu}, {shift.key.dtype}",
            str(shift.n),
            f"{math.exp(shift.log_scale):.3f}",
            f"{math.exp(shift.log_scale + shift.log_host):.3f}",
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

    def cells(one: "Prediction | PlanStep") -> tuple[str, str, str]:
        interval = f"{show_seconds(one.step_s_low)} to {show_seconds(one.step_s_high)}"
        error = "-" if one.error is None else f"{100 * one.error:+.1f} %"
        return show_seconds(one.step_s), interval, error

    lines = [
        (step.id, show_seconds(step.measured_s), *cells(step.before), *cells(step.after))
        for step in found.steps
    ]
    if lines:
        columns = ("row", "measured", "before", "interval", "error", "after", "interval", "error")
        print_table(columns, lines, right=(1, 2, 4, 5, 7), leaves=(3, 6, 4))
    if found.problems:
        print_table(("row", "why not used"), [(problem.id, problem.reason) for problem in found.problems])
    print_line(f"{count(len(lines), 'row')} used, {len(found.problems)} not.")
    for note in found.notes:
        print_line(f"{count(note['rows'], 'row')}: {note['note']}")

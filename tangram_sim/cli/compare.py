"""`tangram compare`: planners side by side on one model and cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli import command_clock
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.errors import TangramError
from tangram_sim.fields import OUTPUT, option
from tangram_sim.questions.compare import CompareQuestion
from tangram_sim.questions.shared_fields import job_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tangram_sim.studies.comparison import PlannerAnswer


@dataclass(frozen=True, slots=True)
class ComparedOutputs(Shown):
    """Where compared plans are written."""

    output: Path | None = option(
        None,
        "Write every planner's plan into this folder, as PLANNER.json.",
        spelled="-o,--output",
        group=OUTPUT,
    )
    plot: Path | None = option(
        None, "Draw steps and planning times into this HTML file (extra `plot`).", group=OUTPUT
    )


@derived
def command(question: CompareQuestion, outputs: ComparedOutputs) -> None:
    """Write the files asked for, and print the answer."""
    deadline = command_clock.deadline(question.search.time_limit_s)

    from tangram_sim.cli import writing
    from tangram_sim.cli.console import print_line
    from tangram_sim.datafiles import write_all, write_whole

    writing.require_writable(plot=outputs.plot)
    if outputs.output is not None:
        writing.require_folder(outputs.output)
    if outputs.plot is not None:
        _require_plotly()
    found = question.answer(deadline=deadline)
    title = f"{question.model} on {question.cluster}"
    if outputs.plot is not None:
        write_whole(outputs.plot, plot_html(found.answers, title))
    plans = {} if outputs.output is None else _plan_files(outputs.output, found.answers)
    write_all(plans)

    def tables(_: object) -> None:
        print_line(f"{title}: {job_words(question.job)}")
        print_answers(found.answers)
        for path in plans:
            print_line(f"plan written to {path}")

    outputs.show(found, tables)


def _plan_files(folder: Path, answers: "Sequence[PlannerAnswer]") -> dict[Path, str]:
    """The plan files of all planners that have a plan, by path."""
    from tangram_sim.cli import writing

    return {
        folder / f"{each.planner}.json": writing.plan_text(each.result.document)
        for each in answers
        if each.result is not None
    }


def print_answers(answers: "list[PlannerAnswer]") -> None:
    """Print one row per planner, fastest step first; below, notes, and reasons of those without a plan.

    A note that all plans share is printed once.
    """
    from tangram_sim.cli.console import print_columns, print_line
    from tangram_sim.reports.columns import ViewColumn, share
    from tangram_sim.reports.plan_words import step_words
    from tangram_sim.studies.cautions import doubted
    from tangram_sim.units import show_bytes, show_seconds

    told = [(answer, answer.result.document) for answer in answers if answer.result is not None]
    told.sort(key=lambda pair: pair[1].step_s)
    columns = (
        ViewColumn("planner", "0.planner"),
        ViewColumn("step", lambda row: step_words(row[1])),
        ViewColumn("to the best", lambda row: row[1].step_s / told[0][1].step_s, "{:.2f} x"),
        ViewColumn("MFU", "1.mfu", share(1)),
        ViewColumn("fullest GPU", "1.peak_memory_bytes", show_bytes),
        ViewColumn("GPUs used", lambda row: f"{row[1].gpus_used} of {row[1].gpus_total}", "{}"),
        ViewColumn("planning", "0.planning_cpu_s", "{:.1f} CPU-s"),
    )
    if told:
        print_columns(columns, told, leaves=(4, 6, 3, 5))
        print_line(f"lower bound {show_seconds(told[0][1].lower_bound_step_s)}")
    plans = [plan for _, plan in told]
    for doubt in doubted(kind for plan in plans for kind in plan.gpu_kinds):
        print_line(doubt)
    shared = (
        [note for note in plans[0].notes if all(note in plan.notes for plan in plans)] if plans[1:] else []
    )
    for note in shared:
        print_line(note)
    for answer in answers:
        if answer.result is None:
            print_line(f"{answer.planner}: {answer.status}: {answer.reason}")
        else:
            for note in answer.result.document.notes:
                if note in shared:
                    continue
                print_line(f"{answer.planner}: {note}")


def _require_plotly() -> None:
    try:
        import plotly.graph_objects  # noqa: F401  # asked for before any work is done
    except ImportError as error:
        raise TangramError("--plot needs plotly: pip install 'tangram-sim[notebook]'") from error


def plot_html(answers: "list[PlannerAnswer]", title: str) -> str:
    """An HTML page, usable offline, that charts step times with their intervals, and planning times."""
    import plotly.graph_objects as drawing
    from plotly.subplots import make_subplots

    told = [(answer, answer.result.document) for answer in answers if answer.result is not None]
    figure = make_subplots(rows=1, cols=2, subplot_titles=("step, s (90 % interval)", "planning, CPU-s"))
    names = [planner_answer.planner for planner_answer, _ in told]
    figure.add_trace(
        drawing.Bar(
            x=names,
            y=[plan.step_s for _, plan in told],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [plan.step_s_high - plan.step_s for _, plan in told],
                "arrayminus": [plan.step_s - plan.step_s_low for _, plan in told],
            },
        ),
        row=1,
        col=1,
    )
    figure.add_trace(
        drawing.Bar(x=names, y=[planner_answer.planning_cpu_s for planner_answer, _ in told]), row=1, col=2
    )
    figure.update_layout(title=title, showlegend=False)
    phone = '<meta name="viewport" content="width=device-width, initial-scale=1" />'
    return str(figure.to_html(include_plotlyjs=True)).replace("<head>", f"<head>{phone}", 1)

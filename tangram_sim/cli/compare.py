"""`tangram compare`: planners side by side on one model and cluster."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import begun
from tangram_sim.cli import options as shared
from tangram_sim.cli.derived import derived
from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.questions.common import JobOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tangram_sim.studies.comparison import PlannerAnswer

Planners = Annotated[
    str | None,
    typer.Option("--planners", help="Names, e.g. tangram,metis,sailor.  [default: all that are installed]"),
]
TimeLimit = Annotated[
    float | None,
    shared.time_limit(
        "Seconds for all planners together, from the start of the command: each has an even share of "
        "what is left, and then takes its best plan so far.  [default: none]"
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write every planner's plan into this folder, as PLANNER.json."),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw steps and planning times into this HTML file (extra `plot`)."),
]


@derived
def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    *,
    planners: Planners = None,
    trained: JobOptions,
    stack: shared.Stack = "generic",
    time_limit: TimeLimit = None,
    memory_margin: shared.MemoryMargin = "auto",
    as_json: shared.AsJson = False,
    output: Output = None,
    plot: Plot = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Ask several planners for a plan of MODEL on CLUSTER, and play all plans with the same simulator.

    Leaves with 2 where none of them has a plan.
    """
    deadline = begun.deadline(shared.time_limit_s(time_limit))
    margin = shared.memory_margin(memory_margin)

    from tangram_sim.cli import buying, writing
    from tangram_sim.cli.console import print_json, print_line
    from tangram_sim.datafiles import write_all, write_whole
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.studies import comparison

    writing.require_writable(plot=plot)
    if output is not None:
        buying.require_folder(output)
    if plot is not None:
        _require_plotly()
    database = shared.load_hwdb(hwdb)
    answers = comparison.compare_planners(
        load_model(model),
        load_cluster(cluster, database),
        replace(trained.job, stack=stack),
        shared.names("--planners", planners),
        hwdb=database,
        deadline=deadline,
        memory_margin=margin,
    )
    if all(one.result is None for one in answers):
        reasons = "\n".join(f"{one.planner}: {one.status}: {one.reason}" for one in answers)
        raise InfeasibleError(f"no planner has a plan of {model} on {cluster}\n{reasons}")
    if plot is not None:
        write_whole(plot, plot_html(answers, f"{model} on {cluster}"))
    plans = {} if output is None else _plan_files(output, answers)
    write_all(plans)
    if as_json:
        print_json(comparison.comparison(answers).model_dump())
        return
    print_line(f"{model} on {cluster}: {trained.words}")
    print_answers(answers)
    for path in plans:
        print_line(f"plan written to {path}")


def _plan_files(folder: Path, answers: "Sequence[PlannerAnswer]") -> dict[Path, str]:
    """The plan files of all planners that have a plan, by path."""
    from tangram_sim.cli import writing

    return {
        folder / f"{each.planner}.json": writing.plan_text(each.result.document)
        for each in answers
        if each.result is not None
    }


def print_answers(answers: "list[PlannerAnswer]") -> None:
    """One row per planner, fastest step first; below, notes, and the reasons of those without a plan.

    A note that all plans have is printed once.
    """
    from tangram_sim.cli.console import print_line, print_table
    from tangram_sim.cli.plan_words import step_words
    from tangram_sim.studies.cautions import doubted
    from tangram_sim.units import show_bytes, show_seconds

    told = [(one, one.result.document) for one in answers if one.result is not None]
    told.sort(key=lambda pair: pair[1].step_s)
    rows = [
        (
            one.planner,
            step_words(plan),
            f"{plan.step_s / told[0][1].step_s:.2f} x",
            f"{plan.mfu * 100:.1f} %",
            show_bytes(plan.peak_memory_bytes),
            f"{plan.gpus_used} of {plan.gpus_total}",
            f"{one.planning_cpu_s:.1f} CPU-s",
        )
        for one, plan in told
    ]
    if rows:
        print_table(
            ("planner", "step", "to the best", "MFU", "fullest GPU", "GPUs used", "planning"),
            rows,
            right=(2, 3, 4, 5, 6),
            leaves=(4, 6, 3, 5),
        )
        print_line(f"lower bound {show_seconds(told[0][1].lower_bound_step_s)}")
    plans = [plan for _, plan in told]
    for doubt in doubted(kind for plan in plans for kind in plan.gpu_kinds):
        print_line(doubt)
    shared = (
        [note for note in plans[0].notes if all(note in plan.notes for plan in plans)] if plans[1:] else []
    )
    for note in shared:
        print_line(note)
    for one in answers:
        if one.result is None:
            print_line(f"{one.planner}: {one.status}: {one.reason}")
        else:
            for note in one.result.document.notes:
                if note in shared:
                    continue
                print_line(f"{one.planner}: {note}")


def _require_plotly() -> None:
    try:
        import plotly.graph_objects  # noqa: F401  # asked for before any work is done
    except ImportError as error:
        raise TangramError("--plot needs plotly: pip install 'tangram-sim[notebook]'") from error


def plot_html(answers: "list[PlannerAnswer]", title: str) -> str:
    """An HTML page, usable offline, that charts step times with their intervals, and planning times."""
    import plotly.graph_objects as drawing
    from plotly.subplots import make_subplots

    told = [(one, one.result.document) for one in answers if one.result is not None]
    figure = make_subplots(rows=1, cols=2, subplot_titles=("step, s (90 % interval)", "planning, CPU-s"))
    names = [one.planner for one, _ in told]
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
    figure.add_trace(drawing.Bar(x=names, y=[one.planning_cpu_s for one, _ in told]), row=1, col=2)
    figure.update_layout(title=title, showlegend=False)
    phone = '<meta name="viewport" content="width=device-width, initial-scale=1" />'
    return str(figure.to_html(include_plotlyjs=True)).replace("<head>", f"<head>{phone}", 1)

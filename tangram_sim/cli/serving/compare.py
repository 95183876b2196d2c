"""`tangram serve compare`: plans of several serving planners under one judge."""

from functools import partial
from typing import TYPE_CHECKING

from tangram_sim.cli import command_clock
from tangram_sim.cli.console import print_line, print_notes, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.questions.serve_plan import ServeCompareQuestion

if TYPE_CHECKING:
    from tangram_sim.studies.serving_comparison import ServiceComparisonDocument


@derived
def command(question: ServeCompareQuestion, shown: Shown) -> None:
    """Print the answer."""
    shown.show(question.answer(left_s=command_clock.left_s(question.time_limit_s)), partial(_show, question))


def _show(asked: ServeCompareQuestion, found: "ServiceComparisonDocument") -> None:
    """Print one row a planner; below, why others have no plan, and notes."""
    unit = "s" if found.objective == "makespan" else "USD/h" if asked.fleet is None else "/s"
    rows = [
        (
            name,
            f"{planner.played:.5g} {unit}",
            f"{planner.promised:.5g} {unit}",
            "-" if planner.cost_per_hour is None else f"{planner.cost_per_hour:.4g}",
            f"{(planner.good_share or 0.0) * 100:.1f} %",
            ", ".join(f"{count} {gpu}" for gpu, count in planner.gpus_used.items() if count),
            f"{planner.planning_cpu_s:.1f} CPU-s",
        )
        for name, planner in found.planners.items()
        if planner.played is not None
    ]
    print_table(
        ("planner", "played", "promised", "USD/h", "good", "GPUs", "planning"), rows, right=(1, 2, 3, 4, 6)
    )
    for name, planner in found.planners.items():
        if planner.played is None:
            print_line(f"{name}: {planner.status}: {planner.reason}")
    print_notes(found.notes)

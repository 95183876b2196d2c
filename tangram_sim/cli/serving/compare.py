"""`tangram serve compare`: plans of several serving planners under one judge."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_columns, print_line, print_notes
from tangram_sim.questions.serve_plan import ServeCompareQuestion
from tangram_sim.reports.columns import ViewColumn, counted, share

if TYPE_CHECKING:
    from tangram_sim.studies.serving_comparison import ServiceComparisonDocument


def _show(question: ServeCompareQuestion, found: "ServiceComparisonDocument") -> None:
    """Print one row a planner; below, why others have no plan, and notes."""
    unit = "s" if found.objective == "makespan" else "USD/h" if question.fleet is None else "/s"
    figure = f"{{:.5g}} {unit}"
    columns = (
        ViewColumn("planner", "0"),
        ViewColumn("played", "1.played", figure),
        ViewColumn("promised", "1.promised", figure),
        ViewColumn("USD/h", "1.cost_per_hour", "{:.4g}"),
        ViewColumn("good", lambda row: row[1].good_share or 0.0, share(1)),
        ViewColumn("GPUs", lambda row: counted(row[1].gpus_used)),
        ViewColumn("planning", "1.planning_cpu_s", "{:.1f} CPU-s"),
    )
    print_columns(columns, [item for item in found.planners.items() if item[1].played is not None])
    for name, planner in found.planners.items():
        if planner.played is None:
            print_line(f"{name}: {planner.status}: {planner.reason}")
    print_notes(found.notes)


command = asked(ServeCompareQuestion, _show, of_both=True)

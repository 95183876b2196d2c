"""`tangram stragglers`: what slow ranks cost in a measured run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_columns, print_line
from tangram_sim.questions.stragglers import StragglersQuestion
from tangram_sim.reports.columns import ViewColumn
from tangram_sim.units import show_seconds

if TYPE_CHECKING:
    from tangram_sim.studies.stragglers import Diagnosis

_WORKERS = 8  # cells of the grid shown
_OF_WORKERS = (
    ViewColumn("worker", lambda worker: f"dp {worker.dp}, stage {worker.stage}"),
    ViewColumn("S", "slowdown", "{:.4f}"),
    ViewColumn("passes / mean", "compute_ratio", "{:.3f}"),
)


def _show(found: "Diagnosis") -> None:
    """Print the cost of slow ranks, which they are, and remedies."""
    from tangram_sim.reports.stragglers import ALONE, REMEDIES

    document = found.document
    print_line(
        f"{document.steps} steps of dp {document.dp} x {document.pp} stages, {document.microbatches} "
        f"microbatches"
        f"   measured {show_seconds(document.measured_step_s)}   replayed "
        f"{show_seconds(document.replayed_step_s)}   ideal {show_seconds(document.ideal_step_s)}"
    )
    print_line(
        f"slowdown S {document.slowdown:.4f}: {max(document.waste, 0.0) * 100:.1f} % of the time is lost  "
        f" M_W "
        f"{document.worker_share:.4f}   M_S {document.last_stage_share:.4f}   measured over replayed "
        f"{document.measured_over_replayed:.4f}"
    )
    print_line(f"pattern: {document.pattern}: {document.pattern_reason}")
    print_line()
    alone = sorted(document.alone.items(), key=lambda item: -item[1])
    print_columns(ALONE, alone[:_WORKERS])
    print_columns(_OF_WORKERS, sorted(document.workers, key=lambda w: -w.slowdown)[:_WORKERS])
    if document.remedies:
        print_columns(REMEDIES, document.remedies)
    for reason in document.remedies_left_out:
        print_line(f"not priced: {reason}")
    if len(document.escalation) > 1:
        words = [f"{e.name} after {show_seconds(e.after_s)}" for e in document.escalation[1:]]
        print_line(f"if it is not known how long the slow phase lasts: {', then '.join(words)}")
    for omission in document.omissions:
        print_line(f"left out: {_steps(omission.steps)}, {omission.reason}")


def _steps(steps: Sequence[int], most: int = 5) -> str:
    """Steps as they are read: `step 3`, `12 steps (3, 7, 8, 20, 31 ...)`."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    listed = ", ".join(map(str, steps[:most])) + (" ..." if len(steps) > most else "")
    return f"{len(steps)} steps ({listed})"


def _page(question: StragglersQuestion, found: "Diagnosis") -> str:
    from tangram_sim.reports.stragglers import stragglers_report

    return stragglers_report(found, question.trace[0].name)


command = asked(StragglersQuestion, _show, _page)

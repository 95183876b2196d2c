"""Showing a result: a table a person can read, JSON, a plan file, a timeline, a CSV of candidates."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tangram_sim.cli.console import print_table
from tangram_sim.datafiles import write_whole
from tangram_sim.planners.api import Candidate
from tangram_sim.studies.documents import PlanDocument, StageForecast
from tangram_sim.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from tangram_sim.studies.api import Result

_BAR = 10


def show(result: "Result", *, as_json: bool, output: Path | None, trace: Path | None) -> None:
    """Write the files asked for, then print the table or the JSON object."""
    if trace is not None:
        from tangram_sim.sim.perfetto import trace_json

        write_whole(trace, trace_json(result.forecast.timeline))
    if output is not None:
        write_whole(output, plan_text(result.document))
    if as_json:
        typer.echo(json.dumps(result.document.model_dump(), indent=2))
        return
    print_document(result.document)
    for path, what in ((output, "plan"), (trace, "timeline")):
        if path is not None:
            typer.echo(f"{what} written to {path}")


def plan_text(document: PlanDocument) -> str:
    """The text of a plan file. The search's own seconds stay out: the same input gives the same bytes."""
    return json.dumps(document.model_dump(exclude={"planning_s", "planning_cpu_s"}), indent=1) + "\n"


def print_document(document: PlanDocument) -> None:
    """Headline, stages, what limits the step, alternatives, notes."""
    job = document.job
    verdict = "" if document.feasible else "   DOES NOT FIT"
    typer.echo(
        f"{document.model['name']} on {document.cluster['name']}: {job.global_batch} sequences of {job.seq} tokens, "
        f"{job.dtype}, {job.optimizer}, {document.schedule}{verdict}"
    )
    typer.echo(
        f"step {show_seconds(document.step_s)}   {document.tokens_per_s:,.0f} tokens/s   "
        f"MFU {document.mfu * 100:.1f} % of the GPUs used ({document.mfu_cluster * 100:.1f} % of all)   "
        f"{document.gpus_used} of {document.gpus_total} GPUs"
    )
    gap = document.step_s / document.lower_bound_step_s - 1 if document.lower_bound_step_s else 0.0
    typer.echo(
        f"{document.microbatches} microbatches of {document.microbatch} sequences ({document.microbatch_per_rank} per rank at most)   "
        f"bubble and waits {document.bubble_fraction * 100:.1f} %   no plan below {show_seconds(document.lower_bound_step_s)} "
        f"(gap {gap * 100:.0f} %)"
    )
    slowest = max(document.stages, key=lambda stage: stage.forward_s + stage.backward_s)
    rows = [_row(number, stage, stage is slowest) for number, stage in enumerate(document.stages)]
    columns = ("stage", "layers", "island", "GPUs", "layout", "forward", "backward", "sync", "to next", "idle", "memory", "")
    print_table(columns, rows, right=(0, 5, 6, 7, 8, 9))
    kinds = {stage.gpu: stage.measured for stage in document.stages}
    assumed = [gpu for gpu, measured in kinds.items() if not measured]
    if assumed:
        typer.echo(f"Efficiencies of {', '.join(assumed)} are assumed, not measured: see `tangram hw show NAME`.")
    for note in document.notes:
        typer.echo(f"note: {note}")
    if document.partial_plans is not None:
        counts = document.partial_plans
        typer.echo(
            f"searched: {counts.asked} questions asked, {counts.redundant} redundant, {counts.imbalanced} imbalanced, "
            f"{counts.infeasible} infeasible, {counts.dominated} layouts dominated; {counts.played} plans simulated "
            f"in {document.planning_s or 0:.1f} s ({document.planning_cpu_s or 0:.1f} CPU-s)"
        )
    for alternative in document.alternatives:
        typer.echo(f"alternative {show_seconds(alternative.step_s)}: {alternative.summary}")


def _row(number: int, stage: StageForecast, slowest: bool) -> tuple[str, ...]:
    start, stop = stage.layers
    layers = f"{start}-{stop - 1}" if stop > start else ""
    layers = "+".join(part for part in ("embedding" if stage.embedding else "", layers, "head" if stage.head else "") if part)
    used = stage.peak_memory_bytes / stage.memory_capacity_bytes
    filled = min(_BAR, round(used * _BAR))
    bar = "#" * filled + "." * (_BAR - filled)
    limits = "slowest" if slowest else ""
    if used > 1:
        limits = "too full"
    elif used > 0.95:
        limits = f"{limits}, nearly full".strip(", ")
    return (
        str(number),
        layers,
        stage.island,
        f"{stage.gpus} x {stage.gpu}",
        layout_words(stage),
        show_seconds(stage.forward_s),
        show_seconds(stage.backward_s),
        show_seconds(stage.gradient_sync_s),
        show_seconds(stage.send_s),
        f"{stage.idle_fraction * 100:.0f} %",
        f"{bar} {show_bytes(stage.peak_memory_bytes)} of {show_bytes(stage.memory_capacity_bytes)}",
        limits,
    )


def layout_words(stage: StageForecast) -> str:
    """The layout of a stage in one cell."""
    words = [f"{name}{value}" for name, value in (("tp", stage.tp), ("dp", stage.dp), ("cp", stage.cp), ("ep", stage.ep)) if value > 1]
    if stage.zero_stage:
        words.append(f"zero{stage.zero_stage}")
    if stage.recompute != "none":
        words.append(f"recompute {stage.recompute}")
    if stage.sequence_parallel:
        words.append("sp")
    return " ".join(words) or "-"


def write_candidates(candidates: Sequence[Candidate], path: Path) -> None:
    """Every partial plan considered, one row each; `start` and `stop` count atoms (0 is the embedding)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    fields = [name for name in Candidate.__dataclass_fields__]
    writer.writerow(fields)
    for candidate in candidates:
        writer.writerow([getattr(candidate, name) for name in fields])
    write_whole(path, text.getvalue())
    typer.echo(f"{len(candidates)} partial plans written to {path}", err=True)

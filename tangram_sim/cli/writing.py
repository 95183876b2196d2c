"""Showing a result: a table a person can read, JSON, a plan file, a timeline, a CSV of candidates."""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli.console import ConsoleTable, print_json, print_line, print_widest
from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError
from tangram_sim.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.planners.api import Candidate
    from tangram_sim.studies.documents import PlanDocument, StageForecast
    from tangram_sim.studies.results import Result

_BAR = 10
_CHUNKS = 4  # of an interleaved stage that are shown


def require_writable(**files: Path | None) -> None:
    """Refuse impossible output files before any work is done; keys are the options that name them.

    Raises BadInputError for a folder, a place that cannot be written, or one file named twice.
    """
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        option = f"--{name} {path}"
        if path.is_dir():
            raise BadInputError(f"{option}: is a folder; name a file in it, e.g. {path / (name + '.json')}")
        place = next(folder for folder in path.absolute().parents if folder.exists())
        if not place.is_dir():
            raise BadInputError(f"{option}: {place} is a file, not a folder; name another place")
        if not os.access(path if path.exists() else place, os.W_OK):
            raise BadInputError(f"{option}: no permission to write in {place}; name another place")
        if path.absolute() in seen and (path.is_file() or not path.exists()):
            raise BadInputError(f"--{seen[path.absolute()]} and {option} name one file; name two")
        seen[path.absolute()] = name


def show(
    result: "Result",
    *,
    as_json: bool,
    output: Path | None,
    trace: Path | None,
    candidates: Path | None = None,
    memory: Path | None = None,
) -> None:
    """Write the files asked for, then print the table or the JSON object."""
    written = []
    if trace is not None:
        from tangram_sim.sim.perfetto import trace_json

        write_whole(trace, trace_json(result.forecast.timeline))
        written.append(f"timeline written to {trace} (open it in https://ui.perfetto.dev)")
    if memory is not None:
        from tangram_sim.studies.memory_timeline import memory_csv

        write_whole(memory, memory_csv(result.forecast))
        written.append(f"memory over time written to {memory}")
    if candidates is not None:
        write_whole(candidates, candidates_text(result.candidates))
        written.append(f"{count(len(result.candidates), 'partial plan')} written to {candidates}")
    if output is not None:
        write_whole(output, plan_text(result.document))
        written.append(f"plan written to {output} (`tangram explain {output}` takes it apart)")
    if as_json:
        print_json(result.document.model_dump())
        return
    print_document(result.document)
    for line in written:
        print_line(line)


def is_report(path: Path | None) -> bool:
    """Whether `-o` names an HTML report."""
    return path is not None and path.suffix.lower() in (".html", ".htm")


def reported(result: "Result", output: Path | None, hwdb: "Hwdb", *, as_json: bool) -> Path | None:
    """Write the HTML report where `-o` names one; what is left for `-o` otherwise."""
    if output is None or not is_report(output):
        return output
    from tangram_sim.reports.plan_sections import plan_report

    write_whole(output, plan_report(result.document, hwdb))
    if not as_json:
        print_line(f"report written to {output}")
    return None


def plan_text(document: "PlanDocument") -> str:
    """The text of a plan file. The search's own seconds stay out: the same input gives the same bytes."""
    seconds = {"planning_s", "planning_cpu_s"}
    return json.dumps(document.model_dump(exclude=seconds), indent=1, allow_nan=False) + "\n"


def count(number: int, what: str) -> str:
    """A number with its noun: `1 microbatch`, `2 microbatches`."""
    plural = f"{what}es" if what.endswith(("ch", "s", "x")) else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def print_document(document: "PlanDocument") -> None:
    """Headline, stages, what limits the step, alternatives, notes."""
    job = document.job
    verdict = "" if document.feasible else "   DOES NOT FIT"
    adapters = "" if job.trainable >= 1.0 else f", {100 * job.trainable:.2g} % of the weights trained"
    print_line(
        f"{document.model['name']} on {document.cluster['name']}: {count(job.global_batch, 'sequence')} of "
        f"{count(job.seq, 'token')}, {job.dtype}, {job.optimizer}, {document.schedule}{adapters}{verdict}"
    )
    print_line(
        f"step {step_words(document)}   {document.tokens_per_s:,.0f} tokens/s   "
        f"MFU {document.mfu * 100:.1f} % of the GPUs used ({document.mfu_cluster * 100:.1f} % of all)   "
        f"{document.gpus_used} of {document.gpus_total} GPUs"
    )
    bound = document.work_bound_step_s or document.lower_bound_step_s
    gap = f" (gap {(document.step_s / bound - 1) * 100:.0f} %)" if bound else ""
    print_line(
        f"{count(document.microbatches, 'microbatch')} of {count(document.microbatch, 'sequence')} "
        f"({document.microbatch_per_rank} per rank at most)   "
        f"bubble and waits {document.bubble_fraction * 100:.1f} %   "
        f"no plan on the cluster below {show_seconds(bound)}{gap}"
    )
    nearest = document.lower_bound_step_s
    if nearest not in (bound, document.pipeline_bound_step_s):
        print_line(
            f"none of the {document.lower_bound_covers}, below {show_seconds(nearest)} "
            f"(gap {max(document.step_s / nearest - 1, 0.0) * 100:.1f} %)"
        )
    least = document.pipeline_bound_step_s
    if least:
        print_line(
            f"no single pipeline of the layouts searched below {show_seconds(least)} "
            f"(gap {max(document.step_s / least - 1, 0.0) * 100:.1f} %)"
        )
    _print_stages(document.stages)
    assumed = [kind.gpu for kind in document.gpu_kinds if kind.rests_on.startswith("assumed")]
    if assumed:
        print_line(
            f"Efficiencies of {', '.join(assumed)} are assumed, not measured: "
            f"see `tangram hw show {assumed[0]}`."
        )
    inherited = [kind.gpu for kind in document.gpu_kinds if kind.rests_on.startswith("inherited")]
    if inherited:
        print_line(
            f"Efficiencies of {', '.join(inherited)} are inherited from measured kinds on the same chip: "
            f"see `tangram hw show {inherited[0]}`."
        )
    if document.partial_plans is not None:
        _print_launch(document)
    for note in document.notes:
        print_line(f"note: {note}")
    if document.partial_plans is not None:
        counts = document.partial_plans
        print_line(
            f"searched: {count(counts.asked, 'question')} asked, {counts.redundant:,} redundant, "
            f"{counts.imbalanced:,} imbalanced, {counts.infeasible:,} infeasible, "
            f"{count(counts.dominated, 'layout')} dominated; {count(counts.played, 'plan')} simulated "
            f"in {document.planning_s or 0:.1f} s ({document.planning_cpu_s or 0:.1f} CPU-s)"
        )
    for alternative in document.alternatives:
        print_line(f"alternative {show_seconds(alternative.step_s)}: {alternative.summary}")


def _print_launch(document: "PlanDocument") -> None:
    """Which frameworks can be told the plan, and the nearest plan that one of them can."""
    near = document.nearest_launchable
    if document.launchable_with:
        print_line(f"can be launched with {', '.join(document.launchable_with)}: `tangram export`")
    elif near is not None:
        doubt = "" if near.told_apart else ", cannot be told apart"
        print_line(
            f"no framework launches this plan; {' and '.join(near.frameworks)} can launch one of "
            f"{show_seconds(near.step_s)} ({(near.ratio - 1) * 100:+.1f} %{doubt}): {near.summary} (`--for "
            f"{near.frameworks[0]}`)"
        )
    else:
        print_line("no framework launches this plan; `tangram export --to rankmap` writes it down")


def step_words(document: "PlanDocument") -> str:
    """The step with its 90 % interval: `13.7 s (12.9 to 14.6)`, the unit once where it is the same."""
    step = show_seconds(document.step_s)
    if not document.step_s_high:
        return step
    low, high = show_seconds(document.step_s_low), show_seconds(document.step_s_high)
    unit = step.partition(" ")[2]
    if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{step} ({low} to {high})"


def _print_stages(stages: Sequence["StageForecast"]) -> None:
    """One row per stage: every column where there is room, times and places merged where there is not."""
    paces = [stage.forward_s + stage.backward_s for stage in stages]
    slowest = paces.index(max(paces))
    wide, narrow = [], []
    for number, stage in enumerate(stages):
        layers, layout = _layers(stage), layout_words(stage)
        idle, limits = f"{stage.idle_fraction * 100:.0f} %", _limits(stage, number == slowest)
        used = stage.peak_memory_bytes / stage.memory_capacity_bytes
        filled = min(_BAR, round(used * _BAR))
        bar = "#" * filled + "." * (_BAR - filled)
        sizes = f"{show_bytes(stage.peak_memory_bytes)} of {show_bytes(stage.memory_capacity_bytes)}"
        gpus = f"{stage.gpus} x {stage.gpu}"
        sync, send = show_seconds(stage.gradient_sync_s), show_seconds(stage.send_s)
        times = (show_seconds(stage.forward_s), show_seconds(stage.backward_s), sync, send, idle)
        wide.append((str(number), layers, stage.island, gpus, layout, *times, f"{bar} {sizes}", limits))
        pace, place = show_seconds(paces[number]), f"{stage.island}: {gpus}"
        memory = f"{bar[::2]} {used * 100:.0f} %"
        narrow.append((str(number), layers, place, layout, pace, sync, idle, memory, limits))
    full = ("stage", "layers", "island", "GPUs", "layout", "forward", "backward", "sync", "to next", "idle")
    print_widest(
        [
            ConsoleTable((*full, "memory", "limited by"), wide, right=(0, 5, 6, 7, 8, 9)),
            ConsoleTable(
                ("stage", "layers", "GPUs", "layout", "fwd+bwd", "sync", "idle", "memory", "limited by"),
                narrow,
                right=(0, 4, 5, 6),
            ),
            ConsoleTable(
                ("#", "layers", "GPUs, layout, limited by", "fwd+bwd", "idle", "memory"),
                [
                    (row[0], row[1], f"{row[2]}\n{row[3]}\n{row[8]}", row[4], row[6], row[7].split(" ", 1)[1])
                    for row in narrow
                ],
                right=(0, 3, 4, 5),
            ),
        ]
    )


def _layers(stage: "StageForecast") -> str:
    """The blocks of a stage, first and last of each chunk, and the ends it holds."""
    runs = stage.chunks or [stage.layers]
    shown = [_blocks(*run) for run in (runs if len(runs) <= _CHUNKS else (*runs[: _CHUNKS - 1], runs[-1]))]
    if len(runs) > _CHUNKS:
        shown.insert(-1, "...")
    blocks = ",".join(shown)
    ends = ("embedding" if stage.embedding else "", blocks, "head" if stage.head else "")
    return "+".join(part for part in ends if part)


def _blocks(start: int, stop: int) -> str:
    return "" if stop == start else f"{start}-{stop - 1}" if stop - start > 1 else f"{start}"


def _limits(stage: "StageForecast", slowest: bool) -> str:
    """What a stage spends its time on, and whether it sets the pace or its memory is short."""
    words = ["slowest"] if slowest else []
    used = stage.peak_memory_bytes / stage.memory_capacity_bytes
    if used > 1:
        words.append("too full")
    elif used > 0.95:
        words.append("nearly full")
    words.append(f"{stage.limited_by} {stage.limited_by_share * 100:.0f} %")
    return ", ".join(words)


def layout_words(stage: "StageForecast") -> str:
    """The layout of a stage in one cell."""
    degrees = (("tp", stage.tp), ("dp", stage.dp), ("cp", stage.cp), ("ep", stage.ep))
    words = [f"{name}{value}" for name, value in degrees if value > 1]
    if stage.zero_stage:
        words.append(f"zero{stage.zero_stage}")
    if stage.recompute != "none":
        words.append(f"recompute {stage.recompute}")
    if stage.sequence_parallel:
        words.append("sp")
    return " ".join(words) or "-"


def candidates_text(candidates: Sequence["Candidate"]) -> str:
    """A CSV of every partial plan considered; `start` and `stop` count atoms (0 is the embedding)."""
    from tangram_sim.planners.api import Candidate

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Candidate)]
    writer.writerow(names)
    writer.writerows([getattr(candidate, name) for name in names] for candidate in candidates)
    return text.getvalue()

"""Print a plan: step time, stages, what limits the step, what to try next, notes, alternatives."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_detail, print_findings, print_line, print_remark, print_widest
from tangram_sim.cli.tables import ConsoleTable
from tangram_sim.reports.plan_words import (
    batch_words,
    count,
    curve_words,
    layer_words,
    layout_words,
    limit_words,
    power_words,
    run_words,
    step_words,
)
from tangram_sim.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from tangram_sim.studies.documents import PlanDocument, StageForecast

_BAR = 10  # characters of a bar of memory


def print_document(document: "PlanDocument") -> None:
    """Print step time, stages, what limits the step, alternatives and notes."""
    from tangram_sim.studies.advice import advice, gap_words
    from tangram_sim.studies.cautions import doubted

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
    gap = f" (optimality gap {(document.step_s / bound - 1) * 100:.0f} %)" if bound else ""
    print_line(
        f"{batch_words(document)} ({document.microbatch_per_rank} per rank at most)   "
        f"pipeline bubble and waiting {document.bubble_fraction * 100:.1f} %   "
        f"lower bound {show_seconds(bound)}{gap}"
    )
    nearest = document.lower_bound_step_s
    if nearest not in (bound, document.pipeline_bound_step_s):
        print_detail(
            f"lower bound on {document.lower_bound_covers}: {show_seconds(nearest)} "
            f"({gap_words(document, nearest)})"
        )
    least = document.pipeline_bound_step_s
    if least:
        print_detail(
            f"lower bound on single pipelines of the layouts searched: {show_seconds(least)} "
            f"({gap_words(document, least)})"
        )
    if document.run is not None:
        print_line(run_words(document.run))
    for line in (*power_words(document.power), *curve_words(document.power)) if document.power else ():
        print_line(line)
    _print_stages(document.stages)
    print_line(advice(document))
    for doubt in doubted(document.gpu_kinds):
        print_remark(doubt)
    if document.partial_plans is not None:
        _print_launch(document)
    print_findings(document.findings)
    if document.partial_plans is not None:
        counts = document.partial_plans
        print_detail(
            f"searched: {count(counts.asked, 'partial plan')} requested, {counts.redundant:,} reused, "
            f"{counts.imbalanced:,} imbalanced, {counts.infeasible:,} infeasible, "
            f"{count(counts.dominated, 'layout')} dominated; {count(counts.played, 'plan')} simulated "
            f"in {document.planning_s or 0:.1f} s ({document.planning_cpu_s or 0:.1f} CPU-s)"
        )
    for alternative in document.alternatives:
        print_line(f"alternative {show_seconds(alternative.step_s)}: {alternative.summary}")


def _print_launch(document: "PlanDocument") -> None:
    """Name the frameworks that can run the plan, or the plan nearest in step time that one can run."""
    near = document.nearest_launchable
    if document.launchable_with:
        print_remark(f"can be launched with {', '.join(document.launchable_with)}: `tangram export`")
    elif near is not None:
        doubt = "" if near.told_apart else ", statistically tied"
        print_remark(
            f"no framework launches this plan; {', '.join(near.frameworks)} can launch one of "
            f"{show_seconds(near.step_s)} ({(near.ratio - 1) * 100:+.1f} %{doubt}): {near.summary} (`--for "
            f"{near.frameworks[0]}`)"
        )
        print_detail(f"{near.frameworks[0]} lacks for the plan: {'; '.join(near.lacking)}")
    else:
        print_remark("no framework launches this plan; `tangram export --to rankmap` writes it down")


def _labels(stages: Sequence["StageForecast"]) -> list[tuple[str, str]]:
    """(pipeline, stage) labels of every row: parts of a stage get letters, a single pipeline no number."""
    from tangram_sim.studies.stage_names import stage_names

    several = len({stage.pipeline for stage in stages}) > 1
    found = []
    for number, (stage, name) in enumerate(zip(stages, stage_names(stages), strict=True)):
        begins = number == 0 or stages[number - 1].pipeline != stage.pipeline
        pipeline = f"{stage.pipeline}" if several and begins else ""
        found.append((pipeline, name.rpartition(".")[2]))
    return found


def _folded(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows with identical pipelines merged; the first cell lists the numbers of all of them."""
    blocks: list[list[tuple[str, ...]]] = []
    for row in rows:
        if row[0] or not blocks:
            blocks.append([])
        blocks[-1].append(row)
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for block in blocks:
        alike.setdefault(tuple(row[1:] for row in block), []).append(block[0][0])
    found = []
    for cells, numbers in alike.items():
        found += [(_runs(numbers) if place == 0 else "", *row) for place, row in enumerate(cells)]
    return found


def _runs(numbers: Sequence[str]) -> str:
    """Numbers as text, with runs of three and more as ranges: `0-3, 7`."""
    if not numbers[0]:
        return ""
    runs: list[list[int]] = []
    for number in map(int, numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _shorter(table: ConsoleTable) -> ConsoleTable:
    """The table of merged columns without gradient sync and bars, for windows of 120 characters."""
    memory = table.columns.index("memory")
    rows = [[*row[:memory], row[memory].split(" ", 1)[1], *row[memory + 1 :]] for row in table.rows]
    return replace(table, rows=rows, lost=("sync", *table.lost)).without({table.columns.index("sync")})


def _print_stages(stages: Sequence["StageForecast"]) -> None:
    """Print one row per stage: all columns if there is room, else with times and places merged."""
    from tangram_sim.studies.advice import tail_s

    paces = [stage.forward_s + stage.backward_s for stage in stages]
    # Equal pipelines are shown once: the slowest stage is marked in each of them.
    slowest = {
        stage.pipeline: place for place, stage in reversed([*enumerate(stages)]) if paces[place] == max(paces)
    }
    wide: list[tuple[str, ...]] = []
    narrow: list[tuple[str, ...]] = []
    for number, (stage, label) in enumerate(zip(stages, _labels(stages), strict=True)):
        layers, layout = layer_words(stage), layout_words(stage)
        idle, limits = (
            f"{stage.idle_fraction * 100:.0f} %",
            limit_words(stage, number == slowest.get(stage.pipeline)),
        )
        used = stage.peak_memory_bytes / stage.memory_capacity_bytes
        filled = min(_BAR, round(used * _BAR))
        bar = "#" * filled + "." * (_BAR - filled)
        sizes = f"{show_bytes(stage.peak_memory_bytes)} of {show_bytes(stage.memory_capacity_bytes)}"
        gpus = f"{stage.gpus} x {stage.gpu}"
        sync, send = show_seconds(tail_s(stage)), show_seconds(stage.send_s)
        times = (show_seconds(stage.forward_s), show_seconds(stage.backward_s), sync, send, idle)
        wide.append((*label, layers, stage.island, gpus, layout, *times, f"{bar} {sizes}", limits))
        pace, place = show_seconds(paces[number]), f"{stage.island}: {gpus}"
        memory = f"{bar[::2]} {used * 100:.0f} %"
        narrow.append((*label, layers, place, layout, pace, sync, idle, memory, limits))
    wide, narrow = _folded(wide), _folded(narrow)
    full = ("stage", "layers", "island", "GPUs", "layout", "forward", "backward", "sync", "to next", "idle")
    tables = [
        ConsoleTable(("pipeline", *full, "memory", "limited by"), wide, right=(1, 6, 7, 8, 9, 10)),
        ConsoleTable(
            (
                "pipeline",
                "stage",
                "layers",
                "GPUs",
                "layout",
                "fwd+bwd",
                "sync",
                "idle",
                "memory",
                "limited by",
            ),
            narrow,
            right=(1, 5, 6, 7),
            lost=("to next",),
        ),
        ConsoleTable(
            ("pipeline", "#", "layers", "GPUs, layout, limited by", "fwd+bwd", "idle", "memory"),
            [
                (*row[:3], f"{row[3]}\n{row[4]}\n{row[9]}", row[5], row[7], row[8].split(" ", 1)[1])
                for row in narrow
            ],
            right=(1, 4, 5, 6),
            leaves=(5, 2, 4, 6),
            lost=("sync", "to next"),
        ),
    ]
    tables.insert(2, _shorter(tables[1]))
    several = any(stage.pipeline != stages[0].pipeline for stage in stages)
    print_widest(tables if several else [table.without({0}) for table in tables])

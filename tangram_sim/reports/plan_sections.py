"""The sections of a report that take one plan apart: its stages, its memory, when what runs."""

from tangram_sim.hwdb import Hwdb
from tangram_sim.reports import figures, page
from tangram_sim.reports.ledger import Cell, Ledger
from tangram_sim.studies.documents import PlanDocument, StageForecast
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.planfile import plan_from_document
from tangram_sim.units import show_bytes, show_seconds

_FORMULAS = {
    "mfu": "MFU: model FLOPs of a step over its seconds and the dense peak of the GPUs used",
    "idle": "idle: the share of the step in which a stage's compute stream waits",
    "gap": "gap: how far the step is above a bound that no plan of the kind named can beat",
}


def simulated(document: PlanDocument, name: str, ledger: Ledger) -> str:
    """The id of a plan's simulation as a source; what its GPU kinds rest on goes in with it."""
    rests = "; ".join(f"{kind.gpu}: {kind.rests_on}" for kind in document.gpu_kinds)
    return ledger.cite(
        "simulated",
        f"plan of {name}, played by tangram-sim {document.package_version} on hardware rows with digest "
        f"{document.hwdb_hash}; ranges are 90 % intervals. Kernel times rest on: {rests or 'not recorded'}",
    )


def given_job(document: PlanDocument, ledger: Ledger) -> str:
    """The id of the job as a source."""
    job = document.job
    return ledger.cite(
        "given",
        f"job: {job.global_batch} sequences of {job.seq} tokens a step, {job.dtype}, {job.optimizer}, "
        f"schedule {job.schedule}, software stack {job.stack}",
    )


def capacities(document: PlanDocument, ledger: Ledger, hwdb: Hwdb) -> list[str]:
    """Ids of the datasheet rows that the plan's GPUs are described by."""
    known, found = hwdb.gpu_names(), []
    for kind in dict.fromkeys(name for stage in document.stages for name in stage.gpu.split("+")):
        if kind in known:
            row = hwdb.row("gpus", kind)
            found.append(ledger.cite("hardware", f"gpus/{kind}: {row['source']}"))
        else:
            found.append(ledger.cite("given", f"{kind}: described in the cluster file"))
    return found


def seat_names(document: PlanDocument) -> list[str]:
    """What to call every row of the stage table."""
    several = len(document.pipelines) > 1
    return [_seat(stage, several) for stage in document.stages]


def _seat(stage: StageForecast, several: bool) -> str:
    place = f"{stage.pipeline}.{stage.stage}" if several else f"{stage.stage}"
    return f"stage {place}{chr(ord('a') + stage.part) if stage.part else ''} {stage.gpu}"


def sections(document: PlanDocument, name: str, ledger: Ledger, hwdb: Hwdb) -> list[str]:
    """Stages, timeline and memory of the plan called `name`."""
    source, hardware = simulated(document, name, ledger), capacities(document, ledger, hwdb)
    job, idle = given_job(document, ledger), ledger.cite("computed", _FORMULAS["idle"])
    names = seat_names(document)
    rows = []
    for seat, stage in zip(names, document.stages, strict=True):
        rows.append(
            [
                Cell(seat),
                Cell(f"{stage.gpus}", (source,), stage.gpus),
                Cell(
                    " ".join(f"[{start}, {stop})" for start, stop in stage.chunks or [stage.layers]),
                    (source,),
                    stage.layers[0],
                ),
                Cell(_degrees(stage), (source,)),
                Cell(show_seconds(stage.forward_s), (source,), stage.forward_s),
                Cell(show_seconds(stage.backward_s), (source,), stage.backward_s),
                Cell(show_seconds(stage.gradient_sync_s), (source,), stage.gradient_sync_s),
                Cell(f"{stage.idle_fraction:.0%}", (source, idle), stage.idle_fraction),
                Cell(show_bytes(stage.peak_memory_bytes), (source,), stage.peak_memory_bytes),
                Cell(show_bytes(stage.memory_capacity_bytes), hardware, stage.memory_capacity_bytes),
            ]
        )
    heads = (
        "stage",
        "GPUs",
        "layers",
        "layout",
        "forward",
        "backward",
        "sync",
        "idle",
        "peak memory",
        "capacity",
    )
    step = show_seconds(document.step_s)
    if document.step_s_high:
        step += f" ({show_seconds(document.step_s_low)} to {show_seconds(document.step_s_high)})"
    mfu = ledger.cite("computed", _FORMULAS["mfu"])
    words = (
        f"One step takes {page.figure_of(step, (source, job))}, MFU "
        f"{page.figure_of(f'{document.mfu:.1%}', (source, mfu))}; "
        f"{page.figure_of(f'{document.gpus_used} of {document.gpus_total}', (source,))} GPUs work"
        f"{_idle_gpus(document, source)}. {_bounds(document, source, ledger)}Times are of one microbatch."
    )
    found = [
        page.section(
            "The plan",
            page.caption(page.name(name) + ": " + words),
            page.table("stages", heads, rows, names=(3,)),
        )
    ]
    played = forecast(plan_from_document(document, hwdb, name), hwdb)
    drawn, until = figures.timeline(played.timeline)
    whole = played.timeline.makespan_s
    what = "All of one step." if until >= whole else "The beginning of one step:"
    figure = page.figure_of(f"{show_seconds(until)} of {show_seconds(whole)}", (source,))
    found.append(
        page.section("When what runs", page.plot(drawn, (source,)), page.caption(f"{what} {figure}."))
    )
    memory = figures.memory(document.stages, names)
    found.append(page.section("Memory", page.plot(memory, (source, *hardware))))
    return found


def _idle_gpus(document: PlanDocument, source: str) -> str:
    idle = document.gpus_total - document.gpus_used
    return f"; {page.figure_of(f'{idle}', (source,))} stay idle" if idle else ""


def _bounds(document: PlanDocument, source: str, ledger: Ledger) -> str:
    """What no plan, and no single pipeline of the layouts searched, can beat, and how far the step is off."""
    sources = source, ledger.cite("computed", _FORMULAS["gap"])
    found = ""
    nearest = document.lower_bound_step_s
    if nearest in (document.work_bound_step_s, document.pipeline_bound_step_s):
        nearest = 0.0  # one of the others
    for what, bound_s in (
        ("plan on this cluster", document.work_bound_step_s),
        ("single pipeline of the layouts searched", document.pipeline_bound_step_s),
        (f"one of the {document.lower_bound_covers}", nearest),
    ):
        if bound_s > 0:
            words = f"{show_seconds(bound_s)} (gap {max(document.step_s / bound_s - 1, 0):.1%})"
            found += f"No {what} is below {page.figure_of(words, sources)}. "
    return found


def _degrees(stage: StageForecast) -> str:
    degrees = (("tp", stage.tp), ("dp", stage.dp), ("cp", stage.cp), ("ep", stage.ep))
    words = [f"{name} {value}" for name, value in degrees if value > 1] or ["no split"]
    words += [f"ZeRO {stage.zero_stage}"] if stage.zero_stage else []
    words += [f"recompute {stage.recompute}"] if stage.recompute != "none" else []
    return ", ".join(words)


def plan_report(document: PlanDocument, hwdb: Hwdb) -> str:
    """The report of one plan. Raises BadInputError without plotly."""
    script, ledger = figures.library(), Ledger()
    title = f"{document.model['name']} on {document.cluster['name']}"
    source = simulated(document, title, ledger)
    rate = page.figure_of(f"{document.tokens_per_s:,.0f}", (source, given_job(document, ledger)))
    parts = sections(document, title, ledger, hwdb)
    parts += [_notes(document, source)] if document.notes else []
    return page.page(title, f"{rate} tokens/s", parts, ledger, script)


def _notes(document: PlanDocument, source: str) -> str:
    items = "".join(f"<li>{page.figure_of(note, (source,))}</li>" for note in document.notes)
    return page.section("Notes", f"<ul>{items}</ul>")

"""The sections of a report on one plan: its timeline, stages and memory."""

from tangram_sim.hwdb import Hwdb
from tangram_sim.reports import charts, page
from tangram_sim.reports.columns import ViewColumn, share
from tangram_sim.reports.ledger import Ledger
from tangram_sim.reports.plan_words import layer_words, layout_words
from tangram_sim.reports.rounding import number, rounded, seconds_with_interval, with_interval
from tangram_sim.studies.advice import advice, gap_words, tail_s
from tangram_sim.studies.documents import PlanDocument, StageForecast
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.planfile import plan_from_document
from tangram_sim.studies.stage_names import stage_names
from tangram_sim.units import percent, show_bytes, show_seconds

_FORMULAS = {
    "mfu": "MFU: model FLOPs of a step over its seconds and the dense peak of the GPUs used",
    "idle": "idle: the share of the step in which a stage's compute stream waits",
    "clocks": "clocks under power caps follow an assumed curve: energy of an operation goes with the square "
    "of the clock",
    "gap": "gap: how far the step is above a bound that no plan of the kind named can beat",
}
_ON_A_PHONE = 5  # columns of the stages
_ALTERNATIVES = (
    ViewColumn("step", "step_s", show_seconds, "played"),
    ViewColumn("told apart", lambda plan: "yes" if plan.told_apart else "no: a tie"),
    ViewColumn("GPUs", "gpus_used", "{}", "played"),
    ViewColumn("fullest memory", "peak_memory_fraction", share(), "played"),
    ViewColumn("what", "summary", rests="played"),
)


def simulated(document: PlanDocument, name: str, ledger: Ledger) -> str:
    """Id of the source of a plan's simulation; its text states the basis of each GPU kind's times."""
    rests = "; ".join(f"{kind.gpu}: {kind.rests_on}" for kind in document.gpu_kinds)
    return ledger.cite(
        "simulated",
        f"plan of {name}, played by tangram-sim {document.package_version} on hardware rows with digest "
        f"{document.hwdb_hash}; ranges are 90 % intervals. Kernel times rest on: {rests or 'not recorded'}",
    )


def given_job(document: PlanDocument, ledger: Ledger) -> str:
    """The source id of the training job."""
    return ledger.cite("given", f"job: {_job(document)}, software stack {document.job.stack}")


def _job(document: PlanDocument) -> str:
    job = document.job
    return (
        f"{job.global_batch:,} sequences of {job.seq:,} tokens a step, {job.dtype}, {job.optimizer}, "
        f"schedule {job.schedule}"
    )


def job_line(document: PlanDocument, ledger: Ledger) -> str:
    """HTML of the job line under the title."""
    return page.figure_of(_job(document), (given_job(document, ledger),))


def capacities(document: PlanDocument, ledger: Ledger, hwdb: Hwdb) -> list[str]:
    """Source ids of the hardware rows of the plan's GPUs."""
    known, found = hwdb.gpu_names(), []
    for kind in dict.fromkeys(name for stage in document.stages for name in stage.gpu.split("+")):
        if kind in known:
            row = hwdb.row("gpus", kind)
            found.append(ledger.cite("hardware", f"gpus/{kind}: {row['source']}"))
        else:
            found.append(ledger.cite("given", f"{kind}: described in the cluster file"))
    return found


def seat_names(document: PlanDocument) -> list[str]:
    """A label for every row of the stage table: stage number, part and GPU."""
    names = stage_names(document.stages)
    return [f"stage {name} {stage.gpu}" for name, stage in zip(names, document.stages, strict=True)]


def sections(document: PlanDocument, name: str, ledger: Ledger, hwdb: Hwdb) -> list[str]:
    """HTML sections with timeline, stages and memory of the plan called `name`."""
    source, hardware = simulated(document, name, ledger), capacities(document, ledger, hwdb)
    played = forecast(plan_from_document(document, hwdb, name), hwdb)
    drawn, until = charts.timeline(played.timeline)
    whole = played.timeline.makespan_s
    shown = "All of one step" if until >= whole else "The beginning of one step"
    figure = page.figure_of(f"{show_seconds(until)} of {show_seconds(whole)}", (source,))
    keys = "the buttons, + and -, the arrow keys and dragging move through it"
    names = seat_names(document)
    return [
        *_power(document, source, ledger),
        page.section(
            "When what runs",
            page.chart("timeline", drawn, (source,)),
            page.caption(f'{page.name(name)}. {shown}, {figure}<span class="screen">; {keys}</span>.'),
        ),
        page.section(
            "The plan", _stages(document, names, source, hardware, ledger), _facts(document, source, ledger)
        ),
        page.section(
            "Memory", page.chart("memory", charts.memory(document.stages, names), (source, *hardware))
        ),
    ]


def _power(document: PlanDocument, source: str, ledger: Ledger) -> list[str]:
    """The section with the curve of throughput against power; [] if the plan has no such curve."""
    power = document.power
    if power is None or len(power.curve) < 2:
        return []
    assumed = ledger.cite("computed", _FORMULAS["clocks"])
    words = page.figure_of(f"{number(rounded(power.chosen.site_kw))} kW", (source, assumed))
    return [
        page.section(
            "Throughput against power",
            page.chart("power", charts.power_curve(power), (source, assumed)),
            page.caption(
                f"Each point is a plan at other clocks. At those chosen the site draws {words} in the mean "
                "of a step."
            ),
        )
    ]


def _stages(
    document: PlanDocument, names: list[str], source: str, hardware: list[str], ledger: Ledger
) -> str:
    idle = ledger.cite("computed", _FORMULAS["idle"])
    columns = (
        ViewColumn("stage", "0"),
        ViewColumn("GPUs", "1.gpus", "{}", "played"),
        ViewColumn(
            "layers", lambda row: layer_words(row[1]), rests="played", order=lambda row: row[1].layers[0]
        ),
        ViewColumn("layout", lambda row: layout_words(row[1]), rests="played"),
        ViewColumn(
            "memory",
            lambda row: _memory(row[1]),
            rests="played hardware",
            order=lambda row: row[1].peak_memory_bytes / row[1].memory_capacity_bytes,
        ),
        ViewColumn("idle", "1.idle_fraction", share(), "played idle"),
        ViewColumn("forward", "1.forward_s", show_seconds, "played"),
        ViewColumn("backward", "1.backward_s", show_seconds, "played"),
        ViewColumn("sync", lambda row: tail_s(row[1]), show_seconds, "played"),
    )
    rows = [*zip(names, document.stages, strict=True)]
    sources = {"played": source, "hardware": hardware, "idle": idle}
    paces = [stage.forward_s + stage.backward_s for stage in document.stages]
    slowest = paces.index(max(paces))
    table = page.view("stages", columns, rows, sources, slowest, names=(3,), first=_ON_A_PHONE)
    return table + page.caption("Times are of one microbatch; the marked stage sets the pace.")


def _memory(stage: StageForecast) -> str:
    return f"{show_bytes(stage.peak_memory_bytes)} of {show_bytes(stage.memory_capacity_bytes)}"


def _facts(document: PlanDocument, source: str, ledger: Ledger) -> str:
    """HTML of GPUs used, model FLOP utilisation (MFU) and lower bounds on the step time."""
    mfu = ledger.cite("computed", _FORMULAS["mfu"])
    gpus = page.figure_of(f"{document.gpus_used} of {document.gpus_total}", (source,))
    share = page.figure_of(percent(document.mfu, 1), (source, mfu))
    return page.caption(
        f"{gpus} GPUs work{_idle_gpus(document, source)}, at {share} of their peak (MFU). "
        f"{_bounds(document, source, ledger)}"
    )


def _idle_gpus(document: PlanDocument, source: str) -> str:
    idle = document.gpus_total - document.gpus_used
    return f"; {page.figure_of(f'{idle}', (source,))} stay idle" if idle else ""


def _bounds(document: PlanDocument, source: str, ledger: Ledger) -> str:
    """HTML of the lower bounds on the step time, in seconds, and how far the step is above each."""
    sources = source, ledger.cite("computed", _FORMULAS["gap"])
    found = ""
    nearest = document.lower_bound_step_s
    if nearest in (document.work_bound_step_s, document.pipeline_bound_step_s):
        nearest = 0.0  # one of the others
    for what, bound_s in (
        ("plan on this cluster", document.work_bound_step_s),
        ("single pipeline of the layouts searched", document.pipeline_bound_step_s),
        (f"one of the {page.name(document.lower_bound_covers)}", nearest),
    ):
        if bound_s > 0:
            above = document.step_s / bound_s - 1
            gap = f"gap {_share(above)}" if above >= 0 else gap_words(document, bound_s)
            words = f"{show_seconds(bound_s)} ({gap})"
            found += f"No {what} is below {page.figure_of(words, sources)}. "
    return found


def plan_report(document: PlanDocument, hwdb: Hwdb) -> str:
    """The HTML report of one plan."""
    ledger = Ledger()
    title = f"{document.model['name']} on {document.cluster['name']}"
    sources = (simulated(document, title, ledger), given_job(document, ledger))
    high, low = document.step_s_high or document.step_s, document.step_s_low or document.step_s
    step = seconds_with_interval(document.step_s, low, high)
    tokens = document.tokens_per_s * document.step_s
    rate = with_interval(document.tokens_per_s, tokens / high, tokens / low)
    answer = f"A step takes {page.figure_of(step, sources)}: {page.figure_of(rate, sources)} tokens a second."
    parts = [page.verdict(_judged(document, sources)), *sections(document, title, ledger, hwdb)]
    parts += [_alternatives(document, sources[0]), page.note_list(document.notes, sources[0])]
    return page.page(title, job_line(document, ledger), answer, [part for part in parts if part], ledger)


def _judged(document: PlanDocument, sources: tuple[str, ...]) -> list[str]:
    """Sentences (HTML) on the certainty of the answer, and its basis."""
    found = []
    if not document.feasible:
        found.append("<strong>It does not fit the memory of its GPUs.</strong>")
    if document.step_s_high:
        off = max(document.step_s_high / document.step_s - 1, 1 - document.step_s_low / document.step_s)
        share = page.figure_of(f"{number(rounded(off * 100))} %", sources)
        found.append(f"In nine runs of ten such a step is within {share} of what is said here.")
    advised = advice(document)
    found.append(f"{page.figure_of(advised[:1].upper() + advised[1:], sources)}.")
    assumed = [kind.gpu for kind in document.gpu_kinds if not kind.measured]
    if assumed:
        found.append(
            f"No kernels were measured on {page.name(', '.join(assumed))}: inherited or assumed rates."
        )
    open_ones = [alternative for alternative in document.alternatives if not alternative.told_apart]
    if open_ones:
        many = page.figure_of(f"{len(open_ones)} of the {len(document.alternatives)}", sources)
        found.append(f"A tie: {many} alternatives are statistically tied with this plan.")
    return found


def _alternatives(document: PlanDocument, source: str) -> str:
    if not document.alternatives:
        return ""
    table = page.view("alternatives", _ALTERNATIVES, document.alternatives, {"played": source}, names=(1, 4))
    return page.section("Alternatives", table)


def _share(value: float) -> str:
    """A share as text, with one decimal below 10 %: `330 %`, `12 %`, `3.4 %`."""
    return percent(value) if value >= 0.1 else percent(value, 1)

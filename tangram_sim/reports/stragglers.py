"""The HTML report on slow ranks of a measured run: which ranks, their cost, a step without them."""

import numpy as np

from tangram_sim.reliability.stragglers.whatif import ideal_work_s
from tangram_sim.reports import charts
from tangram_sim.reports.columns import ViewColumn
from tangram_sim.reports.ledger import Ledger
from tangram_sim.reports.page import caption, chart, figure_of, name, page, section, view
from tangram_sim.studies.stragglers import Diagnosis
from tangram_sim.units import show_seconds

_MOST_ALONE = 20
ALONE = ViewColumn("alone as measured", "0"), ViewColumn("S", "1", "{:.4f}", "replayed")
REMEDIES = (
    ViewColumn("remedy", "name"),
    ViewColumn("step", "step_s", show_seconds, "priced"),
    ViewColumn("gain", "gain", "{:.3f} x", "priced"),
    ViewColumn("price", "price_s", show_seconds, "priced"),
    ViewColumn("paid back", "payback_s", show_seconds, "priced", unknown="never"),
    ViewColumn("what", "detail", rests="priced"),
)


def stragglers_report(found: Diagnosis, trace: str) -> str:
    """One offline HTML page: heat map of workers, groups of them, remedies, two timelines."""
    ledger = Ledger()
    measured = ledger.cite("measured", f"the trace {trace}")
    replayed = ledger.cite(
        "computed", f"replays of {trace} with operations as measured or ideal (arXiv 2505.05713)"
    )
    priced = ledger.cite("computed", "the trace's passes played by our engine with other shares of work")
    told = found.document
    job = (
        f"{figure_of(f'{told.steps} steps', [measured])} of dp {figure_of(str(told.dp), [measured])} x "
        f"{figure_of(f'{told.pp} stages', [measured])}, measured "
        f"{figure_of(show_seconds(told.measured_step_s), [measured])} a step"
    )
    answer = (
        f"Slow ranks make a step {figure_of(f'{told.slowdown:.3f} times', [replayed])} as long as it "
        "need be: "
        f"{figure_of(show_seconds(told.replayed_step_s), [replayed])} against "
        f"{figure_of(show_seconds(told.ideal_step_s), [replayed])}. The pattern is {name(told.pattern)}."
    )
    sections = [
        _grid(found, measured, replayed),
        _alone(found, replayed),
        _remedies(found, priced),
        _timelines(found, replayed),
    ]
    return page(f"Slow ranks of {trace}", job, answer, sections, ledger)


def _grid(found: Diagnosis, measured: str, replayed: str) -> str:
    ratios, slowdowns = (np.zeros((found.document.dp, found.document.pp)) for _ in range(2))
    for worker in found.document.workers:
        ratios[worker.dp, worker.stage] = worker.compute_ratio
        slowdowns[worker.dp, worker.stage] = worker.slowdown
    return section(
        "Who is slow",
        chart("grid-slowdown", charts.grid(slowdowns), [replayed]),
        caption("What a worker costs the step: the lesser of its replica's and its stage's S alone."),
        chart("grid", charts.grid(ratios), [measured]),
        caption("Passes of every worker over the mean of all: 1 is as everybody, above is slower."),
    )


def _alone(found: Diagnosis, source: str) -> str:
    ranked = sorted(found.document.alone.items(), key=lambda item: -item[1])[:_MOST_ALONE]
    words = "S of a group alone: only its operations as measured, all others ideal, over the ideal step."
    return section(
        "Which group costs what", view("alone", ALONE, ranked, {"replayed": source}), caption(words)
    )


def _remedies(found: Diagnosis, source: str) -> str:
    drawn = view("remedies", REMEDIES, found.document.remedies, {"priced": source}, 0, names=(5,))
    left = "; ".join(found.document.remedies_left_out)
    return section("What helps", drawn, caption(f"Not priced: {left}."))


def _timelines(found: Diagnosis, source: str) -> str:
    """HTML timelines of the slowest step, replayed as measured and without slow ranks."""
    replay = found.replay
    worst = int(found.found.step_slowdowns.argmax())
    parts = []
    for key, title, work in (
        ("before", f"Step {replay.trace.steps[worst]}, the slowest, as measured", replay.work_s[worst]),
        ("after", "The same with every operation as usual", ideal_work_s(replay)),
    ):
        drawn, until = charts.timeline(replay.timeline(work))
        parts += [chart(key, drawn, [source]), caption(f"{title} (the first {show_seconds(until)}).")]
    return section("A step before and after", *parts)

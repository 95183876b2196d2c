"""HTML reports on serving: a simulated run (latencies, queue, memory, cost), and a plan beside others."""

from collections.abc import Callable

import numpy as np

from tangram_sim.reports import charts
from tangram_sim.reports.columns import ViewColumn, counted, share
from tangram_sim.reports.ledger import Ledger
from tangram_sim.reports.page import caption, chart, figure_of, name, note_list, page, section, view
from tangram_sim.serving.fleet import PlayedService
from tangram_sim.serving.outcome import ServiceOutcome, Spread
from tangram_sim.serving.workload import Floats
from tangram_sim.studies.serving_plan import ReplicaCountDocument, ServePlanDocument
from tangram_sim.studies.serving_simulation import ServeSimulationDocument
from tangram_sim.units import percent, show_seconds

_MOST_ROWS = 200  # replicas told one by one
_MOST_TYPES = 12  # of requests, with a column each
REPLICAS = (
    ViewColumn("replica", "name"),
    ViewColumn("requests", "requests", "{:,}", "run"),
    ViewColumn("output tokens", "output_tokens", "{:,}", "run"),
    ViewColumn("busy", "busy_share", share(), "run"),
    ViewColumn("KV blocks at most", "peak_blocks", "{:,}", "run"),
    ViewColumn("of all", "capacity_blocks", "{:,}", "run"),
    ViewColumn("USD", "cost_usd", "{:.4g}", "run"),
)
LATENCIES = (
    ViewColumn("", "0"),
    ViewColumn("mean", "1.mean", show_seconds, "run"),
    ViewColumn("p50", "1.p50", show_seconds, "run"),
    ViewColumn("p90", "1.p90", show_seconds, "run"),
    ViewColumn("p99", "1.p99", show_seconds, "run"),
)


def latencies_of(found: ServeSimulationDocument) -> list[tuple[str, Spread]]:
    """(name, spread in seconds) of the latencies of a run."""
    names = ("time to first token", "time per output token", "end to end", "in the queue")
    return list(zip(names, (found.ttft_s, found.tpot_s, found.e2e_s, found.queue_s), strict=True))


_UNITS = {"makespan": "s", "cost": "USD/h", "tokens": "tokens/s", "goodput": "requests/s"}


def simulation_report(found: ServeSimulationDocument, played: PlayedService, title: str) -> str:
    """One offline HTML page on a simulated run."""
    ledger = Ledger()
    run = ledger.cite("simulated", f"{found.engine} player, router {found.router}, {title}")
    counts, outcome = found.requests, ServiceOutcome(played)
    job = f"{figure_of(f'{counts.arrived:,} requests', [run])}, router {name(found.router)}"
    answer = (
        f"{figure_of(f'{counts.completed:,} of {counts.arrived:,} requests', [run])} served in "
        f"{figure_of(show_seconds(found.duration_s), [run])}: "
        f"{figure_of(f'{found.output_tok_s:,.1f} output tokens/s', [run])}, "
        f"{figure_of(f'{found.good_share * 100:.1f} %', [run])} good, "
        f"{figure_of(f'{found.cost_usd:.4g} USD', [run])}."
    )
    sections = [
        _latencies(found, outcome, run),
        _over_time(played, run, ledger),
        _replicas(found, run),
        note_list(found.notes),
    ]
    return page(f"A service simulated: {title}", job, answer, sections, ledger)


def _latencies(found: ServeSimulationDocument, outcome: ServiceOutcome, run: str) -> str:
    latencies = latencies_of(found)
    seconds = (outcome.ttft_s, outcome.tpot_s[outcome.several], outcome.e2e_s, outcome.queue_s)
    named = {words: column for (words, _), column in zip(latencies, seconds, strict=True)}
    drawn = chart("distributions", charts.distributions(named), [run])
    words = "Share of the served requests that took at most so long."
    rows = view("latencies", LATENCIES, latencies, {"run": run})
    return section("Latencies", rows, drawn, caption(words))


def _over_time(played: PlayedService, run: str, ledger: Ledger) -> str:
    derived = ledger.cite(
        "computed", "requests from their arrivals, starts and ends; contexts as growing evenly in between"
    )
    times, waiting, running, held = over_time(played)
    along = "seconds of the run"
    queue = charts.lines(times, {"waiting": waiting, "running": running}, "requests", along)
    memory = charts.lines(times, {"all replicas": 100 * held}, "% of the KV memory", along)
    words = "Cached prefixes, and requests thrown out and begun again, are not in the memory shown."
    return section(
        "Queue and memory over time",
        chart("over-time", queue, [run]),
        chart("kv", memory, [run, derived]),
        caption(words),
    )


def over_time(played: PlayedService, points: int = 400) -> tuple[Floats, Floats, Floats, Floats]:
    """(seconds, requests waiting, requests running, fraction of KV memory used) at `points` even times."""
    work, book = played.workload, played.ledger
    there = ~np.isnan(book.finish_s)
    arrival, start, first, finish = (
        item[there] for item in (work.arrival_s, book.start_s, book.first_s, book.finish_s)
    )
    inputs, outputs = work.input_tokens[there], work.output_tokens[there]
    times = np.linspace(float(work.arrival_s[0]), max(played.end_s, float(work.arrival_s[0])), points)
    blocks = sum(
        instance.given.rules.blocks * instance.given.rules.block_tokens for instance in played.instances
    )
    waiting, running, held = (np.zeros(points) for _ in range(3))
    for place, now in enumerate(times):
        waiting[place] = np.count_nonzero((arrival <= now) & (start > now))
        inside = (start <= now) & (finish > now)
        running[place] = np.count_nonzero(inside)
        span = np.maximum(finish[inside] - first[inside], 1e-12)
        through = np.clip((now - first[inside]) / span, 0.0, 1.0)
        held[place] = (inputs[inside] + through * outputs[inside]).sum() / blocks
    return times, waiting, running, held


def _replicas(found: ServeSimulationDocument, run: str) -> str:
    shown = found.replicas[:_MOST_ROWS]
    bars = charts.share_bars(
        {instance.name: 100 * instance.busy_share for instance in shown}, "busy, of the time up"
    )
    left = len(found.replicas) - len(shown)
    words = f"{left} more replicas are not shown." if left else ""
    rows = view("replicas", REPLICAS, shown, {"run": run})
    return section("Replicas", chart("busy", bars, [run]), rows, caption(words))


def plan_report(found: ServePlanDocument, title: str) -> str:
    """One offline HTML page: GPUs rented, shares of requests, other plans, possible gains."""
    ledger = Ledger()
    planned = ledger.cite("computed", f"the plan of {title} (docs/models/serving-planners.md)")
    unit = _UNITS[found.objective]
    value = {
        "makespan": found.makespan_s,
        "cost": found.cost_per_hour,
        "tokens": found.tokens_per_s,
        "goodput": found.throughput_rps,
    }[found.objective]
    proof = (
        "proven best" if found.status == "optimal" else f"within {(found.gap or 0.0) * 100:.2g} % of the best"
    )
    answer = f"{figure_of(f'{value:.6g} {unit}', [planned])}, {figure_of(proof, [planned])}."
    sections = [_rented(found, planned), _rivals(found, planned, unit)]
    if found.replay is not None and found.replay.verdict:
        answer = f"Replayed, this plan {figure_of(found.replay.verdict, [planned])}. {answer}"
    if found.replay is not None:
        replayed = ledger.cite("simulated", "the plan played by the simulator before it is shown")
        sections.append(_replay(found, replayed))
    sections.append(note_list(found.notes))
    return page(f"A service planned: {title}", name(f"best by {found.objective}"), answer, sections, ledger)


def rented_columns(found: ServePlanDocument, label: Callable[[int], str]) -> tuple[ViewColumn, ...]:
    """Replicas of a plan and their share of each of the first types of request, which `label` heads."""
    types = range(min(_MOST_TYPES, max((len(row) for row in found.shares.values()), default=0)))

    def share_of(w: int) -> Callable[[ReplicaCountDocument], float]:
        return lambda replica: 100 * found.shares[replica.configuration][w]

    return (
        ViewColumn("replicas", "count", "{}", "planned"),
        ViewColumn("configuration", "configuration"),
        ViewColumn("GPUs each", lambda replica: counted(replica.gpus), rests="planned"),
        ViewColumn("USD/h", _all_usd_per_hour, "{:.2f}", "planned"),
        *(ViewColumn(f"{label(w)}, %", share_of(w), "{:.1f}", "planned") for w in types),
    )


def _all_usd_per_hour(replica: ReplicaCountDocument) -> float | None:
    return None if replica.cost_per_hour is None else replica.cost_per_hour * replica.count


def _rented(found: ServePlanDocument, planned: str) -> str:
    columns = rented_columns(found, lambda w: f"type {w}")
    told = "; ".join(
        f"type {w}: {planned_type.input_tokens:,.0f} in, {planned_type.output_tokens:,.0f} out"
        + (f", {planned_type.model}" if planned_type.model else "")
        for w, planned_type in enumerate(found.types)
    )
    rows = view("rented", columns, found.replicas, {"planned": planned})
    return section("Replicas, and the share of each type of request", rows, caption(name(told)))


def _rivals(found: ServePlanDocument, planned: str, unit: str) -> str:
    known = {
        f"{rival.gpu} alone, {'available' if rival.capped else 'any number'}": rival.value
        for rival in found.rivals
    } | {f"without choosing {key.replace('_', ' ')}": lever.value for key, lever in found.levers.items()}
    columns = (
        ViewColumn("instead", "0"),
        ViewColumn(found.objective, "1", lambda value: f"{value:.6g} {unit}", "planned", "no plan"),
    )
    return section("What else could be done", view("rivals", columns, [*known.items()], {"planned": planned}))


def _replay(found: ServePlanDocument, replayed: str) -> str:
    item = found.replay
    assert item is not None
    unit = "s" if found.objective == "makespan" else "requests/s"
    rows = [
        ("promised", f"{item.promised:.6g} {unit}"),
        ("played", f"{item.played:.6g} {unit} ({percent(item.error, 1, signed=True)})"),
        ("good requests", percent(item.good_share, 1)),
        ("time to first token, p99", show_seconds(item.ttft_p99_s)),
        ("time per output token, p99", show_seconds(item.tpot_p99_s)),
    ]
    columns = ViewColumn("", "0"), ViewColumn("", "1", rests="replayed")
    return section("Played by the simulator", view("replay", columns, rows, {"replayed": replayed}))

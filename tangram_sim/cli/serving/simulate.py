"""`tangram serve simulate`: simulates requests on a fleet of replicas."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.derived import derived
from tangram_sim.cli.serving import workload_options as asked
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.serving.fleet import PlayedService
    from tangram_sim.studies.serving_simulation import ServeSimulationDocument

FleetFile = Annotated[
    Path, typer.Argument(metavar="PLAN_OR_FLEET", help="A fleet file (YAML), or a plan of `serve plan -o`.")
]
Engine = Annotated[str, typer.Option("--engine", help="fast, or reference: iteration by iteration.")]
RouterName = Annotated[
    str | None,
    typer.Option(
        "--router",
        help="round_robin, weighted, least_outstanding, power_of_two or prefix.  "
        "[default: weighted where the file has shares, else round_robin]",
    ),
]
Lag = Annotated[float, typer.Option("--lag", help="Seconds by which the router's view of loads is late.")]
OnLoss = Annotated[
    str, typer.Option("--on-loss", help="Requests on an instance that goes: resume elsewhere, or fail.")
]
Spot = Annotated[
    Path | None, typer.Option("--spot", help="CSV time_s, gpu, count: GPUs available over time by kind.")
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="report.html to look at, or the answer as .json.")
]
RequestsOut = Annotated[
    Path | None, typer.Option("--requests-out", help="Write one row per request to this CSV.")
]


Clients = Annotated[
    int | None,
    typer.Option(
        "--clients",
        min=1,
        help="A closed loop in place of --rate: so many requests in flight, each client waiting for its "
        "answer (a benchmark's greatest concurrency).",
    ),
]


@derived
def command(
    fleet: FleetFile,
    requests: asked.RequestOptions,
    clients: Clients = None,
    router: RouterName = None,
    lag: Lag = 0.0,
    spot: Spot = None,
    on_loss: OnLoss = "resume",
    slo: asked.SloOption = None,
    engine: Engine = "fast",
    requests_out: RequestsOut = None,
    output: Output = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Play requests on the replicas of a fleet: latencies, throughput, KV, cost."""
    from tangram_sim.cli import writing
    from tangram_sim.cli.console import print_json, print_line
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.datafiles import write_whole
    from tangram_sim.serving.fleet import FAIL, RESUME
    from tangram_sim.serving.fleet_file import load_fleet
    from tangram_sim.serving.spot import read_availability
    from tangram_sim.studies.serving_clients import simulate_clients
    from tangram_sim.studies.serving_simulation import simulate_service

    if on_loss not in (RESUME, FAIL):
        raise unknown_name("--on-loss", on_loss, (RESUME, FAIL))
    if not 0 <= lag < float("inf"):
        raise BadInputError(f"--lag {lag}: seconds, 0 or more, are wanted")
    writing.require_writable(**{"requests-out": requests_out, "output": output})
    objective = asked.slo_of(slo)
    given = load_fleet(fleet, shared.load_hwdb(hwdb))
    if clients is not None and (router is not None or spot is not None or lag):
        raise BadInputError("--clients stay with their replica; leave --router, --lag and --spot out")
    work = requests.made() if clients is None else requests.without_arrivals("--clients")
    if spot is not None:
        given = given.under(read_availability(spot, [kind for mine in given.gpus.values() for kind in mine]))
    if clients is not None:
        found, played = simulate_clients(given, work, clients, engine=engine, slo=objective)
    else:
        with SlowProgress("simulate") as progress:
            found, played = simulate_service(
                given,
                work,
                router=router or ("weighted" if given.shares else "round_robin"),
                engine=engine,
                on_loss=on_loss,
                lag_s=lag,
                slo=objective,
                seed=requests.seed,
                progress=progress.report,
            )
    if requests_out is not None:
        write_whole(requests_out, requests_text(played))
    if output is not None and writing.is_report(output):
        from tangram_sim.reports.services import simulation_report

        write_whole(output, simulation_report(found, played, fleet.name))
    elif output is not None:
        write_whole(output, found.model_dump_json(indent=2) + "\n")
    if as_json:
        print_json(found.model_dump())
        return
    print_run(found)
    if requests_out is not None:
        print_line(f"{len(work):,} requests written to {requests_out}")


def requests_text(played: "PlayedService") -> str:
    """One CSV row per request; times and replica are empty where it was not served."""
    import csv
    import io
    from math import isnan

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            *("request_id", "arrival_s", "replica", "input_tokens", "output_tokens", "cached_tokens"),
            *("first_token_s", "finish_s", "preemptions"),
        )
    )
    work, ledger = played.workload, played.ledger
    for k in range(len(work)):
        place = int(played.instance[k])
        first, finish = float(ledger.first_s[k]), float(ledger.finish_s[k])
        writer.writerow(
            (
                k,
                repr(float(work.arrival_s[k])),
                played.instances[place].given.name if place >= 0 else "",
                int(work.input_tokens[k]),
                int(work.output_tokens[k]),
                int(ledger.cached[k]),
                "" if isnan(first) else repr(first),
                "" if isnan(finish) else repr(finish),
                int(ledger.preemptions[k]),
            )
        )
    return text.getvalue()


def print_run(found: "ServeSimulationDocument") -> None:
    """Figures of the run, latencies, instances."""
    from tangram_sim.cli.console import print_line, print_notes, print_table
    from tangram_sim.units import show_seconds

    asked_for, tokens = found.requests, found.tokens
    if found.verdict:
        print_line(found.verdict)
    print_line(
        f"{asked_for.completed:,} of {asked_for.arrived:,} requests in {show_seconds(found.duration_s)}   "
        f"{found.throughput_rps:.4g} requests/s   {found.output_tok_s:,.1f} output tokens/s   "
        f"{found.goodput_rps:.4g} good requests/s ({found.good_share * 100:.1f} %)"
    )
    if found.cost_usd:
        per = found.usd_per_million_output_tokens
        print_line(
            f"{found.cost_usd:.4g} USD" + (f"   {per:.4g} USD per million output tokens" if per else "")
        )
    print_line(
        f"{asked_for.preemptions:,} preemptions   {tokens.recomputed:,} tokens computed again   "
        f"{tokens.cached:,} of {tokens.prompt:,} prompt tokens cached   "
        f"fullest KV {found.kv.peak_share * 100:.0f} %"
    )
    print_line()
    rows = [
        (words, *(show_seconds(value) for value in (one.mean, one.p50, one.p90, one.p99)))
        for words, one in (
            ("time to first token", found.ttft_s),
            ("time per output token", found.tpot_s),
            ("end to end", found.e2e_s),
            ("in the queue", found.queue_s),
        )
    ]
    print_table(("", "mean", "p50", "p90", "p99"), rows, right=(1, 2, 3, 4))
    shown = found.replicas[:20]
    instances = [
        (
            one.name,
            f"{one.requests:,}",
            f"{one.output_tokens:,}",
            f"{one.busy_share * 100:.0f} %",
            f"{one.peak_blocks:,} of {one.capacity_blocks:,}",
            f"{one.cost_usd:.4g}",
        )
        for one in shown
    ]
    heads = ("replica", "requests", "output tokens", "busy", "KV blocks at most", "USD")
    print_table(heads, instances, right=(1, 2, 3, 4, 5))
    if len(found.replicas) > len(shown):
        print_line(f"and {len(found.replicas) - len(shown)} more replicas")
    for reason, count in asked_for.failed_by_reason.items():
        print_line(f"failed: {count:,}: {reason}")
    print_notes(found.notes)

"""`tangram serve simulate`: simulates requests on a fleet of replicas."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import AnswerOutputs
from tangram_sim.fields import OUTPUT, option
from tangram_sim.questions.serve_simulate import ServeSimulateQuestion

if TYPE_CHECKING:
    from tangram_sim.questions.serve_simulate import PlayedFleet
    from tangram_sim.serving.fleet import PlayedService
    from tangram_sim.studies.serving_simulation import ServeSimulationDocument


@dataclass(frozen=True, slots=True)
class SimulateOutputs(AnswerOutputs):
    """Where a simulated service is written."""

    requests_out: Path | None = option(None, "Write one row per request to this CSV.", group=OUTPUT)


@derived
def command(question: ServeSimulateQuestion, outputs: SimulateOutputs) -> None:
    """Write the requested files, and print the answer."""
    from tangram_sim.cli.console import print_line
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.datafiles import write_whole
    from tangram_sim.reports.services import simulation_report

    rows = outputs.requests_out
    outputs.require_writable(**{"requests-out": rows})
    with SlowProgress("simulate") as progress:
        found = question.answer(progress=progress.report)
    if rows is not None:
        write_whole(rows, requests_text(found.played))

    def tables(simulated: "PlayedFleet") -> None:
        print_run(simulated.document)
        if rows is not None:
            print_line(f"{len(simulated.played.workload):,} requests written to {rows}")

    outputs.show(found, tables, lambda: simulation_report(found.document, found.played, question.fleet.name))


def requests_text(played: "PlayedService") -> str:
    """CSV text with one row per request; times and replica are empty if it was not served."""
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
    """Print totals of the run, latencies and instances."""
    from tangram_sim.cli.console import print_columns, print_line, print_notes
    from tangram_sim.reports.services import LATENCIES, REPLICAS, latencies_of
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
    print_columns(LATENCIES, latencies_of(found))
    shown = found.replicas[:20]
    print_columns(REPLICAS, shown)
    if len(found.replicas) > len(shown):
        print_line(f"and {len(found.replicas) - len(shown)} more replicas")
    for reason, count in asked_for.failed_by_reason.items():
        print_line(f"failed: {count:,}: {reason}")
    print_notes(found.notes)

"""`tangram serve workload describe`: statistics of the requests in a trace."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.derived import derived
from tangram_sim.cli.serving import workload_options as asked

app = typer.Typer(help="Workloads: what requests ask of a service.", no_args_is_help=True)

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.csv",
        help="arrival_s, input_tokens, output_tokens[, prefix_id, ...], or rates over time: "
        "start_s, rate_rps[, cv].",
    ),
]


@app.command("describe")
@derived
def describe(
    file: File,
    requests: asked.TraceRequests,
    as_json: shared.AsJson = False,
) -> None:
    """Show rate, burstiness, lengths and shared prefixes of the requests in FILE.csv."""
    from tangram_sim.cli.console import print_json, print_line, print_notes, print_table
    from tangram_sim.serving.rates_file import is_rates_file
    from tangram_sim.studies.serving_workload import describe_workload

    if is_rates_file(file):
        _describe_rates(file, requests, as_json)
        return
    work = requests.described(file)
    found = describe_workload(work)
    if as_json:
        print_json(found.model_dump())
        return
    print_line(
        f"{found.requests:,} requests in {found.span_s:,.4g} s   {found.rate_rps:.4g} a second   "
        f"busiest minute {found.busiest_minute_rps:.4g} a second   "
        f"gaps vary by {found.burstiness_cv:.2f} (Poisson: 1)"
    )
    print_line()
    rows = [
        (
            words,
            *(f"{value:,.0f}" for value in (one.mean, one.p50, one.p90, one.p99, one.most)),
            f"{one.cv:.2f}",
        )
        for words, one in (("prompt tokens", found.input_tokens), ("output tokens", found.output_tokens))
    ]
    print_table(("", "mean", "p50", "p90", "p99", "most", "variation"), rows, right=(1, 2, 3, 4, 5, 6))
    parts = [
        (f"{one.input_tokens:,.0f}", f"{one.output_tokens:,.0f}", f"{one.share * 100:.1f} %")
        for one in found.types
    ]
    print_table(("prompt", "output", "share"), parts, right=(0, 1, 2))
    if found.prefixes:
        print_line(
            f"{found.prefixes:,} shared prefixes, {found.prefix_share * 100:.1f} % of the prompt tokens"
        )
    if found.cached_share:
        print_line(
            f"{found.cached_share * 100:.1f} % of the prompt tokens are cached, as the trace tells them"
        )
    print_notes(found.notes)


def _describe_rates(file: Path, asked_for: asked.TraceRequests, as_json: bool) -> None:
    """The same of a file of rates: what comes when, by stream."""
    from tangram_sim.cli.console import print_json, print_line, print_notes, print_table
    from tangram_sim.studies.serving_workload import describe_rates

    found = describe_rates(asked_for.rates(file))
    if as_json:
        print_json(found.model_dump())
        return
    print_line(
        f"{found.windows:,} windows in {found.span_s:,.4g} s, {found.requests:,.0f} requests expected   "
        f"{found.rate_rps:.4g} a second, {found.quietest_window_rps:.4g} to {found.busiest_window_rps:.4g}   "
        f"gaps vary by {found.burstiness_cv:.2f} (Poisson: 1)"
    )
    print_line()
    rows = [
        (
            one.name or "all",
            *(f"{value:.4g}" for value in (one.rate_rps, one.least_rps, one.most_rps)),
            f"{one.burstiness_cv:.2f}",
            f"{one.share * 100:.1f} %",
        )
        for one in found.streams
    ]
    print_table(("stream", "rate", "least", "most", "gaps", "requests"), rows, right=(1, 2, 3, 4, 5))
    print_notes(found.notes)

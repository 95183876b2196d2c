"""`tangram serve workload describe`: statistics of the requests in a trace."""

from typing import TYPE_CHECKING

import typer

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_columns, print_line, print_notes
from tangram_sim.questions.serve_workload import ServeWorkloadQuestion
from tangram_sim.reports.columns import ViewColumn, share

if TYPE_CHECKING:
    from tangram_sim.studies.serving_workload import RatesDocument, WorkloadDocument

app = typer.Typer(help="Workloads: what requests ask of a service.", no_args_is_help=True)

_LENGTHS = (
    ViewColumn("", "0"),
    *(ViewColumn(each, f"1.{each}", "{:,.0f}") for each in ("mean", "p50", "p90", "p99", "most")),
    ViewColumn("variation", "1.cv", "{:.2f}"),
)
_TYPES = (
    ViewColumn("prompt", "input_tokens", "{:,.0f}"),
    ViewColumn("output", "output_tokens", "{:,.0f}"),
    ViewColumn("share", "share", share(1)),
)
_STREAMS = (
    ViewColumn("stream", lambda stream: stream.name or "all"),
    ViewColumn("rate", "rate_rps", "{:.4g}"),
    ViewColumn("least", "least_rps", "{:.4g}"),
    ViewColumn("most", "most_rps", "{:.4g}"),
    ViewColumn("gaps", "burstiness_cv", "{:.2f}"),
    ViewColumn("requests", "share", share(1)),
)


def _show(found: "WorkloadDocument | RatesDocument") -> None:
    """Print statistics of requests, or of rates over time."""
    from tangram_sim.studies.serving_workload import RatesDocument

    if isinstance(found, RatesDocument):
        _show_rates(found)
    else:
        _show_requests(found)


def _show_requests(found: "WorkloadDocument") -> None:
    """Print rate, burstiness, lengths and shared prefixes."""
    print_line(
        f"{found.requests:,} requests in {found.span_s:,.4g} s   {found.rate_rps:.4g} a second   "
        f"busiest minute {found.busiest_minute_rps:.4g} a second   "
        f"gaps vary by {found.burstiness_cv:.2f} (Poisson: 1)"
    )
    print_line()
    print_columns(_LENGTHS, [("prompt tokens", found.input_tokens), ("output tokens", found.output_tokens)])
    print_columns(_TYPES, found.types)
    if found.prefixes:
        print_line(
            f"{found.prefixes:,} shared prefixes, {found.prefix_share * 100:.1f} % of the prompt tokens"
        )
    if found.cached_share:
        print_line(
            f"{found.cached_share * 100:.1f} % of the prompt tokens are cached, as the trace tells them"
        )
    print_notes(found.notes)


def _show_rates(found: "RatesDocument") -> None:
    """Print rates over time by stream."""
    print_line(
        f"{found.windows:,} windows in {found.span_s:,.4g} s, {found.requests:,.0f} requests expected   "
        f"{found.rate_rps:.4g} a second, {found.quietest_window_rps:.4g} to {found.busiest_window_rps:.4g}   "
        f"gaps vary by {found.burstiness_cv:.2f} (Poisson: 1)"
    )
    print_line()
    print_columns(_STREAMS, found.streams)
    print_notes(found.notes)


app.command("describe")(asked(ServeWorkloadQuestion, _show))

"""`tangram serve workload describe`: statistics of the requests in a trace."""

from typing import TYPE_CHECKING

import typer

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_line, print_notes, print_table
from tangram_sim.questions.serve_workload import ServeWorkloadQuestion

if TYPE_CHECKING:
    from tangram_sim.studies.serving_workload import RatesDocument, WorkloadDocument

app = typer.Typer(help="Workloads: what requests ask of a service.", no_args_is_help=True)


def _show(found: "WorkloadDocument | RatesDocument") -> None:
    """Print what requests ask for, or what comes when."""
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
    rows = [
        (
            words,
            *(
                f"{value:,.0f}"
                for value in (lengths.mean, lengths.p50, lengths.p90, lengths.p99, lengths.most)
            ),
            f"{lengths.cv:.2f}",
        )
        for words, lengths in (("prompt tokens", found.input_tokens), ("output tokens", found.output_tokens))
    ]
    print_table(("", "mean", "p50", "p90", "p99", "most", "variation"), rows, right=(1, 2, 3, 4, 5, 6))
    parts = [
        (
            f"{request_type.input_tokens:,.0f}",
            f"{request_type.output_tokens:,.0f}",
            f"{request_type.share * 100:.1f} %",
        )
        for request_type in found.types
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


def _show_rates(found: "RatesDocument") -> None:
    """Print what comes when, by stream."""
    print_line(
        f"{found.windows:,} windows in {found.span_s:,.4g} s, {found.requests:,.0f} requests expected   "
        f"{found.rate_rps:.4g} a second, {found.quietest_window_rps:.4g} to {found.busiest_window_rps:.4g}   "
        f"gaps vary by {found.burstiness_cv:.2f} (Poisson: 1)"
    )
    print_line()
    rows = [
        (
            stream.name or "all",
            *(f"{value:.4g}" for value in (stream.rate_rps, stream.least_rps, stream.most_rps)),
            f"{stream.burstiness_cv:.2f}",
            f"{stream.share * 100:.1f} %",
        )
        for stream in found.streams
    ]
    print_table(("stream", "rate", "least", "most", "gaps", "requests"), rows, right=(1, 2, 3, 4, 5))
    print_notes(found.notes)


app.command("describe")(asked(ServeWorkloadQuestion, _show))

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
            one.name or "all",
            *(f"{value:.4g}" for value in (one.rate_rps, one.least_rps, one.most_rps)),
            f"{one.burstiness_cv:.2f}",
            f"{one.share * 100:.1f} %",
        )
        for one in found.streams
    ]
    print_table(("stream", "rate", "least", "most", "gaps", "requests"), rows, right=(1, 2, 3, 4, 5))
    print_notes(found.notes)


app.command("describe")(asked(ServeWorkloadQuestion, _show))

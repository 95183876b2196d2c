"""Fleets that serve: good requests, tokens and dollars, as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_line, print_table

if TYPE_CHECKING:
    from tangram_sim.studies.serving_whatif import ServiceCandidateDocument


def print_candidates(candidates: "Sequence[ServiceCandidateDocument]", first: str, last: str) -> None:
    """Print one line a fleet, with `first` and `last` as outer headings; below, why others have no plan."""
    rows = [
        (
            candidate.name,
            f"{candidate.good_rps:.4g}" if not candidate.reason else candidate.status,
            f"{candidate.good_output_tok_s:,.0f}",
            "-" if candidate.usd_per_hour is None else f"{candidate.usd_per_hour:.4g}",
            "-" if candidate.usd_per_million_tokens is None else f"{candidate.usd_per_million_tokens:.3g}",
            "-" if candidate.more_tokens_per_usd is None else f"{candidate.more_tokens_per_usd:,.0f}",
            "-" if candidate.site_w is None else f"{candidate.site_w / 1e3:.3g}",
            "-" if candidate.joules_per_output_token is None else f"{candidate.joules_per_output_token:.3g}",
            ", ".join(f"{count} {gpu}" for gpu, count in candidate.gpus_used.items() if count),
        )
        for candidate in candidates
    ]
    figures = ("good requests/s", "tokens/s", "USD/h", "USD/M tokens", "tokens per USD more", "kW", "J/token")
    print_table((first, *figures, last), rows, right=range(1, 8), leaves=(2, 8, 3, 6))
    for candidate in candidates:
        if candidate.reason:
            print_line(f"{candidate.name}: {candidate.reason}")

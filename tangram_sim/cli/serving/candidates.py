"""Fleets that serve: good requests, tokens and dollars, as a table, JSON or a page."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.studies.documents import Document
    from tangram_sim.studies.serving_whatif import ServiceCandidateDocument


def print_candidates(candidates: "Sequence[ServiceCandidateDocument]", first: str, last: str) -> None:
    """Print one line a fleet, with `first` and `last` as outer headings; below, why others have no plan."""
    rows = [
        (
            one.name,
            f"{one.good_rps:.4g}" if not one.reason else one.status,
            f"{one.good_output_tok_s:,.0f}",
            "-" if one.usd_per_hour is None else f"{one.usd_per_hour:.4g}",
            "-" if one.usd_per_million_tokens is None else f"{one.usd_per_million_tokens:.3g}",
            "-" if one.more_tokens_per_usd is None else f"{one.more_tokens_per_usd:,.0f}",
            ", ".join(f"{count} {gpu}" for gpu, count in one.gpus_used.items() if count),
        )
        for one in candidates
    ]
    figures = ("good requests/s", "tokens/s", "USD/h", "USD/M tokens", "tokens per USD more")
    print_table((first, *figures, last), rows, right=range(1, 6), leaves=(2, 6, 3))
    for one in candidates:
        if one.reason:
            print_line(f"{one.name}: {one.reason}")


def require_page_or_json(output: Path | None) -> None:
    """Refuse an -o that is no HTML page or JSON file, or cannot be written. Raises BadInputError."""
    from tangram_sim.cli import writing

    if output is not None and not (writing.is_report(output) or output.suffix == ".json"):
        raise BadInputError(f"-o {output}: give report.html to look at, or a .json file")
    writing.require_writable(output=output)


def tell_candidates(
    found: "Document",
    output: Path | None,
    as_json: bool,
    report: Callable[[], str],
    tables: Callable[[], None],
) -> None:
    """Print `found` as JSON or with `tables`; write it to `output` as JSON or as the HTML of `report`."""
    from tangram_sim.cli import writing
    from tangram_sim.datafiles import write_whole

    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        tables()
    if output is not None:
        page = writing.is_report(output)
        if page:
            writing.write_report(output, report())
        else:
            write_whole(output, json.dumps(found.model_dump(mode="json"), indent=1) + "\n")
        if not as_json:
            print_line(f"{'report' if page else 'answer'} written to {output}")

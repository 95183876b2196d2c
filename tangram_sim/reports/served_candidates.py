"""The HTML report of fleets that serve: requests within the latency limits, tokens and dollars of each."""

from collections.abc import Sequence

from tangram_sim.reports import charts
from tangram_sim.reports.ledger import Cell, Ledger
from tangram_sim.reports.page import caption, chart, figure_of, name, page, section, table, verdict
from tangram_sim.studies.serving_whatif import ServiceCandidateDocument, cheapest_tokens


def candidates_report(
    title: str, candidates: Sequence[ServiceCandidateDocument], head: str, notes: Sequence[str]
) -> str:
    """One HTML page, usable offline, on what each candidate serves; `head` names the kind of candidate."""
    ledger = Ledger()
    served = [candidate for candidate in candidates if candidate.good_rps > 0]
    found = ledger.cite("simulated", "every fleet planned for the most good requests/s, then replayed")
    paid = ledger.cite("price", "USD an hour of all nodes or GPUs rented, as the price file or offers state")
    answer = "No fleet here serves these requests; the table says why."
    said: list[str] = []
    if served:
        most = max(served, key=lambda candidate: candidate.good_rps)
        answer = (
            f"{name(most.name)} serves the most: {figure_of(f'{most.good_rps:.4g} requests/s', [found])}, "
            f"{figure_of(f'{most.good_output_tok_s:,.0f} output tokens/s', [found])}."
        )
        least = cheapest_tokens(served)
        if (
            least is not None
            and sum(candidate.usd_per_million_tokens is not None for candidate in served) > 1
        ):
            usd = figure_of(f"{least.usd_per_million_tokens:.3g} USD a million", [found, paid])
            said.append(f"Tokens are cheapest with {name(least.name)}: {usd}.")
    spent = [(candidate.usd_per_hour, candidate.good_output_tok_s, candidate.name) for candidate in served]
    priced_points = [(usd, rate, words) for usd, rate, words in spent if usd is not None]
    drawn = charts.points(priced_points, "USD an hour", "good output tokens/s")
    rows = [
        [
            Cell(candidate.name),
            Cell(f"{candidate.good_rps:.4g}", [found], candidate.good_rps)
            if not candidate.reason
            else Cell(candidate.reason, [found]),
            Cell(f"{candidate.good_output_tok_s:,.0f}", [found], candidate.good_output_tok_s),
            _usd(candidate.usd_per_hour, paid),
            _usd(candidate.usd_per_million_tokens, found, paid),
            Cell(_seconds(candidate.ttft_p99_s), [found], candidate.ttft_p99_s),
            Cell(_seconds(candidate.tpot_p99_s), [found], candidate.tpot_p99_s),
            Cell(", ".join(f"{count} {gpu}" for gpu, count in candidate.gpus_used.items() if count), [found]),
        ]
        for candidate in candidates
    ]
    heads = (
        *(head, "good requests/s", "tokens/s", "USD/h", "USD per M tokens", "TTFT p99", "TPOT p99"),
        "GPUs of its replicas",
    )
    listed = "".join(f"<li>{name(note)}</li>" for note in notes)
    sections = [
        verdict(said),
        section("What money serves", chart("front", drawn, [found, paid])) if priced_points else "",
        section("Candidates", table("candidates", heads, rows), caption("Good requests keep the objective.")),
        section("Notes", f"<ul>{listed}</ul>") if notes else "",
    ]
    return page(
        title, name(f"{len(candidates)} candidates"), answer, [item for item in sections if item], ledger
    )


def _usd(value: float | None, *sources: str) -> Cell:
    return Cell("-") if value is None else Cell(f"{value:.4g}", list(sources), value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s"

"""The HTML report of fleets that serve: requests within the latency limits, tokens and dollars of each."""

from collections.abc import Sequence

from tangram_sim.reports import charts
from tangram_sim.reports.columns import ViewColumn, counted
from tangram_sim.reports.ledger import Ledger
from tangram_sim.reports.page import caption, chart, figure_of, name, note_list, page, section, verdict, view
from tangram_sim.studies.serving_whatif import ServiceCandidateDocument, cheapest_tokens

_LATENCIES = (
    ViewColumn("TTFT p99, s", "ttft_p99_s", "{:.3g}", "found"),
    ViewColumn("TPOT p99, s", "tpot_p99_s", "{:.3g}", "found"),
)


def candidate_columns(first: str, last: str) -> tuple[ViewColumn, ...]:
    """Columns of candidate fleets for terminal and page; `first` and `last` head names and GPUs."""
    return (
        ViewColumn(first, "name"),
        ViewColumn("good requests/s", "good_rps", "{:.4g}", "found"),
        ViewColumn("tokens/s", "good_output_tok_s", "{:,.0f}", "found"),
        ViewColumn("USD/h", "usd_per_hour", "{:.4g}", "paid"),
        ViewColumn("USD/M tokens", "usd_per_million_tokens", "{:.3g}", "found paid"),
        ViewColumn("tokens per USD more", "more_tokens_per_usd", "{:,.0f}", "found paid"),
        ViewColumn("kW", "site_w", lambda watts: f"{watts / 1e3:.3g}", "found"),
        ViewColumn("J/token", "joules_per_output_token", "{:.3g}", "found"),
        ViewColumn(last, lambda candidate: counted(candidate.gpus_used), rests="found"),
    )


def candidates_report(
    title: str, candidates: Sequence[ServiceCandidateDocument], head: str, notes: Sequence[str]
) -> str:
    """One offline HTML page on what each candidate serves; `head` names the kind of candidate."""
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
    columns = (*candidate_columns(head, "GPUs of its replicas"), *_LATENCIES)
    rows = view("candidates", columns, candidates, {"found": found, "paid": paid})
    reasons = [f"{name(each.name)}: {figure_of(each.reason, [found])}" for each in candidates if each.reason]
    below = ". ".join(["Good requests keep the objective", *reasons])
    sections = [
        verdict(said),
        section("What money serves", chart("front", drawn, [found, paid])) if priced_points else "",
        section("Candidates", rows, caption(f"{below}.")),
        note_list(notes),
    ]
    return page(
        title, name(f"{len(candidates)} candidates"), answer, [item for item in sections if item], ledger
    )

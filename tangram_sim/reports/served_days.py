"""The HTML report of fleets that serve some hours a day and train in the others, against separate fleets."""

from collections.abc import Callable, Sequence

from tangram_sim.purchasing.catalogue import in_a_sentence
from tangram_sim.purchasing.day_documents import ServedDayDocument
from tangram_sim.questions.served_fleets import millions
from tangram_sim.reports import charts
from tangram_sim.reports.columns import ViewColumn, counted, share
from tangram_sim.reports.ledger import Ledger
from tangram_sim.reports.page import caption, chart, figure_of, name, note_list, page, section, verdict, view
from tangram_sim.units import MEGA, percent


def day_columns(head: str) -> tuple[ViewColumn, ...]:
    """Columns of days for terminal and page; `head` is the heading of their names."""
    return (
        ViewColumn(head, "name"),
        ViewColumn("nodes that serve", _nodes, rests="played"),
        ViewColumn("served a day", _known("served_tokens_per_day"), millions, "played"),
        ViewColumn("$/M served", _known("usd_per_million_served"), "{:.3g}", "played paid"),
        ViewColumn("trained a day", "shared.trained_tokens_per_day", millions, "planned"),
        ViewColumn("if kept apart", "apart.trained_tokens_per_day", millions, "planned"),
        ViewColumn("change-over", _lost, share(1), "planned"),
        ViewColumn("$ a month", "shared.usd_per_month", "{:,.0f}", "paid"),
        ViewColumn("if kept apart", "apart.usd_per_month", "{:,.0f}", "paid"),
        ViewColumn("$/M trained", "shared.usd_per_million_trained", "{:.3g}", "planned paid"),
    )


def _nodes(day: ServedDayDocument) -> str | None:
    if day.shared is None:
        return None
    return counted(day.serving_nodes) or "none"


def _known(figure: str) -> Callable[[ServedDayDocument], float | None]:
    """A function of a day: the field `figure`, None for days without a plan."""
    return lambda day: None if day.shared is None else getattr(day, figure)


def _lost(day: ServedDayDocument) -> float | None:
    """Tokens lost to changing over, relative to those trained; None without a plan."""
    return (
        None if day.shared is None else day.lost_tokens_per_day / max(day.shared.trained_tokens_per_day, 1.0)
    )


def days_report(
    title: str, days: Sequence[ServedDayDocument], hours: float, head: str, notes: Sequence[str]
) -> str:
    """One offline HTML page on days with `hours` of serving."""
    ledger = Ledger()
    planned = ledger.cite("simulated", "training plans as simulated, times goodput where failures are stated")
    played = ledger.cite("simulated", "services planned to carry the rate, and replayed")
    paid = ledger.cite("price", "USD of all nodes, a month of 30.4 days, as the price file states")
    known = [day for day in days if day.shared is not None]
    answer, said = "No fleet here serves these requests; the table says why.", list[str]()
    if known:
        best = max(known, key=_trained)
        called = in_a_sentence(best.name).replace("the fleet", "The fleet", 1)
        answer = (
            f"{name(called)} trains the most beside {hours:g} hours of serving a day: "
            f"{figure_of(f'{_trained(best) / MEGA:,.0f} million tokens a day', [planned])}, "
            f"{figure_of(f'{best.served_tokens_per_day / MEGA:,.4g} million served', [played])}."
        )
        if best.gain is not None:
            gain = figure_of(percent(best.gain, 1), [planned])
            lost = figure_of(f"{best.lost_tokens_per_day / MEGA:,.0f} million", [planned])
            said.append(
                f"That is {gain} more than with the nodes that serve kept apart; changing over loses {lost} "
                "tokens a day."
            )
    columns = day_columns(head)
    rows = view("days", columns, days, {"planned": planned, "played": played, "paid": paid})
    spent = [
        (
            served_day.shared.usd_per_month if served_day.shared else None,
            _trained(served_day),
            served_day.name,
        )
        for served_day in known
    ]
    priced = [(usd, tokens, words) for usd, tokens, words in spent if usd is not None]
    front = chart("front", charts.points(priced, "USD a month", "tokens trained a day"), [planned, paid])
    apart_means = "Kept apart: nodes that serve do nothing else; rented ones are given back for the night."
    reasons = [caption(f"{name(day.name)}: {figure_of(day.reason, [played])}") for day in days if day.reason]
    sections = [
        verdict(said),
        section("What money trains beside serving", front) if priced else "",
        section("Candidates", rows, caption(apart_means), *reasons),
        note_list(notes),
    ]
    job = name(f"{hours:g} hours of serving a day")
    return page(f"Serving and training: {title}", job, answer, [item for item in sections if item], ledger)


def _trained(served_day: ServedDayDocument) -> float:
    return served_day.shared.trained_tokens_per_day if served_day.shared else 0.0

"""The HTML report of fleets that serve some hours a day and train in the others, against separate fleets."""

from collections.abc import Sequence

from tangram_sim.purchasing.catalogue import in_a_sentence
from tangram_sim.purchasing.day_documents import ServedDayDocument
from tangram_sim.reports import charts
from tangram_sim.reports.ledger import Cell, Ledger
from tangram_sim.reports.page import caption, chart, figure_of, name, page, section, table, verdict
from tangram_sim.units import MEGA, percent


def days_report(
    title: str, days: Sequence[ServedDayDocument], hours: float, head: str, notes: Sequence[str]
) -> str:
    """One HTML page, usable offline, on days with `hours` of serving."""
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
    rows = []
    for day in days:
        if day.shared is None or day.apart is None:
            rows.append([Cell(day.name), Cell(day.reason, [played]), *[Cell("-")] * 7])
            continue
        nodes = ", ".join(f"{count} {label}" for label, count in day.serving_nodes.items()) or "none"
        served, apart = day.served_tokens_per_day, day.apart.trained_tokens_per_day
        rows.append(
            [
                Cell(day.name),
                Cell(nodes, [played]),
                Cell(f"{served / MEGA:,.4g}", [played], served),
                _usd(day.usd_per_million_served, played, paid),
                Cell(f"{_trained(day) / MEGA:,.0f}", [planned], _trained(day)),
                Cell(f"{apart / MEGA:,.0f}", [planned], apart),
                _usd(day.shared.usd_per_month, paid),
                _usd(day.apart.usd_per_month, paid),
                _usd(day.shared.usd_per_million_trained, planned, paid),
            ]
        )
    heads = (head, "nodes that serve", "M tokens served a day", "USD per M served", "M tokens trained a day")
    more = ("if kept apart", "USD a month", "if kept apart ", "USD per M trained")
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
    listed = "".join(f"<li>{name(note)}</li>" for note in notes)
    sections = [
        verdict(said),
        section("What money trains beside serving", front) if priced else "",
        section("Candidates", table("days", (*heads, *more), rows), caption(apart_means)),
        section("Notes", f"<ul>{listed}</ul>") if notes else "",
    ]
    job = name(f"{hours:g} hours of serving a day")
    return page(f"Serving and training: {title}", job, answer, [item for item in sections if item], ledger)


def _trained(served_day: ServedDayDocument) -> float:
    return served_day.shared.trained_tokens_per_day if served_day.shared else 0.0


def _usd(value: float | None, *sources: str) -> Cell:
    return Cell("-") if value is None else Cell(f"{value:,.4g}", list(sources), value)

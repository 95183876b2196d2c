"""The printed table of fleets that serve some hours of a day and train in the others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_line, print_table
from tangram_sim.questions.served_fleets import millions
from tangram_sim.units import percent

if TYPE_CHECKING:
    from tangram_sim.purchasing.day_documents import ServedDayDocument


def print_days(days: "Sequence[ServedDayDocument]", hours: float, head: str) -> None:
    """Print one line a fleet: nodes that serve, tokens trained, and cost, beside not sharing the nodes."""
    print_line(f"serving {hours:g} hours a day, training the rest of it and on what is free:")
    rows = []
    for day in days:
        if day.shared is None or day.apart is None:
            rows.append((day.name, *("-",) * 9))
            continue
        nodes = ", ".join(f"{count} {label}" for label, count in day.serving_nodes.items()) or "none"
        rows.append(
            (
                day.name,
                nodes,
                millions(day.served_tokens_per_day),
                _usd(day.usd_per_million_served),
                millions(day.shared.trained_tokens_per_day),
                millions(day.apart.trained_tokens_per_day),
                percent(day.lost_tokens_per_day / max(day.shared.trained_tokens_per_day, 1.0), 1),
                _usd(day.shared.usd_per_month, 0),
                _usd(day.apart.usd_per_month, 0),
                _usd(day.shared.usd_per_million_trained),
            )
        )
    heads = (
        "nodes that serve",
        "served a day",
        "$/M served",
        "trained a day",
        "if kept apart",
        "change-over",
    )
    money = ("$ a month", "if kept apart", "$/M trained")
    print_table((head, *heads, *money), rows, right=range(2, 10), leaves=(6, 8, 3, 5, 9, 7))
    for day in days:
        if day.reason:
            most = (
                "" if day.most_rps is None else f"; all its nodes serve {day.most_rps:.4g} requests/s at most"
            )
            print_line(f"{day.name}: {day.reason}{most}")
        elif not day.changes_over and day.serving_nodes and hours < 24:
            print_line(f"{day.name}: its nodes stay apart: changing over loses more than it gains")
    changed = next((day.change for day in days if day.change is not None and day.changes_over), None)
    if changed is not None:
        print_line(
            f"changing over: {changed.drain_s:.0f} s until requests are through, "
            f"{changed.checkpoint_s:.0f} s to save what is trained, "
            f"{changed.restart_s:.0f} s to go on from it, {changed.load_s:.0f} s until replicas serve"
        )


def _usd(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if digits == 0 else f"{value:.3g}"

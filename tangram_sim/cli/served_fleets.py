"""Output of fleets that serve, all day or some hours beside training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_columns, print_line, print_notes, print_remark
from tangram_sim.cli.outputs import AnswerOutputs

if TYPE_CHECKING:
    from tangram_sim.purchasing.day_documents import ServedDayDocument, SharedPurchaseDocument
    from tangram_sim.purchasing.served_candidates import ServedPurchaseDocument
    from tangram_sim.questions.served_fleets import ServedAnswer
    from tangram_sim.studies.serving_whatif import ServiceCandidateDocument


@dataclass(frozen=True, slots=True)
class FleetOutputs(AnswerOutputs):
    """Where answers on fleets that serve are written."""

    def show_fleets(self, found: "ServedAnswer", what: str, head: str) -> None:
        """Print and write an answer; `what` begins its title, `head` is the heading of its table."""
        self.show(found, partial(_tables, head), partial(_page, found, what, head))


def _page(found: "ServedAnswer", what: str, head: str) -> str:
    from tangram_sim.reports.served_candidates import candidates_report
    from tangram_sim.reports.served_days import days_report

    if found.hours is not None:
        return days_report(found.title, found.days, found.hours, head, found.notes)
    return candidates_report(f"{what}: {found.title}", found.fleets, head, found.notes)


def _tables(head: str, found: "ServedAnswer") -> None:
    """Print one row per fleet, the cheapest, the number of mixes tried, and notes."""
    from tangram_sim.purchasing.catalogue import in_a_sentence
    from tangram_sim.purchasing.day_documents import SharedPurchaseDocument
    from tangram_sim.purchasing.served_candidates import ServedPurchaseDocument

    document = found.document
    if found.hours is not None:
        print_days(found.days, found.hours, head)
    else:
        print_candidates(found.fleets, head, "GPUs used")
    if found.cheapest is not None and len(found.days) + len(found.fleets) > 1:
        whose = "tokens" if found.hours is None else "trained tokens"
        print_line(f"{whose} are cheapest with {in_a_sentence(found.cheapest)}")
    if isinstance(document, ServedPurchaseDocument):
        _print_looked(document.looked_at, document)
    print_notes(found.notes)
    if isinstance(document, SharedPurchaseDocument):
        _print_looked(document.days, document)


def _print_looked(looked: Sequence[object], found: "SharedPurchaseDocument | ServedPurchaseDocument") -> None:
    left = f", {found.not_looked_at} not looked at" if found.not_looked_at else ""
    print_remark(f"searched: {len(looked)} mixes planned, {found.bounded_away} bounded away{left}")


def print_candidates(candidates: "Sequence[ServiceCandidateDocument]", first: str, last: str) -> None:
    """Print one line a fleet, with `first` and `last` as outer headings; below, why others have no plan."""
    from tangram_sim.reports.served_candidates import candidate_columns

    print_columns(candidate_columns(first, last), candidates, leaves=(2, 8, 3, 6))
    for candidate in candidates:
        if candidate.reason:
            print_line(f"{candidate.name}: {candidate.status}: {candidate.reason}")


def print_days(days: "Sequence[ServedDayDocument]", hours: float, head: str) -> None:
    """Print one line per fleet: nodes that serve, tokens trained, and cost, compared with separate nodes."""
    from tangram_sim.reports.served_days import day_columns

    print_line(f"serving {hours:g} hours a day, training the rest of it and on what is free:")
    print_columns(day_columns(head), days, leaves=(6, 8, 3, 5, 9, 7))
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

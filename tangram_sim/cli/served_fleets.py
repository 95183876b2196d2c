"""How fleets that serve are shown, all day or some hours of it beside training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_line, print_notes, print_remark
from tangram_sim.cli.outputs import AnswerOutputs
from tangram_sim.cli.served_days import print_days
from tangram_sim.cli.serving.candidates import print_candidates

if TYPE_CHECKING:
    from tangram_sim.purchasing.day_documents import SharedPurchaseDocument
    from tangram_sim.purchasing.served_candidates import ServedPurchaseDocument
    from tangram_sim.questions.served_fleets import ServedAnswer


@dataclass(frozen=True, slots=True)
class FleetOutputs(AnswerOutputs):
    """What fleets that serve are written to."""

    def show_fleets(self, found: "ServedAnswer", what: str, head: str) -> None:
        """Print and write an answer; `what` leads its title, `head` its table."""
        self.show(found, partial(_tables, head), partial(_page, found, what, head))


def _page(found: "ServedAnswer", what: str, head: str) -> str:
    from tangram_sim.reports.served_candidates import candidates_report
    from tangram_sim.reports.served_days import days_report

    if found.hours is not None:
        return days_report(found.title, found.days, found.hours, head, found.notes)
    return candidates_report(f"{what}: {found.title}", found.fleets, head, found.notes)


def _tables(head: str, found: "ServedAnswer") -> None:
    """Print one row a fleet, what is cheapest, how many were looked at, and notes."""
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

"""`tangram serve what-if` and `serve purchase`: what more GPUs, or budgets, gain for a service."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_line, print_notes
from tangram_sim.cli.served_fleets import print_candidates
from tangram_sim.questions.serve_what_if import ServePurchaseQuestion, ServeWhatIfQuestion

if TYPE_CHECKING:
    from tangram_sim.studies.serving_purchase import ServePurchaseDocument
    from tangram_sim.studies.serving_whatif import ServeWhatIfDocument


def _show_additions(found: "ServeWhatIfDocument") -> None:
    """Print the fleet with each addition."""
    print_candidates(found.candidates, "candidate", "GPUs used")
    print_notes(found.notes)


def _page_of_additions(question: ServeWhatIfQuestion, found: "ServeWhatIfDocument") -> str:
    from tangram_sim.reports.served_candidates import candidates_report

    return candidates_report(f"What if: {question.model}", found.candidates, "candidate", found.notes)


def _show_budgets(found: "ServePurchaseDocument") -> None:
    """Print what each budget rents."""
    print_candidates(found.front, "budget", "GPUs rented")
    if found.cheapest_tokens is not None and len(found.front) > 1:
        print_line(f"tokens are cheapest at {found.cheapest_tokens:g} USD/h")
    print_notes(found.notes)


def _page_of_budgets(question: ServePurchaseQuestion, found: "ServePurchaseDocument") -> str:
    from tangram_sim.reports.served_candidates import candidates_report

    return candidates_report(f"What budgets buy: {question.model}", found.front, "budget", found.notes)


what_if = asked(ServeWhatIfQuestion, _show_additions, _page_of_additions)
purchase = asked(ServePurchaseQuestion, _show_budgets, _page_of_budgets)

"""`tangram serve what-if` and `serve purchase`: what more GPUs, or budgets, do for a service."""

from typing import TYPE_CHECKING

from tangram_sim.cli import command_clock
from tangram_sim.cli.console import print_line, print_notes
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import AnswerOutputs
from tangram_sim.cli.served_fleets import print_candidates
from tangram_sim.questions.serve_what_if import ServePurchaseQuestion, ServeWhatIfQuestion

if TYPE_CHECKING:
    from tangram_sim.studies.serving_purchase import ServePurchaseDocument
    from tangram_sim.studies.serving_whatif import ServeWhatIfDocument


@derived
def what_if(question: ServeWhatIfQuestion, outputs: AnswerOutputs) -> None:
    """Print the fleet with each addition."""
    from tangram_sim.reports.served_candidates import candidates_report

    outputs.require_kind()
    found = question.answer(left_s=command_clock.left_s(question.time_limit_s))
    title = f"What if: {question.model}"
    outputs.show(
        found, _show_additions, lambda: candidates_report(title, found.candidates, "candidate", found.notes)
    )


def _show_additions(found: "ServeWhatIfDocument") -> None:
    print_candidates(found.candidates, "candidate", "GPUs used")
    print_notes(found.notes)


@derived
def purchase(question: ServePurchaseQuestion, outputs: AnswerOutputs) -> None:
    """Print what each budget rents."""
    from tangram_sim.reports.served_candidates import candidates_report

    outputs.require_kind()
    found = question.answer(left_s=command_clock.left_s(question.time_limit_s))
    title = f"What budgets buy: {question.model}"
    outputs.show(found, _show_budgets, lambda: candidates_report(title, found.front, "budget", found.notes))


def _show_budgets(found: "ServePurchaseDocument") -> None:
    print_candidates(found.front, "budget", "GPUs rented")
    if found.cheapest_tokens is not None and len(found.front) > 1:
        print_line(f"tokens are cheapest at {found.cheapest_tokens:g} USD/h")
    print_notes(found.notes)

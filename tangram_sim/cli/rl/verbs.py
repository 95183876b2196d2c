"""The verbs of `tangram rl` that ask a question; what each may be asked is its question's fields."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json
from tangram_sim.cli.derived import derived
from tangram_sim.questions.rl import (
    RlCompareQuestion,
    RlEstimateQuestion,
    RlPlanQuestion,
    RlPurchaseQuestion,
    RlSimulateQuestion,
    RlWhatIfQuestion,
)

if TYPE_CHECKING:
    from tangram_sim.studies.rl_documents import RlWhatIfDocument

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the answer, plan and question, to this JSON file."),
]


@derived
def plan(question: RlPlanQuestion, output: Output = None, as_json: shared.AsJson = False) -> None:  # noqa: D103
    from tangram_sim.cli.rl.words import show_plan
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole

    require_writable(output=output)
    found = question.answer()
    if output is not None:
        write_whole(output, found.model_dump_json(indent=2))
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    show_plan(found)


@derived
def estimate(question: RlEstimateQuestion, as_json: shared.AsJson = False) -> None:  # noqa: D103
    from tangram_sim.cli.rl.words import show_plan

    found = question.answer()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    show_plan(found)


@derived
def compare(question: RlCompareQuestion, as_json: shared.AsJson = False) -> None:  # noqa: D103
    from tangram_sim.cli.rl.words import show_compare

    found = question.answer()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    show_compare(found)


@derived
def what_if(question: RlWhatIfQuestion, as_json: shared.AsJson = False) -> None:  # noqa: D103
    _additions(question.answer(), as_json)


@derived
def purchase(question: RlPurchaseQuestion, as_json: shared.AsJson = False) -> None:  # noqa: D103
    _additions(question.answer(), as_json)


def _additions(found: "RlWhatIfDocument", as_json: bool) -> None:
    from tangram_sim.cli.rl.words import show_what_if

    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    show_what_if(found)


@derived
def simulate(question: RlSimulateQuestion, as_json: shared.AsJson = False) -> None:  # noqa: D103
    from tangram_sim.cli.rl.words import show_simulate

    found = question.answer()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    show_simulate(found)

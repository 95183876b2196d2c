"""The verbs of `tangram rl` that ask a question; what each may be asked is its question's fields."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_json
from tangram_sim.cli.derived import derived
from tangram_sim.cli.rl.words import show_compare, show_plan, show_simulate, show_what_if
from tangram_sim.questions.rl import (
    RlCompareQuestion,
    RlEstimateQuestion,
    RlPlanQuestion,
    RlPurchaseQuestion,
    RlSimulateQuestion,
    RlWhatIfQuestion,
)

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the answer, plan and question, to this JSON file."),
]


@derived
def plan(question: RlPlanQuestion, output: Output = None, as_json: shared.AsJson = False) -> None:  # noqa: D103
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


estimate = asked(RlEstimateQuestion, show_plan)
compare = asked(RlCompareQuestion, show_compare)
what_if = asked(RlWhatIfQuestion, show_what_if)
purchase = asked(RlPurchaseQuestion, show_what_if)
simulate = asked(RlSimulateQuestion, show_simulate)

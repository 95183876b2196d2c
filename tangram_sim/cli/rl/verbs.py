"""The verbs of `tangram rl` that ask a question; what each may be asked is its question's fields."""

from dataclasses import dataclass
from pathlib import Path

from tangram_sim.cli.asked import asked
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.cli.rl.words import show_compare, show_plan, show_simulate, show_what_if
from tangram_sim.fields import OUTPUT, option
from tangram_sim.questions.rl import (
    RlCompareQuestion,
    RlEstimateQuestion,
    RlPlanQuestion,
    RlPurchaseQuestion,
    RlSimulateQuestion,
    RlWhatIfQuestion,
)


@dataclass(frozen=True, slots=True)
class PlanFile(Shown):
    """Where a plan is written."""

    output: Path | None = option(
        None,
        "Write the answer, plan and question, to this JSON file.",
        spelled="-o,--output",
        group=OUTPUT,
    )


@derived
def plan(question: RlPlanQuestion, outputs: PlanFile) -> None:  # noqa: D103
    from tangram_sim.cli.writing import require_writable
    from tangram_sim.datafiles import write_whole

    require_writable(output=outputs.output)
    found = question.answer()
    if outputs.output is not None:
        write_whole(outputs.output, found.model_dump_json(indent=2))
    outputs.show(found, show_plan)


estimate = asked(RlEstimateQuestion, show_plan)
compare = asked(RlCompareQuestion, show_compare)
what_if = asked(RlWhatIfQuestion, show_what_if)
purchase = asked(RlPurchaseQuestion, show_what_if)
simulate = asked(RlSimulateQuestion, show_simulate)

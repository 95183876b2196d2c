"""`tangram estimate` and `tangram simulate`: one simulated step, of a given layout or of a plan file."""

from typing import Any

from tangram_sim.cli.derived import Command, asking
from tangram_sim.cli.outputs import PlanOutputs
from tangram_sim.questions.estimate import EstimateQuestion
from tangram_sim.questions.question import Question
from tangram_sim.questions.simulate import SimulateQuestion


def played(of: type[Question]) -> Command:
    """Make the verb for questions about one step: it writes the requested files and prints the answer."""

    def command(question: Any, outputs: PlanOutputs) -> None:
        outputs.require_writable()
        outputs.write(question.answer(), question.hardware.load())

    return asking(command, question=of, outputs=PlanOutputs)


estimate = played(EstimateQuestion)
simulate = played(SimulateQuestion)

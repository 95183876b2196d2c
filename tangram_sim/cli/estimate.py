"""`tangram estimate`: price one explicit uniform layout."""

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import PlanOutputs
from tangram_sim.questions.estimate import EstimateQuestion


@derived
def command(question: EstimateQuestion, outputs: PlanOutputs) -> None:
    """Write the files asked for, and print the answer."""
    outputs.require_writable()
    outputs.write(question.answer(), question.hardware.load())

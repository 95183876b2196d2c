"""`tangram simulate`: simulates one training step of a plan file."""

from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import PlanOutputs
from tangram_sim.questions.simulate import SimulateQuestion


@derived
def command(question: SimulateQuestion, outputs: PlanOutputs) -> None:
    """Write the files asked for, and print the answer."""
    outputs.require_writable()
    outputs.write(question.answer(), question.hardware.load())

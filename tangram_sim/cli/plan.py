"""`tangram plan`: finds the fastest way to spread the training of a model over a cluster."""

from dataclasses import dataclass
from pathlib import Path

from tangram_sim.cli import command_clock
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import PlanOutputs
from tangram_sim.errors import BadInputError
from tangram_sim.fields import OUTPUT, option
from tangram_sim.questions.plan import PlanQuestion


@dataclass(frozen=True, slots=True)
class SearchOutputs(PlanOutputs):
    """Where the results of a search are written."""

    candidates: Path | None = option(
        None, "Write every partial plan considered to this CSV file.", group=OUTPUT
    )
    ablation: bool = option(False, "Plan with policies on and off; print a table, no plan.", group=OUTPUT)


@derived
def command(question: PlanQuestion, outputs: SearchOutputs) -> None:
    """Write the requested files, and print the answer."""
    from tangram_sim.cli.progress import SlowProgress

    outputs.require_writable(candidates=outputs.candidates)
    deadline = command_clock.deadline(question.search.time_limit_s)
    if outputs.ablation:
        _ablation(question, outputs)
        return
    with SlowProgress("planning") as progress, deadline.hearing_interrupts():
        result = question.answer(
            candidates=outputs.candidates is not None, progress=progress.report, deadline=deadline
        )
    outputs.write(result, question.hardware.load(), outputs.candidates)


def _ablation(question: PlanQuestion, outputs: SearchOutputs) -> None:
    """Print what each pruning policy saves."""
    from tangram_sim.cli.console import print_table
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.studies.ablation import COLUMNS, ablation, table

    files = (outputs.output, outputs.trace, outputs.memory, outputs.candidates)
    if outputs.as_json or any(files) or question.slow:
        raise BadInputError(
            "--ablation prints a table; drop --json, --output, --trace, --memory, --candidates and --slow"
        )
    database = question.hardware.load()
    with SlowProgress("planning with policies on and off"):
        rows = ablation(
            load_model(question.model),
            load_cluster(question.cluster, database),
            question.job,
            database,
            question.options,
        )
    print_table(COLUMNS, table(rows), right=range(1, len(COLUMNS)))

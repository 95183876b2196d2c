"""`tangram plan`: finds the fastest way to spread the training of a model over a cluster."""

from dataclasses import dataclass
from pathlib import Path

from tangram_sim.cli import command_clock
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import Shown
from tangram_sim.errors import BadInputError
from tangram_sim.fields import OUTPUT, option
from tangram_sim.questions.plan import PlanQuestion


@dataclass(frozen=True, slots=True)
class SearchOutputs(Shown):
    """What a search is written to."""

    output: Path | None = option(
        None, "Write the plan to this file, or report.html to look at.", spelled="-o,--output", group=OUTPUT
    )
    trace: Path | None = option(None, "Write a timeline for chrome://tracing or Perfetto.", group=OUTPUT)
    candidates: Path | None = option(
        None, "Write every partial plan considered to this CSV file.", group=OUTPUT
    )
    ablation: bool = option(False, "Plan with policies on and off; print a table, no plan.", group=OUTPUT)


@derived
def command(question: PlanQuestion, outputs: SearchOutputs) -> None:
    """Write the files asked for, and print the answer."""
    from tangram_sim.cli import writing
    from tangram_sim.cli.progress import SlowProgress

    output, as_json = outputs.output, outputs.as_json
    writing.require_writable(output=output, trace=outputs.trace, candidates=outputs.candidates)
    deadline = command_clock.deadline(question.search.time_limit_s)
    if outputs.ablation:
        _ablation(question, outputs)
        return
    with SlowProgress("planning") as progress, deadline.hearing_interrupts():
        result = question.answer(
            candidates=outputs.candidates is not None, progress=progress.report, deadline=deadline
        )
    output = writing.reported(result, output, question.hardware.load(), as_json=as_json)
    writing.show(result, as_json=as_json, output=output, trace=outputs.trace, candidates=outputs.candidates)


def _ablation(question: PlanQuestion, outputs: SearchOutputs) -> None:
    """Print what each pruning policy saves."""
    from tangram_sim.cli.console import print_table
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.studies.ablation import COLUMNS, ablation, table

    if outputs.as_json or outputs.output or outputs.trace or outputs.candidates or question.slow:
        raise BadInputError(
            "--ablation prints a table; drop --json, --output, --trace, --candidates and --slow"
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

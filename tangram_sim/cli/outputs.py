"""How an answer is shown and where it is written: options beside the question, which are no part of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.fields import OUTPUT, option

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.results import Result


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer is printed as a table or as JSON."""

    as_json: bool = option(False, "Print one JSON object instead of a table.", spelled="--json", group=OUTPUT)


@dataclass(frozen=True, slots=True)
class PlanOutputs(Shown):
    """What a played plan is written to."""

    output: Path | None = option(
        None, "Write the plan to this file, or report.html to look at.", spelled="-o,--output", group=OUTPUT
    )
    trace: Path | None = option(None, "Write a timeline for chrome://tracing or Perfetto.", group=OUTPUT)
    memory: Path | None = option(None, "Write bytes by stage over the step to this CSV file.", group=OUTPUT)

    def require_writable(self) -> None:
        """Raise BadInputError, before any work is done, for a file that cannot be written."""
        from tangram_sim.cli import writing

        writing.require_writable(output=self.output, trace=self.trace, memory=self.memory)

    def show(self, result: "Result", hwdb: "Hwdb") -> None:
        """Write the files asked for, then print the table or the JSON object."""
        from tangram_sim.cli import writing

        output = writing.reported(result, self.output, hwdb, as_json=self.as_json)
        writing.show(result, as_json=self.as_json, output=output, trace=self.trace, memory=self.memory)

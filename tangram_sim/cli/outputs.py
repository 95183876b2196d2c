"""Options for printing and writing an answer, which are not part of the question."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.cli.console import print_json, print_line
from tangram_sim.errors import BadInputError
from tangram_sim.fields import OUTPUT, option

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.documents import Document
    from tangram_sim.studies.results import Result


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer is printed as a table or as JSON."""

    as_json: bool = option(False, "Print one JSON object instead of a table.", spelled="--json", group=OUTPUT)

    def show(self, found: Any, tables: Callable[[Any], None]) -> None:
        """Print an answer with `tables`, or its document as JSON."""
        if self.as_json:
            document: Any = document_of(found)
            print_json(document.model_dump(mode="json") if hasattr(document, "model_dump") else document)
        else:
            tables(found)


@dataclass(frozen=True, slots=True)
class FileOutput:
    """Destination of a text: a file, or standard output."""

    output: Path | None = option(
        None,
        "Write it to this file instead of printing it.",
        spelled="-o,--output",
        basic=True,
        group=OUTPUT,
    )

    def require_writable(self) -> None:
        """Raise BadInputError, before any work is done, for a file that cannot be written."""
        from tangram_sim.cli import writing

        writing.require_writable(output=self.output)

    def write(self, text: str, said: str = "") -> None:
        """Write or print a text; once it is in a file, `said` is printed."""
        from tangram_sim.datafiles import write_whole

        if self.output is None:
            sys.stdout.write(text)
            return
        write_whole(self.output, text)
        if said:
            print_line(said)


@dataclass(frozen=True, slots=True)
class AnswerOutputs(Shown):
    """Where an answer is written."""

    output: Path | None = option(
        None,
        "Write the answer to this .json file, or report.html to look at.",
        spelled="-o,--output",
        group=OUTPUT,
    )

    def require_writable(self, **more: Path | None) -> None:
        """Raise BadInputError, before any work is done, for files that cannot be written."""
        from tangram_sim.cli import writing

        writing.require_writable(output=self.output, **more)

    def require_kind(self) -> None:
        """Raise BadInputError for an output that is neither a report nor JSON, like a folder."""
        from tangram_sim.cli import writing

        output = self.output
        if output is not None and not (writing.is_report(output) or output.suffix.lower() == ".json"):
            raise BadInputError(f"--output {output}: give report.html to look at, or a .json file")
        self.require_writable()

    def show(
        self, found: Any, tables: Callable[[Any], None], page: Callable[[], str] = str, *unwritten: str
    ) -> None:
        """Print an answer with `tables` or as JSON, then write it, or the HTML report of `page`.

        The answer is printed first, so that a full disk loses no result. `unwritten`: keys of the document to
        leave out of the file, such as planning times.
        """
        from tangram_sim.cli import writing
        from tangram_sim.datafiles import write_whole

        Shown.show(self, found, tables)
        if self.output is None:
            return
        report = writing.is_report(self.output)
        if report:
            writing.write_report(self.output, page())
        else:
            write_whole(self.output, writing.answer_text(document_of(found), unwritten))
        if not self.as_json:
            print_line(f"{'report' if report else 'answer'} written to {self.output}")


def document_of(found: Any) -> "Document":
    """The document of an answer: itself, or what it holds as `document`."""
    document: Document = getattr(found, "document", found)
    return document


@dataclass(frozen=True, slots=True)
class PlanOutputs(Shown):
    """Where a simulated plan is written."""

    output: Path | None = option(
        None, "Write the plan to this file, or report.html to look at.", spelled="-o,--output", group=OUTPUT
    )
    trace: Path | None = option(None, "Write a timeline for chrome://tracing or Perfetto.", group=OUTPUT)
    memory: Path | None = option(None, "Write bytes by stage over the step to this CSV file.", group=OUTPUT)

    def require_writable(self, **more: Path | None) -> None:
        """Raise BadInputError, before any work is done, for a file that cannot be written."""
        from tangram_sim.cli import writing

        writing.require_writable(output=self.output, trace=self.trace, memory=self.memory, **more)

    def write(self, result: "Result", hwdb: "Hwdb", candidates: Path | None = None) -> None:
        """Write the requested files, then print the table or the JSON object."""
        from tangram_sim.cli.plan_table import print_document
        from tangram_sim.studies.planfile import plan_keys

        written = list(self._written(result, hwdb, candidates))
        if self.as_json:
            print_json(plan_keys(result.document))
            return
        print_document(result.document)
        for line in written:
            print_line(line)

    def _written(self, result: "Result", hwdb: "Hwdb", candidates: Path | None) -> Iterator[str]:
        """Write one file after the other; yields the content of each in words."""
        from tangram_sim.cli import writing
        from tangram_sim.datafiles import write_whole
        from tangram_sim.reports.plan_words import count

        document, output = result.document, self.output
        if output is not None and writing.is_report(output):
            from tangram_sim.reports.plan_sections import plan_report

            writing.write_report(output, plan_report(document, hwdb))
            yield f"report written to {output}"
        if self.trace is not None:
            from tangram_sim.sim.perfetto import trace_json

            write_whole(self.trace, trace_json(result.forecast.timeline))
            yield f"timeline written to {self.trace} (open it in https://ui.perfetto.dev)"
        if self.memory is not None:
            from tangram_sim.studies.memory_timeline import memory_csv

            write_whole(self.memory, memory_csv(result.forecast))
            yield f"memory over time written to {self.memory}"
        if candidates is not None:
            write_whole(candidates, writing.candidates_text(result.candidates))
            yield f"{count(len(result.candidates), 'partial plan')} written to {candidates}"
        if output is not None and not writing.is_report(output):
            write_whole(output, writing.plan_text(document))
            yield f"plan written to {output} (`tangram explain {output}` takes it apart)"


@dataclass(frozen=True, slots=True)
class ReadAnswer(AnswerOutputs):
    """The file of an answer that another verb reads."""

    output: Path | None = option(
        None,
        "Write the answer, with its question, to this .json file.",
        spelled="-o,--output",
        group=OUTPUT,
    )

    def require_json(self, reader: str) -> None:
        """Raise BadInputError, before any work is done, for an output that `reader` cannot read."""
        from tangram_sim.cli import writing

        if self.output is not None and writing.is_report(self.output):
            raise BadInputError(f"--output {self.output}: give a .json file, which `{reader}` reads")
        self.require_writable()

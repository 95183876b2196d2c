"""`tangram export`: writes the launch configuration of a training framework for a plan."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.cli.console import print_json, print_line
from tangram_sim.cli.derived import Command, asking
from tangram_sim.cli.outputs import Shown
from tangram_sim.fields import OUTPUT, option
from tangram_sim.questions.export import ExportQuestion
from tangram_sim.questions.question import Question

if TYPE_CHECKING:
    from tangram_sim.export.documents import ExportDocument


@dataclass(frozen=True, slots=True)
class FilesOutputs(Shown):
    """Where files are written."""

    output: Path | None = option(
        None, "Write the files into this folder.", spelled="-o,--output", unset="print", group=OUTPUT
    )

    def require_writable(self) -> None:
        """Raise BadInputError, before any work is done, for a folder that cannot be written."""
        from tangram_sim.cli.writing import require_folder

        if self.output is not None:
            require_folder(self.output)

    def write(self, found: "ExportDocument") -> None:
        """Write the files into a folder or print them, with notes on them."""
        from tangram_sim.datafiles import write_all

        if self.output is not None:
            write_all({self.output / name: text for name, text in found.files.items()})
        if self.as_json:
            print_json(found.model_dump(mode="json"))
            return
        for name, text in found.files.items():
            if self.output is not None:
                print_line(f"{self.output / name} written")
            elif len(found.files) == 1:
                sys.stdout.write(text)
            else:
                sys.stdout.write(f"==> {name} <==\n{text}")
        for note in found.notes:
            if self.output is not None:
                print_line(f"note: {note}")
            else:  # standard output holds the files
                sys.stderr.write(f"note: {note}\n")


def writer(of: type[Question]) -> Command:
    """Make the verb for questions whose answer is files: it writes them into a folder, or prints them."""

    def command(question: Any, outputs: FilesOutputs) -> None:
        outputs.require_writable()
        outputs.write(question.answer())

    return asking(command, question=of, outputs=FilesOutputs)


command = writer(ExportQuestion)

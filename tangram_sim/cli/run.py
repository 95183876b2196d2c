"""`tangram run`: asks a saved question again, from a question file or an answer."""

import shlex
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import typer

from tangram_sim.cli.derived import derived
from tangram_sim.errors import BadInputError
from tangram_sim.fields import about


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """Where questions are written down."""

    question: Path = field(
        metadata=about(
            "A file of --save-question, an answer in JSON, or several questions that `tangram web` wrote.",
            positional="QUESTION",
        )
    )


# Whatever stands behind the file is an option of its verb.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


@derived
def command(context: typer.Context, file: QuestionFile) -> None:
    """Ask the question in a file again, or each of several. Further options are those of its verb."""
    from tangram_sim.cli.console import print_line
    from tangram_sim.questions.question import read_questions

    with tempfile.TemporaryDirectory(prefix="tangram-run-") as folder:
        found = read_questions(file.question, Path(folder))
        if len(found) > 1 and any(word.startswith(("-o", "--output")) for word in context.args):
            raise BadInputError(
                f"{file.question}: {len(found)} questions would write one file; leave --output out"
            )
        for number, asked in enumerate(found, start=1):
            if len(found) > 1 and "--json" not in context.args:
                print_line(f"{number} of {len(found)}: tangram {shlex.join(asked.words)}")
            try:
                context.find_root().command.main(args=[*asked.words, *context.args], prog_name="tangram")
            except SystemExit as end:
                if end.code or number == len(found):
                    raise

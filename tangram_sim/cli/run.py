"""`tangram run`: asks a question again that was written down, alone or in an answer."""

from pathlib import Path
from typing import Annotated

import typer

QuestionFile = Annotated[
    Path,
    typer.Argument(
        metavar="QUESTION", help="A file of --save-question, or an answer in JSON, which holds its question."
    ),
]
# Whatever stands behind the file is an option of its verb.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def command(context: typer.Context, question: QuestionFile) -> None:
    """Ask the question in a file again. Options behind it are those of its verb, and win: -o, --json, ..."""
    from tangram_sim.questions.question import read_question

    words = [*read_question(question).words, *context.args]
    root = context.find_root().command
    root.main(args=words, prog_name="tangram", standalone_mode=False)

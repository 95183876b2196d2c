"""Verbs made from a question type alone: its options, its answer, and how the answer is printed."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tangram_sim.cli import command_clock
from tangram_sim.cli.derived import Command, asking
from tangram_sim.cli.outputs import AnswerOutputs, ReadAnswer, Shown
from tangram_sim.questions.question import Question


def asked(
    of: type[Question],
    tables: Callable[..., None],
    page: Callable[[Any, Any], str] | None = None,
    *,
    reader: str = "",
    of_both: bool = False,
) -> Command:
    """The verb that asks questions of one type, and prints the answer with `tables` or as JSON.

    `page` makes an HTML report of question and answer; with it the verb has --output, for a report or the
    JSON answer. `reader` names the verb that reads the answer's file: with it --output takes JSON alone.
    `of_both`: tables take the question, then the answer. An answer is a document, or holds it as `document`.
    """

    def command(question: Any, outputs: Any) -> None:
        if reader:
            outputs.require_json(reader)
        elif page is not None:
            outputs.require_kind()
        limit_s = getattr(question, "time_limit_s", None)
        found = question.answer(**{} if limit_s is None else {"left_s": command_clock.left_s(limit_s)})
        shown = partial(tables, question) if of_both else tables
        outputs.show(found, shown, *(() if page is None else (partial(page, question, found),)))

    outputs = ReadAnswer if reader else AnswerOutputs if page else Shown
    return asking(command, question=of, outputs=outputs)

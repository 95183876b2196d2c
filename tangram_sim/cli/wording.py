"""Rewrites the names of Python arguments in error messages as command-line options.

A message names an argument as Python writes it, `tp=3` or `global_batch=` in backticks; here that is --tp 3
and --global-batch.
"""

import re
from collections.abc import Mapping
from functools import cache

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)=([^`\n]*)`")

# Options whose arguments are no fields of a question.
OPTIONS = {"every_candidate": "--candidates", "fixed": "--fix", "zero_stage": "--zero"}


@cache
def _spellings() -> Mapping[str, list[str]]:
    """All spellings of the options of all questions, by field."""
    from tangram_sim.fields import leaves
    from tangram_sim.questions.question import QUESTIONS, question_type

    return {leaf.name: leaf.spellings for verb in QUESTIONS for leaf in leaves(question_type(verb))}


def option_of(argument: str, value: str = "") -> str:
    """The option that sets an argument; for the value False of a switch, the option that switches it off."""
    known = [each for each in _spellings().get(argument, ()) if each.startswith("--")]
    if value == "False" and len(known) > 1:
        return known[-1]
    return known[0] if known else OPTIONS.get(argument, "--" + argument.replace("_", "-"))


def as_options(text: str) -> str:
    """`text` with every Python argument replaced by its option; a true flag becomes the option alone."""

    def option(found: re.Match[str]) -> str:
        value = "" if found[2] in ("", "True", "False") else f" {found[2]}"
        return f"{option_of(found[1], found[2])}{value}"

    return _ARGUMENT.sub(option, text)

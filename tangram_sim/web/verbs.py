"""Which verbs the page may run, with which options, and how a request becomes a command line.

No value can be a path: values are plain words, and files lie in the run's own folder, so that whatever a verb
reads as a file name is a file of the request. `sandbox` restricts the paths named inside files.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.questions.question import QUESTIONS
from tangram_sim.web.documents import MOST_WORDS, VerbRequest
from tangram_sim.web.forms import page_leaves

# No separators, no drive letters, nothing that reads as an option; a colon stands before a number only.
_WORD = re.compile(r"(?!-|\.\.)(?:[\w.,+=@ %-]|:(?=[\d.]))*", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}(\.[a-z0-9]{1,8}){1,2}", re.ASCII)
_LONGEST = 400  # characters of a value


@dataclass(frozen=True, slots=True)
class OfferedVerb:
    """A verb that the page may run, with its allowed options; nothing else can be given."""

    arguments: int  # the most there may be
    options: tuple[
        str, ...
    ]  # without `--`; `output`, `trace` and `memory` name files of the run's own folder
    always: tuple[str, ...] = ("--json",)


# Files that a verb writes beside its answer, into the run's own folder.
_FILES = {
    "plan": ("output",),
    "estimate": ("output", "trace", "memory"),
    "simulate": ("output", "trace", "memory"),
    "stragglers": ("output",),
    "what-if": ("output",),
    "purchase": ("output",),
    "serve plan": ("output",),
}


# What is always said: nothing outside the run's own folder is kept, and one process answers.
_ALWAYS = dict.fromkeys(("what-if", "purchase"), ("--json", "--no-cache", "--jobs=1"))


def _of_question(verb: str) -> OfferedVerb:
    """The arguments and options of a verb that its question allows on the page."""
    found = page_leaves(verb)
    options = [leaf for leaf in found if not leaf.about.positional]
    named = tuple(spelling.lstrip("-") for leaf in options for spelling in leaf.spellings)
    return OfferedVerb(
        len(found) - len(options), (*named, *_FILES.get(verb, ())), _ALWAYS.get(verb, ("--json",))
    )


OFFERED: Mapping[str, OfferedVerb] = {verb: _of_question(verb) for verb in QUESTIONS}


def command_words(asked: VerbRequest) -> list[str]:
    """Command words after `tangram`. Raises BadInputError or UnknownNameError for what is not offered."""
    if asked.verb not in OFFERED:
        raise unknown_name("verb", asked.verb, OFFERED)
    offered = OFFERED[asked.verb]
    if len(asked.arguments) > offered.arguments:
        raise BadInputError(
            f"{asked.verb}: {len(asked.arguments)} arguments; {offered.arguments} or fewer go with it"
        )
    words = [*asked.verb.split(" "), *(_plain(asked.verb, argument) for argument in asked.arguments)]
    for name, value in asked.options.items():
        if name not in offered.options:
            raise unknown_name(f"option of {asked.verb}", name, offered.options)
        words += _option(name, value)
    for name in asked.files:
        if not _FILE.fullmatch(name):
            raise BadInputError(f"file {name[:_LONGEST]!r}: give a plain name like cluster.yaml")
    return [*words, *offered.always]


def _option(name: str, value: str | float | bool | list[str]) -> list[str]:
    """`--name=value`, once per value of a list; a switch that is off is left out."""
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    values = value if isinstance(value, list) else [value]
    if len(values) > MOST_WORDS:
        raise BadInputError(f"--{name}: {len(values)} values; {MOST_WORDS} or fewer are allowed")
    return [f"--{name}={_plain(f'--{name}', str(item))}" for item in values]


def _plain(where: str, text: str) -> str:
    """`text` unchanged if it is a plain word. Raises BadInputError otherwise."""
    if len(text) > _LONGEST or not _WORD.fullmatch(text):
        raise BadInputError(
            f"{where}: {text[:60]!r} given; a plain word is wanted, without slashes or other signs"
        )
    return text

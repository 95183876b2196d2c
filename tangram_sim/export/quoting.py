"""Quoting of names and values in scripts and manifests, so that no text is run as a command.

JSON, TOML and YAML are quoted by their own writers.
"""

import re
import shlex
from collections.abc import Iterable

_NO_COMMENT = re.compile(r"[^A-Za-z0-9 ._+:/()|,-]+")
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_LABEL = 63  # of a Kubernetes label


def comment(text: str) -> str:
    """A text as part of a comment of a shell script: one line; what is unusual in names becomes `_`."""
    return " ".join(_NO_COMMENT.sub("_", text).split())


def word(text: object) -> str:
    """A value as one word of a shell command."""
    return shlex.quote(str(text))


def words(texts: Iterable[object]) -> str:
    """Values as words of a shell command, separated by blanks."""
    return " ".join(map(word, texts))


def label(text: str) -> str:
    """A text as the value of a Kubernetes label: letters, digits, `.`, `_` and `-`, at most 63 characters."""
    return _NO_LABEL.sub("-", text)[:_LONGEST_LABEL].strip("-._")

"""Findings beside an answer: a code, a severity and figures, from which the words are derived.

Code asks for codes (`DOES_NOT_FIT.among(findings)`), programs read codes and figures from JSON, people read
the words. A kind of finding is declared once, beside the code that finds it.
"""

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import Field

from tangram_sim.file_parts import FilePart
from tangram_sim.units import percent, show_bytes, show_seconds


class Severity(StrEnum):
    """How much harm comes of not knowing a finding, the gravest first."""

    STOPPED = "stopped"  # the search was ended before its end
    WRONG = "wrong"  # the answer is not what was asked for: it does not fit, it does not replay
    WARNING = "warning"  # a run may go wrong, or a figure may mislead
    NOTE = "note"  # what a reader may want to change
    DETAIL = "detail"  # how the answer was found


class Finding(FilePart):
    """One finding beside an answer, in SI units."""

    code: str = Field(description="what kind of finding it is; codes do not change between versions")
    severity: Severity
    figures: dict[str, Any] = Field({}, description="figures in SI units, and names")
    text: str = Field(description="the finding in words")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding; calling it with figures makes a finding.

    `words` is a format string over the figures; beside Python's format codes it knows `seconds`, `bytes`,
    `percent`, `percent1` (one decimal), `listed` (commas), `joined` (semicolons).
    """

    code: str
    severity: Severity
    words: str

    def __call__(self, **figures: Any) -> Finding:
        """The finding with these figures. Raises KeyError for a figure that the words need and none gives."""
        text = _WORDS.vformat(self.words, (), figures)
        return Finding(code=self.code, severity=self.severity, figures=figures, text=text)

    def among(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings of this kind."""
        return [finding for finding in findings if finding.code == self.code]


KINDS: dict[str, FindingKind] = {}  # all that were declared, by code


def declare(code: str, severity: Severity, words: str) -> FindingKind:
    """A new kind of finding. Raises ValueError where the code is taken."""
    if code in KINDS:
        raise ValueError(f"the finding {code} is declared twice")
    KINDS[code] = FindingKind(code, severity, words)
    return KINDS[code]


def behind_stops(
    finding: Finding, findings: Sequence[Finding], stops: Sequence[Finding] = ()
) -> list[Finding]:
    """`findings` with `finding` in front, except after those that say what stopped a search.

    If none of `findings` says so, `stops` come first.
    """
    ended = [each for each in findings if each.severity == Severity.STOPPED]
    return [*(ended or stops), finding, *(each for each in findings if each not in ended)]


class _Words(string.Formatter):
    """Format strings that also know how figures with units are shown."""

    def format_field(self, value: Any, format_spec: str) -> str:
        show = _SHOWN.get(format_spec)
        return show(value) if show else str(super().format_field(value, format_spec))


_SHOWN: dict[str, Callable[[Any], str]] = {
    "seconds": show_seconds,
    "bytes": show_bytes,
    "percent": percent,
    "percent1": lambda share: percent(share, 1),
    "listed": lambda names: ", ".join(map(str, names)),
    "joined": lambda parts: "; ".join(map(str, parts)),
}
_WORDS = _Words()

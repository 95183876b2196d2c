"""Errors a person can act on: what was given, what is known, what to type. The CLI exits 2 with them."""

from collections.abc import Iterable
from difflib import get_close_matches

_SHOWN = 12  # names listed
_LONGEST = 80  # characters of a value that is shown


class TangramError(Exception):
    """A request that cannot be met, in words meant for the person who made it."""


class BadInputError(TangramError):
    """A file or option says something impossible."""


class UnknownNameError(TangramError):
    """A name that no table holds."""


class InfeasibleError(TangramError):
    """The request is well-formed and has no answer; the message says why, with numbers."""


class OutOfTimeError(InfeasibleError):
    """The time limit passed before an answer was found; one may exist."""


def shown(value: object) -> str:
    """A value as it was given, shortened in the middle where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 4 :]}"


def unknown_name(kind: str, given: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """The error for an unknown name; its message lists the nearest names first, then the others.

    `kind` is what the name should be ("GPU", "model"); `hint` is what to type instead.
    """
    names = sorted(set(known))
    folded = {name.lower(): name for name in names}
    near = [folded[match] for match in get_close_matches(given[:_LONGEST].lower(), folded, n=5, cutoff=0.5)]
    near += [name for name in names if given and given.lower() in name.lower() and name not in near][:5]
    words = [f"unknown {kind} {shown(given)}."]
    if near:
        words.append(f"Nearest: {', '.join(near)}.")
    rest = [name for name in names if name not in near]
    if rest:
        more = f" and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
        words.append(f"{'Others' if near else 'Known'}: {', '.join(rest[:_SHOWN])}{more}.")
    if hint:
        words.append(hint)
    return UnknownNameError(" ".join(words))

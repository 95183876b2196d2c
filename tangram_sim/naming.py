"""Rules for names of GPUs, links, nodes, clusters, models and replicas, as scripts and logs hold them."""

import unicodedata
from functools import lru_cache

from tangram_sim.errors import BadInputError, shown

LONGEST_NAME = 120  # characters
# Control and format characters (line feeds, escapes, marks that turn the direction of text), halves of
# surrogate pairs, line and paragraph separators.
_FORBIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_CALLED = {"\n": "a line feed", "\r": "a carriage return", "\t": "a tab", "\0": "NUL", "\x1b": "ESC"}

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_WRITTEN = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in _CONTROLS
    if chr(code) not in "\n\t"
}


@lru_cache(maxsize=4096)
def fault_of_text(text: str) -> str:
    """The first character that a one-line text must not hold, in words; empty if there is none."""
    for place, character in enumerate(text):
        if unicodedata.category(character) in _FORBIDDEN:
            called = _CALLED.get(character, f"U+{ord(character):04X}")
            return f"{called} at character {place + 1}"
    return ""


@lru_cache(maxsize=4096)
def fault_of_name(name: str) -> str:
    """Why a text is not a valid name, in words; empty if it is valid."""
    if len(name) > LONGEST_NAME:
        return f"{len(name)} characters; {LONGEST_NAME} or fewer are allowed"
    if name.startswith("-"):
        return "a dash at its beginning, which commands take for an option"
    return fault_of_text(name)


def require_text(text: str, what: str) -> None:
    """Raise BadInputError for control characters, line breaks and their kin; `what` says what the text is."""
    if fault := fault_of_text(text):
        raise BadInputError(f"{what} {shown(text)} holds {fault}; printable text on one line is wanted")


def require_name(name: str, what: str) -> None:
    """Raise BadInputError for a text that is no name; `what` says whose, and where it was read."""
    if fault := fault_of_name(name):
        raise BadInputError(f"{what} {shown(name)} has {fault}; letters, digits and dashes are wanted")


def printable(text: str) -> str:
    """`text` with control and text-direction characters escaped, except line feeds and tabs."""
    return text if text.isascii() and text.isprintable() else text.translate(_WRITTEN)

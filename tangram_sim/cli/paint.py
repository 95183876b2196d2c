"""Colours that mark problems and warnings in printed lines; the words alone say the same.

Used only on a terminal, and not if NO_COLOR is set (https://no-color.org) or TERM is `dumb`.
"""

import os
import re
import sys

_RED, _YELLOW, _BOLD, _FAINT, _PLAIN = (f"\x1b[{code}m" for code in (31, 33, 1, 2, 0))
_MARKS = {
    "DOES NOT FIT": _RED,
    "too full": _RED,
    "nearly full": _YELLOW,
    "slowest": _YELLOW,
    "note:": _YELLOW,
    "to go faster:": _BOLD,
}
_MARKED = re.compile("|".join(map(re.escape, _MARKS)))
_WHOLE = (("step ", _BOLD), ("searched: ", _FAINT), ("left out ", _FAINT))


def coloured() -> bool:
    """Whether standard output is a terminal that shows colours, and the user has not turned them off."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return wanted and sys.stdout.isatty()


def painted(line: str) -> str:
    """A printed line with important words coloured; without its colour codes it is the same text."""
    for begin, style in _WHOLE:
        if line.startswith(begin):
            return f"{style}{line}{_PLAIN}"
    return _MARKED.sub(lambda found: f"{_MARKS[found[0]]}{found[0]}{_PLAIN}", line)

"""Colour as help: what is wrong, what wants attention. Everything is said in words too.

Only on a terminal, and not where NO_COLOR is set (https://no-color.org) or the terminal is dumb.
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
    """Whether standard output is a window that shows colours, and its reader wants them."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return wanted and sys.stdout.isatty()


def painted(line: str) -> str:
    """A printed line with what matters in it coloured; the text without colours is the same."""
    for begin, style in _WHOLE:
        if line.startswith(begin):
            return f"{style}{line}{_PLAIN}"
    return _MARKED.sub(lambda found: f"{_MARKS[found[0]]}{found[0]}{_PLAIN}", line)

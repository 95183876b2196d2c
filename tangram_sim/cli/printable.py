"""Text made safe for a terminal: control characters escaped, very long messages cut.

Names come from files that somebody else wrote. Unchanged, they could move the cursor, recolour the window or
reverse text; so all output passes through here.
"""

from typing import Any, TextIO

from tangram_sim.naming import printable

LONGEST = 2000  # characters of one message; a screenful
_TAIL = 400  # of them from its end, where messages say what to type


def shortened(text: str, longest: int = LONGEST) -> str:
    """A message of at most about `longest` characters: beginning, how many are left out, end."""
    if len(text) <= longest:
        return text
    tail = min(_TAIL, longest // 4)
    head = longest - tail
    return f"{text[:head]} ... ({len(text) - head - tail:,} characters left out) ... {text[-tail:]}"


class PrintableStream:
    """A text stream that escapes unprintable text; `terminal` is the underlying stream, for progress bars."""

    def __init__(self, terminal: TextIO, longest: int = 0) -> None:
        """`longest`: characters passed on per write; 0: all."""
        self.terminal, self._longest = terminal, longest

    def write(self, text: str) -> int:
        """Write `text` made printable; returns the number of characters of `text`."""
        self.terminal.write(printable(shortened(text, self._longest) if self._longest else text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)

"""Text as a terminal may see it: control characters written out, messages of great length cut with a count.

Names come from files that somebody else wrote. Passed on as they are, they could move the cursor, recolour
the window or turn text around; so nothing reaches an output stream without going through here.
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
    """A text stream that passes on printable text only; `terminal` is the stream itself, for bars."""

    def __init__(self, terminal: TextIO, longest: int = 0) -> None:
        """`longest`: characters of one write; 0 passes on all of it."""
        self.terminal, self._longest = terminal, longest

    def write(self, text: str) -> int:
        """Write `text` made printable; how many characters of it were taken, which is all."""
        self.terminal.write(printable(shortened(text, self._longest) if self._longest else text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)

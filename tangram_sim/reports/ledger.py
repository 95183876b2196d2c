"""The numbered list of sources of a report; each figure refers to the sources that it is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Source:
    """A source of figures: `kind` is simulated, given, price, assumed, hardware or computed."""

    kind: str
    text: str


@dataclass
class Ledger:
    """A list of sources without repetitions, numbered from 1 in order of first use."""

    sources: dict[Source, int] = field(default_factory=dict)

    def cite(self, kind: str, text: str) -> str:
        """The id of a source, which is added if it is new."""
        return f"s{self.sources.setdefault(Source(kind, text), len(self.sources) + 1)}"

    def listed(self) -> list[tuple[str, Source]]:
        """(id, source) of every source, in order."""
        return [(f"s{number}", source) for source, number in self.sources.items()]


@dataclass(frozen=True, slots=True)
class Cell:
    """One table cell. Cells with figures have `sources` (ids); cells with names have none."""

    text: str
    sources: Sequence[str] = ()
    sort: float | None = None  # what the column is sorted by; None: the text

    @property
    def is_name(self) -> bool:
        """Whether the cell holds a name and no figure."""
        return not self.sources

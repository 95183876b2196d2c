"""The ledger of a report: every source once, under the number that the figures resting on it carry."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Source:
    """Where figures come from: `kind` is simulated, given, price, assumed, hardware or computed."""

    kind: str
    text: str


@dataclass
class Ledger:
    """Sources in order of first mention, numbered from 1."""

    sources: dict[Source, int] = field(default_factory=dict)

    def cite(self, kind: str, text: str) -> str:
        """The id under which a source is listed, entering it where it is new."""
        return f"s{self.sources.setdefault(Source(kind, text), len(self.sources) + 1)}"

    def listed(self) -> list[tuple[str, Source]]:
        """(id, source) of all."""
        return [(f"s{number}", source) for source, number in self.sources.items()]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table. Cells with figures have `sources`; names have none."""

    text: str
    sources: Sequence[str] = ()
    sort: float | None = None  # what the column is sorted by; None: the text

    @property
    def is_name(self) -> bool:
        """Whether it only names something."""
        return not self.sources

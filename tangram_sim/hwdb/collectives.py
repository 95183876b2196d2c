"""Parameters of collectives on a class of links: lookup in `hwdb/collectives/*.csv`.

Rows are long (`link, gpu, pattern, ..., parameter, value, sigma`). `link` is a row of links.csv, `kind:NAME`
or `*`; `gpu` is a row of gpus.csv or `*`. A capped or derived link (NVLink4-H800) belongs to the generation
before the first dash (NVLink4). For each parameter the most specific row is used, first by link, then by gpu;
but `bridged_share` and `copy_share` come only from the link entry that gives `rate_share`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from tangram_sim.clusters import Link
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.tables import Row, require_between

# ring: what ring and tree algorithms see; pairwise: all-to-all and send/recv; in_switch: NVLS;
# network: what a group that leaves its scale-up domain sees between domains.
PATTERNS = ("ring", "pairwise", "in_switch", "network")


class _CollectiveParameter(NamedTuple):
    lowest: float
    highest: float
    worst: str  # which of several members' values a mixed group has: "min" or "max"
    patterns: tuple[str, ...]  # where it means something


PARAMETERS: Mapping[str, _CollectiveParameter] = {
    "base_s": _CollectiveParameter(0.0, 1.0, "max", ("ring", "pairwise", "in_switch")),
    "hop_s": _CollectiveParameter(0.0, 1.0, "max", ("ring", "pairwise", "network")),
    "fill_s": _CollectiveParameter(0.0, 10.0, "max", PATTERNS),
    "rate_share": _CollectiveParameter(1e-3, 2.0, "min", PATTERNS),
    "bridged_share": _CollectiveParameter(1e-3, 2.0, "min", ("ring", "pairwise")),
    "copy_share": _CollectiveParameter(1e-3, 1e3, "min", ("ring", "pairwise")),
    "tree_share": _CollectiveParameter(1e-3, 2.0, "min", ("network",)),
    "error": _CollectiveParameter(1e-3, 10.0, "max", PATTERNS),
}

NO_TREES = 1e-3  # `tree_share` of a library that has none or takes none
BESIDE_RATE = frozenset({"bridged_share", "copy_share"})


@dataclass(frozen=True, slots=True)
class CollectiveParameters:
    """Performance of one communication pattern on one class of links.

    `rate_share` and `copy_share` are fractions of the link's datasheet rate. Source: the rows in `sources`.
    """

    base_s: float = 0.0  # launch and first message
    hop_s: float = 0.0  # one more step of the algorithm
    fill_s: float = 0.0  # filling the pipeline: adds sqrt(fill_s x seconds of the bytes)
    rate_share: float = 1.0  # bus bandwidth of a long message
    bridged_share: float = 0.0  # the same past one host bridge (PCIe, more than two ranks); 0: as rate_share
    copy_share: float = 0.0  # rate of each rank's copy of its own shard; 0: no copy
    tree_share: float = 1.0  # rate of a tree between domains over a ring's; tiny: the library takes none
    error: float = 1.0  # standard error of log(predicted / measured) over whole curves
    fallback: bool = False  # from the kind of link, not from its generation

    def bytes_per_s_of(self, link: Link, ranks: int) -> float:
        """Bus bandwidth (as NCCL's tests define it) of `ranks` ranks on `link`, bytes/s, one direction."""
        bridged = ranks > 2 and self.bridged_share > 0.0
        return link.bytes_per_s * (self.bridged_share if bridged else self.rate_share)


def check(row: Row, where: str) -> None:
    """Raise BadInputError unless a row's pattern and parameter are known and its value is in range."""
    known = PARAMETERS.get(row["parameter"])
    if row["pattern"] not in PATTERNS or known is None or row["pattern"] not in known.patterns:
        options = ", ".join(
            f"{pattern} {name}"
            for pattern in PATTERNS
            for name, parameter in PARAMETERS.items()
            if pattern in parameter.patterns
        )
        raise BadInputError(
            f"{where}: pattern {row['pattern']!r} has no parameter {row['parameter']!r}; "
            f"known pairs: {options}"
        )
    require_between(row, known.lowest, known.highest, f"{row['pattern']} {row['parameter']}", where)


class CollectiveTable:
    """Rows of collectives, indexed for lookup.

    Of several rows for a pattern, parameter, link and GPU an overlay's is used, then the later one.
    """

    __slots__ = ("_best",)

    def __init__(self, rows: Iterable[tuple[int, Row]]) -> None:
        """`rows` are (layer, row): 0 for the database, 1, 2, ... for overlays, in ascending order."""
        self._best = {(row["pattern"], row["parameter"], row["link"], row["gpu"]): row for _, row in rows}

    def in_force(self) -> tuple[Row, ...]:
        """The rows that lookups can return, without those overridden by later rows."""
        return tuple(self._best.values())

    def find(
        self, pattern: str, link: Link, gpus: Iterable[str]
    ) -> tuple[CollectiveParameters | None, tuple[Row, ...]]:
        """(parameters of `pattern` on `link` for the worst of `gpus`, the rows used).

        None where the link cannot do the pattern (in-switch reduction on anything but a capable NVSwitch).
        """
        members = tuple(gpus) or ("*",)
        found: dict[str, float] = {}
        used: list[Row] = []
        rates = (self._row(pattern, "rate_share", link, gpu) for gpu in members)
        rate_links = {row["link"] for row in rates if row is not None}
        for name, known in PARAMETERS.items():
            rows = [row for gpu in members if (row := self._row(pattern, name, link, gpu)) is not None]
            if not rows:
                continue
            if name in BESIDE_RATE:
                # Fitted together with the rate: another link's share of its own rate would not go with it.
                rows = [row for row in rows if row["link"] in rate_links]
                if not rows:
                    continue
            pick = min if known.worst == "min" else max
            row = pick(rows, key=lambda candidate: candidate.number("value"))
            found[name] = row.number("value")
            used += rows
        if "rate_share" not in found:
            return None, ()
        generation = any(not row["link"].startswith(("kind:", "*")) for row in used)
        known_fields = {field.name for field in fields(CollectiveParameters)}
        assert found.keys() <= known_fields
        return CollectiveParameters(**found, fallback=not generation), tuple(used)

    def _row(self, pattern: str, parameter: str, link: Link, gpu: str) -> Row | None:
        for name in _names(link):
            for kind in dict.fromkeys((gpu, "*")):
                row = self._best.get((pattern, parameter, name, kind))
                if row is not None:
                    return row
        return None


def _names(link: Link) -> Iterator[str]:
    """Entries of column link that apply, most specific first."""
    yield link.name
    generation = link.name.partition("-")[0]
    if generation != link.name and link.kind == "nvlink":
        yield generation
    yield f"kind:{link.kind}"
    yield "*"

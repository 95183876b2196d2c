"""The hardware database: GPUs, links, nodes and efficiencies by name."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from tangram_sim.clusters import Gpu, Link, Node
from tangram_sim.datafiles import shipped
from tangram_sim.errors import unknown_name
from tangram_sim.hwdb.collectives import NO_TREES, CollectiveParameters, CollectiveTable
from tangram_sim.hwdb.efficiency import (
    ASSUMED,
    DTYPES,
    INHERITED,
    NOVELTY_STACKS,
    Efficiency,
    EfficiencyTable,
    FittedValue,
    Residuals,
)
from tangram_sim.hwdb.loading import Tables, read_folders
from tangram_sim.hwdb.reads import ReadSet
from tangram_sim.hwdb.tables import Row
from tangram_sim.units import GIGA, KILO, MEGA, TERA, gbps_to_bytes_per_s

GENERIC_BRIDGE = "NVLink-bridge"  # for bridged pairs of a GPU whose own row names no bridge


@cache
def _shipped_tables(folder: Path) -> Tables:
    """The shipped tables, read once: they do not change while a program runs."""
    return read_folders((folder,))


class Hwdb:
    """The hardware database as loaded; immutable.

    A database from `read_into(reads)` adds each row that it returns to that set; others record nothing.
    """

    __slots__ = ("_cache", "_filled", "_reads", "_rings_only", "_tables", "folders")

    def __init__(
        self,
        tables: Tables,
        folders: tuple[Path, ...],
        rings_only: bool = False,
        filled: float = 1.0,
        reads: ReadSet | None = None,
    ) -> None:
        self._tables, self.folders, self._rings_only, self._filled = tables, folders, rings_only, filled
        self._reads = reads
        self._cache: dict[tuple[str, ...], object] = {}  # what was looked up, for speed only

    @classmethod
    def load(cls, overlays: Sequence[Path] = ()) -> "Hwdb":
        """The shipped database with the rows of each overlay folder on top; the last folder takes precedence.

        An overlay has files of the same names with only the rows and columns that differ. Raises
        BadInputError naming file, line and column.
        """
        folders = (shipped("hwdb"), *(Path(overlay) for overlay in overlays))
        return cls(read_folders(folders) if overlays else _shipped_tables(folders[0]), folders)

    def read_into(self, reads: ReadSet) -> "Hwdb":
        """This database, adding every row that it returns to `reads`.

        Databases derived from it (`filled_to`, `with_efficiency`, ...) do not.
        """
        return Hwdb(self._tables, self.folders, self._rings_only, self._filled, reads)

    def filled_to(self, share: float) -> "Hwdb":
        """This database, with plans limited to this share of each GPU's memory; 1.0: all of it."""
        return Hwdb(self._tables, self.folders, self._rings_only, share)

    @property
    def edition(self) -> tuple[Tables, bool, float]:
        """(tables, whether only rings are used, share of memory filled), equal for equal databases.

        A cache key for results computed from a database.
        """
        return self._tables, self._rings_only, self._filled

    @property
    def counts_reads(self) -> bool:
        """Whether this database records the rows that it returns (see `read_into`)."""
        return self._reads is not None

    def with_rings_only(self) -> "Hwdb":
        """This database for a communication library that uses no trees between nodes."""
        return Hwdb(self._tables, self.folders, True, self._filled)

    def with_collectives(self, rows: Iterable[Row]) -> "Hwdb":
        """This database with other rows of collectives, for studies that hold out measurements."""
        table = CollectiveTable((0, row) for row in rows)
        return Hwdb(replace(self._tables, collectives=table), self.folders, self._rings_only)

    def gpu_names(self) -> tuple[str, ...]:
        """Canonical names of all GPUs, in table order."""
        return tuple(self._tables.rows["gpus"])

    def link_names(self) -> tuple[str, ...]:
        """Canonical names of all link classes, in table order."""
        return tuple(self._tables.rows["links"])

    def node_names(self) -> tuple[str, ...]:
        """Canonical names of all node types, in table order."""
        return tuple(self._tables.rows["nodes"])

    def row(self, table: str, name: str) -> Row:
        """The raw row of table `gpus`, `links` or `nodes`, with the file and line of every cell.

        It does not count as read. Raises UnknownNameError with the nearest names.
        """
        return self._tables.rows[table][self._tables.names[table].resolve(name)]

    def gpu_row(self, name: str) -> Row:
        """The raw row of a GPU, with the file and line of every cell."""
        return self.row("gpus", name)

    def gpu(self, name: str) -> Gpu:
        """A GPU by name or alias, ignoring case and the separators `-`, `_`, `/`, space."""
        row = self._read("gpus", name)
        found = self._cache.get(("gpu", row.name))
        if not isinstance(found, Gpu):
            peaks = ((dtype, row.number(f"{dtype}_tflops") * TERA) for dtype in DTYPES)
            found = Gpu(
                name=row.name,
                vendor=row["vendor"],
                architecture=row["architecture"],
                peaks=tuple((dtype, peak) for dtype, peak in peaks if peak > 0),
                memory_bytes=row.number("memory_gb") * GIGA,
                memory_bytes_per_s=row.number("memory_gb_per_s") * GIGA,
                power_w=row.number("power_w"),
                measured=row.name in self._tables.efficiency.measured_gpus(),
            )
            self._cache["gpu", row.name] = found
        return found

    def link(self, name: str) -> Link:
        """A class of links by name or alias."""
        row = self._read("links", name)
        return Link(row.name, row["kind"], row.number("gb_per_s") * GIGA, row.number("latency_us") / MEGA)

    def bridge_of(self, gpu: str) -> Link:
        """Link class of bridged pairs of this GPU: its own link if that is a bridge, else the generic one."""
        own = self.link(self._read("gpus", gpu)["link"])
        return own if own.kind == "nvlink-bridge" else self.link(GENERIC_BRIDGE)

    def node(self, name: str) -> Node:
        """A node type by name or alias; `nic_bytes_per_s` is 0.0 where the row does not state it."""
        row = self._read("nodes", name)
        gpus = int(row.number("gpus"))
        bridged = row["bridged_pairs"] == "yes"
        nic = self.link(row["nic"]) if row["nic"] else None
        return Node(
            gpu=self.gpu(row["gpu"]),
            gpus=gpus,
            intra=self.link(row["intra_link"]),
            nic_bytes_per_s=gbps_to_bytes_per_s(row.number("nic_gbps")),
            nics=int(row.number("nics", 1)),
            nic_latency_s=self._nic_latency_s(nic) if nic else 10e-6,
            scale_up_nodes=int(row.number("scale_up_nodes", 1)),
            bridges=tuple((first, first + 1) for first in range(0, gpus - 1, 2)) if bridged else (),
            bridge=self.bridge_of(row["gpu"]) if bridged else None,
            usd_per_hour=row.number("usd_per_hour"),
            power_w=row.number("power_kw") * KILO,
            name=row.name,
        )

    def efficiency(self, gpu: Gpu, dtype: str, stack: str = "generic") -> Efficiency:
        """Efficiency of `gpu` relative to its datasheet at `dtype` (a peak column of gpus.csv) under `stack`.

        The most specific row is used: the exact GPU, then its architecture, then any. A mixed GPU ("A+B")
        gets the worst member's values. Raises UnknownNameError for an unknown dtype.
        """
        key = ("efficiency", gpu.name, gpu.architecture, dtype, stack)
        found = self._cache.get(key)
        if not isinstance(found, Efficiency):
            if dtype not in DTYPES:
                raise unknown_name("dtype", dtype, DTYPES)
            known = {name: row["architecture"] for name, row in self._tables.rows["gpus"].items()}
            found, rows = self._tables.efficiency.of_gpu(gpu, dtype, stack, known)
            self._note(rows)
            if self._filled < 1.0:
                usable = found.usable_memory
                held = usable._replace(value=usable.value * self._filled)
                found = replace(found, usable_memory=held)
            self._cache[key] = found
        return found

    def residuals(self, gpu: Gpu, dtype: str, stack: str = "generic") -> Residuals:
        """Prediction errors for `gpu` at `dtype` under `stack`: standard deviations of log errors.

        `dtype` is a peak column of gpus.csv, `stack` a software stack.
        """
        key = ("residuals", gpu.name, gpu.architecture, dtype, stack, str(gpu.measured))
        found = self._cache.get(key)
        if not isinstance(found, Residuals):
            known = {name: row["architecture"] for name, row in self._tables.rows["gpus"].items()}
            found, rows = self._tables.efficiency.of_residuals(gpu, dtype, stack, known)
            self._note(rows)
            self._cache[key] = found
        return found

    def power_shares(self, gpu: Gpu) -> tuple[dict[str, float], float, str]:
        """(shares of the board's power limit by component, standard deviation of log watts, source).

        These rows are not recorded as read, since no predicted time depends on them.
        """
        known = {name: row["architecture"] for name, row in self._tables.rows["gpus"].items()}
        shares, rows = self._tables.efficiency.of_power(gpu, known)
        by_name = {row["parameter"]: row for row in rows}
        residual = by_name["residual"]
        place = residual["gpu"].removeprefix("arch:")
        whose = "any GPU" if place == "*" else place
        return shares, shares.pop("sigma"), f"{whose}: {by_name['running']['source']}"

    def rests_on(self, gpu: Gpu, dtype: str, stack: str = "generic") -> str:
        """Phrase on the source of a GPU kind's times at `dtype`: measured, inherited or assumed.

        `gpu` is a single kind, not a mixed one; `dtype` is a peak column of gpus.csv.
        """
        architecture = self._tables.rows["gpus"].get(gpu.name)
        family = architecture["architecture"] if architecture is not None else gpu.architecture
        where = (gpu.name, f"arch:{family}", "*")
        row = self._tables.efficiency.find("gemm", "efficiency", where, dtype, stack)
        source = row["source"]
        if source.startswith(INHERITED):
            return source.partition(":")[0]
        if source == ASSUMED:
            return f"assumed for {'any GPU' if row['gpu'] == '*' else row['gpu'].removeprefix('arch:')}"
        if row["gpu"] == gpu.name:
            return f"kernel tables: {source}" if gpu.measured else source
        return f"inherited from {row['gpu'].removeprefix('arch:')}: {source}"

    def stack_names(self) -> tuple[str, ...]:
        """Software stacks that have efficiency rows, `generic` first."""
        rows = self._tables.efficiency.rows
        named = {row["stack"] for _, row in rows} - set(NOVELTY_STACKS)
        return ("generic", *sorted(named))

    def efficiency_row(self, kernel: str, parameter: str, gpus: Sequence[str], dtype: str, stack: str) -> Row:
        """The most specific efficiency row for `gpus`, which are in order from most to least specific.

        It is not recorded as read.
        """
        places = [entry for name in gpus for entry in self._places(name)]
        return self._tables.efficiency.find(kernel, parameter, tuple(dict.fromkeys(places)), dtype, stack)

    def _places(self, gpu: str) -> tuple[str, ...]:
        row = self._tables.rows["gpus"].get(gpu)
        return (gpu,) if row is None else (gpu, f"arch:{row['architecture']}")

    def efficiency_rows(self) -> tuple[tuple[int, Row], ...]:
        """(layer, row) of the efficiency rows in effect; layer 0 is the shipped database, others overlays."""
        return self._tables.efficiency.in_force()

    def with_efficiency(self, rows: Sequence[Row]) -> "Hwdb":
        """A database with these efficiency rows as one more overlay, in memory only."""
        given = self._tables.efficiency.rows
        layer = 1 + max((layer for layer, _ in given), default=0)
        table = EfficiencyTable([*given, *((layer, row) for row in rows)])
        return Hwdb(replace(self._tables, efficiency=table), self.folders)

    def with_row(self, row: Row) -> "Hwdb":
        """This database with one row of efficiencies or collectives replaced by `row`."""
        if row.table == "efficiency":
            return self.with_efficiency([row])
        return self.with_collectives([*self._tables.collectives.in_force(), row])

    def link_efficiency(self, link: Link) -> FittedValue:
        """(value, sigma): the achieved fraction of a link's bandwidth."""
        key = ("link efficiency", link.name, link.kind)
        found = self._cache.get(key)
        if not isinstance(found, FittedValue):
            found, row = self._tables.efficiency.of_link(link)
            self._note([row])
            self._cache[key] = found
        return found

    def collective(self, pattern: str, link: Link, gpu: str = "*") -> CollectiveParameters | None:
        """Parameters of `pattern` ("ring", "pairwise", "in_switch", "network") on `link`; None: unsupported.

        The most specific row is used: the link, its generation, its kind, any; for each, the GPU kind before
        any. A mixed GPU ("A+B") gets the worst member's values.
        """
        key = ("collective", pattern, link.name, link.kind, gpu)
        if key not in self._cache:
            found, rows = self._tables.collectives.find(pattern, link, gpu.split("+"))
            self._note(rows)
            if found is not None and pattern == "network" and self._rings_only:
                found = replace(found, tree_share=NO_TREES)
            self._cache[key] = found
        known = self._cache[key]
        return known if isinstance(known, CollectiveParameters) else None

    def architectures(self, gpu: Gpu) -> frozenset[str]:
        """Architectures of the members of a GPU ("A+B" is mixed)."""
        known = self._tables.rows["gpus"]
        return frozenset(
            known[name]["architecture"] if name in known else gpu.architecture for name in gpu.name.split("+")
        )

    @property
    def network_efficiency(self) -> FittedValue:
        """(value, sigma): the achieved fraction of a NIC's bandwidth."""
        return self.link_efficiency(Link("network", "network", 0.0, 0.0))

    def _nic_latency_s(self, nic: Link) -> float:
        """Seconds of one step between nodes: as measured with collectives, else the link's own latency."""
        known = self.collective("network", nic)
        return nic.latency_s if known is None or known.fallback else known.hop_s

    def note_read(self, table: str, name: str) -> None:
        """Record the row of this name, if there is one, as read (its values came from a plan file)."""
        row = self._tables.rows[table].get(name)
        if row is not None:
            self._note([row])

    def _note(self, rows: Iterable[Row]) -> None:
        if self._reads is not None:
            for row in rows:
                self._reads.add(row)

    def digest_of_tables(self) -> str:
        """Fingerprint of all rows, read or not, as a cache key: 32 hex digits of a SHA-256."""
        rows = [row for table in self._tables.rows.values() for row in table.values()]
        rows += [row for _, row in self._tables.efficiency.in_force()]
        rows += self._tables.collectives.in_force()
        facts = sorted([row.table, row.name, *row.facts()] for row in rows)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def _read(self, table: str, name: str) -> Row:
        row = self.row(table, name)
        self._note([row])
        return row

"""Dated prices of nodes: `prices.csv` of the database and its overlays, the latest of each figure.

Prices need a date and a source, since published prices of one instance differ twofold between months.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Gpu, Node
from tangram_sim.errors import BadInputError, TangramError, unknown_name
from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.tables import read_rows, read_schema

PRICES = ("rent_usd_per_hour", "reserved_usd_per_hour", "spot_usd_per_hour", "capital_usd")
TERM = ("reserved_least_days", "reserved_most_days")  # that nodes are reserved for at that price
FIGURES = (*PRICES, *TERM)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its source; `date` is ISO 8601, empty for an assumption."""

    value: float
    source: str
    date: str = ""

    def __str__(self) -> str:
        return f"{self.value:g} ({self.source}{', ' + self.date if self.date else ''})"


@dataclass(frozen=True, slots=True)
class Rents:
    """USD per hour of training on one rented node: on demand, and reserved for a term.

    All days of a reservation are paid for: whole days, and at least `least_days`; where that is 0, only the
    days of the run. Without an on-demand price a run longer than `most_days` reserves again, each time for at
    least `least_days`. `share` is the fraction of time in which a node trains: a reservation is also paid for
    the rest, so `reserved` is its price divided by `share`.
    """

    on_demand: float = math.inf
    reserved: float = math.inf
    least_days: float = 0.0
    most_days: float = math.inf
    share: float = 1.0

    @classmethod
    def of(
        cls,
        rent: Figure | None,
        reserved: Figure | None,
        least: Figure | None,
        most: Figure | None,
        share: float = 1.0,
    ) -> "Rents":
        """The rents of a node from its on-demand and reserved prices (for a `TERM`).

        A reserved price without a term counts only if there is no on-demand price. A term's minimum is one
        day unless stated. Raises BadInputError where the longest term is shorter than the shortest.
        """
        if rent is not None and least is None and most is None:
            return cls(rent.value)
        least = least or (Figure(1.0, "assumed") if most else None)
        if most and least and not 0 < most.value >= least.value:
            raise BadInputError(f"reserved_most_days {most} is less than reserved_least_days {least}")
        return cls(
            rent.value if rent else math.inf,
            reserved.value / share if reserved else math.inf,
            least.value if least else 0.0,
            most.value if most else math.inf,
            share,
        )

    def usd_per_hour(self, days: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """The lower of the two prices for runs of `days` days (inf: without end), USD per hour."""
        return np.minimum(self.on_demand, self._reserved_for(days))

    def is_reserved(self, days: float) -> bool:
        """Whether a run of `days` days costs less reserved than on demand."""
        return bool(self._reserved_for(days) < self.on_demand)

    def beside_the_price(self, days: float) -> str:
        """Text, to follow the price, on what a reservation costs beyond the hours of a run; may be empty.

        It states the days paid for and the share of the time that trains.
        """
        said, paid = "", f"{self.paid_days(days):,g}"
        if days < self.paid_days(days) / (1 + 1e-9):
            said = f", paid for {paid} day{'' if paid == '1' else 's'}"
        if self.share < 1:
            said = f"{said or ', paid for'}{said and ','} also while nothing trains"
            said += f" (utilisation {self.share:g})"
        return said

    def paid_days(self, days: float) -> float:
        """Days of a reservation that a run of so many days pays for; those of the run on demand."""
        reserved = self.is_reserved(days) and days < math.inf
        return float(self._reserved_for(days)) / self.reserved * days if reserved else days

    @property
    def least_usd_per_hour(self) -> float:
        """Lower bound on the USD per hour of a run of any length."""
        return min(self.on_demand, self.reserved)

    @property
    def most_usd_per_hour(self) -> float:
        """Upper bound on the USD per hour of a run; 1e30 where short runs pay for a whole term."""
        return self.on_demand if self.on_demand < math.inf else 1e30 if self.least_days else self.reserved

    def _reserved_for(self, days: float | NDArray[np.float64]) -> NDArray[np.float64]:
        run = np.clip(days, 1e-9, 1e12)
        terms = np.maximum(np.ceil(run / self.most_days * (1 - 1e-12)), 1)
        paid = run
        if self.least_days:
            paid = np.maximum(np.ceil(run * (1 - 1e-12)), terms * self.least_days)
        renewed = math.isinf(self.on_demand)
        return np.where(renewed | (paid <= self.most_days), self.reserved * (paid / run), np.inf)


NOT_RENTED = Rents(0.0)


def node_prices(hwdb: Hwdb) -> dict[str, dict[str, Figure]]:
    """Prices by node and figure (`FIGURES`), USD or USD per hour, for one node.

    Of several prices the latest counts; an overlay's takes precedence over the database's. Where `prices.csv`
    has none, the on-demand price of `nodes.csv` is used. Raises BadInputError naming file and line.
    """
    found: dict[str, dict[str, tuple[int, Figure]]] = {}
    columns = read_schema(hwdb.folders[0] / "schema.csv")["prices"]
    for layer, folder in enumerate(hwdb.folders):
        path = folder / "prices.csv"
        if not path.exists():
            continue
        for where, cells in read_rows(path, "prices", columns):
            missing = [name for name, column in columns.items() if column.required and name not in cells]
            if missing:
                raise BadInputError(
                    f"{where}: a price lacks {', '.join(missing)}; a price needs a day and a source to count"
                )
            if cells["figure"] not in FIGURES:
                raise BadInputError(
                    f"{where}, column figure: {unknown_name('price', cells['figure'], FIGURES)}"
                )
            try:
                node = hwdb.row("nodes", cells["node"]).name
            except TangramError as error:
                raise BadInputError(f"{where}, column node: {error}") from None
            figure = Figure(float(cells["value"]), cells["source"], cells["date"])
            known = found.setdefault(node, {}).get(cells["figure"])
            if known is None or (layer, figure.date) >= (known[0], known[1].date):
                found[node][cells["figure"]] = (layer, figure)
    prices = {node: {name: figure for name, (_, figure) in of.items()} for node, of in found.items()}
    for node in hwdb.node_names():
        row = hwdb.row("nodes", node)
        if row["usd_per_hour"] and row["price_date"] and row["price_source"]:
            figure = Figure(row.number("usd_per_hour"), row["price_source"], row["price_date"])
            overlaid = not row.origins["usd_per_hour"].startswith(str(hwdb.folders[0]))
            if overlaid or "rent_usd_per_hour" not in prices.get(node, {}):
                prices.setdefault(node, {})["rent_usd_per_hour"] = figure
    return prices


def gpu_rents(hwdb: Hwdb) -> dict[str, tuple[float, str, Figure]]:
    """(USD per hour of one GPU, its node, the node's rent) by GPU kind: the lowest dated rent."""
    found: dict[str, tuple[float, str, Figure]] = {}
    for name, prices in node_prices(hwdb).items():
        if "rent_usd_per_hour" in prices:
            row, figure = hwdb.row("nodes", name), prices["rent_usd_per_hour"]
            offer = figure.value / row.number("gpus"), name, figure
            found[row["gpu"]] = min(found.get(row["gpu"], offer), offer, key=lambda rent: rent[:2])
    return found


def kind_rent(rents: Mapping[str, tuple[float, str, Figure]], node: Node) -> Figure | None:
    """Rent of a node, USD per hour, at the lowest rent per GPU of its kind (`gpu_rents`); None: unknown."""
    if node.gpu.name not in rents:
        return None
    usd, name, figure = rents[node.gpu.name]
    source = f"{node.gpus} times the lowest rent of the kind: {name}, {figure.source}"
    return Figure(node.gpus * usd, source, figure.date)


def rent_note(gpu: str, usd: float, source: str) -> str:
    """Note on an assumed price of a GPU kind: the value, and where it is from (see `gpu_rent`)."""
    return f"price of {gpu}: {usd:.4g} USD/h each, from {source}"


def gpu_rent(hwdb: Hwdb, gpu: str) -> tuple[float, str]:
    """(USD an hour of one GPU of a kind, its node and source): the lowest dated rent; 0: none is known."""
    known = gpu_rents(hwdb).get(hwdb.gpu(gpu).name)
    if known is None:
        return 0.0, "no dated price of the kind is known"
    usd, node, figure = known
    return usd, f"{node}, {figure}"


def assumed_rent(hwdb: Hwdb, gpu: str) -> float:
    """Assumed USD per hour of one GPU of a kind without a dated price, for comparison with other kinds.

    The geometric mean of memory size, memory bandwidth and 16-bit peak, at the median price per unit of it
    over all priced kinds. Leaving out each kind, its error is 19 % in the median and a factor of 1.9 at p90.
    """
    rents = {name: usd for name, (usd, _, _) in gpu_rents(hwdb).items()}
    worth = _worth(hwdb.gpu(gpu))
    return worth * median(usd / _worth(hwdb.gpu(name)) for name, usd in rents.items())


def _worth(gpu: Gpu) -> float:
    peak = max(gpu.peak_flop_per_s("bf16"), gpu.peak_flop_per_s("fp16"), gpu.peak_flop_per_s("fp32"))
    return float((gpu.memory_bytes * gpu.memory_bytes_per_s * peak) ** (1 / 3))

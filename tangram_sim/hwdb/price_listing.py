"""Price listings of clouds, as files or exports of a price feed: prices of the nodes that the database knows.

Understood are CSV and JSON with one record an instance type and region, whatever the columns are called.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tangram_sim.datafiles import csv_cells, read_json, read_text, write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb.database import Hwdb

COLUMNS = ("node", "figure", "value", "region", "date", "source", "note")
_NAMES = ("node", "instancetype", "instance_type", "instance", "sku", "armskuname", "api_name", "name")
_REGIONS = ("region", "armregionname", "location")
_PRICES = {
    "rent_usd_per_hour": (
        *("rent_usd_per_hour", "price", "usd_per_hour", "hourly_usd", "price_per_hour"),
        *("linux_per_hour", "retailprice", "ondemand", "on_demand"),
    ),
    "spot_usd_per_hour": ("spot_usd_per_hour", "spotprice", "spot_hourly_usd", "linux_spot_per_hour", "spot"),
    "reserved_usd_per_hour": ("reserved_usd_per_hour", "linux_savings_1y_per_hour", "reserved"),
    "capital_usd": ("capital_usd",),
}
# Azure's retail prices, learn.microsoft.com/rest/api/cost-management/retail-prices: what is sold, and how.
_METERS, _SPOT = ("skuname", "metername"), ("spot", "low priority")
_MOST = 10_000.0  # USD an hour; a rack rents for less than a tenth


@dataclass(frozen=True, slots=True)
class Listed:
    """One price of a listing: of a node of the database, the lowest of all regions asked for."""

    node: str
    figure: str
    value: float
    region: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What a listing says: prices of known nodes, and how many other names it holds."""

    prices: tuple[Listed, ...]
    unknown: int


def read_listing(path: Path, hwdb: Hwdb, region: str = "") -> Listing:
    """The prices in a CSV or JSON listing, of every known node the lowest in `region` (empty: anywhere).

    Records of a host without its accelerators (an empty column for them) are no prices of the node. Raises
    BadInputError where the file holds no records with a name and a price.
    """
    found: dict[tuple[str, str], Listed] = {}
    unknown: set[str] = set()
    named = False
    for record in _records(path):
        cells = {str(key).strip().lower().replace(" ", "_"): value for key, value in record.items()}
        name = next((str(cells[key]) for key in _NAMES if cells.get(key)), "")
        priced = {figure: value for figure, keys in _PRICES.items() if (value := _number(cells, keys))}
        if not name or not priced:
            continue
        named = True
        if not _by_the_hour(cells):
            continue
        if any(word in str(cells.get(key, "")).lower() for key in _METERS for word in _SPOT):
            priced = {"spot_usd_per_hour": min(priced.values())}
        where = next((str(cells[key]) for key in _REGIONS if cells.get(key)), "")
        if region and where.lower() != region.lower():
            continue
        if "acceleratorname" in cells and not cells["acceleratorname"]:
            continue
        try:
            node = hwdb.row("nodes", name).name
        except TangramError:
            unknown.add(name)
            continue
        for figure, value in priced.items():
            known = found.get((node, figure))
            if known is None or value < known.value:
                found[node, figure] = Listed(node, figure, value, where)
    if not named:
        raise BadInputError(
            f"{path}: no records with a name ({', '.join(_NAMES)}) and a price in USD an hour "
            f"({', '.join(key for keys in _PRICES.values() for key in keys[:2])}) were found"
        )
    return Listing(tuple(found[key] for key in sorted(found)), len(unknown))


def write_prices(listing: Listing, folder: Path, source: str, day: date) -> Path:
    """Merge the prices of a listing into `prices.csv` of an overlay `folder`; those of the same day give way.

    Returns the path of the file. Raises BadInputError where it cannot be written.
    """
    path = folder / "prices.csv"
    lines: list[list[str]] = []
    if path.exists():
        header, rows = csv_cells(path)
        if lacking := {"node", "figure", "value"} - set(header):
            raise BadInputError(
                f"{path}: no column {', '.join(sorted(lacking))}; known are {', '.join(COLUMNS)}"
            )
        if unknown := set(header) - set(COLUMNS):
            raise BadInputError(
                f"{path}: columns {', '.join(sorted(unknown))}; known are {', '.join(COLUMNS)}"
            )
        named = [dict(zip(header, row, strict=True)) for _, row in rows]
        lines = [[row.get(column, "") for column in COLUMNS] for row in named]
    new = {(price.node, price.figure, day.isoformat()): price for price in listing.prices}
    lines = [row for row in lines if (row[0], row[1], row[4]) not in new]
    lines += [
        [price.node, price.figure, f"{price.value:.10g}", price.region, day.isoformat(), source, ""]
        for price in listing.prices
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *sorted(lines)])
    write_whole(path, text.getvalue())
    return path


def _records(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix.lower() != ".json":
        yield from csv.DictReader(io.StringIO(read_text(path).removeprefix("\ufeff")))
        return
    yield from _mappings(read_json(path))


def _mappings(data: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping of plain values in a JSON document, at any depth; one under a name is called by it."""
    if isinstance(data, Mapping):
        if any(isinstance(value, str | int | float) for value in data.values()):
            yield data
        for key, value in data.items():
            if isinstance(value, Mapping):
                yield from _mappings({"name": key} | dict(value))
            elif isinstance(value, list):
                yield from _mappings(value)
    elif isinstance(data, Iterable) and not isinstance(data, str):
        for value in data:
            yield from _mappings(value)


def _by_the_hour(cells: Mapping[str, Any]) -> bool:
    """Whether a record is a price of an hour without a commitment, as far as it says."""
    sold, unit = (str(cells.get(key) or "").lower() for key in ("type", "unitofmeasure"))
    hourly = unit in ("", "1 hour") and not cells.get("reservationterm")
    return hourly and ("armskuname" not in cells or sold in ("", "consumption"))


def _number(cells: Mapping[str, Any], keys: Iterable[str]) -> float | None:
    """The first of some cells that is a price above zero."""
    for key in keys:
        try:
            value = float(str(cells[key]).strip().removeprefix("$").replace(",", ""))
        except (KeyError, TypeError, ValueError):
            continue
        if 0 < value <= (_MOST if key != "capital_usd" else 1e9):
            return value
    return None

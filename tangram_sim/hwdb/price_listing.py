"""Price listings of clouds, from files or exports of a price feed: prices of nodes in the database.

Supported are CSV and JSON with one record per instance type and region, with any of the usual column names.
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
    """One price from a listing: for a node of the database, the lowest over the regions requested."""

    node: str
    figure: str
    value: float
    region: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Content of a listing: prices of known nodes, and the number of other names."""

    prices: tuple[Listed, ...]
    unknown: int


def read_listing(path: Path, hwdb: Hwdb, region: str = "") -> Listing:
    """The prices in a CSV or JSON listing, for every known node the lowest in `region` (empty: anywhere).

    Records of a host without its accelerators (an empty accelerator column) are ignored. Raises BadInputError
    where the file has no records with a name and a price.
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
    """Merge the prices of a listing into `prices.csv` of an overlay `folder`, replacing those of that day.

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
    """Every mapping with plain values in a JSON document, at any depth; a key becomes its `name`."""
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
    """Whether a record is an hourly price without commitment, as far as its columns say."""
    sold, unit = (str(cells.get(key) or "").lower() for key in ("type", "unitofmeasure"))
    hourly = unit in ("", "1 hour") and not cells.get("reservationterm")
    return hourly and ("armskuname" not in cells or sold in ("", "consumption"))


def _number(cells: Mapping[str, Any], keys: Iterable[str]) -> float | None:
    """The first positive price under the given keys."""
    for key in keys:
        try:
            value = float(str(cells[key]).strip().removeprefix("$").replace(",", ""))
        except (KeyError, TypeError, ValueError):
            continue
        if 0 < value <= (_MOST if key != "capital_usd" else 1e9):
            return value
    return None

"""`tangram hw prices`: renews prices of nodes from a listing or an export of a price feed."""

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from tangram_sim.cli.console import print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.errors import BadInputError
from tangram_sim.fields import about, described, option
from tangram_sim.questions.shared_fields import Hardware


@described
@dataclass(frozen=True, slots=True)
class ListedPrices:
    """Price listings to read, and where the rows go."""

    files: tuple[Path, ...] = field(
        metadata=about(
            "CSV or JSON listings with a name and USD an hour a record.", positional="FILE", basic=True
        )
    )
    source: str = option("", "Where the listing comes from.", basic=True)
    date: str = option("", "Day of the listing, e.g. 2026-11-27.", unset="today", basic=True)
    region: str = option("", "Only prices of this region.", unset="the lowest of all", basic=True)
    output: Path = option(
        Path("my-rows"), "The folder of your rows, for --hwdb.", spelled="-o,--output", basic=True
    )


@derived
def prices(asked: ListedPrices, hardware: Hardware) -> None:
    """Read prices of known instance types from listings into prices.csv of a folder for --hwdb."""
    from tangram_sim.hwdb.price_listing import read_listing, write_prices

    try:
        dated = date.fromisoformat(asked.date) if asked.date else date.today()
    except ValueError:
        raise BadInputError(f"`date={asked.date}`: give a day like 2026-11-27") from None
    database = hardware.load()
    for path in asked.files:
        listing = read_listing(path, database, asked.region)
        written = write_prices(listing, asked.output, asked.source or path.name, dated)
        print_table(
            ("node", "figure", "USD", "region"),
            [(price.node, price.figure, f"{price.value:,.4g}", price.region) for price in listing.prices],
            right=(2,),
        )
        nodes = len({price.node for price in listing.prices})
        print_line(
            f"{len(listing.prices)} prices of {nodes} nodes written to {written}; {listing.unknown} names in "
            f"{path} are no row of nodes.csv. Use them with --hwdb {asked.output}"
        )

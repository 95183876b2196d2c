"""`tangram hw prices`: renews prices of nodes from a listing or an export of a price feed."""

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_line, print_table
from tangram_sim.errors import BadInputError


def prices(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="CSV or JSON listings with a name and USD an hour a record."),
    ],
    source: Annotated[str, typer.Option("--source", help="Where the listing comes from.")] = "",
    day: Annotated[
        str, typer.Option("--date", help="Day of the listing, e.g. 2026-11-27.  [default: today]")
    ] = "",
    region: Annotated[
        str, typer.Option("--region", help="Only prices of this region.  [default: the lowest of all]")
    ] = "",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder of your rows, for --hwdb.")
    ] = Path("my-rows"),
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Read prices of known instance types from listings into prices.csv of a folder for --hwdb."""
    from tangram_sim.hwdb.price_listing import read_listing, write_prices

    try:
        dated = date.fromisoformat(day) if day else date.today()
    except ValueError:
        raise BadInputError(f"--date {day}: give a day like 2026-11-27") from None
    database = shared.load_hwdb(hwdb)
    for path in files:
        listing = read_listing(path, database, region)
        written = write_prices(listing, output, source or path.name, dated)
        print_table(
            ("node", "figure", "USD", "region"),
            [(price.node, price.figure, f"{price.value:,.4g}", price.region) for price in listing.prices],
            right=(2,),
        )
        nodes = len({price.node for price in listing.prices})
        print_line(
            f"{len(listing.prices)} prices of {nodes} nodes written to {written}; {listing.unknown} names in "
            f"{path} are no row of nodes.csv. Use them with --hwdb {output}"
        )

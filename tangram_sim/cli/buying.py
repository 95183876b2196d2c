"""What `what-if` and `purchase` share: options, the run over all candidates, and how figures are printed."""

import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tangram_sim.cli import begun
from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_line, print_notes, print_remark, print_table
from tangram_sim.errors import BadInputError
from tangram_sim.units import amount_of, percent

if TYPE_CHECKING:
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.planners.api import SearchOptions
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.purchasing.billing import Terms
    from tangram_sim.purchasing.pricefile import Prices
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.studies.sweep import Sweep

FOR_SENSITIVITY = 0.25  # of a time limit


def _tokens(given: str | float) -> float:
    """--tokens as a number; typer hands the default over as it is. Raises BadInputError."""
    try:
        return amount_of(str(given))
    except BadInputError as error:
        raise BadInputError(f"--tokens: {error}") from None


Tokens: TypeAlias = Annotated[
    float,
    typer.Option(
        "--tokens",
        parser=_tokens,
        metavar="AMOUNT",
        show_default=False,
        help="Tokens to train on, e.g. 2T or 2e12.  [default: 1T]",
    ),
]
PriceFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--prices", help="Your prices, power, failures: a YAML file, each with day and source."),
]
Acquire: TypeAlias = Annotated[
    str,
    typer.Option(
        "--acquire", help="buy, rent, reserved, spot, or auto: buy what has a capital price, rent the rest."
    ),
]
FleetHeld: TypeAlias = Annotated[
    str, typer.Option("--fleet", help="The fleet you have is owned (power alone counts), rented, or auto.")
]
SubIslands: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--sub-islands/--whole-islands",
        help="Plans may split islands: finer, and slower.  [default: they may; but of fleets that serve]",
    ),
]
CacheFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--cache", help="Folder that keeps simulated answers.  [default: the user's cache]"),
]
NoCache: TypeAlias = Annotated[bool, typer.Option("--no-cache", help="Keep no answers and use none.")]
Jobs: TypeAlias = Annotated[
    int, typer.Option("--jobs", help="Processes; 0: one per core (with the extra sweep).")
]
DaskAddress: TypeAlias = Annotated[
    str | None,
    typer.Option("--dask", help="Simulate on a Dask cluster at HOST:PORT (with the extra sweep-dask)."),
]
WithSensitivity: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--sensitivity", help="Also say how far each assumption moves the answer, and what flips it."
    ),
]


TimeLimit: TypeAlias = Annotated[
    float | None,
    shared.time_limit("Seconds after which the best answer so far is shown.  [default: none]"),
]


@dataclass(frozen=True, slots=True)
class MoneyOptions:
    """Options on money: tokens to train on, price file, bought or rented, and whether to vary assumptions."""

    tokens: Tokens = 1e12
    prices: PriceFile = None
    acquire: Acquire = "auto"
    fleet: FleetHeld = "auto"
    sensitivity: WithSensitivity = False

    @property
    def terms(self) -> "Terms":
        """Whether nodes are bought, rented or already owned. Raises UnknownNameError for other words."""
        from tangram_sim.purchasing.billing import Terms

        return Terms(self.acquire, self.fleet)

    def found_prices(self, database: "Hwdb") -> "Prices":
        """The shipped prices, overridden by those of the user's price file. Raises BadInputError."""
        from tangram_sim.purchasing.pricefile import load_prices

        return load_prices(self.prices, database)


@dataclass(frozen=True, slots=True)
class LookOptions:
    """Options on the search: its effort, time limit, number of processes, and the cache of answers."""

    sub_islands: SubIslands = None
    effort: shared.Effort = "normal"
    time_limit: TimeLimit = None
    cache: CacheFolder = None
    no_cache: NoCache = False
    jobs: Jobs = 0
    dask: DaskAddress = None

    @property
    def wishes(self) -> "SearchOptions":
        """The search options handed to the planner. Raises UnknownNameError for an unknown effort."""
        from tangram_sim.planners.api import SearchOptions

        return SearchOptions(sub_islands=self.sub_islands is not False, effort=shared.effort(self.effort))

    @property
    def wishes_of_many(self) -> "SearchOptions":
        """As `wishes`, for questions of many plans that are only compared: whole islands by default."""
        return replace(self.wishes, sub_islands=self.sub_islands is True, beside=False)

    def deadline(self) -> "Deadline":
        """The deadline of --time-limit, from the command's start. Raises BadInputError for a negative one."""
        return begun.deadline(shared.time_limit_s(self.time_limit))

    def sweep(self, progress: "SlowProgress") -> "Sweep":
        """The runner that plans all candidates, with its cache and processes.

        Raises BadInputError for options that contradict each other or name something that does not exist.
        """
        from tangram_sim.studies.sweep import Cache, Sweep, default_folder

        if self.no_cache and self.cache is not None:
            raise BadInputError("--cache and --no-cache contradict each other; keep one")
        cache = None if self.no_cache else Cache(self.cache or default_folder())
        return Sweep(cache, self.jobs, progress.report, dask=self.dask)


def before_sensitivity(deadline: "Deadline") -> "Deadline":
    """The part of the `deadline` for planning, with a share kept back for the sensitivity analysis."""
    return deadline.share(deadline.left_s() * (1.0 - FOR_SENSITIVITY))


def require_tokens(tokens: float) -> None:
    """Raise BadInputError unless `tokens` is a finite number above zero."""
    if not math.isfinite(tokens) or tokens <= 0:
        raise BadInputError(f"--tokens {tokens:g}: give a finite number above zero, e.g. 1e12")


def unused_prices(prices: "Prices", names: set[str]) -> tuple[str, ...]:
    """A note naming the nodes of a price file that are not in `names`: they may be misspelt. () if none."""
    unused = [name for name in prices.named if name not in names]
    return (f"the price file also speaks of {', '.join(unused)}: not in this question",) if unused else ()


def require_output(path: Path | None) -> None:
    """Raise BadInputError, before any work is done, if `-o` (a report or a folder) cannot be written."""
    from tangram_sim.cli import writing

    if writing.is_report(path):
        writing.require_writable(output=path)
    elif path is not None:
        require_folder(path)


def require_folder(path: Path) -> None:
    """Raise BadInputError, before any work is done, if files cannot be written into a folder at `path`."""
    place = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise BadInputError(f"--output {path}: {place} is a file; name a folder for the plans")
    if not os.access(place, os.W_OK):
        raise BadInputError(f"--output {path}: no permission to write in {place}; name another folder")


def print_sensitivity(found: "Sensitivity") -> None:
    """Print two tables: how far each assumption moves the score, and which values change the winner."""
    from tangram_sim.reports.rounding import number, rounded

    def figure(value: float) -> str:
        return number(rounded(value))

    what = "USD per million tokens" if found.score == "usd_per_million_tokens" else "tokens/s"
    print_line(f"{what} of {found.best}: {figure(found.value)}. How far one assumption moves it:")
    if found.unseen:
        print_line(f"not looked at for lack of time: {', '.join(found.unseen)}")
    rows = [
        (
            swing.input.name,
            f"{figure(swing.input.low)} - {figure(swing.input.high)}",
            figure(swing.at_low),
            figure(swing.at_high),
            percent(swing.width / found.value, 1),
        )
        for swing in found.tornado[:12]
    ]
    print_table(("assumption", "from - to", "at low end", "at high end", "swing"), rows, right=(2, 3, 4))
    if found.unpriced:
        print_line(f"not ranked, for their bills are incomplete: {', '.join(found.unpriced)}")
    if found.second == found.best:
        return
    print_line(f"{found.second} would overtake {found.best} if")
    lines = [
        (
            flip.input.name,
            figure(flip.input.base),
            figure(flip.threshold),
            percent(flip.change, 1, signed=True),
        )
        for flip in found.flips
    ]
    if lines:
        print_table(("assumption", "is", "were", "change"), lines, right=(1, 2, 3))
    else:
        print_line(
            "nothing within reach flips it (prices to a tenth or ten times, efficiencies by three sigma)."
        )


def print_to_complete(text: str) -> None:
    """Print a price file with the missing figures to fill in; nothing if `text` is empty."""
    if text:
        print_line("for whole costs, complete this and give it with --prices FILE (docs/how-to/buy-gpus.md):")
        for line in text.splitlines():
            sys.stdout.write(f"  {line}\n")  # never wrapped: it is to be copied


def print_search(notes: tuple[str, ...], sweep: "Sweep") -> None:
    """Print the notes, then how many plans were computed and how many came from the cache."""
    print_notes((*notes, *sweep.notes))
    print_remark(f"searched: {sweep.made} plans made, {sweep.kept} taken from the cache")

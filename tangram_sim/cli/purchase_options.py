"""Options that only `tangram purchase` has, and how they are read."""

import math
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.goal_options import usd
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.purchasing.pricefile import Preemption

Models = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model as for `plan`; several, separated by commas, share the fleet."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option("--weights", help="Share of the tokens that each of several models takes, e.g. 3,1."),
]
CatalogueFile = Annotated[
    Path | None, typer.Option("--catalogue", help="YAML with offers: [{node: p5.48xlarge, most: 4}, ...].")
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        parser=usd,
        metavar="USD",
        help="Most money to spend, e.g. 250k: on machines, and with a goal also on rent until it is reached.",
    ),
]
Hourly = Annotated[
    float | None, typer.Option("--budget-per-hour", help="Most cost of what is new, USD/h of training.")
]
PowerKw = Annotated[
    float | None,
    typer.Option("--power-kw", help="Most power of the site, old and new nodes, kW (with PUE if given)."),
]
MaxNodes = Annotated[int | None, typer.Option("--max-nodes", help="Most nodes to add.")]
RackUnits = Annotated[float | None, typer.Option("--rack-units", help="Most rack units for what is new.")]
Deadline = Annotated[
    str | None, typer.Option("--deadline", help="Day by which nodes must have come, e.g. 2027-03-01.")
]
Ordered = Annotated[
    str | None, typer.Option("--order-date", help="Day from which delivery counts.  [default: today]")
]
Cost = Annotated[
    str, typer.Option("--cost", help="What the front trades: hourly (USD/h of training) or outlay (USD).")
]
Spot = Annotated[
    float | None,
    typer.Option(
        "--spot",
        metavar="LOSSES",
        help="Rent on spot, where each node goes so often an hour (0.06 to 1.4 seen).",
    ),
]
SpotReturn = Annotated[
    float, typer.Option("--spot-return-s", help="Seconds until another spot node takes a lost one's place.")
]
SpotPolicy = Annotated[
    str,
    typer.Option("--spot-policy", help="restart (wait, load the checkpoint), or shrink (go on without it)."),
]
FrontFolder = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="A folder for front.json and the plans, or report.html: all of it to look at."
    ),
]


def preemption(spot: float | None, return_s: float, policy: str, acquire: str) -> "Preemption | None":
    """How rented spot nodes are withdrawn and return; None if no spot node with preemption is rented."""
    from tangram_sim.purchasing.pricefile import PREEMPTION_POLICIES, SPOT_LOSSES, Preemption

    if policy not in PREEMPTION_POLICIES:
        raise unknown_name("--spot-policy", policy, PREEMPTION_POLICIES)
    shared.require_fraction("--spot-return-s", return_s)
    if spot is None and acquire == "spot":
        spot = SPOT_LOSSES
    if spot is None:
        return None
    if not (math.isfinite(spot) and spot > 0):
        raise BadInputError(f"--spot {spot:g}: give losses per node-hour, above 0, e.g. 0.2")
    if acquire not in ("auto", "spot"):
        raise BadInputError(f"--spot rents on spot, --acquire {acquire} does not; drop one of the two")
    return Preemption(spot, return_s, policy)


def limit(option: str, value: float | None) -> float:
    """A limit as given, inf where it was not. Raises BadInputError unless it is finite and above zero."""
    if value is None:
        return math.inf
    if not math.isfinite(value) or value <= 0:
        raise BadInputError(f"{option} {value:g}: give a finite number above zero")
    return float(value)


def day(option: str, text: str) -> date:
    """A day as ISO 8601 writes it. Raises BadInputError, naming the option."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadInputError(f"{option} {text}: give a day like 2027-03-01") from None


def weights(text: str | None, models: int) -> list[float]:
    """The share of the tokens of each of several models. Raises BadInputError."""
    if models == 0:
        raise BadInputError("MODEL: give a model, or several separated by commas")
    if text is None:
        return [1.0] * models
    try:
        found = [float(part) for part in shared.names("--weights", text)]
    except ValueError:
        raise BadInputError(f"--weights {text}: give numbers separated by commas, e.g. 3,1") from None
    if len(found) != models or not all(math.isfinite(one) and one > 0 for one in found):
        raise BadInputError(f"--weights {text}: give {models} finite numbers above zero, one per model")
    return found

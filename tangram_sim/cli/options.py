"""Options shared by several verbs, defined once so that names and help texts agree."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb

ModelArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A shipped name (`tangram models list`), a config.json, a model.yaml or a plan."
    ),
]
ClusterArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help="A shipped name, nodes like H100x8:4+L40Sx4:2 (H100x8:4@400: NICs of 400 Gbit/s), "
        "a YAML file or a plan.",
    ),
]


HwdbFolders: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--hwdb", help="Folder with rows of your own; may be given several times, last wins."),
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write it to this file instead of printing it.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def load_hwdb(folders: Sequence[Path] | None) -> "Hwdb":
    """The shipped hardware tables, overridden by rows in the user's folders."""
    from tangram_sim.hwdb import Hwdb

    return Hwdb.load(tuple(folders or ()))


def require_fraction(option: str, value: float) -> None:
    """Raise BadInputError unless `value` is a finite number, zero or more."""
    if not math.isfinite(value) or value < 0:
        raise BadInputError(f"{option} {value:g}: give a finite number, zero or more, e.g. 0.1")


def counts_by_kind(option: str, given: list[str]) -> dict[str, int]:
    """Counts by GPU or node kind from items `NUMBER` (under the kind "") or `KIND=NUMBER`.

    Raises BadInputError, naming `option`, for anything else.
    """
    found: dict[str, int] = {}
    for item in given:
        kind, _, number = item.rpartition("=")
        if not (number.isascii() and number.isdigit() and 0 < int(number[:9]) <= 100_000):
            raise BadInputError(
                f"{option} {item}: give a number from 1 to 100000, or KIND=NUMBER, e.g. T4=16"
            )
        if kind in found:
            raise BadInputError(f"{option} gives {kind or 'a number without kind'} twice; keep one")
        found[kind] = int(number)
    return found

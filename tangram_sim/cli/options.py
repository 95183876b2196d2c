"""Options shared by several verbs, defined once so that names and help texts agree."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tangram_sim import written
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


def seconds(given: str | float) -> float:
    """--time-limit as people write it: 90, 90s, 1.5m or 1h. Raises BadInputError."""
    try:
        return written.seconds(str(given))
    except ValueError as error:
        raise BadInputError(f"--time-limit {given}: {error}") from None


def time_limit(words: str) -> Any:
    """The option --time-limit, which every verb says in `words` of its own."""
    return typer.Option("--time-limit", parser=seconds, metavar="SECONDS", help=words)


def _whole(given: str | int) -> int:
    """A whole number as people write it. Raises typer.BadParameter."""
    try:
        return written.whole(str(given))
    except ValueError as error:
        raise typer.BadParameter(f"{given!r}: {error}") from None


GlobalBatch: TypeAlias = Annotated[
    int,
    typer.Option(
        "--global-batch", parser=_whole, metavar="INTEGER", help="Sequences per optimizer step; 4k is 4,096."
    ),
]
Seq: TypeAlias = Annotated[
    int,
    typer.Option("--seq", parser=_whole, metavar="INTEGER", help="Tokens per sequence; 8k is 8,192."),
]
Dtype: TypeAlias = Annotated[
    str,
    typer.Option(
        "--dtype",
        parser=written.number_format,
        metavar="TEXT",
        help="auto, bf16, fp16, fp32, tf32, fp8, mxfp8 or nvfp4.",
    ),
]
Optimizer: TypeAlias = Annotated[
    str, typer.Option("--optimizer", help="adamw, adam, adamw-8bit, lamb, sgd, momentum, lion or adafactor.")
]
Stack: TypeAlias = Annotated[
    str,
    typer.Option(
        "--stack", help="Software stack whose efficiency rows apply: generic, megatron, nemo, fsdp, ..."
    ),
]
HwdbFolders: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--hwdb", help="Folder with rows of your own; may be given several times, last wins."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Slow: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--slow",
        help="What runs slow: a file, or WHERE=FACTOR pairs, e.g. n3=1.5 (node 3, 1.5 times slower); "
        "pairs may be given several times.",
    ),
]
MemoryMargin: TypeAlias = Annotated[
    str,
    typer.Option(
        "--memory-margin",
        help="Share of every GPU's memory to leave free, e.g. 0.1. auto: so much that the upper end of the "
        "peak's interval fits.",
    ),
]


def load_hwdb(folders: Sequence[Path] | None) -> "Hwdb":
    """The shipped hardware tables, overridden by rows in the user's folders."""
    from tangram_sim.hwdb import Hwdb

    return Hwdb.load(tuple(folders or ()))


def require_fraction(option: str, value: float) -> None:
    """Raise BadInputError unless `value` is a finite number, zero or more."""
    if not math.isfinite(value) or value < 0:
        raise BadInputError(f"{option} {value:g}: give a finite number, zero or more, e.g. 0.1")


Effort = Annotated[
    str,
    typer.Option(
        "--effort",
        help="How hard to look: quick, normal or exhaustive. Work is counted: the same plan anywhere.",
    ),
]


def effort(given: str) -> str:
    """`given` unchanged if it names a search effort. Raises UnknownNameError otherwise."""
    from tangram_sim.planners.budget import budget

    budget(given)
    return given


def given_limit_s(given: float | None) -> float | None:
    """--time-limit in seconds, None where it was not given. Raises BadInputError unless 0 or more."""
    if given is not None and not given >= 0:
        raise BadInputError(f"--time-limit {given:g}: give seconds, 0 or more")
    return given


def time_limit_s(given: float | None) -> float:
    """--time-limit in seconds, inf where it was not given. Raises BadInputError unless 0 or more."""
    limit_s = given_limit_s(given)
    return math.inf if limit_s is None else limit_s


def memory_margin(given: str) -> float | None:
    """--memory-margin as a fraction of GPU memory, None for `auto`. Raises BadInputError otherwise."""
    try:
        return written.margin(given)
    except ValueError as error:
        raise BadInputError(f"--memory-margin {given}: {error}") from None


def names(option: str, text: str | None) -> tuple[str, ...]:
    """A comma-separated list of names; () where the option was not given.

    Raises BadInputError for an option that was given without any name.
    """
    try:
        return written.name_list(text) if text is not None else ()
    except ValueError as error:
        raise BadInputError(f"{option} {text!r}: {error}") from None


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

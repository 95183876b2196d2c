"""The option `--scenario`: conditions, such as a lost GPU kind, that a serving plan must also withstand."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.studies.serving_question import PlanScenario

ScenarioOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        help="Of a model, what the plan must also bear: lost=L40S (+ between several), coverage=0.8 of the "
        "requests then, rate=1.5 times the requests, price=H100:2 times the price; commas between. May be "
        "given several times.",
    ),
]
_KEYS = ("lost", "coverage", "rate", "price")
_EXAMPLE = "give it like lost=L40S,coverage=0.8 or rate=1.5 or price=H100:2"


def scenarios_of(texts: Sequence[str] | None) -> "tuple[PlanScenario, ...]":
    """`lost=L40S,coverage=0.8` and the like as scenarios. Raises BadInputError, UnknownNameError."""
    return tuple(_scenario(text) for text in texts or ())


def _scenario(text: str) -> "PlanScenario":
    from tangram_sim.studies.serving_question import PlanScenario

    lost: list[str] = []
    numbers = {"coverage": 1.0, "rate": 1.0}
    prices: list[tuple[str, float]] = []
    for part in text.split(","):
        key, sign, value = (one.strip() for one in part.partition("="))
        if key not in _KEYS:
            raise unknown_name(f"part of --scenario {text}", key, _KEYS, f"G{_EXAMPLE[1:]}.")
        if not sign or not value:
            raise BadInputError(f"--scenario {text}: {key} has no value; {_EXAMPLE}")
        if key == "lost":
            lost += [name.strip() for name in value.split("+")]
        elif key == "price":
            kind, _, factor = value.rpartition(":")
            if not kind:
                raise BadInputError(f"--scenario {text}: whose price, and times what? {_EXAMPLE}")
            prices.append((kind, _above_zero(text, key, factor)))
        else:
            numbers[key] = _above_zero(text, key, value)
    if numbers["coverage"] > 1:
        raise BadInputError(f"--scenario {text}: coverage is a share of the requests, at most 1")
    if not lost and not prices and numbers == {"coverage": 1.0, "rate": 1.0}:
        raise BadInputError(f"--scenario {text}: nothing happens in it; {_EXAMPLE}")
    return PlanScenario(text, tuple(lost), numbers["coverage"], numbers["rate"], tuple(prices))


def _above_zero(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1000:
        raise BadInputError(
            f"--scenario {text}: {key} {value!r} given; a number above 0, 1000 at most, is wanted"
        )
    return number

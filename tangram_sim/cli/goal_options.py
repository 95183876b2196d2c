"""Options on a training run: how many tokens, by when, for how much, on which clouds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.units import days_of, usd_of

if TYPE_CHECKING:
    from tangram_sim.purchasing.goal import Goal
    from tangram_sim.purchasing.pricefile import Prices


def _days(given: str | float) -> float:
    """--finish-within in days; typer hands the default over as it is."""
    return days_of(given, "--finish-within")


def usd(given: str | float) -> float:
    """--budget in dollars; typer hands the default over as it is."""
    return usd_of(given, "--budget")


@dataclass(frozen=True, slots=True)
class RunGoalOptions:
    """Options on a goal: with one of them the best mix for it is searched for, and not the whole front."""

    finish_within: Annotated[
        float | None,
        typer.Option(
            "--finish-within",
            parser=_days,
            metavar="TIME",
            help="Time in which the tokens are to be trained, e.g. 14d, 36h, 2w: recommend one mix for it.",
        ),
    ] = None
    cloud: Annotated[
        str | None,
        typer.Option(
            "--cloud",
            help="Rent from these clouds, a kind at a time: aws, gcp, azure, oci, coreweave, lambda; all.",
        ),
    ] = None

    def goal(self, tokens: float, budget: float | None, prices: "Prices") -> "tuple[Goal, list[str]]":
        """The goal, and a note where it was assumed."""
        from tangram_sim.purchasing.goal import goal_of

        return goal_of(tokens, self.finish_within, budget, prices)

"""Options on a training run: how many tokens, by when, for how much, on which clouds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.errors import BadInputError
from tangram_sim.units import amount_of, days_of, usd_of

if TYPE_CHECKING:
    from tangram_sim.purchasing.goal import Goal
    from tangram_sim.purchasing.pricefile import Prices
    from tangram_sim.studies.training_run import WantedRun


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


def _tokens(given: str | float) -> float:
    """--tokens as a number."""
    try:
        return amount_of(str(given))
    except BadInputError as error:
        raise BadInputError(f"--tokens: {error}") from None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options on the run that a plan is for: tokens, and the time to train them in."""

    tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens",
            parser=_tokens,
            metavar="AMOUNT",
            help="Tokens to train on, e.g. 300B: say days, dollars and megawatt hours.",
        ),
    ] = None
    finish_within: Annotated[
        float | None,
        typer.Option(
            "--finish-within",
            parser=_days,
            metavar="TIME",
            help="Time that training them may take, e.g. 14d, 36h, 2w: say whether it does.",
        ),
    ] = None

    @property
    def wanted(self) -> "WantedRun | None":
        """The run that is asked about; None where no tokens are given. Raises BadInputError."""
        from tangram_sim.studies.training_run import wanted_run

        return wanted_run(self.tokens, self.finish_within)

"""A fleet's day of serving and training: its terms, what came of it, which days are worth their price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tangram_sim.errors import BadInputError
from tangram_sim.purchasing.days import (
    AT_ONCE,
    DAY_HOURS,
    DAYS_PER_MONTH,
    NOTHING_TRAINED,
    ChangeOver,
    TrainedDay,
)
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.units import DAY_S, MEGA

_LOAD_S = 120.0  # until a replica serves: its engine starts and reads its weights


@dataclass(frozen=True, slots=True)
class DayTerms:
    """How long a fleet serves every day, and what changing over takes.

    `load_s`: until replicas serve. Saving and loading what is trained takes what the price file states, else
    one copy of the state over the nodes' own 10 Gbit/s to storage.
    """

    hours: float
    load_s: float = _LOAD_S

    def __post_init__(self) -> None:
        if not 0 <= self.hours <= DAY_HOURS:
            raise BadInputError(f"`share={self.hours:g}`: hours of serving a day are 0 to 24")
        if not 0 <= self.load_s < DAY_S:
            raise BadInputError(f"`load_s={self.load_s:g}`: give seconds, 0 or more and less than a day")


@dataclass(frozen=True)
class ServedDay:
    """One fleet's day. Without a plan `reason` says why, and `most_rps` what all nodes serve at most.

    USD a month are None where a price is not stated.
    """

    name: str
    fleet: Fleet
    reason: str = ""
    most_rps: float | None = None
    serving_nodes: Mapping[str, int] = field(default_factory=dict)  # by member of the fleet
    service: ServePlanDocument | None = None
    served_tokens: float = 0.0  # a day: output tokens of good requests
    trained: TrainedDay = NOTHING_TRAINED  # tokens a day
    change: ChangeOver = AT_ONCE
    usd_per_month: float | None = None
    apart_usd_per_month: float | None = None
    serving_usd_per_month: float | None = None  # of these, for the nodes that serve while they serve

    @property
    def usd_per_million_trained(self) -> float | None:
        """USD for a million tokens trained: of the whole month, less what serving is charged."""
        return self._per_million(self.usd_per_month, self.trained.shared)

    @property
    def apart_usd_per_million_trained(self) -> float | None:
        """The same where the nodes that serve do nothing else, and are charged as much for serving."""
        return self._per_million(self.apart_usd_per_month, self.trained.apart)

    @property
    def usd_per_million_served(self) -> float | None:
        """USD for a million output tokens of good requests, of the nodes that serve while they serve."""
        if self.serving_usd_per_month is None or not self.served_tokens:
            return None
        return self.serving_usd_per_month / (self.served_tokens * DAYS_PER_MONTH) * MEGA

    def _per_million(self, usd: float | None, tokens: float) -> float | None:
        if usd is None or self.serving_usd_per_month is None or not tokens:
            return None
        return (usd - self.serving_usd_per_month) / (tokens * DAYS_PER_MONTH) * MEGA


def front_of_days(days: Sequence[ServedDay]) -> list[ServedDay]:
    """The days that none beats: no other trains as much for less, or more for no more. By rising cost."""
    found: list[ServedDay] = []
    billed = [(one.usd_per_month, one) for one in days if not one.reason and one.usd_per_month is not None]
    for _, one in sorted(billed, key=lambda pair: (pair[0], -pair[1].trained.shared, pair[1].name)):
        if not found or one.trained.shared > found[-1].trained.shared * (1 + 1e-12):
            found.append(one)
    return found

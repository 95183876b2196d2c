"""A day of a fleet that serves and trains: its terms, its result, and which fleets are worth their price."""

from collections.abc import Mapping
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
    """How many hours a fleet serves each day, and the seconds that changing over takes.

    `load_s`: until replicas serve. Saving and loading the training state takes as long as the price file
    says, else the time to move one copy of it over 10 Gbit/s per node to storage.
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
    """The day of one fleet. If it has no plan, `reason` says why and `most_rps` is what all nodes can serve.

    USD per month are None if a price is not stated.
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
        """USD per million trained tokens: the cost of the month less the share charged to serving."""
        return self._per_million(self.usd_per_month, self.trained.shared)

    @property
    def apart_usd_per_million_trained(self) -> float | None:
        """USD per million trained tokens if serving nodes never train, less the same charge to serving."""
        return self._per_million(self.apart_usd_per_month, self.trained.apart)

    @property
    def usd_per_million_served(self) -> float | None:
        """USD per million output tokens of good requests; counts the serving nodes in serving hours only."""
        if self.serving_usd_per_month is None or not self.served_tokens:
            return None
        return self.serving_usd_per_month / (self.served_tokens * DAYS_PER_MONTH) * MEGA

    def _per_million(self, usd: float | None, tokens: float) -> float | None:
        if usd is None or self.serving_usd_per_month is None or not tokens:
            return None
        return (usd - self.serving_usd_per_month) / (tokens * DAYS_PER_MONTH) * MEGA

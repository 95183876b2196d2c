"""A day of machines that serve some hours and train in the others: tokens, cost of changing over.

Some nodes serve for `hours` of every day while the others train; afterwards all train together, unless that
gains less than changing over twice a day loses.
"""

from dataclasses import dataclass

from tangram_sim.units import HOUR_S

DAY_HOURS = 24.0
DAYS_PER_MONTH = 365.25 / 12


@dataclass(frozen=True, slots=True)
class ChangeOver:
    """Seconds that changing between serving and training takes."""

    drain_s: float  # until requests that are under way are through
    checkpoint_s: float  # to save what is trained
    restart_s: float  # to go on from that on other nodes
    load_s: float  # until replicas have their weights and can serve

    @property
    def all_nodes_s(self) -> float:
        """Seconds lost per night if all nodes train: they start after draining and stop before loading."""
        return self.drain_s + self.restart_s + self.checkpoint_s + self.load_s

    @property
    def rest_s(self) -> float:
        """Seconds that the job on the other nodes loses during serving hours to saving and restarting."""
        return self.restart_s + self.checkpoint_s


@dataclass(frozen=True, slots=True)
class TrainedDay:
    """Tokens trained per day.

    `apart`: if serving nodes never train. `shared`: if they train at night where that gains, so never less.
    `changes`: whether they do; `lost`: tokens lost to changing over.
    """

    shared: float
    apart: float
    changes: bool
    lost: float


AT_ONCE = ChangeOver(0.0, 0.0, 0.0, 0.0)
NOTHING_TRAINED = TrainedDay(0.0, 0.0, changes=False, lost=0.0)


def trained_day(
    hours: float, rest_tokens_per_s: float, all_tokens_per_s: float, change: ChangeOver
) -> TrainedDay:
    """Tokens of a day with `hours` of serving; rates: of nodes that never serve, and of all nodes."""
    serving_s, night_s = hours * HOUR_S, (DAY_HOURS - hours) * HOUR_S
    apart = rest_tokens_per_s * DAY_HOURS * HOUR_S
    if hours <= 0:
        whole = max(apart, all_tokens_per_s * DAY_HOURS * HOUR_S)
        return TrainedDay(whole, whole, changes=False, lost=0.0)
    if hours >= DAY_HOURS:
        return TrainedDay(apart, apart, changes=False, lost=0.0)
    by_day = rest_tokens_per_s * max(0.0, serving_s - change.rest_s)
    by_night = all_tokens_per_s * max(0.0, night_s - change.all_nodes_s)
    if by_day + by_night <= apart:
        return TrainedDay(apart, apart, changes=False, lost=0.0)
    lost = rest_tokens_per_s * min(serving_s, change.rest_s)
    lost += all_tokens_per_s * min(night_s, change.all_nodes_s)
    return TrainedDay(by_day + by_night, apart, changes=True, lost=lost)

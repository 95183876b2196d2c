"""Why no mix of nodes can reach a goal: the limit that binds, and the least of it that would do."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.purchasing.catalogue import Limits, mix_name
from tangram_sim.purchasing.goal_search import GoalSearch
from tangram_sim.purchasing.words import dollars
from tangram_sim.units import show_amount


@dataclass(frozen=True)
class _Limited:
    """One limit: its argument, what every mix needs of it at least, and a formatter of amounts."""

    name: str
    limit: float
    taken: NDArray[np.float64]
    words: Callable[[float], str]

    @property
    def met(self) -> NDArray[np.bool_]:
        """The mixes that stay within it."""
        return np.asarray(self.taken <= self.limit * (1 + 1e-9))


def out_of_reach(search: GoalSearch, limits: Limits, standing_w: float) -> str:
    """A sentence on the limits that no mix meets, whatever its plan, and how far each must be raised.

    The mixes of `search` are those that there are without `limits`; nodes that stand may draw `standing_w`.
    """
    every = [one for one in _limited(search, limits, standing_w) if math.isfinite(one.limit)]
    able = np.asarray(search.bound > 0)
    asked = " and ".join(one.words(one.limit) for one in every) or "any limit"
    said = (
        f"nothing on offer trains {show_amount(search.goal.tokens)} tokens within {asked}, whatever the plan"
    )
    raised = []
    for one in every:
        others = [able, *(other.met for other in every if other is not one)]
        enough = np.logical_and.reduce(others)
        if enough.any():
            raised.append(_least(search, one, enough))
    if raised:
        return f"{said}. One of these would do, if plans come near their bounds: {'; '.join(raised)}"
    if not able.any():
        return f"{said}: the model fits none of the nodes, or they do not support its number format"
    alone = "; ".join(_least(search, one, able) for one in every)
    return f"{said}. More than one limit is in the way; each alone takes {alone}"


def _least(search: GoalSearch, one: _Limited, among: NDArray[np.bool_]) -> str:
    """The least of a limit that any of some mixes takes, and which mix."""
    at = int(np.where(among, one.taken, math.inf).argmin())
    mix = mix_name(search.offers, search.mixes[at])
    return f"`{one.name}=` of {one.words(_up(float(one.taken[at])))} or more ({mix})"


def _up(value: float) -> float:
    """A value rounded up to three digits, so that the limit said is no lower than what is needed."""
    if not 0 < value < math.inf:
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / unit * (1 - 1e-9)) * unit


def _limited(search: GoalSearch, limits: Limits, standing_w: float) -> list[_Limited]:
    """All limits, by the bounds of every mix."""
    goal, offers = search.goal, search.offers

    def each(values: list[float]) -> NDArray[np.float64]:
        return np.asarray(search.counts @ np.array(values, dtype=float))

    return [
        _Limited("finish_within", goal.days, search.days(search.bound), lambda d: f"{d:,.4g} days"),
        _Limited("budget", goal.budget_usd, search.spent_usd(search.bound), dollars),
        _Limited(
            "budget_per_hour",
            limits.budget_usd_per_hour,
            each([offer.usd_per_hour for offer in offers]),
            lambda usd: f"{dollars(usd)} an hour",
        ),
        _Limited(
            "power_kw",
            limits.power_w / 1000,
            (each([offer.power_w for offer in offers]) + standing_w) / 1000,
            lambda kw: f"{kw:,.4g} kW",
        ),
        _Limited("max_nodes", limits.nodes, each([1.0] * len(offers)), lambda count: f"{count:g} nodes"),
        _Limited(
            "rack_units",
            limits.rack_units,
            each([offer.rack_units for offer in offers]),
            lambda units: f"{units:g} rack units",
        ),
    ]

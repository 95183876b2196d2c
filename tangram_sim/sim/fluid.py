"""Rates of flows that share links: max-min fair rates by progressive filling."""

import math
from collections.abc import Sequence


def max_min_rates(
    demands: Sequence[float],
    routes: Sequence[Sequence[int]],
    capacities: Sequence[float],
    weights: Sequence[Sequence[float]] | None = None,
) -> list[float]:
    """Max-min fair rate of each flow, bytes/s [flows].

    `demands` are caps [flows] > 0, `routes` the links each flow crosses (a link listed twice is loaded
    twice), `capacities` the links' bytes/s [links] > 0, `weights` the load of each crossing of a route on its
    link per byte/s of the flow (default 1). All unfrozen flows rise together; a flow freezes at its demand or
    at the level where one of its links is full (Bertsekas & Gallager, Data Networks, 2nd ed., 6.5.2). Ties go
    to the lowest link index. A flow that no link limits gets exactly its demand.
    """
    if weights is None:
        weights = [[1.0] * len(route) for route in routes]
    rates = [0.0] * len(demands)
    frozen_load = [0.0] * len(capacities)
    rising = list(range(len(demands)))
    level = 0.0
    while rising:
        crossings = [0.0] * len(capacities)
        for flow in rising:
            for link, weight in zip(routes[flow], weights[flow], strict=True):
                crossings[link] += weight
        full_level, full_link = math.inf, -1
        for link, count in enumerate(crossings):
            if count:
                # Rounding may put a link's level just below the level already reached.
                reached = max(level, (capacities[link] - frozen_load[link]) / count)
                if reached < full_level:
                    full_level, full_link = reached, link
        least_demand = min(demands[flow] for flow in rising)
        level = min(full_level, least_demand)
        satisfied = least_demand <= full_level
        frozen = [
            flow for flow in rising if (demands[flow] <= level if satisfied else full_link in routes[flow])
        ]
        for flow in frozen:
            rates[flow] = level
            for link, weight in zip(routes[flow], weights[flow], strict=True):
                frozen_load[link] += weight * level
        rising = [flow for flow in rising if flow not in frozen]
    return rates

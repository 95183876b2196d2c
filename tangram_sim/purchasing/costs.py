"""Costs of a fleet: capital, rent, power, failures. Pure functions; equations in docs/models/costs.md.

All money is USD of one day; rates are per hour of training unless a name says otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.reliability.periods import daly_interval_s, elastic_share, lost_shares, useful_share
from tangram_sim.units import DAY_S, HOUR_S

HOURS_PER_YEAR = 8766.0  # 365.25 days


@dataclass(frozen=True, slots=True)
class Goodput:
    """The share of wall time that is useful work, and the checkpoint interval (s) that achieves it."""

    fraction: float
    interval_s: float  # of work between checkpoints; inf: never fails
    lost: tuple[tuple[str, float], ...] = ()  # on spot: what the other shares of the time go to


def system_mtbf_s(node_mtbf_s: Sequence[tuple[int, float]]) -> float:
    """Mean seconds between failures of a job that any node's failure stops; entries are (nodes, node MTBF).

    Failures of independent nodes add as rates (Poisson).
    """
    rate = sum(nodes / mtbf for nodes, mtbf in node_mtbf_s)
    return 1.0 / rate if rate else math.inf


def goodput(mtbf_s: float, checkpoint_s: float, restart_s: float) -> Goodput:
    """The share of wall time that is useful work under Poisson failures at Daly's interval.

    The special case of `reliability.periods` in which every failure stops the job at once (no downtime).
    """
    interval = daly_interval_s(mtbf_s, checkpoint_s)
    period = interval + checkpoint_s if interval > 0 else 0.0
    return Goodput(useful_share(mtbf_s, period, checkpoint_s, 0.0, restart_s), interval)


def goodput_on_spot(
    mtbf_s: float, lost_s: float, checkpoint_s: float, restart_s: float, return_s: float, replicas: int
) -> Goodput:
    """Goodput where nodes also get preempted, one every `lost_s` in the whole job.

    With two or more replicas the others stall for a restart and go on without the broken one until a node
    arrives (`return_s`); no checkpoint is needed. With one replica the job waits for the node and restarts
    from its checkpoint, with that wait as downtime in the exact formula.
    """
    both_s = 1.0 / (1.0 / mtbf_s + 1.0 / lost_s)
    waiting_s = return_s * both_s / lost_s  # in the mean over all losses: failed machines have a spare
    if replicas >= 2:
        return Goodput(elastic_share(both_s, replicas, restart_s, waiting_s), math.inf)
    interval = daly_interval_s(both_s, checkpoint_s)
    period = interval + checkpoint_s if interval > 0 else 0.0
    lost = lost_shares(both_s, period, checkpoint_s, waiting_s, restart_s)
    return Goodput(
        useful_share(both_s, period, checkpoint_s, waiting_s, restart_s), interval, tuple(lost.items())
    )


def owned_usd_per_hour(
    capital_usd: float, amortisation_years: float, upkeep_per_year: float, utilisation: float
) -> float:
    """Capital and upkeep (a fraction of the capital per year), per hour of training in the machine's life."""
    per_calendar_hour = capital_usd * (1 / amortisation_years + upkeep_per_year) / HOURS_PER_YEAR
    return per_calendar_hour / utilisation


def power_usd_per_hour(power_w: float, pue: float, usd_per_kwh: float) -> float:
    """USD per hour for electricity of machines that draw `power_w`, with the building's overhead (PUE)."""
    return power_w / 1000.0 * pue * usd_per_kwh


def break_even_hours(capital_usd: float, rent_usd_per_hour: float, running_usd_per_hour: float) -> float:
    """Hours of training after which buying has cost less than renting; inf: never.

    `running_usd_per_hour` is what an owned machine costs beside its capital.
    """
    saved = rent_usd_per_hour - running_usd_per_hour
    return capital_usd / saved if saved > 0 else math.inf


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    """Running cost of a million trained tokens."""
    return usd_per_hour / (tokens_per_s * HOUR_S) * 1e6 if tokens_per_s > 0 else math.inf


def marginal_tokens_per_usd(tokens_per_s: float, usd_per_hour: float) -> float:
    """Tokens per extra dollar; both arguments are differences to the fleet without the purchase.

    If both are negative: tokens given up per dollar saved. inf: more tokens at no extra cost; -inf: fewer
    tokens without saving.
    """
    gained = tokens_per_s * HOUR_S
    if usd_per_hour > 0 or (usd_per_hour < 0 and gained < 0):
        return gained / usd_per_hour
    return math.copysign(math.inf, gained) if gained else 0.0


def days_to_train(tokens: float, tokens_per_s: float, utilisation: float) -> float:
    """Calendar days to train `tokens`.

    `tokens_per_s` is after losses to failures; training runs a fraction `utilisation` of the time.
    """
    return tokens / (tokens_per_s * utilisation) / DAY_S if tokens_per_s > 0 else math.inf

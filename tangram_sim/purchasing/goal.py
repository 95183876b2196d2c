"""The goal of a training run (tokens, time, money), and the order of mixes by how well they reach it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.rows import WhatIfRow
from tangram_sim.units import DAY_S, HOUR_S

ASSUMED_DAYS = 30.0  # to finish within, where neither a time nor money is given


@dataclass(frozen=True, slots=True)
class Goal:
    """Tokens to train, the days to finish within, and the most money to spend; inf: no limit.

    Money is what is paid until the training is done: prices of bought nodes, rents and hosting, not
    electricity. `utilisation` is the share of the time in which the fleet trains.
    """

    tokens: float
    days: float = math.inf
    budget_usd: float = math.inf
    utilisation: float = 1.0

    @property
    def least_tokens_per_s(self) -> float:
        """Lowest throughput in tokens/s that finishes within the days."""
        return self.tokens / (self.days * DAY_S * self.utilisation)

    def spent_usd(self, outlay_usd: float, rent_usd_per_hour: float, tokens_per_s: float) -> float:
        """USD spent until the tokens are trained at `tokens_per_s`."""
        if tokens_per_s <= 0:
            return math.inf
        hours = self.tokens / tokens_per_s / HOUR_S
        return outlay_usd + (rent_usd_per_hour * hours if rent_usd_per_hour else 0.0)

    @property
    def wants_speed(self) -> bool:
        """Whether to find the fastest run for the money: there is a budget, and no time limit."""
        return math.isinf(self.days) and math.isfinite(self.budget_usd)


def spent_usd(row: WhatIfRow, goal: Goal) -> float:
    """USD spent until the goal is reached: purchases, rents and hosting, not electricity."""
    rents = sum(charge.usd_per_hour for charge in row.bill.charges if charge.kind not in ("capital", "power"))
    return goal.spent_usd(row.bill.outlay_usd or 0.0, rents, row.throughput.tokens_per_s)


def reaches(row: WhatIfRow, goal: Goal) -> bool:
    """Whether a planned candidate finishes within the days and the budget."""
    return (
        row.document is not None
        and row.days_to_train <= goal.days * (1 + 1e-9)
        and spent_usd(row, goal) <= goal.budget_usd * (1 + 1e-9)
    )


def ranked(rows: Sequence[WhatIfRow], goal: Goal) -> list[int]:
    """Indices of rows with a plan, the best first: by cost of the run or, for a budget alone, by time.

    Of costs that are not all stated what is known counts. Rows that miss the goal come after those that reach
    it, the nearest first.
    """

    def key(index: int) -> tuple[bool, float, float]:
        row = rows[index]
        usd = row.usd_to_train_at_least
        if reaches(row, goal):
            first, second = (row.days_to_train, usd) if goal.wants_speed else (usd, row.days_to_train)
            return (False, first, second)
        return (True, max(row.days_to_train / goal.days, spent_usd(row, goal) / goal.budget_usd), usd)

    return sorted((index for index, row in enumerate(rows) if row.document is not None), key=key)


def slow_end_days(row: WhatIfRow) -> float:
    """Days to train at the slow end of the 90 % interval of the throughput."""
    return row.days_to_train * row.throughput.tokens_per_s / row.throughput.low


def goal_of(
    tokens: float, days: float | None, budget_usd: float | None, prices: Prices
) -> tuple[Goal, list[str]]:
    """The requested goal, and a note where a time had to be assumed."""
    notes = []
    if days is None and budget_usd is None:
        days = ASSUMED_DAYS
        notes.append(
            f"neither a time nor money is given: to finish within {days:g} days is assumed (`finish_within=`)"
        )
    share = prices.economics.utilisation.value
    return Goal(tokens, days or math.inf, math.inf if budget_usd is None else budget_usd, share), notes

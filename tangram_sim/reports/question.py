"""The data behind a report on purchases, and which of its rows is shown in detail."""

from dataclasses import dataclass

from tangram_sim.purchasing.rows import Billing, WhatIfRow
from tangram_sim.purchasing.sensitivity import Sensitivity


@dataclass(frozen=True)
class PurchaseFigures:
    """What the reports of `what-if` and `purchase` have in common.

    `costs` is per row, None if unknown. `gaps` is per row, how far the plan may be from the best; empty if
    unknown.
    """

    title: str
    rows: tuple[WhatIfRow, ...]
    billing: Billing
    costs: tuple[float | None, ...]
    cost_name: str
    gaps: tuple[float, ...] = ()
    is_front: bool = False
    sensitivity: Sensitivity | None = None
    notes: tuple[str, ...] = ()
    recommended: int | None = None  # the row that a goal chose
    changes: tuple[str, ...] = ()  # what would change that choice

    @property
    def adds_to_a_fleet(self) -> bool:
        """Whether nodes are added to existing ones that cost their power alone, stated or not."""
        return any(not member.bought for member in self.rows[0].fleet.members) and not any(
            charge.kind != "power" and not charge.bought for row in self.rows for charge in row.bill.charges
        )

    @property
    def nothing_gained(self) -> bool:
        """Whether no purchase is faster than the existing fleet, the first row."""
        stands, *others = self.rows
        return (
            stands.document is not None
            and len(others) > 0
            and not any(use.bought for use in stands.uses)
            and max(row.throughput.tokens_per_s for row in others) <= stands.throughput.tokens_per_s * _LEVEL
        )


MOST_FOR_A_DOLLAR, CHEAPEST, FASTEST = "most for a dollar", "cheapest", "fastest"
NOTHING_GAINED, RECOMMENDED = "nothing gained", "recommended"
_LEVEL = 1.001  # a purchase that is not faster by more gains nothing


def chosen(question: PurchaseFigures) -> tuple[int, str]:
    """(index of the row shown in detail, the reason): a purchase if one has a plan.

    Next to a fleet that is paid for, dollars per token always favour the smallest purchase, so the one with
    most tokens gained per dollar is taken. Otherwise the cheapest per token where all are billed, else the
    fastest.
    """
    rows = question.rows
    if question.recommended is not None:
        return question.recommended, RECOMMENDED
    if question.nothing_gained:
        return 0, NOTHING_GAINED
    planned = [number for number, row in enumerate(rows) if row.document is not None]
    bought = [number for number in planned if any(use.bought for use in rows[number].uses)]
    among = bought or planned
    gains = {number: rows[number].marginal_tokens_per_usd for number in bought}
    if question.adds_to_a_fleet and gains and all(gain is not None for gain in gains.values()):
        return max(among, key=lambda number: gains[number] or 0.0), MOST_FOR_A_DOLLAR
    if question.sensitivity is not None:
        best = [row.name for row in rows].index(question.sensitivity.best)
        return best, CHEAPEST if question.sensitivity.score == "usd_per_million_tokens" else FASTEST
    if all(rows[number].usd_per_million_tokens for number in among):
        return min(among, key=lambda number: rows[number].usd_per_million_tokens or 0.0), CHEAPEST
    return max(among, key=lambda number: rows[number].throughput.tokens_per_s), FASTEST

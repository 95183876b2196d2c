"""Figures of a purchase as text: dollars, tokens, days; `-` if not known."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tangram_sim.purchasing import costs
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.rows import WhatIfRow
from tangram_sim.units import percent


def planned(figure: Callable[[WhatIfRow], Any]) -> Callable[[WhatIfRow], Any]:
    """A figure of rows that have a plan; None for others."""
    return lambda row: None if row.document is None else figure(row)


def money(usd: float | None) -> str:
    """Dollars with three or four digits; `-` where they are not known."""
    if usd is None:
        return "-"
    if math.isinf(usd):
        return "inf"
    if 0 < abs(usd) < 1e-4:
        return f"{usd:.{2 - math.floor(math.log10(abs(usd)))}f}"
    return f"{usd:,.0f}" if abs(usd) >= 100 else f"{usd:.3g}"


def dollars(usd: float | None) -> str:
    """Dollars with their sign, `$12,300`; words where they are not known."""
    return "an unknown sum" if usd is None else f"${money(usd)}"


def outlay(row: WhatIfRow) -> str:
    """Capital cost of what is bought, in USD; `-` if not fully stated."""
    return money(row.bill.outlay_usd)


def hourly(row: WhatIfRow) -> str:
    """USD per hour of training; `> N` if only N of it is known, `-` if nothing is."""
    return _at_least(row.bill.usd_per_hour, row)


def total(row: WhatIfRow) -> str:
    """USD until the tokens are trained; `> N` if only N of it is known, `-` if nothing is."""
    return _at_least(row.usd_to_train_at_least, row)


def per_million(row: WhatIfRow) -> str:
    """USD per million tokens; `> N` if only N of it is known, `-` if nothing is."""
    rate = row.throughput.tokens_per_s
    return _at_least(costs.usd_per_million_tokens(row.bill.usd_per_hour, rate), row)


def _at_least(usd: float, row: WhatIfRow) -> str:
    if row.bill.known:
        return money(usd)
    return f"> {money(usd)}" if usd else "-"


def more_per_usd(row: WhatIfRow) -> str:
    """Tokens more for each dollar more than the fleet as it stands costs, as `count_of` has it."""
    return count_of(row.marginal_tokens_per_usd)


def energy(rows: Sequence[WhatIfRow], prices: Prices) -> str:
    """A sentence on what the power and energy of rows count."""
    pue = prices.economics.pue
    times = f", times PUE {pue.value:g}" if pue else "; no PUE is stated"
    drawn = "the mean of GPUs and hosts over a step, idle ones too, as `plan` has it"
    if not all(row.each_w for row in rows if row.document is not None):
        drawn = "nameplates of the nodes that run, for want of the power of a GPU kind"
    return f"power and energy of the site: {drawn}{times}"


def count_of(value: float | None) -> str:
    """A large number in millions; `-` if unknown, words if infinite."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "more for nothing" if value > 0 else "fewer, no cheaper"
    return f"{value / 1e6:,.3g} M"


def days(value: float) -> str:
    """Days as text with one decimal; two digits below 0.05 days, years above 3652 days."""
    if 0 < value < 0.05:
        return f"{value:.2g} days"
    return f"{value / 365.25:,.1f} years" if value > 3652.5 else f"{value:,.1f} days"


def uses(row: WhatIfRow) -> str:
    """For each member: GPUs used of all its GPUs, and the fraction of time for which they compute."""
    return ", ".join(
        f"{use.label} {use.gpus_used}/{use.gpus}" + (f" {percent(use.busy)}" if use.gpus_used else "")
        for use in row.uses
    )


def rate(row: WhatIfRow) -> str:
    """Tokens per second with the 90 % interval where one is known."""
    found = row.throughput
    if found.low == found.high:
        return f"{found.tokens_per_s:,.0f}"
    return f"{found.tokens_per_s:,.0f} ({found.low:,.0f} to {found.high:,.0f})"

"""The conclusions of a purchase report: what to take, whether it is a tie, what would change it."""

from tangram_sim.hwdb import Hwdb
from tangram_sim.purchasing.notes import break_evens
from tangram_sim.purchasing.rows import WhatIfRow, kinds_of
from tangram_sim.purchasing.sensitivity import Flip
from tangram_sim.reports import page
from tangram_sim.reports.assumptions import in_words
from tangram_sim.reports.cited import CitedFigures
from tangram_sim.reports.question import (
    CHEAPEST,
    MOST_FOR_A_DOLLAR,
    NOTHING_GAINED,
    RECOMMENDED,
    PurchaseFigures,
)
from tangram_sim.reports.rounding import dollars, number, rounded, time_with_interval, with_interval
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.planfile import plan_from_document
from tangram_sim.training.step.intervals import Comparison, compare
from tangram_sim.units import show_amount

_MOST_FLIPS = 3
_WHY = {
    MOST_FOR_A_DOLLAR: "gains most tokens for each dollar beside the fleet you have",
    CHEAPEST: "trains for the least money",
    RECOMMENDED: "reaches the goal best",
    NOTHING_GAINED: "is all it takes: no purchase here is faster",
}
# What would have to be so, of a figure of a bill: its node, over or under, the value.
_BILL_WORDS = {
    "capital_usd": "one {} node cost {} {}",
    "rent_usd_per_hour": "an hour of one {} node cost {} {}",
    "reserved_usd_per_hour": "a reserved hour of one {} node cost {} {}",
    "spot_usd_per_hour": "a spot hour of one {} node cost {} {}",
    "power_w": "one {} node drew {} {} W",
    "mtbf_hours": "one {} node ran {} {} hours between failures",
    "usd_per_kwh": "{}a kWh cost {} {}",
    "hosting_usd_per_kw_month": "{}hosting a kW cost {} {} a month",
    "pue": "{}the PUE were {} {}",
    "utilisation": "{}the share of time in training were {} {}",
    "amortisation_years": "{}nodes were written off in {} {} years",
    "upkeep_per_year": "{}upkeep a year were {} {} of the capital",
}


def answer(question: PurchaseFigures, row: WhatIfRow, why: str, cited: CitedFigures) -> str:
    """The first sentence (HTML): the mix to take, its days and its cost."""
    rate, time = cited.rate(row), cited.time(row)
    found = row.throughput
    low, high = (row.days_to_train * found.tokens_per_s / end for end in (found.high, found.low))
    long = time_with_interval(row.days_to_train, low, high)
    tokens = page.figure_of(show_amount(question.billing.tokens), (cited.tokens,))
    speed = page.figure_of(with_interval(found.tokens_per_s, found.low, found.high), rate)
    cost = ""
    if row.usd_to_train is not None and row.bill.known and row.usd_to_train > 0:
        cost = f" for {page.figure_of(dollars(row.usd_to_train), cited.total(row))}"
        if row.bill.outlay_usd:
            outlay = page.figure_of(dollars(row.bill.outlay_usd), cited.bill(row))
            cost += f" (capital written off, energy and rent of that time; the outlay is {outlay})"
        else:
            cost += " in all"
    reason = f" {_WHY.get(why, 'is the fastest')}:" if len(question.rows) > 1 else ":"
    return (
        f"<strong>{page.name(row.name)}</strong>{reason} {tokens} tokens in "
        f"{page.figure_of(long, time)}{cost}, at {speed} tokens a second."
    )


def judged(question: PurchaseFigures, row: WhatIfRow, cited: CitedFigures, hwdb: Hwdb) -> list[str]:
    """Conclusions as sentences (HTML); empty if no purchase gains anything."""
    if question.nothing_gained:
        return []
    return [
        *_against_the_fleet(question, row, cited),
        *_fastest(question, row, cited),
        *_other_measure(question, row, cited),
        *_tie(question, cited, hwdb),
        *_flips(question, cited),
        *_payback(question, cited),
    ]


def _against_the_fleet(question: PurchaseFigures, row: WhatIfRow, cited: CitedFigures) -> list[str]:
    stands = question.rows[0]
    if stands is row or stands.document is None or any(use.bought for use in stands.uses):
        return []
    ratio = page.figure_of(
        f"{number(rounded(row.throughput.tokens_per_s / stands.throughput.tokens_per_s))} times",
        (*cited.rate(row), *cited.rate(stands)[:1]),
    )
    long = page.figure_of(time_with_interval(stands.days_to_train), cited.time(stands))
    return [f"That is {ratio} the pace of the fleet as it stands, which takes {long}."]


def _fastest(question: PurchaseFigures, row: WhatIfRow, cited: CitedFigures) -> list[str]:
    """A sentence on the fastest candidate, if it is not the chosen `row`."""
    planned = [what_if for what_if in question.rows if what_if.document is not None]
    best = max(planned, key=lambda what_if: what_if.throughput.tokens_per_s)
    if best is row or best.throughput.tokens_per_s <= row.throughput.tokens_per_s:
        return []
    long = page.figure_of(time_with_interval(best.days_to_train), cited.time(best))
    cost = ""
    if best.usd_to_train is not None and best.bill.known:
        cost = f", for {page.figure_of(dollars(best.usd_to_train), cited.total(best))}"
    return [f"Fastest of all is {page.name(best.name)}: {long}{cost}."]


def _other_measure(question: PurchaseFigures, row: WhatIfRow, cited: CitedFigures) -> list[str]:
    """A sentence if the sensitivity that follows ranks by another measure than the one that chose `row`."""
    found = question.sensitivity
    if found is None or found.best in (row.name, found.second):
        return []
    best = next((what_if for what_if in question.rows if what_if.name == found.best), None)
    if best is None:
        return []
    if found.score != "usd_per_million_tokens":
        return [f"By speed alone {page.name(best.name)} is first; order and flips below are of speed."]
    usd = page.figure_of(dollars(best.usd_per_million_tokens or 0.0), cited.bill(best))
    return [
        f"By the cost of a token, fleet and purchase together, {page.name(best.name)} is first ({usd} a "
        "million): beside a fleet that is paid for the smallest bill always is. Order and flips below are of "
        "that cost."
    ]


def _tie(question: PurchaseFigures, cited: CitedFigures, hwdb: Hwdb) -> list[str]:
    """A sentence on whether the two best differ by more than the error, excluding errors that both share."""
    found = question.sensitivity
    if found is None or found.best == found.second:
        return []
    named = {row.name: row for row in question.rows}
    best, second = named[found.best], named[found.second]
    steps = _compared(second, best, hwdb)
    if steps is None:
        return []
    by_cost = found.score == "usd_per_million_tokens"
    # Where hours have prices, the ratio of steps is weighed with that of the prices.
    price = second.bill.usd_per_hour / best.bill.usd_per_hour if by_cost else 1.0
    low, high = (price * ratio * _batch_ratio(second, best) for ratio in (steps.ratio_low, steps.ratio_high))
    sources = (*cited.rate(best), *cited.rate(second)[:1], cited.formula("apart"))
    span = page.figure_of(
        f"{number(rounded(low, low, high))} to {number(rounded(high, low, high))} times", sources
    )
    what, measure = ("costs", "as much a token") if by_cost else ("takes", "as long")
    pair = f"{page.name(second.name)} {what} {span} {measure} as {page.name(best.name)}"
    by = "of different nodes by " if kinds_of(best) != kinds_of(second) else "by "
    by += "cost" if by_cost else "speed"
    if low <= 1.0 <= high:
        return [f"<strong>A tie</strong> between the two best {by}: {pair}."]
    return [f"The order of the two best {by} is sure: {pair}."]


def _batch_ratio(what_if: WhatIfRow, other: WhatIfRow) -> float:
    """Tokens per step of `other` divided by those of `what_if`, both after losses to failures."""

    def tokens(row: WhatIfRow) -> float:
        return row.throughput.tokens_per_s * (row.document.step_s if row.document else 0.0)

    return tokens(other) / tokens(what_if)


def _compared(what_if: WhatIfRow, other: WhatIfRow, hwdb: Hwdb) -> Comparison | None:
    if what_if.document is None or other.document is None:
        return None
    played = [
        forecast(plan_from_document(document, hwdb, "plan"), hwdb).uncertainty
        for document in (what_if.document, other.document)
    ]
    return compare(played[0], played[1])


def flips_of(question: PurchaseFigures, row: WhatIfRow, cited: CitedFigures) -> list[str]:
    """Changes that would alter the decision for `row`, as HTML: recommended, else by sensitivity."""
    if question.changes:
        source = (*cited.total(row),)
        return [page.figure_of(change.replace("`", ""), source) for change in question.changes]
    found = question.sensitivity
    if found is None or found.best != row.name:
        return []
    return _flips(question, cited)


def _flips(question: PurchaseFigures, cited: CitedFigures) -> list[str]:
    """Sentences on which changed assumption would make the second best the best, nearest first."""
    found = question.sensitivity
    if found is None or found.best == found.second:
        return []
    by = "cheaper" if found.score == "usd_per_million_tokens" else "faster"
    if not found.flips:
        return [
            f"No single assumption within reach makes {page.name(found.second)} {by} than "
            f"{page.name(found.best)}."
        ]
    return [
        f"If {_if(flip, cited)}, {page.name(found.second)} would be {by} than {page.name(found.best)}."
        for flip in found.flips[:_MOST_FLIPS]
    ]


def _if(flip: Flip, cited: CitedFigures) -> str:
    """The condition of a sentence, as HTML: `a B200 node cost over $531,000 (now $480,000)`."""
    given = flip.input
    kind = "assumed" if given.row is not None else "price"
    sources = (cited.ledger.cite(kind, f"{given.name}: {given.source}"), cited.formula("flip"))
    section, _, rest = given.name.partition(".")
    node, _, key = rest.rpartition(".")
    key = key or rest
    over = "over" if flip.threshold > given.base else "under"
    show = dollars if "usd" in key else number
    value, base = (show(rounded(item)) for item in (flip.threshold, given.base))
    words = _BILL_WORDS.get(key) if section in ("nodes", "economics") else None
    said = words.format(node, over, value) if words else f"the {in_words(given.name)} were {over} {value}"
    return page.figure_of(f"{said} (here {base})", sources)


def _payback(question: PurchaseFigures, cited: CitedFigures) -> list[str]:
    return [
        f"{page.figure_of(str(break_even)[:1].upper() + str(break_even)[1:], (cited.formula('even'),))}."
        for break_even in break_evens(question.rows, question.billing.prices)
    ]

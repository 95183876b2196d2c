"""The signature sheet of a purchase report: cash, residual value, cost per token, flips, assumptions.

It comes first, fits on one printed page, and covers the chosen candidate only.
"""

import re
from collections.abc import Sequence

from tangram_sim.purchasing import costs
from tangram_sim.purchasing.cash import Cash, cash_of
from tangram_sim.purchasing.notes import doubts_of
from tangram_sim.purchasing.rows import WhatIfRow
from tangram_sim.reports import page
from tangram_sim.reports.assumptions import in_words, keys_in_words
from tangram_sim.reports.cited import CitedFigures
from tangram_sim.reports.ledger import Cell
from tangram_sim.reports.question import PurchaseFigures
from tangram_sim.reports.rounding import dollars, number, rounded, time_with_interval
from tangram_sim.units import percent

_KINDS = (
    ("purchase", "machines bought"),
    ("rent", "machines rented"),
    ("energy", "electricity"),
    ("hosting", "hosting and upkeep"),
)
_MOST_ASSUMED = 10
_MOST_SWINGS = 2  # of efficiencies, the widest


def sheet(
    question: PurchaseFigures, row: WhatIfRow, cited: CitedFigures, said: str, flips: Sequence[str]
) -> str:
    """The sheet as HTML: `said` is the recommendation, `flips` are what would change it (both HTML)."""
    if row.document is None:
        return ""
    cash = cash_of(row, question.billing.tokens, question.billing.prices)
    parts = [
        f'<p class="said">{said}</p>',
        _split(row, cash, cited),
        _key_figures(question, row, cash, cited),
    ]
    parts.append(_months(row, cash, cited))
    if flips:
        parts.append("<h3>What would change this decision</h3>")
        parts.append("<ul>" + "".join(f"<li>{flip}</li>" for flip in flips) + "</ul>")
    parts.append(_assumed(question, row, cited))
    parts.append('<p class="sign"><span>Decided by</span><span>Date</span><span>Signature</span></p>')
    return f'<section class="sheet"><h2>For decision</h2>\n{"".join(parts)}\n</section>'


def _missing(row: WhatIfRow, kind: str) -> bool:
    """Whether money of a kind is spent whose figures are missing from the price file."""
    rent, energy = "(rent|reserved|spot)_usd_per_hour", "economics[.](usd_per_kwh|pue)"
    wanted = {"purchase": "capital_usd", "rent": rent, "energy": energy}
    return kind in wanted and any(re.search(rf"\b{wanted[kind]}\b", lack) for lack in row.bill.missing)


def _usd(value: float) -> str:
    return dollars(value) if value else "$0"


def _split(row: WhatIfRow, cash: Cash, cited: CitedFigures) -> str:
    """HTML table of the payments until the tokens are trained, by purpose."""
    paid = cited.bill(row)
    lines = []
    for kind, words in _KINDS:
        value = getattr(cash.total, kind)
        missing = _missing(row, kind)
        share = percent(value / cash.total.total) if cash.total.total else "-"
        if kind == "energy" and not value and cash.total.rent and not missing:
            lines.append([Cell(words), Cell("in the rent"), Cell("-")])
        else:
            text = "not stated" if missing and not value else f"{'at least ' if missing else ''}{_usd(value)}"
            stated = value or not missing
            lines.append(
                [Cell(words), Cell(text, paid, value), Cell(share, paid, value) if stated else Cell("-")]
            )
    unknown = any(_missing(row, kind) for kind, _ in _KINDS)
    whole = f"{'at least ' if unknown else ''}{_usd(cash.total.total)}"
    total = (*cited.total(row),)
    shares = "100 % of what is stated" if unknown else "100 %"
    lines.append([Cell("total outlay"), Cell(whole, total, cash.total.total), Cell(shares, total, 1.0)])
    table = page.table("outlay", ("paid for", "USD", "share"), lines, len(lines) - 1, names=(0,))
    return f"<h3>Total outlay until the tokens are trained</h3>{table}"


def _key_figures(question: PurchaseFigures, row: WhatIfRow, cash: Cash, cited: CitedFigures) -> str:
    """HTML of key figures, one line each: time, residual value, cost per token, power."""
    total, time = cited.total(row), cited.time(row)
    found = row.throughput
    long = time_with_interval(
        row.days_to_train,
        row.days_to_train * found.tokens_per_s / found.high,
        row.days_to_train * found.tokens_per_s / found.low,
    )
    lines = [("What", page.name(_machines(row))), ("Time to train", page.figure_of(long, time))]
    if row.usd_per_million_tokens is not None:
        low, high = row.usd_per_million_interval
        words = (
            f"{dollars(row.usd_per_million_tokens)} ({number(rounded(low))} to {number(rounded(high))}, 90 % "
            "interval)"
        )
        lines.append(("Cost of a million tokens", page.figure_of(words, (*total, cited.formula("million")))))
    elif row.bill.usd_per_hour:
        low = costs.usd_per_million_tokens(row.bill.usd_per_hour, found.tokens_per_s)
        words = f"at least {dollars(low)}: not all costs are stated"
        lines.append(("Cost of a million tokens", page.figure_of(words, (*total, cited.formula("million")))))
    if row.usd_to_train is not None and row.bill.outlay_usd:
        words = f"{dollars(row.usd_to_train)}, machines written off over their life"
        lines.append(("Cost of the run", page.figure_of(words, total)))
    if cash.residual_usd is None:
        lines.append(("Residual value at the end", "not stated: give amortisation_years"))
    elif cash.residual_usd:
        net = f"{dollars(cash.residual_usd)}; net of it {dollars(cash.total.total - cash.residual_usd)}"
        basis = (*cited.bill(row), *cited.economics("amortisation_years"))
        lines.append(("Residual value at the end", page.figure_of(f"{net} (straight line)", basis)))
    else:
        lines.append(("Residual value at the end", "none: nothing is bought"))
    pue = question.billing.prices.economics.pue
    words = f"{number(rounded(row.site_kw))} kW, {number(rounded(row.mwh))} MWh in all: "
    words += "GPUs and hosts, idle ones too" if row.each_w else "nameplates of the nodes that run"
    words += f", with PUE {pue.value:g}" if pue else "; no PUE is stated"
    lines.append(("Mean power of the site", page.figure_of(words, cited.power(row))))
    if row.goodput is not None:
        share = page.figure_of(f"{percent(row.goodput.fraction, 1)} of the time", cited.rate(row))
        lines.append(("Useful under failures", share))
    return "<dl>" + "".join(f"<dt>{head}</dt><dd>{text}</dd>" for head, text in lines) + "</dl>"


def _machines(row: WhatIfRow) -> str:
    """The nodes that are bought or rented, else the existing ones, in words, with the GPUs in each."""
    new = [member for member in row.fleet.members if member.bought]
    return "; ".join(
        f"{member.nodes} {'node' if member.nodes == 1 else 'nodes'} {member.name or member.label}, "
        f"{member.node.gpus} x {member.node.gpu.name} each"
        for member in (new or row.fleet.members)
    )


def _months(row: WhatIfRow, cash: Cash, cited: CitedFigures) -> str:
    """Cash by month."""
    sources = cited.total(row)
    kinds = [(kind, words) for kind, words in _KINDS if any(getattr(paid, kind) for _, paid in cash.months)]
    lines, sofar = [], 0.0
    for label, paid in cash.months:
        sofar += paid.total
        figures = [getattr(paid, kind) for kind, _ in kinds]
        cells = [Cell(_usd(value), sources, value) for value in (*figures, paid.total, sofar)]
        lines.append([Cell(label), *cells])
    heads = ("cash out", *(words for _, words in kinds), "month", "so far")
    return f"<h3>Cash by month</h3>{page.table('cash', heads, lines, names=(0,))}"


def _assumed(question: PurchaseFigures, row: WhatIfRow, cited: CitedFigures) -> str:
    """What the figures rest on: efficiencies, charges of the chosen candidate, what holds for all nodes."""
    lines = [line for how in ("assumed", "inherited") for line in doubts_of([row], how)]
    found = question.sensitivity
    if found is not None and found.best == row.name:
        measure = "cost of a token" if found.score == "usd_per_million_tokens" else "throughput"
        lines += [
            f"{in_words(swing.input.name)}: {number(rounded(swing.input.base))}; from "
            f"{number(rounded(swing.input.low))} to {number(rounded(swing.input.high))} it alone moves the "
            f"{measure} by {percent(swing.width / found.value)}"
            for swing in [swing for swing in found.tornado if swing.input.row is not None][:_MOST_SWINGS]
        ]
    lines += [f"{charge.member.removeprefix('+')}: {charge.basis}" for charge in row.bill.charges]
    economics = question.billing.prices.economics
    for name in economics.__dataclass_fields__:
        figure = getattr(economics, name)
        if figure is not None and not str(figure.source).endswith(("trains all the time", "none")):
            lines.append(f"{keys_in_words(f'economics.{name}')}: {figure}")
    kept = list(dict.fromkeys(lines))
    source = (*cited.bill(row), *cited.rate(row))
    items = "".join(f"<li>{page.figure_of(line, source)}</li>" for line in kept[:_MOST_ASSUMED])
    more = len(kept) - _MOST_ASSUMED
    rest = f"<li>{page.figure_of(f'{more} more: see the notes', source)}</li>" if more > 0 else ""
    return f"<h3>What was assumed</h3><ul>{items}{rest}</ul>"

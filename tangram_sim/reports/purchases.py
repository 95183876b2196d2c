"""Reports of `what-if` and `purchase`: candidates, the front, the plan chosen, costs, what it hangs on."""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.hwdb import Hwdb
from tangram_sim.purchasing.billing import Terms
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.purchasing.purchase import PurchaseStudy
from tangram_sim.purchasing.sensitivity import Sensitivity
from tangram_sim.purchasing.whatif import WhatIf, WhatIfRow
from tangram_sim.purchasing.words import count_of, days, hourly, money, outlay, per_million, rate, uses
from tangram_sim.reports import figures, page
from tangram_sim.reports.ledger import Cell, Ledger
from tangram_sim.reports.plan_sections import given_job, sections, simulated

_FORMULAS = {
    "rate": "tokens/s: as simulated, tokens of a step over its seconds, times goodput where it is known",
    "goodput": "goodput: the share of time not lost to failures, checkpoints, restarts (Daly 2006)",
    "time": "time: tokens over tokens/s and the share of time in training",
    "power": "kW: watts of the nodes that run, without PUE",
    "bill": "USD per hour and capital: the charges of all members added up; `>`: what is known of them",
    "million": "USD per million tokens: USD per hour over tokens per hour",
    "marginal": "more tokens per USD: gain in tokens per hour over gain in USD per hour, from the first row",
    "gap": "gap: tokens/s that no plan exceeds (docs/models/bound.md) over tokens/s found, less one",
    "flip": "threshold: the value at which second and best change places, found by bisection",
}
_UNKNOWN = "-"


@dataclass(frozen=True)
class PurchaseFigures:
    """What both reports show. `costs` and `gaps` are per row; None and empty where there are none."""

    title: str
    rows: tuple[WhatIfRow, ...]
    tokens: float
    prices: Prices
    terms: Terms
    costs: tuple[float | None, ...]
    cost_name: str
    gaps: tuple[float, ...] = ()
    is_front: bool = False
    sensitivity: Sensitivity | None = None
    notes: tuple[str, ...] = ()


def what_if_report(study: WhatIf, found: Sensitivity | None, hwdb: Hwdb) -> str:
    """The report of a what-if: HTML. Raises BadInputError without plotly."""
    billed = [row for row in study.rows if row.document and row.bill.known and row.bill.charges]
    return _report(
        PurchaseFigures(
            f"What if: {study.model.name} on {study.rows[0].fleet.cluster.name}",
            study.rows,
            study.tokens,
            study.prices,
            study.terms,
            tuple(row.bill.usd_per_hour if row in billed else None for row in study.rows),
            "USD per hour of training",
            sensitivity=found,
            notes=study.notes,
        ),
        hwdb,
    )


def purchase_report(
    study: PurchaseStudy, tokens: float, found: Sensitivity | None, hwdb: Hwdb, cost_name: str
) -> str:
    """The report of a purchase: HTML. Raises BadInputError without plotly."""
    rows = [(point, row) for point in study.points for row in point.rows]
    front, fleet = study.front, study.points[0].rows[0].fleet.cluster.name
    models = ", ".join(work.model.name for work in study.works)
    words = (
        f"the front of {front.mixes} mixes within the limits: {len(front.simulated)} simulated, "
        f"{front.left_out} bounded away"
    )
    return _report(
        PurchaseFigures(
            f"What to buy: {models} on {fleet}",
            tuple(row for _, row in rows),
            tokens,
            study.prices,
            study.terms,
            tuple(point.simulated.cost for point, _ in rows),
            cost_name,
            tuple(point.simulated.gap for point, _ in rows),
            is_front=len(study.works) == 1,
            sensitivity=found,
            notes=(words, *study.notes),
        ),
        hwdb,
    )


def chosen(question: PurchaseFigures) -> int:
    """The row that the report takes apart, a purchase where there is one with a plan.

    The best by the ranking of the sensitivity; else the cheapest per token where all is billed; else the
    fastest.
    """
    if question.sensitivity is not None:
        return [row.name for row in question.rows].index(question.sensitivity.best)
    planned = [number for number, row in enumerate(question.rows) if row.document is not None]
    rows = question.rows
    bought = [number for number in planned if any(use.bought for use in rows[number].uses)]
    planned = bought or planned
    if all(rows[number].usd_per_million_tokens for number in planned):
        return min(planned, key=lambda number: rows[number].usd_per_million_tokens or 0.0)
    return max(planned, key=lambda number: rows[number].throughput.tokens_per_s)


class _Cited:
    """The sources of each figure of a row."""

    def __init__(self, question: PurchaseFigures, ledger: Ledger) -> None:
        self.question, self.ledger = question, ledger
        self.tokens = ledger.cite("given", f"tokens to train on: {question.tokens:,.4g}")

    def formula(self, key: str) -> str:
        """The id of an equation."""
        return self.ledger.cite("computed", _FORMULAS[key])

    def rate(self, row: WhatIfRow) -> tuple[str, ...]:
        """Throughput: the simulation, the job, failures."""
        if row.document is None:
            return ()
        found = [
            simulated(row.document, row.name, self.ledger),
            given_job(row.document, self.ledger),
            self.formula("rate"),
        ]
        if row.goodput is not None:
            found += [self.formula("goodput"), *self.economics("mtbf_hours", "checkpoint_s", "restart_s")]
            found += self._node_figures(row, "mtbf_hours")
        return tuple(found)

    def economics(self, *names: str) -> list[str]:
        """Figures that all nodes share, as far as they are stated."""
        values = ((name, getattr(self.question.prices.economics, name)) for name in names)
        return [
            self.ledger.cite("price" if value.date else "assumed", f"economics.{name}: {value}")
            for name, value in values
            if value is not None
        ]

    def _node_figures(self, row: WhatIfRow, name: str) -> list[str]:
        facts = ((member.name, self.question.prices.of(member.name)) for member in row.fleet.members)
        return [
            self.ledger.cite("price", f"nodes.{node}.{name}: {getattr(fact, name)}")
            for node, fact in facts
            if getattr(fact, name) is not None
        ]

    def power(self, row: WhatIfRow) -> tuple[str, ...]:
        """Watts: stated in the price file, in the node's row, or those of its GPUs."""
        found = [self.formula("power"), *self._node_figures(row, "power_w")]
        stated = {member.name for member in row.fleet.members if self.question.prices.of(member.name).power_w}
        for member in row.fleet.members:
            if member.name in stated:
                continue
            gpus = f"the GPUs alone ({member.node.gpu.name})"
            what = "the node's row or file" if member.power_is_stated else gpus
            found.append(
                self.ledger.cite("hardware", f"{member.name}: {member.power_w:,.0f} W a node, of {what}")
            )
        return tuple(found)

    def bill(self, row: WhatIfRow) -> tuple[str, ...]:
        """Every charge with its figures and their sources."""
        lines = [
            self.ledger.cite("price", f"{charge.member} {charge.kind}: {charge.basis}")
            for charge in row.bill.charges
        ]
        kinds = {charge.kind for charge in row.bill.charges}
        shared = self.economics("pue", "usd_per_kwh") if "power" in kinds else []
        if "capital" in kinds:
            shared += self.economics("amortisation_years", "utilisation", "upkeep_per_year")
        return (self.formula("bill"), *lines, *shared)


def _report(question: PurchaseFigures, hwdb: Hwdb) -> str:
    script, ledger = figures.library(), Ledger()
    cited, best = _Cited(question, ledger), chosen(question)
    parts = [_candidates(question, cited, best), _front(question, cited)]
    document = question.rows[best].document
    if document is not None:
        parts += sections(document, question.rows[best].name, ledger, hwdb)
    parts += [_costs(question, cited), _hangs_on(question, cited), _notes(question, ledger)]
    row = question.rows[best]
    time = _time(cited, cited.rate(row))
    lead = (
        f"{page.name(row.name)}: {page.figure_of(rate(row), cited.rate(row))} tokens/s, "
        f"{page.figure_of(days(row.days_to_train), time)} for "
        f"{page.figure_of(f'{question.tokens:,.4g}', (cited.tokens,))} tokens."
    )
    return page.page(question.title, lead, [part for part in parts if part], ledger, script)


def _candidates(question: PurchaseFigures, cited: _Cited, best: int) -> str:
    several = len({row.document.model["name"] for row in question.rows if row.document}) > 1
    heads = ["candidate", "tokens/s", "time", "MFU", "GPUs used, and busy", "kW", "capital USD", "USD/h"]
    heads += ["USD per M tokens", "more tokens per USD"] + (["gap"] if question.gaps else [])
    lines = []
    for number, row in enumerate(question.rows):
        document = row.document
        if document is None:
            why = (cited.ledger.cite("simulated", f"{row.name}: the planner found no plan: {row.reason}"),)
            lines.append([Cell(row.name), *[Cell(_UNKNOWN)] * 3, Cell(row.reason, why)])
            lines[-1] += [Cell(_UNKNOWN)] * (len(heads) - 5)
            continue
        name = f"{row.name} ({document.model['name']})" if several else row.name
        speed = cited.rate(row)
        mine = simulated(document, row.name, cited.ledger)
        # A source is entered with the first figure that rests on it: none for what is not known.
        billed = row.bill.known or bool(row.bill.charges)
        paid = cited.bill(row) if billed or row.bill.outlay_usd is not None else ()
        per_token = (*speed, *paid, cited.formula("million")) if billed else ()
        more = row.marginal_tokens_per_usd
        margin = (*speed, *paid, cited.formula("marginal")) if more is not None else ()
        lines.append(
            [
                Cell(name),
                Cell(rate(row), speed, row.throughput.tokens_per_s),
                Cell(days(row.days_to_train), _time(cited, speed), row.days_to_train),
                Cell(f"{document.mfu:.1%}", (mine,), document.mfu),
                Cell(uses(row), (mine,)),
                Cell(f"{row.power_w / 1000:.1f}", cited.power(row), row.power_w),
                _figure(outlay(row), paid, row.bill.outlay_usd),
                _figure(hourly(row), paid, row.bill.usd_per_hour),
                _figure(per_million(row), per_token, row.usd_per_million_tokens),
                _figure(count_of(more), margin, more),
            ]
        )
        if question.gaps:
            gap = question.gaps[number]
            lines[-1].append(Cell(f"{gap:.0%}", (mine, cited.formula("gap")), gap))
    table = page.table("candidates", heads, lines, best, names=(4,))
    hint = "A click on a heading sorts; the plan of the marked row is taken apart below."
    return page.section("Candidates", table, page.caption(hint))


def _time(cited: _Cited, speed: Sequence[str]) -> tuple[str, ...]:
    return (*speed, cited.tokens, cited.formula("time"), *cited.economics("utilisation"))


def _figure(text: str, sources: Sequence[str], value: float | None) -> Cell:
    """A figure that may not be known."""
    return Cell(text, sources, value) if text != _UNKNOWN else Cell(text)


def _front(question: PurchaseFigures, cited: _Cited) -> str:
    planned = [number for number, row in enumerate(question.rows) if row.document is not None]
    billed = [number for number in planned if question.costs[number] is not None]
    shown = billed if len(billed) > 1 else planned
    rows = [question.rows[number] for number in shown]
    costs = [question.costs[number] for number in shown]
    bills = [one for row in rows for one in cited.bill(row)] if shown == billed else []
    sources = dict.fromkeys([*(one for row in rows for one in cited.rate(row)), *bills])
    drawn = figures.front(rows, costs, question.cost_name, question.is_front)
    words = "Bars are 90 % intervals."
    said = page.figure_of(words, tuple(dict.fromkeys(one for row in rows for one in cited.rate(row)[:1])))
    absent = [question.rows[number].name for number in planned if number not in shown]
    if absent:
        said += f" Without a whole bill, hence not shown: {page.name(', '.join(absent))}."
    return page.section("Throughput against cost", page.plot(drawn, tuple(sources)), page.caption(said))


def _costs(question: PurchaseFigures, cited: _Cited) -> str:
    planned = [row for row in question.rows if row.document is not None]
    title, missing = "What the money goes to", dict.fromkeys(n for row in planned for n in row.bill.missing)
    parts = []
    if any(row.bill.charges for row in planned):
        sources = dict.fromkeys(one for row in planned for one in cited.bill(row))
        parts.append(page.plot(figures.cost_bars(planned), tuple(sources)))
        lines = [
            [
                Cell(row.name),
                Cell(charge.member),
                Cell(charge.kind),
                Cell(
                    money(charge.usd_per_hour),
                    (cited.ledger.cite("price", f"{charge.member} {charge.kind}: {charge.basis}"),),
                    charge.usd_per_hour,
                ),
            ]
            for row in planned
            for charge in row.bill.charges
        ]
        parts.append(page.table("charges", ("candidate", "of", "for", "USD/h"), lines, names=(1, 2)))
    if missing:
        parts.append(page.caption(f"Not stated, hence not counted: {page.name(', '.join(missing))}."))
    return page.section(title, *parts)


def _hangs_on(question: PurchaseFigures, cited: _Cited) -> str:
    found = question.sensitivity
    if found is None:
        return ""
    ledger = cited.ledger
    inputs = {
        swing.input.name: ledger.cite(
            "assumed",
            f"{swing.input.name} is {swing.input.base:,.4g}, varied from {swing.input.low:,.4g} to "
            f"{swing.input.high:,.4g}: {swing.input.source}",
        )
        for swing in found.tornado
    }
    row = next(row for row in question.rows if row.name == found.best)
    mine = (*cited.rate(row), *cited.bill(row))
    lines = [
        [
            Cell(swing.input.name),
            Cell(f"{swing.input.low:,.4g}", (inputs[swing.input.name],), swing.input.low),
            Cell(f"{swing.input.high:,.4g}", (inputs[swing.input.name],), swing.input.high),
            Cell(f"{swing.at_low:,.4g}", (inputs[swing.input.name], *mine[:1]), swing.at_low),
            Cell(f"{swing.at_high:,.4g}", (inputs[swing.input.name], *mine[:1]), swing.at_high),
            Cell(f"{swing.width / found.value:.1%}", (inputs[swing.input.name], *mine[:1]), swing.width),
        ]
        for swing in found.tornado
    ]
    heads = ("assumption", "from", "to", "at low end", "at high end", "swing")
    parts = [
        page.plot(figures.tornado(found), (*mine, *inputs.values())),
        page.table("swings", heads, lines),
    ]
    if found.second != found.best:
        flips = [
            [
                Cell(flip.input.name),
                Cell(
                    f"{flip.input.base:,.4g}",
                    (ledger.cite("assumed", f"{flip.input.name}: {flip.input.source}"),),
                ),
                Cell(f"{flip.threshold:,.4g}", (*mine[:1], cited.formula("flip")), flip.threshold),
                Cell(f"{flip.change:+.1%}", (*mine[:1], cited.formula("flip")), flip.change),
            ]
            for flip in found.flips
        ]
        second, best = page.name(found.second), page.name(found.best)
        what = f"{second} would overtake {best} if one assumption were otherwise"
        if flips:
            parts += [
                page.caption(what + ":"),
                page.table("flips", ("assumption", "is", "were", "change"), flips),
            ]
        else:
            parts.append(page.caption(f"No single assumption within reach makes {second} the best."))
    return page.section("What the answer hangs on", *parts)


def _notes(question: PurchaseFigures, ledger: Ledger) -> str:
    """What was missing, assumed or left out."""
    if not question.notes:
        return ""
    source = (ledger.cite("computed", "notes of the study: what was missing, assumed or left out"),)
    items = "".join(f"<li>{page.figure_of(note, source)}</li>" for note in question.notes)
    return page.section("Notes", f"<ul>{items}</ul>")

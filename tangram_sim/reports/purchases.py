"""HTML reports of `what-if` and `purchase`: conclusion, chart, candidates, chosen plan, sensitivity."""

from collections.abc import Sequence
from dataclasses import replace

from tangram_sim.hwdb import Hwdb
from tangram_sim.purchasing.billing import Charge
from tangram_sim.purchasing.catalogue import NOTHING, STANDS
from tangram_sim.purchasing.purchase import PurchaseStudy
from tangram_sim.purchasing.recommend import Recommendation
from tangram_sim.purchasing.rows import WhatIfRow
from tangram_sim.purchasing.sensitivity import Sensitivity, Swing
from tangram_sim.purchasing.whatif import WhatIf
from tangram_sim.purchasing.words import count_of, hourly, money, outlay, per_million, uses
from tangram_sim.reports import charts, page, rounding
from tangram_sim.reports.assumptions import in_words, keys_in_words
from tangram_sim.reports.cited import CitedFigures
from tangram_sim.reports.columns import Sources, ViewColumn, share
from tangram_sim.reports.ledger import Cell, Ledger
from tangram_sim.reports.plan_sections import job_line, sections, simulated
from tangram_sim.reports.question import PurchaseFigures, chosen
from tangram_sim.reports.rounding import with_interval
from tangram_sim.reports.sheet import sheet
from tangram_sim.reports.verdict import answer, flips_of, judged
from tangram_sim.units import percent, show_amount

_UNKNOWN = "-"
_USED = "GPUs used, and busy"
_CHARGES = (
    ViewColumn("candidate", "0.name"),
    ViewColumn("of", "1.member"),
    ViewColumn("for", "1.kind"),
    ViewColumn("USD/h", "1.usd_per_hour", money, "bill"),
)
_ON_A_PHONE = 6  # columns: name, time, total, power, capital, USD per hour


def what_if_report(study: WhatIf, found: Sensitivity | None, hwdb: Hwdb) -> str:
    """The report of a what-if: HTML."""
    billed = [row for row in study.rows if row.document and row.bill.known and row.bill.charges]
    return _report(
        PurchaseFigures(
            title=f"What if: {study.model.name} on {study.rows[0].fleet.cluster.name}",
            rows=study.rows,
            billing=study.billing,
            costs=tuple(row.bill.usd_per_hour if row in billed else None for row in study.rows),
            cost_name="USD per hour of training",
            sensitivity=found,
            notes=study.notes,
        ),
        hwdb,
    )


def recommendation_report(study: Recommendation, found: Sensitivity | None, hwdb: Hwdb) -> str:
    """The report of a purchase with a goal: HTML."""
    what = study.as_what_if()
    return _report(
        PurchaseFigures(
            title=f"What to rent or buy for {study.work.model.name}",
            rows=what.rows,
            billing=what.billing,
            costs=tuple(row.bill.usd_per_hour if row.bill.known else None for row in what.rows),
            cost_name="USD per hour of training",
            sensitivity=found,
            notes=what.notes,
            recommended=0,
            changes=tuple(study.changes()),
        ),
        hwdb,
    )


def purchase_report(study: PurchaseStudy, found: Sensitivity | None, hwdb: Hwdb, cost_name: str) -> str:
    """The report of a purchase: HTML."""
    rows = [(point, replace(row, name=_named(row.name))) for point in study.points for row in point.rows]
    if found is not None:
        found = replace(found, best=_named(found.best), second=_named(found.second))
    front, fleet = study.front, study.points[0].rows[0].fleet.cluster.name
    models = ", ".join(work.model.name for work in study.works)
    words = (
        f"the front of {front.mixes} mixes within the limits: {len(front.simulated)} simulated, "
        f"{front.left_out} bounded away"
    )
    return _report(
        PurchaseFigures(
            title=f"What to buy: {models} on {fleet}",
            rows=tuple(row for _, row in rows),
            billing=study.billing,
            costs=tuple(point.simulated.cost for point, _ in rows),
            cost_name=cost_name,
            gaps=tuple(point.simulated.gap for point, _ in rows),
            is_front=len(study.works) == 1,
            sensitivity=found,
            notes=(words, *(note.replace(f"`{NOTHING}`", f"`{STANDS}`") for note in study.notes)),
        ),
        hwdb,
    )


def _named(mix: str) -> str:
    """A mix as named in a sentence; an empty purchase keeps the fleet as it stands."""
    return STANDS if mix == NOTHING else mix


def _report(question: PurchaseFigures, hwdb: Hwdb) -> str:
    ledger = Ledger()
    cited, (best, why) = CitedFigures(question, ledger), chosen(question)
    row = question.rows[best]
    document = row.document
    # Money, power and time come first; the plan behind them is for whoever reads on.
    parts = [_front(question, cited, row), _candidates(question, cited, best)]
    parts += [_costs(question, cited), _hangs_on(question, cited)]
    said, job = "No candidate has a plan; the table says why.", ""
    if document is not None:
        said, job = answer(question, row, why, cited), job_line(document, ledger)
        parts.insert(0, page.verdict(judged(question, row, cited, hwdb)))
        parts.insert(0, sheet(question, row, cited, said, flips_of(question, row, cited)))
        parts += sections(document, row.name, ledger, hwdb)
    tokens = page.figure_of(f"{show_amount(question.billing.tokens)} tokens", (cited.tokens,))
    if question.notes:
        source = ledger.cite("computed", "notes of the study: what was missing, assumed or left out")
        parts.append(page.note_list([keys_in_words(note) for note in question.notes], source))
    return page.page(question.title, f"{tokens}; {job}", said, [part for part in parts if part], ledger)


def _candidates(question: PurchaseFigures, cited: CitedFigures, best: int) -> str:
    several = len({row.document.model["name"] for row in question.rows if row.document}) > 1
    heads = ["candidate", "time", "total USD", "site kW", "capital USD", "USD/h", "USD per M tokens"]
    heads += ["more tokens per USD", "tokens/s", "MFU", _USED]
    heads += ["gap"] if question.gaps else []
    lines = []
    for number, row in enumerate(question.rows):
        document = row.document
        if document is None:
            why = (cited.ledger.cite("simulated", f"{row.name}: the planner found no plan: {row.reason}"),)
            lines.append([Cell(row.name), Cell(row.reason, why)])
            lines[-1] += [Cell(_UNKNOWN)] * (len(heads) - 2)
            continue
        name = f"{row.name} ({document.model['name']})" if several else row.name
        speed, mine, found = cited.rate(row), simulated(document, row.name, cited.ledger), row.throughput
        # A source is entered with the first figure that rests on it: none for what is not known.
        billed = row.bill.known or bool(row.bill.charges)
        paid = cited.bill(row) if billed or row.bill.outlay_usd is not None else ()
        per_token = (*speed, *paid, cited.formula("million")) if billed else ()
        more = row.marginal_tokens_per_usd
        margin = (*speed, *paid, cited.formula("marginal")) if more is not None else ()
        total = row.usd_to_train if row.bill.known else None
        lines.append(
            [
                Cell(name),
                Cell(rounding.time_with_interval(row.days_to_train), cited.time(row), row.days_to_train),
                _figure(money(total), cited.total(row) if total is not None else (), total),
                Cell(f"{row.site_kw:.1f}", cited.power(row), row.site_kw),
                _figure(outlay(row), paid, row.bill.outlay_usd),
                _figure(hourly(row), paid, row.bill.usd_per_hour),
                _figure(per_million(row), per_token, row.usd_per_million_tokens),
                _figure(count_of(more), margin, more),
                Cell(with_interval(found.tokens_per_s, found.low, found.high), speed, found.tokens_per_s),
                Cell(percent(document.mfu, 1), (mine,), document.mfu),
                Cell(uses(row), (mine,)),
            ]
        )
        if question.gaps:
            gap = question.gaps[number]
            lines[-1].append(Cell(percent(gap), (mine, cited.formula("gap")), gap))
    # What is known of no candidate is a column of dashes: what is missing is said below.
    known = [at for at in range(len(heads)) if at == 0 or any(line[at].text != _UNKNOWN for line in lines)]
    table = page.table(
        "candidates",
        [heads[at] for at in known],
        [[line[at] for at in known] for line in lines],
        best,
        names=(known.index(heads.index(_USED)),) if heads.index(_USED) in known else (),
        first=_ON_A_PHONE,
    )
    below = "The marked row's plan is taken apart below."
    hint = "A heading sorts. Point at a figure for its sources."
    every = '<button type="button" class="every" data-table="candidates">all columns</button>'
    return page.section(
        "Candidates", table, page.caption(f'{below} <span class="screen">{hint} {every}</span>')
    )


def _figure(text: str, sources: Sequence[str], value: float | None) -> Cell:
    """A cell with a figure and its sources, or `-` if it is not known."""
    return Cell(text, sources, value) if text != _UNKNOWN else Cell(text)


def _front(question: PurchaseFigures, cited: CitedFigures, best: WhatIfRow) -> str:
    planned = [number for number, row in enumerate(question.rows) if row.document is not None]
    if not planned:
        return ""
    billed = [number for number in planned if question.costs[number] is not None]
    shown = billed if len(billed) > 1 else planned
    rows = [question.rows[number] for number in shown]
    costs = [question.costs[number] for number in shown]
    bills = [item for row in rows for item in cited.bill(row)] if shown == billed else []
    sources = dict.fromkeys([*(item for row in rows for item in cited.rate(row)), *bills])
    drawn = charts.front(rows, costs, question.cost_name, line=question.is_front, chosen=best.name)
    rates = tuple(dict.fromkeys(item for row in rows for item in cited.rate(row)[:1]))
    priced = drawn["kind"] == "points"  # only points are drawn with their intervals
    title = "Throughput against cost" if priced else "Throughput"
    said = page.figure_of("Bars are 90 % intervals." if priced else "Longer is faster.", rates)
    absent = [question.rows[number].name for number in planned if number not in shown]
    if absent:
        said += f" Without a whole bill, hence not shown: {page.name(', '.join(absent))}."
    return page.section(title, page.chart("front", drawn, tuple(sources)), page.caption(said))


def _costs(question: PurchaseFigures, cited: CitedFigures) -> str:
    planned = [row for row in question.rows if row.document is not None]
    title, missing = "What the money goes to", dict.fromkeys(n for row in planned for n in row.bill.missing)
    parts = []
    if any(row.bill.charges for row in planned):
        sources = dict.fromkeys(item for row in planned for item in cited.bill(row))
        parts.append(page.chart("costs", charts.cost_bars(planned), tuple(sources)))

        def charged(line: tuple[WhatIfRow, Charge]) -> Sources:
            charge = line[1]
            return {"bill": cited.ledger.cite("price", f"{charge.member} {charge.kind}: {charge.basis}")}

        lines = [(row, charge) for row in planned for charge in row.bill.charges]
        parts.append(
            page.folded("Every charge", page.view("charges", _CHARGES, lines, charged, names=(1, 2)))
        )
    if missing:
        words = "; ".join(keys_in_words(item) for item in missing)
        parts.append(page.caption(f"Not stated, hence not counted: {page.name(words)}."))
    return page.section(title, *parts)


def _hangs_on(question: PurchaseFigures, cited: CitedFigures) -> str:
    found = question.sensitivity
    if found is None:
        return ""
    ledger, shown = cited.ledger, charts.mattering(found)
    inputs = {
        swing.input.name: ledger.cite(
            "assumed",
            f"{swing.input.name} is {swing.input.base:,.4g}, varied from {swing.input.low:,.4g} to "
            f"{swing.input.high:,.4g}: {swing.input.source}",
        )
        for swing in shown
    }
    row = next(row for row in question.rows if row.name == found.best)
    mine = (*cited.rate(row), *cited.bill(row))
    columns = (
        ViewColumn("assumption", lambda swing: in_words(swing.input.name)),
        ViewColumn("swing", lambda swing: swing.width / found.value, share(1), "input best"),
        ViewColumn("from", "input.low", _short, "input"),
        ViewColumn("to", "input.high", _short, "input"),
        ViewColumn("at low end", "at_low", _short, "input best"),
        ViewColumn("at high end", "at_high", _short, "input best"),
    )

    def sources(swing: Swing) -> Sources:
        return {"input": inputs[swing.input.name], "best": mine[:1]}

    unit = "USD per million tokens" if found.score == "usd_per_million_tokens" else "tokens/s"
    parts = [page.caption(f"How far each assumption alone moves the {unit} of {page.name(found.best)}.")]
    if shown:
        parts += [
            page.chart("tornado", charts.tornado(found), (*mine, *inputs.values())),
            page.folded("In figures", page.view("swings", columns, shown, sources, first=2)),
        ]
    rest = len(found.tornado) - len(shown)
    if rest:
        small = f"{rest} more assumptions move it by less than {percent(charts.MATTERS, 1)}."
        many = f"{rest} more assumptions move it by less than these."
        words = many if len(shown) == charts.MOST_SWINGS else small
        parts.append(page.caption(page.figure_of(words, mine[:1])))
    return page.section("What the answer hangs on", *parts)


def _short(value: float) -> str:
    """A figure to three digits, without powers of ten."""
    return rounding.number(rounding.rounded(value))

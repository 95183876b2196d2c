"""Notes to a study of purchases: which costs are left out, why, what to supply, what to beware of."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tangram_sim.hwdb.prices import PRICES as PRICED
from tangram_sim.purchasing import costs
from tangram_sim.purchasing.billing import break_even_of, failure_lacks
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.studies.cautions import NEARLY_FULL, OPEN, assumed_of, between_vendors, doubted
from tangram_sim.studies.usual_failures import ASSUMED_SECONDS
from tangram_sim.units import percent

if TYPE_CHECKING:
    from tangram_sim.purchasing.rows import WhatIfRow
    from tangram_sim.studies.documents import PlanDocument


def cautions_of(rows: Sequence["WhatIfRow"]) -> list[str]:
    """Notes on rows that have a plan, the gravest first; each names its rows, unless it holds for all."""
    found: dict[tuple[int, str], dict[str, None]] = {}
    planned = [(row, row.document) for row in rows if row.document is not None]
    formats = {document.job.dtype for _, document in planned}
    for row, document in planned:
        for grave, said in enumerate(_said_of(row, document, formats)):
            if said:
                found.setdefault((grave, said), {})[row.name] = None
    names = dict.fromkeys(row.name for row, _ in planned)
    return [
        f"{where(of, names)}: {said}" for (_, said), of in sorted(found.items(), key=lambda item: item[0])
    ]


def doubts_of(rows: Sequence["WhatIfRow"], how: str) -> list[str]:
    """Kinds of GPUs whose efficiencies are assumed, or inherited (`how`), in the plans of these rows."""
    documents = [row.document for row in rows if row.document is not None]
    return doubted((kind for document in documents for kind in document.gpu_kinds), (how,))


def where(some: Iterable[str], every: Iterable[str]) -> str:
    """`every row`, or the names of some."""
    named = list(some)
    return "every row" if set(named) == set(every) else ", ".join(f"`{name}`" for name in named)


def _said_of(row: "WhatIfRow", document: "PlanDocument", formats: set[str]) -> Iterator[str]:
    """One sentence for each thing to warn of, always in this order; empty where it does not apply.

    `formats` are the number formats of all rows: `auto` keeps or leaves out old GPUs.
    """
    used = zip(row.fleet.members, row.uses, strict=True)
    vendors = {member.node.gpu.vendor for member, use in used if use.gpus_used}
    yield between_vendors(vendors).text if len(vendors) > 1 else ""
    full = max(stage.peak_memory_bytes / stage.memory_capacity_bytes for stage in document.stages)
    yield "the fullest GPU has less than 5 % of its memory free" if full > NEARLY_FULL else ""
    others = ", ".join(sorted(formats - {"fp16"}))
    yield (
        f"planned in fp16, with loss scaling, as GPUs without bf16 need it; the others in {others}"
        if others and document.job.dtype == "fp16"
        else ""
    )
    apart = document.step_s_high / document.step_s_low if document.step_s_low else 1.0
    yield (
        f"the ends of the interval are {OPEN:.0f} times apart or more: its rank is open; one measured step "
        "narrows it (`tangram calibrate run`)"
        if apart >= OPEN
        else ""
    )


OLD = timedelta(days=365)  # prices of accelerators move by half in such a time
HARDLY = 0.1  # busy less than that: not worth its power, which its row says in watts


def this_day() -> date:
    """Today's date, from which the age of prices is counted."""
    return date.today()


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Buying against renting on demand, for a node that has both prices."""

    node: str
    hours: Annotated[float | None, Field(description="of training until buying has cost less; null: never")]
    years: float | None

    def __str__(self) -> str:
        when = "never"
        if self.hours is not None and self.years is not None:
            when = f"after {self.hours:,.0f} hours of training ({self.years:.1f} years)"
        return f"buying a {self.node} has cost less than renting it on demand {when}"


def break_evens(rows: Sequence["WhatIfRow"], prices: Prices) -> list[BreakEven]:
    """Break-even hours for every bought node that has both prices, each once."""
    found: dict[str, BreakEven] = {}
    for row, member in ((each, member) for each in rows for member in each.fleet.members if member.bought):
        hours = break_even_of(member, prices, row.each_w)
        if hours is not None:
            years = hours / costs.HOURS_PER_YEAR / prices.economics.utilisation.value
            ends = (hours, years) if math.isfinite(hours) else (None, None)
            found.setdefault(member.name, BreakEven(member.name, *ends))
    return list(found.values())


def tokens_per_s_means(failures: bool) -> str:
    """A sentence on what tokens/s means in these studies: with failures counted or without."""
    if failures:
        return "tokens/s: as simulated, times goodput (failures, checkpoints and restarts take the rest)"
    return "tokens/s: as simulated; time lost to failures is not taken off"


def notes_of(rows: Sequence["WhatIfRow"], prices: Prices, today: date | None = None) -> list[str]:
    """What speaks against the plans and prices behind a ranking, then missing figures, each once."""
    planned = [row for row in rows if row.document is not None]
    notes = [*cautions_of(planned), *_idle(planned), *_old_prices(rows, prices, today or this_day())]
    notes += [*doubts_of(planned, "assumed"), *_not_counted(planned)]
    return [
        *notes,
        *_rents_of_kinds(rows, prices),
        *_failures(planned, prices),
        *_left_open(rows),
        *map(str, break_evens(rows, prices)),
        *doubts_of(planned, "inherited"),
    ]


def _rents_of_kinds(rows: Sequence["WhatIfRow"], prices: Prices) -> list[str]:
    """Notes on nodes whose rent is taken from the lowest rent of their GPU kind, as no price row has it."""
    rents = {
        member.name: prices.of(member).rent_usd_per_hour
        for row in rows
        for member in row.fleet.members
        if member.bought and member.name not in prices.nodes
    }
    return [f"rent of {name}: {rent}" for name, rent in rents.items() if rent is not None]


def _left_open(rows: Sequence["WhatIfRow"]) -> list[str]:
    """Notes on the links and NICs assumed for nodes that are given by their GPUs alone."""
    members = (member for row in rows for member in row.fleet.members)
    said = assumed_of((member.label, member.node) for member in members)
    return [f"{', '.join(names)}: {label}" for label, names in said.items()]


def price_file(figures: Iterable[str]) -> str:
    """A price file in YAML with the missing figures to fill in; empty if none is missing.

    Figures are keys as in `Lack`; where one of two is enough the second is a comment.
    """
    wanted: dict[str, dict[str, str]] = {}
    for figure in figures:
        name, _, other = figure.partition(" or ")
        section, _, key = name.rpartition(".")
        wanted.setdefault(section, {}).setdefault(key, other.rpartition(".")[2])
    nodes = [section for section in wanted if section != "economics"]
    lines = ["nodes:"] if nodes else []
    for section in nodes:
        lines.append(f"  {section.removeprefix('nodes.')}: {_entry(wanted[section])}")
    if "economics" in wanted:
        lines.append(f"economics: {_entry(wanted['economics'])}")
    return "\n".join(lines)


def _entry(keys: dict[str, str]) -> str:
    stated = ", ".join(f"{key}: NUMBER" for key in keys)
    others = [f"or {other}" for other in keys.values() if other]
    remark = f"  # {', '.join(others)}" if others else ""
    return f"{{{stated}, date: YYYY-MM-DD, source: WHO SAYS SO}}{remark}"


def _not_counted(rows: Sequence["WhatIfRow"]) -> list[str]:
    """Notes on costs missing from bills: in which rows, and which figures are needed."""
    found: dict[tuple[str, ...], tuple[dict[str, None], dict[str, None]]] = {}
    for row in rows:
        for lack in row.bill.lacks:
            members, names = found.setdefault(lack.figures, ({}, {}))
            members[lack.member.removeprefix("+")] = names[row.name] = None
    return [
        f"costs leave out {', '.join(members)} in "
        f"{where(names, (row.name for row in rows))}, "
        f"for want of {', '.join(figures)}"
        for figures, (members, names) in found.items()
    ]


def _old_prices(rows: Sequence["WhatIfRow"], prices: Prices, today: date) -> list[str]:
    """A note on prices of nodes in these rows that are more than a year old."""
    named = {member.name: member for row in rows for member in row.fleet.members if member.name}
    old = [
        f"{name} ({key.removesuffix('_usd_per_hour').removesuffix('_usd')} of {figure.date})"
        for name, member in named.items()
        for key in PRICED
        if (figure := getattr(prices.of(member), key)) is not None
        and figure.date
        and today - date.fromisoformat(figure.date) > OLD
    ]
    if not old:
        return []
    return [f"prices older than a year: {', '.join(old)}; ask again before a ranking rests on them"]


def _failures(rows: Sequence["WhatIfRow"], prices: Prices) -> list[str]:
    members = [member for row in rows for member in row.fleet.members]
    missing = failure_lacks(members, prices)
    if missing:
        return [f"failures are not counted, for want of {', '.join(missing)}"]
    economics = prices.economics
    taken = []
    if economics.mtbf_hours is not None and not economics.mtbf_hours.date:
        taken.append(f"failures of nodes are {economics.mtbf_hours.source} (mtbf_hours)")
    if economics.checkpoint_s is None or economics.restart_s is None:
        taken.append(f"checkpoints and restarts are {ASSUMED_SECONDS} (checkpoint_s, restart_s)")
    best = rows[0].goodput if rows else None
    lost = [f"{what} {percent(share, 1)}" for what, share in best.lost] if best else []
    on_spot = [f"of the time of `{rows[0].name}` on spot: {', '.join(lost)}"] if lost else []
    return [*on_spot, *(["; ".join(taken)] if taken else [])]


def _idle(rows: Sequence["WhatIfRow"]) -> list[str]:
    """Notes on existing GPUs that a plan hardly uses or does not use at all: they only add cost."""
    idle: dict[str, list[str]] = {}
    for row in rows:
        for use in row.uses:
            if not use.bought and use.busy < HARDLY:
                what = f"{use.label} ({use.gpus} x {use.gpu}) "
                what += f"only {percent(use.busy)} of its time" if use.gpus_used else "not at all"
                idle.setdefault(what, []).append(f"`{row.name}`")
    return [
        f"the plan for {', '.join(names)} uses {what}; `remove=` shows what is lost without it"
        for what, names in idle.items()
    ]

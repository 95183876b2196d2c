"""Sensitivity analysis: how much each input changes the score, and the value at which the winner changes.

Inputs of the bill vary by a fixed share; efficiencies and networks by the standard error of their row. Plans
stay as they are: a changed efficiency changes a plan's predicted time, but no new plan is searched for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tangram_sim.hwdb import Hwdb, ReadSet, collectives
from tangram_sim.hwdb import Row as HwdbRow
from tangram_sim.hwdb.efficiency import PARAMETERS
from tangram_sim.hwdb.prices import Figure
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.billing import RENTED, rent_of, way_of
from tangram_sim.purchasing.pricefile import Economics, NodeFacts, Prices
from tangram_sim.purchasing.rows import WhatIfRow, kinds_of
from tangram_sim.purchasing.whatif import WhatIf
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import forecast, seconds_of
from tangram_sim.studies.planfile import plan_from_document

SPREAD = 0.2  # of prices, power and the like, where nobody states an interval
REACH = 10.0  # thresholds of prices are looked for between a tenth and ten times the figure
_GRID, _HALVINGS, _REPLAYS = 60, 60, 12
_LIMITS = {"utilisation": (0.0, 1.0), "pue": (1.0, math.inf)}


@dataclass(frozen=True, slots=True)
class Input:
    """One assumption, with the interval over which it is varied."""

    name: str
    base: float
    low: float
    high: float
    source: str
    row: HwdbRow | None = None  # of the efficiency table; None: a figure of the bill


@dataclass(frozen=True, slots=True)
class Swing:
    """The scores at both ends of an input's interval."""

    input: Input
    at_low: float
    at_high: float

    @property
    def width(self) -> float:
        """The difference of the two scores."""
        return abs(self.at_high - self.at_low)


@dataclass(frozen=True, slots=True)
class Flip:
    """The value of an input, nearest to its present one, at which the second candidate overtakes the best."""

    input: Input
    threshold: float

    @property
    def change(self) -> float:
        """The relative change of the input at that value: 0.1 is 10 % more."""
        return self.threshold / self.input.base - 1


def _nearness(flip: Flip) -> tuple[float, str]:
    """Sort key of flips: the size of the change (logarithm of the ratio, to 0.01), then the input's name.

    The search for a threshold has a tolerance: rounding keeps it from changing the order.
    """
    return round(abs(math.log(max(1 + flip.change, 1e-12))), 2), flip.input.name


@dataclass(frozen=True)
class Sensitivity:
    """How each input changes the best candidate's score, and which values would put the second first."""

    score: str  # usd_per_million_tokens (less is better) or tokens_per_s (more is better)
    best: str
    second: str
    value: float
    tornado: tuple[Swing, ...]  # widest first
    flips: tuple[Flip, ...]  # nearest first
    steady: tuple[str, ...]  # inputs that flip nothing as far as was looked
    unpriced: tuple[str, ...] = ()  # candidates without a whole bill: not in the ranking
    unseen: tuple[str, ...] = ()  # inputs that time did not suffice for


def sensitivity(study: WhatIf, hwdb: Hwdb, deadline: Deadline | None = None) -> Sensitivity:
    """The sensitivity of a what-if, among the candidates that buy something if there are several.

    The score is USD per million tokens among candidates with complete bills, else tokens/s. The best is held
    against the best of other kinds of nodes, where there is one. Inputs are varied one after another until
    the `deadline` is over.
    """
    deadline = deadline or Deadline()
    rows = study.contenders
    priced = tuple(row for row in rows if row.bill.known and row.bill.usd_per_hour > 0)
    billed = len(priced) > 1 or len(priced) == len(rows)
    rows, unpriced = (priced, [row.name for row in rows if row not in priced]) if billed else (rows, [])
    measure = _Measure(study, hwdb, billed, deadline)
    ranked = sorted(rows, key=lambda row: measure.score(row) * (1 if billed else -1))
    best = ranked[0]
    second = next((row for row in ranked if kinds_of(row) != kinds_of(best)), ranked[min(1, len(ranked) - 1)])
    inputs = [*_bill_inputs(study, [best, second]), *measure.efficiencies([best, second])]
    swings, flips, steady, unseen = [], list[Flip](), list[str](), list[str]()
    for uncertain_input in inputs:
        try:
            ends = (uncertain_input.low, uncertain_input.high)
            swings.append(Swing(uncertain_input, *(measure.at(best, uncertain_input, end) for end in ends)))
            threshold = None
            if best is not second:
                lead = partial(measure.lead, best, second, uncertain_input)
                threshold = _threshold(lead, uncertain_input)
        except _OutOfTimeError:
            unseen.append(uncertain_input.name)
            continue
        if threshold is not None:
            flips.append(Flip(uncertain_input, threshold))
        elif best is not second:
            steady.append(uncertain_input.name)
    return Sensitivity(
        score="usd_per_million_tokens" if billed else "tokens_per_s",
        best=best.name,
        second=second.name,
        value=measure.score(best),
        tornado=tuple(sorted((swing for swing in swings if swing.width > 0), key=lambda swing: -swing.width)),
        flips=tuple(sorted(flips, key=_nearness)),
        steady=tuple(steady),
        unpriced=tuple(unpriced),
        unseen=tuple(unseen),
    )


class _OutOfTimeError(Exception):
    """No time is left before the deadline for another simulation."""


class _Measure:
    """Computes scores of rows with one input changed; simulations with changed hardware rows are kept.

    Raises _OutOfTimeError if the deadline leaves no time for a simulation; bills need none.
    """

    def __init__(self, study: WhatIf, hwdb: Hwdb, billed: bool, deadline: Deadline) -> None:
        self.study, self.hwdb, self.billed, self.deadline = study, hwdb, billed, deadline
        self._steps: dict[tuple[str, str, float], float] = {}

    def score(self, row: WhatIfRow) -> float:
        """USD per million tokens, or tokens per second."""
        return row.usd_per_million_tokens or 0.0 if self.billed else row.throughput.tokens_per_s

    def at(self, row: WhatIfRow, uncertain_input: Input, value: float) -> float:
        """The score of a row with one input changed."""
        prices, document = self.study.billing.prices, row.document
        if document is None:
            return 0.0
        if uncertain_input.row is None:
            prices = with_figure(prices, uncertain_input.name, value)
        else:
            step_s = self._step_s(row.name, document, uncertain_input, value)
            document = document.with_fields(step_s=step_s, mfu=document.mfu * document.step_s / step_s)
        billing = replace(self.study.billing, prices=prices)
        return self.score(billing.row(row.name, row.fleet, document))

    def lead(self, best: WhatIfRow, second: WhatIfRow, uncertain_input: Input, value: float) -> float:
        """How much better `best` scores than `second`; negative if `second` has overtaken it."""
        ahead = self.at(second, uncertain_input, value) - self.at(best, uncertain_input, value)
        return ahead if self.billed else -ahead

    def efficiencies(self, rows: Sequence[WhatIfRow]) -> list[Input]:
        """The efficiency and network rows that the plans' times depend on, varied by one standard error."""
        reads = ReadSet()
        database = self.hwdb.read_into(reads)
        for row in rows:
            if row.document is not None:
                forecast(plan_from_document(row.document, database, row.name), database)
        found = []
        for read in reads.rows():
            value, sigma = read.number("value"), read.number("sigma")
            if sigma <= 0 or value <= 0 or _known(read) is None:
                continue
            least, most = _range(read)
            low, high = max(value - sigma, least), min(value + sigma, most)
            found.append(Input(_named(read), value, low, high, read["source"], read))
        return found

    def _step_s(self, name: str, document: PlanDocument, uncertain_input: Input, value: float) -> float:
        key = (name, uncertain_input.name, value)
        if uncertain_input.row is None or value == uncertain_input.base:
            return document.step_s
        if key not in self._steps:
            if self.deadline.over():
                raise _OutOfTimeError
            changed = replace(uncertain_input.row, cells={**uncertain_input.row.cells, "value": repr(value)})
            database = self.hwdb.with_row(changed)
            self._steps[key] = seconds_of(plan_from_document(document, database, name), database)
        return self._steps[key]


def _known(row: HwdbRow) -> tuple[float, float] | None:
    """(lowest, highest) sensible value of a row; None if the row changes no prediction."""
    if row.table == "efficiency":
        kernel = PARAMETERS.get((row["kernel"], row["parameter"]))
        return (kernel.lowest, kernel.highest) if kernel else None
    if row.table == "collectives" and row["parameter"] != "error":
        pattern = collectives.PARAMETERS[row["parameter"]]
        return pattern.lowest, pattern.highest
    return None


def _range(row: HwdbRow) -> tuple[float, float]:
    """(lowest, highest) sensible value of a row, the lowest above zero."""
    lowest, highest = _known(row) or (0.0, math.inf)
    return max(lowest, 0.01 * row.number("value")), highest


def _named(row: HwdbRow) -> str:
    """A readable name for the value of a row: kernel or pattern, parameter, link, GPU, number format."""
    what = f"{row['kernel'] or row['pattern']} {row['parameter']} of "
    what += " ".join(part for part in (row["link"], row["gpu"]) if part not in ("", "*")) or "any"
    return what + (f" in {row['dtype']}" if row["dtype"] not in ("", "*") else "")


def _bill_inputs(study: WhatIf, rows: Sequence[WhatIfRow]) -> list[Input]:
    """Every figure that the bills of `rows` use, with the interval to vary it over."""
    found: dict[str, Input] = {}
    prices = study.billing.prices

    def add(name: str, figure: Figure | None) -> None:
        if figure is not None and figure.value > 0:
            least, most = _LIMITS.get(name.rpartition(".")[2], (0.0, math.inf))
            low, high = max(figure.value * (1 - SPREAD), least), min(figure.value * (1 + SPREAD), most)
            found.setdefault(name, Input(name, figure.value, low, high, str(figure)))

    for row in rows:
        for member in row.fleet.members:
            way = way_of(member, prices, study.billing.terms, row.days_to_train)
            facts, where = prices.of(member), member.name
            if way in RENTED:
                add(f"nodes.{where}.{way}_usd_per_hour", rent_of(member, prices, way))
            else:
                if way == "buy":
                    add(f"nodes.{where}.capital_usd", facts.capital_usd)
                add(f"nodes.{where}.power_w", facts.power_w)
            add(f"nodes.{where}.mtbf_hours", facts.mtbf_hours)
    for name in Economics.__dataclass_fields__:
        add(f"economics.{name}", getattr(prices.economics, name))
    return list(found.values())


def with_figure(prices: Prices, name: str, value: float) -> Prices:
    """Prices with one figure replaced; `name` is `economics.KEY` or `nodes.NODE.KEY`."""
    section, _, rest = name.partition(".")
    figure = Figure(value, "varied")
    if section == "economics":
        return replace(prices, economics=replace(prices.economics, **{rest: figure}))
    node, _, key = rest.rpartition(".")
    facts: NodeFacts = replace(prices.nodes.get(node, NodeFacts()), **{key: figure})
    return replace(prices, nodes={**prices.nodes, node: facts})


def _threshold(lead: Callable[[float], float], uncertain_input: Input) -> float | None:
    """The value nearest to the input's base at which `lead` becomes negative; None where it never does.

    Figures of a bill are searched between figure / REACH and figure x REACH, efficiencies over three standard
    errors.
    """
    if uncertain_input.row is None:
        least, most = _LIMITS.get(uncertain_input.name.rpartition(".")[2], (0.0, math.inf))
        ends = (max(uncertain_input.base / REACH, least), min(uncertain_input.base * REACH, most))
        steps, halvings = _GRID, _HALVINGS
    else:
        sigma = uncertain_input.row.number("sigma")
        least, most = _range(uncertain_input.row)
        ends = (max(uncertain_input.base - 3 * sigma, least), min(uncertain_input.base + 3 * sigma, most))
        steps, halvings = 1, _REPLAYS
    crossings = []
    for end in ends:
        inside = uncertain_input.base
        for step in range(1, steps + 1):
            share = (end / uncertain_input.base) ** (step / steps) if end > 0 else 1.0
            value = uncertain_input.base * share
            if lead(value) < 0:
                crossings.append(_bisect(lead, inside, value, halvings))
                break
            inside = value
    return min(crossings, key=lambda value: abs(math.log(value / uncertain_input.base)), default=None)


def _bisect(lead: Callable[[float], float], inside: float, outside: float, halvings: int) -> float:
    for _ in range(halvings):
        middle = (inside + outside) / 2
        if lead(middle) < 0:
            outside = middle
        else:
            inside = middle
    return outside

"""What-if: a fleet with nodes added or removed is planned, simulated and billed; one row per candidate."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing import costs
from tangram_sim.purchasing.billing import Bill, Terms, bill, failure_lacks, goodput_of, power_w_of
from tangram_sim.purchasing.cases import Case, outcome, overlays_of, simulate_case
from tangram_sim.purchasing.fleets import Fleet, Purchase
from tangram_sim.purchasing.known import known_on
from tangram_sim.purchasing.notes import notes_of
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.sweep import Answer, Sweep
from tangram_sim.training.job import Job
from tangram_sim.units import HOUR_S


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second as simulated, with its 90 % interval (both ends equal to it if not known)."""

    tokens_per_s: float
    low: float
    high: float


def throughput_of(document: PlanDocument, good: costs.Goodput | None = None) -> Throughput:
    """Tokens per second of a plan with their 90 % interval, times goodput. Used for all such figures."""
    tokens = document.job.global_batch * document.job.seq * (good.fraction if good else 1.0)
    rate = tokens / document.step_s
    if not document.step_s_high or not document.step_s_low:
        return Throughput(rate, rate, rate)
    return Throughput(rate, tokens / document.step_s_high, tokens / document.step_s_low)


def planned_goodput(fleet: Fleet, document: PlanDocument, prices: Prices) -> costs.Goodput | None:
    """Goodput of a plan under failures of the nodes that it uses; None if figures are missing."""
    running = [nodes for _, nodes in fleet.used(ranks_of(document))]
    return goodput_of(fleet.members, running, prices, replicas_told(document))


@dataclass(frozen=True, slots=True)
class Use:
    """How many GPUs of one member of the fleet a plan uses, and how busy they are."""

    label: str
    gpu: str
    gpus: int
    gpus_used: int
    nodes_used: int
    bought: bool
    busy: float  # share of the time of all its GPUs in which they compute


NO_BILL = Bill((), None, ())


@dataclass(frozen=True)
class WhatIfRow:
    """One candidate. If it has no plan, `document` is None and `reason` says why.

    `cut_short`: its search ran out of time; more time may find a faster plan.
    """

    name: str
    fleet: Fleet
    document: PlanDocument | None
    reason: str = ""
    throughput: Throughput = Throughput(0.0, 0.0, 0.0)  # as simulated, times goodput where that is known
    goodput: costs.Goodput | None = None  # None: failures are not counted
    uses: tuple[Use, ...] = ()
    power_w: float = 0.0  # of the nodes that run, without PUE
    bill: Bill = NO_BILL
    days_to_train: float = 0.0
    usd_to_train: float | None = None
    usd_per_million_tokens: float | None = None
    marginal_tokens_per_usd: float | None = None
    cut_short: bool = False


@dataclass(frozen=True)
class WhatIf:
    """The rows, the fleet without purchases first; the assumptions made; notes."""

    model: Model
    tokens: float
    rows: tuple[WhatIfRow, ...]
    prices: Prices
    terms: Terms
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = field(default=())
    failures: bool = False  # whether goodput is in the throughputs: in all of them or in none

    @property
    def contenders(self) -> tuple[WhatIfRow, ...]:
        """The rows with a plan that are ranked: those that buy something, or all if these are too few."""
        planned = [row for row in self.rows if row.document is not None]
        bought = [row for row in planned if any(use.bought for use in row.uses)]
        return tuple(bought if len(bought) > 1 else planned)


def what_if(
    model: Model,
    fleet: Fleet,
    purchases: Sequence[tuple[Purchase, ...]],
    *,
    retired: dict[str, int] | None = None,
    job: Job | None = None,
    tokens: float = 1e12,
    prices: Prices | None = None,
    terms: Terms | None = None,
    wishes: SearchOptions | None = None,
    hwdb: Hwdb | None = None,
    sweep: Sweep | None = None,
    deadline: Deadline | None = None,
) -> WhatIf:
    """Every purchase added to the fleet (from which `retired` nodes are taken), planned, simulated, billed.

    The first row is the fleet as it stands; with `retired`, the second is what is left of it. Each has an
    even share of the time that the `deadline` leaves; rows that it cuts short say so. Raises InfeasibleError
    when no row has a plan.
    """
    deadline = deadline or Deadline()
    hwdb, sweep, prices, terms = (
        hwdb or Hwdb.load(),
        sweep or Sweep(jobs=1),
        prices or Prices(),
        terms or Terms(),
    )
    candidates = candidates_of(fleet, purchases, retired or {})
    rest = candidates[-len(purchases) - 1][1]
    wishes, job = wishes or SearchOptions(), job or Job()
    overlays, bare = overlays_of(hwdb), len(candidates) - len(purchases)
    cases = [Case(model, one.cluster, job, wishes, overlays) for _, one in candidates[:bare]]

    def answered(some: Sequence[Case], before: int) -> list[Answer | None]:
        share = deadline.share(deadline.left_s() * len(some) / (len(candidates) - before))
        keys = [case.key(hwdb) for case in some]
        return sweep.run(
            simulate_case, some, keys, "candidate", before=before, of=len(candidates), deadline=share
        )

    answers = answered(cases, 0)
    # What is left of the fleet is part of every candidate: its plan is one of theirs.
    standing = None if answers[-1] is None else outcome(answers[-1]).document
    groups = {number: number for number in range(len(rest.cluster.groups))}
    for _, one in candidates[bare:]:
        known = (known_on(standing, one.cluster, groups, hwdb),) if standing else ()
        cases.append(Case(model, one.cluster, job, wishes, overlays, known))
    if purchases:
        answers += answered(cases[bare:], bare)
    rows: list[WhatIfRow] = []
    failures = not any(failure_lacks(one.members, prices) for _, one in candidates)
    for (name, member), answer in zip(candidates, answers, strict=True):
        if answer is None:
            rows.append(WhatIfRow(name, member, None, f"not looked at: {deadline.why()}", cut_short=True))
            continue
        found = outcome(answer)
        if found.document is None:
            rows.append(WhatIfRow(name, member, None, found.reason, cut_short=found.cut_short))
            continue
        base = rows[0] if rows else None
        row = row_of(name, member, found.document, tokens, prices, terms, base, failures=failures)
        rows.append(replace(row, cut_short=found.cut_short))
    if all(row.document is None for row in rows):
        raise InfeasibleError("no candidate has a plan: " + rows[0].reason)
    return WhatIf(
        model,
        tokens,
        tuple(rows),
        prices,
        terms,
        (*_cut_short(rows, deadline), *notes_of(rows, prices), *sweep.notes),
        assumed(prices, rows),
        failures,
    )


def candidates_of(
    fleet: Fleet, purchases: Sequence[tuple[Purchase, ...]], retired: dict[str, int]
) -> list[tuple[str, Fleet]]:
    """(name, fleet): the fleet unchanged, without `retired` nodes if any, and that with each purchase."""
    found, rest, left = [("fleet", fleet)], fleet, ""
    if retired:
        rest, left = fleet.without(retired), "fleet" + _less(retired)
        found.append((left, rest))
    for bought in purchases:
        name = f"{left} + " if left else "+ "
        found.append((name + " + ".join(map(str, bought)), rest.with_purchases(bought)))
    return found


def row_of(
    name: str,
    fleet: Fleet,
    document: PlanDocument,
    tokens: float,
    prices: Prices,
    terms: Terms,
    base: WhatIfRow | None,
    *,
    failures: bool,
) -> WhatIfRow:
    """The figures of one planned candidate; differences are taken to the fleet `base`."""
    taken = fleet.used(ranks_of(document))
    running = [nodes for _, nodes in taken]
    good = planned_goodput(fleet, document, prices) if failures else None
    rate = throughput_of(document, good)
    charged = bill(fleet.members, running, prices, terms)
    hours = tokens / rate.tokens_per_s / HOUR_S if rate.tokens_per_s > 0 else float("inf")
    marginal = None
    if base is not None and base.document is not None:
        more = charged.more_than(base.bill)
        if more is not None:
            gained = rate.tokens_per_s - base.throughput.tokens_per_s
            marginal = costs.marginal_tokens_per_usd(gained, more)
    per_million = costs.usd_per_million_tokens(charged.usd_per_hour, rate.tokens_per_s)
    return WhatIfRow(
        name,
        fleet,
        document,
        throughput=rate,
        goodput=good,
        uses=tuple(
            Use(one.label, one.node.gpu.name, one.nodes * one.node.gpus, gpus, nodes, one.bought, busy)
            for one, (gpus, nodes), busy in zip(fleet.members, taken, busy_of(fleet, document), strict=True)
        ),
        power_w=sum(
            power_w_of(one, prices) * nodes for one, nodes in zip(fleet.members, running, strict=True)
        ),
        bill=charged,
        days_to_train=costs.days_to_train(tokens, rate.tokens_per_s, prices.economics.utilisation.value),
        usd_to_train=charged.usd_per_hour * hours if charged.known else None,
        usd_per_million_tokens=per_million if charged.known else None,
        marginal_tokens_per_usd=marginal,
    )


def ranks_of(document: PlanDocument) -> list[int]:
    """All ranks that a plan uses."""
    return [
        rank
        for pipeline in document.pipelines
        for stage in pipeline.stages
        for part in stage.parts
        for rank in part.ranks
    ]


def _cut_short(rows: Sequence[WhatIfRow], deadline: Deadline) -> list[str]:
    """Notes on the rows whose search ran out of time."""
    found = []
    unseen = [f"`{row.name}`" for row in rows if row.cut_short and row.document is None]
    cut = [f"`{row.name}`" for row in rows if row.cut_short and row.document is not None]
    if cut:
        found.append(
            f"{deadline.why()}: the best plans so far of {', '.join(cut)}; more time may find faster"
        )
    if unseen:
        found.append(f"{deadline.why()}: no plan was found, or looked for, of {', '.join(unseen)}")
    return found


def replicas_told(document: PlanDocument) -> int:
    """Copies of the model, counted so that losing a node breaks at most one.

    Each pipeline counts the copies of the stage that has the fewest.
    """
    found: dict[int, dict[int, int]] = {}
    for part in document.stages:
        stages = found.setdefault(part.pipeline, {})
        stages[part.stage] = stages.get(part.stage, 0) + min(part.dp, part.nodes)
    return sum(min(stages.values()) for stages in found.values())


def _less(retired: dict[str, int]) -> str:
    return "".join(f" - {count} x {name}" for name, count in retired.items())


def assumed(prices: Prices, rows: Sequence[WhatIfRow]) -> tuple[str, ...]:
    """Every figure that the bills rest on, with its source."""
    lines = dict.fromkeys(
        f"{charge.member} {charge.kind}: {charge.basis}" for row in rows for charge in row.bill.charges
    )
    economics = prices.economics
    for name in economics.__dataclass_fields__:
        figure = getattr(economics, name)
        if figure is not None:
            lines.setdefault(f"economics.{name}: {figure}")
    return tuple(lines)


def busy_of(fleet: Fleet, document: PlanDocument) -> tuple[float, ...]:
    """For each member, the fraction of its GPUs' total time that the plan spends computing."""
    share: dict[int, float] = {}
    for stage in document.stages:
        part = document.pipelines[stage.pipeline].stages[stage.stage].parts[stage.part]
        share |= dict.fromkeys(part.ranks, 1.0 - stage.idle_fraction)
    found, first = [], 0
    for member in fleet.members:
        gpus = member.nodes * member.node.gpus
        found.append(sum(share.get(rank, 0.0) for rank in range(first, first + gpus)) / gpus)
        first += gpus
    return tuple(found)


def plan_path(folder: Path, name: str) -> Path:
    """The path of a candidate's plan file; its name has only letters, digits, dots and dashes."""
    kept = "".join(char if char.isalnum() or char in ".-" else "_" for char in name)
    while "__" in kept:
        kept = kept.replace("__", "_")
    return folder / f"{kept.strip('_')}.json"

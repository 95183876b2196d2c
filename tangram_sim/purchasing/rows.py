"""One row of a study of purchases: the plan of a candidate, what it achieves, uses and costs."""

from collections.abc import Mapping
from dataclasses import dataclass

from tangram_sim.purchasing import costs
from tangram_sim.purchasing.billing import Bill, Terms, bill, drawn_w, failure_lacks, goodput_of
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.training_power import cluster_watts
from tangram_sim.studies.training_run import ranks_of
from tangram_sim.studies.usual_failures import checkpoint_s, restart_s
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
    if failure_lacks(fleet.members, prices):
        return None
    nodes = sum(running)
    seconds = checkpoint_s(document, nodes), restart_s(document, nodes)
    return goodput_of(fleet.members, running, prices, *seconds, replicas_told(document))


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
    """One candidate. If it has no plan, `document` is None and `reason` states why.

    `cut_short`: its search ran out of time; more time may find a faster plan.
    """

    name: str
    fleet: Fleet
    document: PlanDocument | None
    reason: str = ""
    throughput: Throughput = Throughput(0.0, 0.0, 0.0)  # as simulated, times goodput where that is known
    goodput: costs.Goodput | None = None  # None: failures are not counted
    uses: tuple[Use, ...] = ()
    each_w: Mapping[str, float] | None = None  # of a GPU by kind and its share of the host, as drawn
    power_w: float = 0.0  # as drawn by all nodes; else the nameplates of those that run; without PUE
    site_kw: float = 0.0  # the same with PUE where it is stated
    mwh: float = 0.0  # of the site until the tokens are trained
    bill: Bill = NO_BILL
    days_to_train: float = 0.0
    usd_to_train: float | None = None
    usd_to_train_at_least: float = 0.0  # what is known of it
    usd_per_million_tokens: float | None = None
    usd_per_million_interval: tuple[float, float] = (0.0, 0.0)  # at both ends of the throughput's
    marginal_tokens_per_usd: float | None = None
    cut_short: bool = False


@dataclass(frozen=True, slots=True)
class Billing:
    """How candidates are billed: the tokens to train, prices, and whether nodes are bought or rented."""

    tokens: float
    prices: Prices
    terms: Terms
    failures: bool  # whether goodput is in the throughputs: in all of them or in none

    def row(
        self, name: str, fleet: Fleet, document: PlanDocument, base: WhatIfRow | None = None
    ) -> WhatIfRow:
        """The row of one planned candidate; differences are relative to the row `base`."""
        taken = fleet.used(ranks_of(document))
        running = [nodes for _, nodes in taken]
        good = planned_goodput(fleet, document, self.prices) if self.failures else None
        rate = throughput_of(document, good)
        each_w = self._each_w(fleet, document)

        def days_at(tokens_per_s: float) -> float:
            return costs.days_to_train(self.tokens, tokens_per_s, self.prices.economics.utilisation.value)

        def charged_at(tokens_per_s: float) -> Bill:
            return bill(fleet.members, running, self.prices, self.terms, each_w, days=days_at(tokens_per_s))

        def per_million_at(tokens_per_s: float) -> float:
            return costs.usd_per_million_tokens(charged_at(tokens_per_s).usd_per_hour, tokens_per_s)

        charged = charged_at(rate.tokens_per_s)
        hours = self.tokens / rate.tokens_per_s / HOUR_S if rate.tokens_per_s > 0 else float("inf")
        marginal = None
        if base is not None and base.document is not None:
            more = charged.more_than(base.bill)
            if more is not None:
                gained = rate.tokens_per_s - base.throughput.tokens_per_s
                marginal = costs.marginal_tokens_per_usd(gained, more)
        per_million = costs.usd_per_million_tokens(charged.usd_per_hour, rate.tokens_per_s)
        power_w, pue = drawn_w(fleet.members, running, self.prices, each_w), self.prices.economics.pue
        site_kw = power_w / 1000 * (pue.value if pue else 1.0)
        return WhatIfRow(
            name,
            fleet,
            document,
            throughput=rate,
            goodput=good,
            uses=tuple(
                Use(
                    label=member.label,
                    gpu=member.node.gpu.name,
                    gpus=member.nodes * member.node.gpus,
                    gpus_used=gpus,
                    nodes_used=nodes,
                    bought=member.bought,
                    busy=busy,
                )
                for member, (gpus, nodes), busy in zip(
                    fleet.members, taken, busy_of(fleet, document), strict=True
                )
            ),
            each_w=each_w,
            power_w=power_w,
            site_kw=site_kw,
            mwh=site_kw * hours / 1000,
            bill=charged,
            days_to_train=days_at(rate.tokens_per_s),
            usd_to_train=charged.usd_per_hour * hours if charged.known else None,
            usd_to_train_at_least=charged.usd_per_hour * hours,
            usd_per_million_tokens=per_million if charged.known else None,
            usd_per_million_interval=(per_million_at(rate.high), per_million_at(rate.low)),
            marginal_tokens_per_usd=marginal,
        )

    def _each_w(self, fleet: Fleet, document: PlanDocument) -> dict[str, float] | None:
        """Mean watts of a GPU of each kind with its host's share, as `plan` has them; None: not all known."""
        hwdb = self.prices.hwdb
        if hwdb is None or not all(group.node.gpu.power_w for group in fleet.cluster.groups):
            return None
        return cluster_watts(document, fleet.cluster, hwdb).each_w


def kinds_of(row: WhatIfRow) -> tuple[str, ...]:
    """The kinds of nodes that a candidate adds."""
    return tuple(member.name for member in row.fleet.members if member.bought)


def replicas_told(document: PlanDocument) -> int:
    """Number of copies of the model, counted so that losing a node breaks at most one.

    Each pipeline counts the copies of the stage with the fewest.
    """
    found: dict[int, dict[int, int]] = {}
    for part in document.stages:
        stages = found.setdefault(part.pipeline, {})
        stages[part.stage] = stages.get(part.stage, 0) + min(part.dp, part.nodes)
    return sum(min(stages.values()) for stages in found.values())


def busy_of(fleet: Fleet, document: PlanDocument) -> tuple[float, ...]:
    """For each member, the fraction of its GPUs' total time that the plan spends computing."""
    share = document.busy_of_ranks()
    return tuple(sum(share.get(rank, 0.0) for rank in ranks) / len(ranks) for ranks in fleet.ranks())

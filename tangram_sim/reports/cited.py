"""The sources of each figure of a purchase: what it was simulated, stated, assumed or computed from."""

from tangram_sim.cost.energy import gpu_power
from tangram_sim.purchasing.billing import most_w_of
from tangram_sim.purchasing.rows import WhatIfRow
from tangram_sim.reports.ledger import Ledger
from tangram_sim.reports.plan_sections import given_job, simulated
from tangram_sim.reports.question import PurchaseFigures
from tangram_sim.units import show_amount

_FORMULAS = {
    "rate": "tokens/s: as simulated, tokens of a step over its seconds, times goodput where it is known",
    "goodput": "goodput: the share of time not lost to failures, checkpoints, restarts (Daly 2006)",
    "time": "time: tokens over tokens/s and the share of time in training",
    "power": "kW: mean draw of GPUs and hosts over a step, idle ones too, as `plan` has it, times PUE",
    "nameplate": "kW: nameplates of the nodes that run, for want of the power of a GPU kind, times PUE",
    "bill": "USD per hour and capital: the charges of all members added up; `>`: what is known of them",
    "total": "total cost: USD per hour of training times its hours",
    "million": "USD per million tokens: USD per hour over tokens per hour",
    "marginal": "more tokens per USD: gain in tokens per hour over gain in USD per hour, from the first row",
    "gap": "gap: tokens/s that no plan exceeds (docs/models/bound.md) over tokens/s found, less one",
    "flip": "threshold: the value at which second and best change places, found by bisection",
    "even": "buy or rent: capital over what an hour of rent costs more than an hour of running",
    "apart": "told apart: 90 % interval of the ratio of two plans' steps, errors that both share cancelled",
}


class CitedFigures:
    """The source ids of each figure of a row; sources are added to the `ledger` when first needed."""

    def __init__(self, question: PurchaseFigures, ledger: Ledger) -> None:
        self.question, self.ledger = question, ledger
        self.tokens = ledger.cite("given", f"tokens to train on: {show_amount(question.billing.tokens)}")

    def formula(self, key: str) -> str:
        """The source id of the equation called `key`."""
        return self.ledger.cite("computed", _FORMULAS[key])

    def rate(self, row: WhatIfRow) -> tuple[str, ...]:
        """Source ids of the throughput: simulation, job, and failures if they are counted."""
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

    def time(self, row: WhatIfRow) -> tuple[str, ...]:
        """Source ids of the days to train."""
        return (*self.rate(row), self.tokens, self.formula("time"), *self.economics("utilisation"))

    def economics(self, *names: str) -> list[str]:
        """Source ids of the named figures that hold for all nodes; those not stated are left out."""
        values = ((name, getattr(self.question.billing.prices.economics, name)) for name in names)
        return [
            self.ledger.cite("price" if value.date else "assumed", f"economics.{name}: {value}")
            for name, value in values
            if value is not None
        ]

    def _node_figures(self, row: WhatIfRow, name: str) -> list[str]:
        facts = ((member.name, self.question.billing.prices.of(member)) for member in row.fleet.members)
        return [
            self.ledger.cite("price", f"nodes.{node}.{name}: {getattr(fact, name)}")
            for node, fact in facts
            if getattr(fact, name) is not None
        ]

    def power(self, row: WhatIfRow) -> tuple[str, ...]:
        """Source ids of the power: calibrated rows of its GPUs, or nameplates where these are not known."""
        prices, found = self.question.billing.prices, list[str]()
        gpus = {member.node.gpu.name: member.node.gpu for member in row.fleet.members}
        if row.each_w is not None and prices.hwdb is not None:
            for name, watts in row.each_w.items():
                basis = gpu_power(gpus[name], prices.hwdb).basis
                found.append(
                    self.ledger.cite("hardware", f"{name}: {watts:,.0f} W with its host's share, {basis}")
                )
            return (self.formula("power"), *found, *self.economics("pue"))
        for member in row.fleet.members:
            what = f"{member.name}: {most_w_of(member, prices):,.0f} W a node"
            found.append(self.ledger.cite("hardware", f"{what}, its nameplate or that of its GPUs"))
        return (
            self.formula("nameplate"),
            *self._node_figures(row, "power_w"),
            *found,
            *self.economics("pue"),
        )

    def bill(self, row: WhatIfRow) -> tuple[str, ...]:
        """Source ids of the USD per hour: those of every charge."""
        lines = [
            self.ledger.cite("price", f"{charge.member} {charge.kind}: {charge.basis}")
            for charge in row.bill.charges
        ]
        kinds = {charge.kind for charge in row.bill.charges}
        shared = self.economics("pue", "usd_per_kwh") if "power" in kinds else []
        if "capital" in kinds:
            shared += self.economics("amortisation_years", "utilisation", "upkeep_per_year")
        return (self.formula("bill"), *lines, *shared)

    def total(self, row: WhatIfRow) -> tuple[str, ...]:
        """Source ids of the cost of the whole training."""
        return (*self.time(row), *self.bill(row), self.formula("total"))

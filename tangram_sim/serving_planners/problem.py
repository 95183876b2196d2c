"""Input of a planner with given throughputs: GPU kinds, configurations, requests, scenarios.

Kinds, configurations and request types are numbered from 0 in the order given; arrays follow these numbers.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from tangram_sim.serving.batch_times import BATCH_SECONDS

MAKESPAN, COST = "makespan", "cost"
# What a replica does: whole requests, their prompts alone, or their outputs alone.
WHOLE, PREFILL, DECODE = ROLES = ("both", "prefill", "decode")
NODE = "node"  # what a scenario loses that bears the loss of any one node


@dataclass(frozen=True, slots=True)
class OfferedGpu:
    """A kind of GPU on offer, on nodes of `per_node`; `available` is inf where it is unlimited."""

    name: str
    usd_per_hour: float
    available: float = inf
    per_node: int = 8


@dataclass(frozen=True, slots=True)
class ReplicaConfiguration:
    """One way to build a replica.

    `gpus[n]` GPUs of kind n for `usd_per_hour`; serving type w only, it finishes `rps[w]` requests/s, 0 where
    it cannot serve the type. `spot`: it may be preempted. At most `most` replicas of it. `role`, of ROLES:
    the phases of a request that it runs; a request prefilled by one role is decoded by the other.
    """

    name: str
    gpus: tuple[int, ...]
    rps: tuple[float, ...]
    usd_per_hour: float
    spot: bool = False
    most: float = inf
    role: str = WHOLE
    of_batch: tuple[float, ...] = ()  # share of rps in a batch of BATCH_SECONDS each; (): always all of it

    @property
    def gpu_count(self) -> int:
        """GPUs of one replica."""
        return sum(self.gpus)

    def share_in(self, seconds: float) -> float:
        """Share of its steady throughput that it reaches in a batch of `seconds`."""
        return float(np.interp(seconds, BATCH_SECONDS, self.of_batch)) if self.of_batch else 1.0

    def lasting(self, seconds: float, least_s: float = inf) -> "ReplicaConfiguration":
        """The configuration with its throughputs in a batch of `seconds`, or the greatest from `least_s`."""
        share = self.share_in(seconds)
        if self.of_batch and least_s < seconds:
            inside = (least_s < BATCH_SECONDS) & (seconds > BATCH_SECONDS)
            share = max(share, self.share_in(least_s), *np.array(self.of_batch)[inside].tolist())
        return replace(self, rps=tuple(share * rps for rps in self.rps), of_batch=())

    def kinds(self) -> frozenset[int]:
        """GPU kinds that it uses."""
        return frozenset(n for n, count in enumerate(self.gpus) if count)


@dataclass(frozen=True, slots=True)
class RequestType:
    """Requests of one type: how many (makespan) or how many per second (cost), and their tokens."""

    name: str
    amount: float
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    model: str = ""
    kv_bytes: float = 0.0  # that move between prefill and decode


@dataclass(frozen=True, slots=True)
class LossScenario:
    """A scenario that plans tolerate: some configurations or any one node lost, more requests, new prices.

    `coverage` of every type's requests times `rate_factor` must still be served (in a makespan problem: at
    `coverage` times the plan's own pace); at prices times `price_factors[n]` the budget must still hold.
    """

    name: str
    lost: frozenset[int] = frozenset()  # configurations
    coverage: float = 1.0
    rate_factor: float = 1.0
    price_factors: tuple[float, ...] = ()
    any_node: bool = False  # besides, any one node is lost, with all replicas that it holds a part of


@dataclass(frozen=True, slots=True)
class RentalProblem:
    """A planning problem over configurations; `slices` 0: shares of a type are continuous."""

    objective: str  # MAKESPAN or COST
    gpus: tuple[OfferedGpu, ...]
    configurations: tuple[ReplicaConfiguration, ...]
    types: tuple[RequestType, ...]
    budget_usd_per_hour: float = inf
    slices: int = 0
    utilisation: float = 1.0
    scenarios: tuple[LossScenario, ...] = ()
    link_bytes_per_s: float = inf  # between prefill and decode

    @property
    def total(self) -> float:
        """Total requests, or requests per second."""
        return sum(request_type.amount for request_type in self.types)

    @property
    def loses_nodes(self) -> bool:
        """Whether the plan must tolerate the loss of any one node."""
        return any(scenario.any_node for scenario in self.scenarios)

    def by_nodes(self, n: int) -> bool:
        """Whether GPUs of kind n are rented by whole nodes: any node may be lost, and kind n is unlimited."""
        return self.loses_nodes and self.gpus[n].available == inf

    @property
    def without_lost_nodes(self) -> "RentalProblem":
        """The problem without loss of nodes; its best plan is at least as good."""
        return replace(
            self, scenarios=tuple(replace(scenario, any_node=False) for scenario in self.scenarios)
        )

    @property
    def depends_on_length(self) -> bool:
        """Whether throughputs depend on the length of the batch."""
        return self.objective == MAKESPAN and any(
            configuration.of_batch for configuration in self.configurations
        )

    def alike_groups(self) -> list[tuple[int, ...]]:
        """Types with requests, grouped by model: what a router distinguishes that sees the model only."""
        groups: dict[str, list[int]] = {}
        for w, request_type in enumerate(self.types):
            if request_type.amount > 0:
                groups.setdefault(request_type.model, []).append(w)
        return [tuple(group) for group in groups.values()]

    def serves_some_group(self, c: int) -> bool:
        """Whether configuration c serves all types of some group of `alike_groups`."""
        rps = self.configurations[c].rps
        return any(all(rps[w] > 0 for w in group) for group in self.alike_groups())

    def lasting(self, seconds: float, least_s: float = inf) -> "RentalProblem":
        """The problem with the throughputs of a batch of `seconds`.

        If `least_s` is shorter, with each configuration's greatest throughput from `least_s` to `seconds`.
        """
        return replace(
            self,
            configurations=tuple(
                configuration.lasting(seconds, least_s) for configuration in self.configurations
            ),
        )

    def keeping(self, chosen: frozenset[int], *, capped: bool = True) -> "RentalProblem":
        """The problem with only the `chosen` configurations; no limits on availability unless `capped`."""
        order = sorted(chosen)
        place = {old: new for new, old in enumerate(order)}
        return replace(
            self,
            configurations=tuple(self.configurations[c] for c in order),
            gpus=self.gpus if capped else tuple(replace(gpu, available=inf) for gpu in self.gpus),
            scenarios=tuple(
                replace(scenario, lost=frozenset(place[c] for c in scenario.lost & chosen))
                for scenario in self.scenarios
            ),
        )

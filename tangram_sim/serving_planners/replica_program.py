"""Rows and variables of one program of replicas; `milp` has the formulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving_planners.answer import Counts, HostNode, Rental, Shares, Unanswered
from tangram_sim.serving_planners.node_loss import PlacedNodes, rented_usd
from tangram_sim.serving_planners.problem import (
    COST,
    DECODE,
    MAKESPAN,
    PREFILL,
    WHOLE,
    LossScenario,
    RentalProblem,
)
from tangram_sim.serving_planners.program import LinearProgram, Optimum

_STANDSTILL = 1e-9  # a pace, in units of that of fractions of replicas, that is none
_PLAN = LossScenario("the plan itself")


@dataclass(frozen=True, slots=True)
class _Mix:
    """A share variable: one configuration's share of `types`; `load` in replicas per unit of it."""

    configuration: int
    types: tuple[int, ...]
    load: float


class ReplicaProgram:
    """Rows and variables of the program of one problem.

    Requests are counted in units of what is done in `scale_s` seconds, so that the pace u is near 1, where
    the absolute tolerances of HiGHS are meaningful. `fixed` are given numbers of replicas on the nodes
    `placed`. `coarse`: fewer nodes are treated individually, more in classes of equal ones.
    """

    def __init__(
        self,
        problem: RentalProblem,
        common_shares: bool,
        scale_s: float,
        *,
        whole_replicas: bool = True,
        coarse: bool = False,
        fixed: Counts | None = None,
        placed: Sequence[HostNode] = (),
    ) -> None:
        self.problem, self.common, self.scale_s, self.lp = problem, common_shares, scale_s, LinearProgram()
        batch = problem.objective == MAKESPAN
        self.pace = self.lp.variable(inf if batch else 1.0)
        if not batch:
            self.lp.row([(self.pace, 1.0)], low=1.0)
        self.counts = [
            self.lp.variable(
                self._most(c) if fixed is None else fixed[c], integer=whole_replicas and fixed is None
            )
            for c in range(len(problem.configurations))
        ]
        if fixed is not None:
            for variable, count in zip(self.counts, fixed, strict=True):
                self.lp.row([(variable, 1.0)], low=count)
        self.nodes: PlacedNodes | None = None
        if problem.loses_nodes and fixed is None:
            self.nodes = PlacedNodes(problem, self.lp, self.counts, whole=whole_replicas, coarse=coarse)
        self._limits()
        self.mixes, self.shares = self._scenario(_PLAN, fixed)
        for scenario in problem.scenarios:
            if not scenario.any_node:
                self._scenario(scenario, fixed)
                continue
            for node in self.nodes.classes if self.nodes is not None else ():
                self._scenario(scenario, fixed, held=node.held)
            for host in placed:
                self._scenario(scenario, fixed, gone=dict(host.replicas))

    def _most(self, c: int) -> float:
        """Maximum replicas of configuration c within availability and budget."""
        configuration = self.problem.configurations[c]
        limits = [
            np.floor(gpu.available / count)
            for gpu, count in zip(self.problem.gpus, configuration.gpus, strict=True)
            if count
        ]
        budget = self.problem.budget_usd_per_hour
        affordable = np.floor(budget / configuration.usd_per_hour * (1 + 1e-12)) if budget < inf else inf
        return float(min([*limits, affordable, configuration.most]))

    def _limits(self) -> None:
        given = self.problem
        for n, gpu in enumerate(given.gpus):
            terms = [
                (v, float(configuration.gpus[n]))
                for v, configuration in zip(self.counts, given.configurations, strict=True)
            ]
            self.lp.row(terms, high=gpu.available)
        factors = [(1.0,) * len(given.gpus)] + [s.price_factors for s in given.scenarios if s.price_factors]
        for factor in factors:
            terms = []
            for variable, configuration in zip(self.counts, given.configurations, strict=True):
                bare = sum(
                    k * gpu.usd_per_hour for k, gpu in zip(configuration.gpus, given.gpus, strict=True)
                )
                dearer = sum(
                    k * gpu.usd_per_hour * by
                    for k, gpu, by in zip(configuration.gpus, given.gpus, factor, strict=True)
                )
                terms.append((variable, configuration.usd_per_hour * dearer / bare))
            idle = self.nodes.idle_usd(factor) if self.nodes is not None else []
            self.lp.row([*terms, *idle], high=given.budget_usd_per_hour)

    def _scenario(
        self,
        scenario: LossScenario,
        fixed: Counts | None,
        *,
        held: Mapping[int, int] = MappingProxyType({}),
        gone: Mapping[int, int] = MappingProxyType({}),
    ) -> tuple[list[_Mix], list[int]]:
        """Add the rows of one scenario: its part of the requests is served, and no replica is overloaded.

        Replicas lost with a node, by configuration: `held` as variables, `gone` as numbers.
        """
        given, asked = self.problem, scenario.coverage * scenario.rate_factor
        live = [w for w, request_type in enumerate(given.types) if request_type.amount > 0]
        groups = given.alike_groups() if self.common else [(w,) for w in live]
        unit = given.utilisation * self.scale_s
        mixes: list[_Mix] = []
        for c, configuration in enumerate(given.configurations):
            if c in scenario.lost or (fixed is not None and not fixed[c]):
                continue
            mixes += [
                _Mix(c, group, sum(given.types[w].amount / configuration.rps[w] for w in group) / unit)
                for group in groups
                if all(configuration.rps[w] > 0 for w in group)
            ]
        sliced = given.slices > 0 and scenario is _PLAN
        shares = [
            self.lp.variable(given.slices if sliced else inf, integer=sliced and fixed is None) for _ in mixes
        ]
        size = 1.0 / given.slices if sliced else 1.0
        for group in groups:
            entering = self._of_roles(mixes, shares, group, (WHOLE, PREFILL))
            self.lp.row([*((v, size) for v in entering), (self.pace, -asked)], low=0.0, high=0.0)
            halves = [(v, 1.0) for v in self._of_roles(mixes, shares, group, (PREFILL,))]
            halves += [(v, -1.0) for v in self._of_roles(mixes, shares, group, (DECODE,))]
            self.lp.row(halves, low=0.0, high=0.0)
        sent = [
            (v, sum(given.types[w].amount * given.types[w].kv_bytes for w in mix.types) / self.scale_s)
            for v, mix in zip(shares, mixes, strict=True)
            if given.configurations[mix.configuration].role == PREFILL
        ]
        self.lp.row(sent, high=given.link_bytes_per_s)
        for c, variable in enumerate(self.counts):
            terms = [
                (v, mix.load * size) for v, mix in zip(shares, mixes, strict=True) if mix.configuration == c
            ]
            if terms:
                lost = [(held[c], 1.0)] if c in held else []
                self.lp.row([*terms, *lost, (variable, -1.0)], high=-float(gone.get(c, 0)))
        return mixes, shares

    def _of_roles(
        self, mixes: list[_Mix], shares: list[int], group: tuple[int, ...], roles: tuple[str, ...]
    ) -> list[int]:
        """Share variables of a group of types on the configurations with these roles."""
        return [
            v
            for v, mix in zip(shares, mixes, strict=True)
            if mix.types == group and self.problem.configurations[mix.configuration].role in roles
        ]

    def optimum(self, relative_gap: float, time_limit_s: float) -> Optimum:
        """Maximise the pace, or minimise dollars an hour."""
        if self.problem.objective == MAKESPAN:
            return self.lp.maximise([(self.pace, 1.0)], relative_gap, time_limit_s)
        usd = [configuration.usd_per_hour for configuration in self.problem.configurations]
        idle = self.nodes.idle_usd((1.0,) * len(self.problem.gpus)) if self.nodes is not None else []
        terms = [*zip(self.counts, usd, strict=True), *idle]
        return self.lp.minimise(terms, relative_gap, time_limit_s)

    def best(self, relative_gap: float, time_limit_s: float) -> Rental | Unanswered:
        """Solve for integer replicas; for a makespan, solve again for shares with these replicas fixed."""
        given = self.problem
        found = self.optimum(relative_gap, time_limit_s)
        if found.values is None:
            return Unanswered(proven=found.infeasible)
        counts = tuple(round(float(found.values[v])) for v in self.counts)
        nodes = self.nodes.placed(found.values) if self.nodes is not None else ()
        if given.objective == COST:
            value = rented_usd(given, counts, nodes)
            shares = self._evenly(counts, found.values)
            return Rental(counts, shares, value, min(value, found.bound), nodes)
        plan = paced(given, self.common, self.scale_s, counts, nodes)
        if plan is None:
            return Unanswered(proven=found.bound <= _STANDSTILL)
        return replace(plan, bound=min(plan.value, self.scale_s / found.bound))

    def _evenly(self, counts: Counts, values: NDArray[np.float64]) -> Shares:
        """Shares that minimise the load of the busiest replica; with slices, those in `values`."""
        if not self.problem.slices:
            batch = replace(self.problem, objective=MAKESPAN, scenarios=())
            even = ReplicaProgram(batch, self.common, 1.0, fixed=counts)
            found = even.lp.maximise([(even.pace, 1.0)])
            if found.values is not None:
                return even.shares_of(found.values)
        return self.shares_of(np.rint(values) if self.problem.slices else values)

    def shares_of(self, values: NDArray[np.float64]) -> Shares:
        """Shares by configuration and type; a type's shares sum to 1 over replicas that take prompts."""
        table = np.zeros((len(self.problem.configurations), len(self.problem.types)))
        for variable, mix in zip(self.shares, self.mixes, strict=True):
            table[mix.configuration, list(mix.types)] = max(0.0, float(values[variable]))
        entering = [configuration.role != DECODE for configuration in self.problem.configurations]
        sums = table[entering].sum(axis=0)
        table = np.divide(table, sums, out=np.zeros_like(table), where=sums > 0)
        return tuple(tuple(row) for row in table.tolist())


def paced(
    problem: RentalProblem, common_shares: bool, scale_s: float, counts: Counts, nodes: tuple[HostNode, ...]
) -> Rental | None:
    """The shortest batch on given replicas and nodes, by choice of shares; None: nothing is served."""
    program = ReplicaProgram(problem, common_shares, scale_s, fixed=counts, placed=nodes)
    found = program.lp.maximise([(program.pace, 1.0)])
    if found.values is None or found.values[program.pace] <= _STANDSTILL:
        return None
    value = scale_s / float(found.values[program.pace])
    return Rental(counts, program.shares_of(found.values), value, value, nodes)

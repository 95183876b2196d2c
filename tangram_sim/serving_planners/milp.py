"""The cost-efficiency program: replicas of configurations and shares of requests, with a proven bound.

Of a batch (arXiv 2502.00722, which bisects the makespan T): with u = 1/T and z = x/T it is one program,

    max u,  sum_c z[c,w] = u,  sum_w z[c,w] f[w] / h[c,w] <= y[c],
            sum_c o[c] y[c] <= B,  sum_c d[n,c] y[c] <= a[n],

with y whole. Where replicas only prefill or only decode, sums over shares are those of whole and prefilling
replicas, what is decoded is what was prefilled, and its KV caches pass the link. Of rates: u = 1, the least
sum_c o[c] y[c], replicas busy at most `utilisation` of the time. Every scenario repeats the rows of shares
with what is left, for the part of the requests it must cover; one that loses any node, for each node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving_planners.answer import PROVEN, Counts, HostNode, Rental, Shares, Unanswered
from tangram_sim.serving_planners.batch_length import solve_batch
from tangram_sim.serving_planners.columns import generates, price_out, promising, solve_by_columns
from tangram_sim.serving_planners.dominance import undominated
from tangram_sim.serving_planners.node_loss import (
    MOST_CONFIGURATIONS,
    PlacedNodes,
    each_alone,
    nodes_suffice,
    rented_usd,
)
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

_PLACED_SHARE, _BOUND_SHARE = 0.6, 0.3  # of the time: for placed replicas, for what bounds all of them
_STANDSTILL = 1e-9  # a pace, in units of that of fractions of replicas, that is none
_PLAN = LossScenario("the plan itself")


@dataclass(frozen=True, slots=True)
class _Mix:
    """A variable of the program: the share of `types` that one configuration gets, and the load of a unit."""

    configuration: int
    types: tuple[int, ...]
    load: float


def solve(
    problem: RentalProblem,
    *,
    allowed: frozenset[int] | None = None,
    capped: bool = True,
    common_shares: bool = False,
    relative_gap: float = PROVEN / 2,
    time_limit_s: float = inf,
) -> Rental | Unanswered:
    """The best plan of the problem.

    `allowed`: of these configurations only; `capped`: within what is available. `common_shares`: the types of
    a model are spread over replicas in the same way (a router that does not look at the type). A time limit
    gives the best plan found, with its gap.
    """
    chosen = allowed if allowed is not None else frozenset(range(len(problem.configurations)))
    if common_shares:
        chosen = frozenset(c for c in chosen if _serves_some_group(problem, problem.configurations[c].rps))
    first = sorted(chosen)
    kept = problem.keeping(chosen, capped=capped)
    if first and not common_shares and not kept.depends_on_length:
        worth = undominated(kept)
        first, kept = [first[place] for place in sorted(worth)], kept.keeping(worth)
    if not first:
        return Unanswered(proven=True)
    if kept.depends_on_length:
        answer = solve_batch(
            kept,
            lambda some, seconds: solve(
                some, common_shares=common_shares, relative_gap=relative_gap, time_limit_s=seconds
            ),
            _relaxed_s,
            lambda some, plan: _paced(some, common_shares, plan.value, plan.counts, plan.nodes),
            time_limit_s,
        )
    elif kept.loses_nodes:
        some, every = promising(kept, MOST_CONFIGURATIONS), kept
        first, kept = [first[place] for place in sorted(some)], kept.keeping(some)
        answer = _solve_placed(kept, every, common_shares, relative_gap, time_limit_s)
    elif generates(kept) and not common_shares:
        answer = solve_by_columns(kept, time_limit_s, lambda some, s: _solve(some, False, relative_gap, s))
    else:
        answer = _solve(kept, common_shares, relative_gap, time_limit_s)
    if isinstance(answer, Unanswered):
        return answer
    counts = [0] * len(problem.configurations)
    shares = [(0.0,) * len(problem.types)] * len(problem.configurations)
    for place, c in enumerate(first):
        counts[c], shares[c] = answer.counts[place], answer.shares[place]
    nodes = tuple(
        replace(node, replicas=tuple((first[place], held) for place, held in node.replicas))
        for node in answer.nodes
    )
    return Rental(tuple(counts), tuple(shares), answer.value, answer.bound, nodes)


def _solve_placed(
    problem: RentalProblem,
    every: RentalProblem,
    common_shares: bool,
    relative_gap: float,
    time_limit_s: float,
) -> Rental | Unanswered:
    """The best plan found with replicas placed on nodes, and a bound for `every` configuration and placement.

    The program has the configurations of `problem`, and equal nodes in classes where they are many. Unless it
    has all there is, the bound is the better of two: of plans that lose no node, and of fractions of
    replicas.
    """
    whole = each_alone(problem) and len(problem.configurations) == len(every.configurations)
    answer = _solve(problem, common_shares, relative_gap, time_limit_s * (1.0 if whole else _PLACED_SHARE))
    batch, usd = problem.objective == MAKESPAN, problem.budget_usd_per_hour
    if isinstance(answer, Rental) and not batch:
        usd = min(usd, answer.value)
        cheaper, all_cheaper = (replace(one, budget_usd_per_hour=usd) for one in (problem, every))
        repriced = any(scenario.price_factors for scenario in problem.scenarios)  # the budget is theirs, too
        if each_alone(cheaper) and not each_alone(problem) and not repriced:  # better plans: on few nodes
            better = _solve_placed(
                cheaper, all_cheaper, common_shares, relative_gap, (1.0 - _PLACED_SHARE) * time_limit_s
            )
            if isinstance(better, Rental):
                return better
    enough = nodes_suffice(every, usd)
    if whole and enough:
        return answer
    bound_s = _BOUND_SHARE * time_limit_s
    free = solve(
        every.without_lost_nodes,
        common_shares=common_shares,
        relative_gap=relative_gap,
        time_limit_s=bound_s,
    )
    bound, impossible = (0.0, free.proven) if isinstance(free, Unanswered) else (free.bound, False)
    if enough:
        scale_s = answer.value if batch and isinstance(answer, Rental) else 1.0
        found = _Program(every, common_shares, scale_s, whole_replicas=False).optimum(relative_gap, bound_s)
        impossible = impossible or found.infeasible
        if found.values is not None and found.bound > 0:
            bound = max(bound, scale_s / found.bound if batch else found.bound)
        elif found.values is not None and batch:
            impossible = True
    if isinstance(answer, Unanswered):
        return Unanswered(proven=impossible)
    return replace(answer, bound=min(answer.value, bound))


def _solve(
    problem: RentalProblem, common_shares: bool, relative_gap: float, time_limit_s: float
) -> Rental | Unanswered:
    """Solve the integer program with all configurations.

    Times are scaled by the makespan of the program with fractions of replicas, so that its numbers are near
    1.
    """
    scale_s = 1.0
    if problem.objective == MAKESPAN:
        relaxed = _Program(problem, common_shares, 1.0, whole_replicas=False)
        found = relaxed.lp.maximise([(relaxed.pace, 1.0)])
        if found.values is None or found.values[relaxed.pace] <= 0:
            return Unanswered(proven=found.infeasible or found.values is not None)
        scale_s = 1.0 / float(found.values[relaxed.pace])
    return _Program(problem, common_shares, scale_s).best(relative_gap, time_limit_s)


def _relaxed_s(problem: RentalProblem) -> float:
    """The makespan of the program with fractions of replicas; inf where nothing is served."""
    if not problem.configurations:
        return inf
    if all(configuration.role == WHOLE for configuration in problem.configurations) and not problem.scenarios:
        priced = price_out(problem)
        if priced is not None and priced.bound > 0:
            return 1.0 / priced.bound
    relaxed = _Program(problem, False, 1.0, whole_replicas=False)
    found = relaxed.lp.maximise([(relaxed.pace, 1.0)])
    pace = 0.0 if found.values is None else float(found.values[relaxed.pace])
    return 1.0 / pace if pace > 0 else inf


def _alike_groups(problem: RentalProblem) -> list[tuple[int, ...]]:
    """Types with requests, grouped by model: a router that looks at the model alone sees no more."""
    groups: dict[str, list[int]] = {}
    for w, request_type in enumerate(problem.types):
        if request_type.amount > 0:
            groups.setdefault(request_type.model, []).append(w)
    return [tuple(group) for group in groups.values()]


def _serves_some_group(problem: RentalProblem, rps: tuple[float, ...]) -> bool:
    return any(all(rps[w] > 0 for w in group) for group in _alike_groups(problem))


class _Program:
    """The rows and variables of the program of one problem.

    Requests are counted in units of what is done in `scale_s` seconds, so that the pace u is near 1, where
    the absolute tolerances of HiGHS are meaningful. `fixed` are numbers of replicas that are given, not
    chosen, on the nodes `placed`.
    """

    def __init__(
        self,
        problem: RentalProblem,
        common_shares: bool,
        scale_s: float,
        *,
        whole_replicas: bool = True,
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
            self.nodes = PlacedNodes(problem, self.lp, self.counts, whole=whole_replicas)
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
        """Replicas of configuration c that caps and budget allow at most."""
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
        """Add the rows of one scenario: its share of the requests is served, and no replica is overloaded.

        How many replicas a lost node takes along, by configuration: `held` are variables, `gone` numbers.
        """
        given, asked = self.problem, scenario.coverage * scenario.rate_factor
        live = [w for w, request_type in enumerate(given.types) if request_type.amount > 0]
        groups = _alike_groups(given) if self.common else [(w,) for w in live]
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
        """Variables for the shares of a group of types on the configurations of these roles."""
        return [
            v
            for v, mix in zip(shares, mixes, strict=True)
            if mix.types == group and self.problem.configurations[mix.configuration].role in roles
        ]

    def optimum(self, relative_gap: float, time_limit_s: float) -> Optimum:
        """The greatest pace, or the least dollars an hour."""
        if self.problem.objective == MAKESPAN:
            return self.lp.maximise([(self.pace, 1.0)], relative_gap, time_limit_s)
        usd = [configuration.usd_per_hour for configuration in self.problem.configurations]
        idle = self.nodes.idle_usd((1.0,) * len(self.problem.gpus)) if self.nodes is not None else []
        terms = [*zip(self.counts, usd, strict=True), *idle]
        return self.lp.minimise(terms, relative_gap, time_limit_s)

    def best(self, relative_gap: float, time_limit_s: float) -> Rental | Unanswered:
        """Solve for whole replicas; for a makespan solve again for the shares with these replicas given."""
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
        plan = _paced(given, self.common, self.scale_s, counts, nodes)
        if plan is None:
            return Unanswered(proven=found.bound <= _STANDSTILL)
        return replace(plan, bound=min(plan.value, self.scale_s / found.bound))

    def _evenly(self, counts: Counts, values: NDArray[np.float64]) -> Shares:
        """Shares under which the busiest replica is loaded least; with slices, those the search found."""
        if not self.problem.slices:
            batch = replace(self.problem, objective=MAKESPAN, scenarios=())
            even = _Program(batch, self.common, 1.0, fixed=counts)
            found = even.lp.maximise([(even.pace, 1.0)])
            if found.values is not None:
                return even.shares_of(found.values)
        return self.shares_of(np.rint(values) if self.problem.slices else values)

    def shares_of(self, values: NDArray[np.float64]) -> Shares:
        """Shares by configuration and type; those of a type add up to 1, over replicas that take prompts."""
        table = np.zeros((len(self.problem.configurations), len(self.problem.types)))
        for variable, mix in zip(self.shares, self.mixes, strict=True):
            table[mix.configuration, list(mix.types)] = max(0.0, float(values[variable]))
        entering = [configuration.role != DECODE for configuration in self.problem.configurations]
        sums = table[entering].sum(axis=0)
        table = np.divide(table, sums, out=np.zeros_like(table), where=sums > 0)
        return tuple(tuple(row) for row in table.tolist())


def _paced(
    problem: RentalProblem, common_shares: bool, scale_s: float, counts: Counts, nodes: tuple[HostNode, ...]
) -> Rental | None:
    """The shortest batch of replicas and nodes that are given, by its shares; None: it serves nothing."""
    program = _Program(problem, common_shares, scale_s, fixed=counts, placed=nodes)
    found = program.lp.maximise([(program.pace, 1.0)])
    if found.values is None or found.values[program.pace] <= _STANDSTILL:
        return None
    value = scale_s / float(found.values[program.pace])
    return Rental(counts, program.shares_of(found.values), value, value, nodes)

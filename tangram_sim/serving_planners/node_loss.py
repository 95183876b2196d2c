"""Plans that tolerate the loss of any one node: replicas on each node, and constraints for its loss.

A replica's GPUs of one kind are on one node; where they do not fit one node, on nodes of their own. Nodes of
a kind are variables: each by itself where there are few, else in classes of nodes with equal contents, which
excludes some plans. With z[j,c] the replicas of configuration c of which a node of class j holds a part, and
m[j] nodes in the class,

    sum_c size[c] z[j,c] <= GPUs of a node,  sum_j m[j] z[j,c] = spans[c] y[c]  for every kind of c,

and for each class the rows of shares once more, with y[c] - z[j,c] replicas. For fractional replicas one
class is enough: the mean of all nodes tolerates what each of them tolerates. GPUs without a limit are rented
by whole nodes, with idle GPUs at the price of their kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, inf

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving_planners.answer import Counts, HostNode
from tangram_sim.serving_planners.problem import MAKESPAN, RentalProblem
from tangram_sim.serving_planners.program import LinearProgram

MOST_CONFIGURATIONS = 40  # of a program with placed nodes
_ALONE = 16  # nodes of a kind up to which each is a class by itself
_COARSE = 6  # as few, for a first plan


@dataclass(frozen=True, slots=True)
class _NodeClass:
    """`count` nodes of `gpus` GPUs of kind `gpu` with equal contents `held`: variables by configuration.

    `used`: a variable that is 1 where the nodes hold anything; None where it is not needed.
    """

    gpu: int
    count: int
    gpus: int
    held: dict[int, int]
    used: int | None


def footprint(problem: RentalProblem, c: int, gpu: int) -> tuple[int, int]:
    """(nodes of a kind over which a replica of configuration c is spread, GPUs that it takes on each)."""
    taken, per_node = problem.configurations[c].gpus[gpu], problem.gpus[gpu].per_node
    if not taken:
        return 0, 0
    return (1, taken) if taken <= per_node else (ceil(taken / per_node), per_node)


class PlacedNodes:
    """Variables and rows that place the replicas `counts` of a program on nodes."""

    def __init__(
        self,
        problem: RentalProblem,
        lp: LinearProgram,
        counts: Sequence[int],
        *,
        whole: bool,
        coarse: bool = False,
    ) -> None:
        self.problem, self.counts = problem, counts
        self.classes: list[_NodeClass] = []
        for n in range(len(problem.gpus)):
            spans = {c: footprint(problem, c, n) for c in _holding(problem, n)}
            mine = []
            for count, size in _classes(problem, n, whole=whole, coarse=coarse) if spans else ():
                held = {
                    c: lp.variable(floor(size / taken), integer=whole)
                    for c, (_, taken) in spans.items()
                    if taken <= size
                }
                filled = [(v, float(spans[c][1])) for c, v in held.items()]
                used = lp.variable(1.0, integer=whole) if problem.by_nodes(n) else None
                if used is None:
                    lp.row(filled, high=size)
                else:
                    lp.row([*filled, (used, -float(size))], high=0.0)
                mine.append(_NodeClass(n, count, size, held, used))
            for c, (spread, _) in spans.items():
                placed = [(each.held[c], float(each.count)) for each in mine if c in each.held]
                lp.row([*placed, (counts[c], -float(spread))], low=0.0, high=0.0)
            for one, other in pairwise(mine):
                if (one.count, one.gpus) == (other.count, other.gpus):  # equal: the fuller one first
                    fuller = [(v, float(spans[c][1])) for c, v in one.held.items()]
                    lp.row([*fuller, *((v, -float(spans[c][1])) for c, v in other.held.items())], low=0.0)
            self.classes += mine

    def idle_usd(self, factors: Sequence[float]) -> list[tuple[int, float]]:
        """(variable, USD an hour) terms of the cost of idle GPUs, at prices times `factors` by kind."""
        terms: list[tuple[int, float]] = []
        prices = [factor * gpu.usd_per_hour for factor, gpu in zip(factors, self.problem.gpus, strict=True)]
        for one in self.classes:
            if one.used is not None:
                terms.append((one.used, prices[one.gpu] * one.count * one.gpus))
        for n, price in enumerate(prices):
            if self.problem.by_nodes(n):
                terms += [
                    (self.counts[c], -price * self.problem.configurations[c].gpus[n])
                    for c in _holding(self.problem, n)
                ]
        return terms

    def placed(self, values: NDArray[np.float64]) -> tuple[HostNode, ...]:
        """The nodes that are not empty in a solution."""
        found: dict[tuple[int, int, tuple[tuple[int, int], ...]], int] = {}
        for one in self.classes:
            held = [(c, round(float(values[v]))) for c, v in one.held.items()]
            alike = (one.gpu, one.gpus, tuple((c, count) for c, count in held if count))
            found[alike] = found.get(alike, 0) + one.count
        return tuple(
            HostNode(gpu, count, gpus, replicas) for (gpu, gpus, replicas), count in found.items() if replicas
        )


def rented_usd(problem: RentalProblem, counts: Counts, nodes: Sequence[HostNode]) -> float:
    """USD an hour of the replicas and of idle GPUs on nodes that are rented as a whole."""
    usd = sum(one.usd_per_hour * count for one, count in zip(problem.configurations, counts, strict=True))
    for n, gpu in enumerate(problem.gpus):
        if problem.by_nodes(n):
            rented = sum(node.count * node.gpus for node in nodes if node.gpu == n)
            busy = sum(one.gpus[n] * count for one, count in zip(problem.configurations, counts, strict=True))
            usd += (rented - busy) * gpu.usd_per_hour
    return float(usd)


def each_alone(problem: RentalProblem) -> bool:
    """Whether every node is a class by itself, so that every placement of replicas is considered."""
    return all(
        count == 1
        for n in range(len(problem.gpus))
        if _holding(problem, n)
        for count, _ in _classes(problem, n, whole=True)
    )


def nodes_suffice(problem: RentalProblem, usd_per_hour: float) -> bool:
    """Whether the program has enough nodes for every plan that costs at most `usd_per_hour`."""
    return all(
        _nodes_wanted(problem, n) >= _affordable(problem, n, usd_per_hour)
        for n in range(len(problem.gpus))
        if problem.by_nodes(n) and _holding(problem, n)
    )


def _holding(problem: RentalProblem, n: int) -> list[int]:
    """Configurations that use GPUs of kind n."""
    return [c for c, configuration in enumerate(problem.configurations) if configuration.gpus[n]]


def _classes(problem: RentalProblem, n: int, *, whole: bool, coarse: bool = False) -> list[tuple[int, int]]:
    """(nodes, GPUs of each) of the node classes of kind n; a partial node is a class of its own."""
    gpu = problem.gpus[n]
    if gpu.available < inf:
        left, rest = divmod(int(gpu.available), gpu.per_node)
    else:
        left, rest = _nodes_wanted(problem, n), 0
    counts, alone = [], min(_ALONE, _COARSE) if coarse else _ALONE
    while left:
        counts.append(1 if whole and left <= alone else left // 2 if whole else left)
        left -= counts[-1]
    return [*((count, gpu.per_node) for count in counts), *([(1, rest)] if rest else [])]


def _affordable(problem: RentalProblem, n: int, usd_per_hour: float) -> float:
    """Upper bound on nodes of kind n for `usd_per_hour`, at the least price of a GPU in any configuration."""
    each = [
        problem.configurations[c].usd_per_hour / problem.configurations[c].gpus[n]
        for c in _holding(problem, n)
    ]
    least = problem.gpus[n].per_node * min(problem.gpus[n].usd_per_hour, *each)
    return floor(usd_per_hour / least * (1 + 1e-9)) if usd_per_hour < inf and least > 0 else inf


def _nodes_wanted(problem: RentalProblem, n: int) -> int:
    """Nodes to model of an unlimited kind: all that the budget buys, or amply enough for all requests."""
    gpu, affordable = problem.gpus[n], _affordable(problem, n, problem.budget_usd_per_hour)
    gpus = 0.0
    for w, request_type in enumerate(problem.types):
        each = [
            problem.configurations[c].gpus[n] / problem.configurations[c].rps[w]
            for c in _holding(problem, n)
            if problem.configurations[c].rps[w] > 0
        ]
        gpus += request_type.amount / problem.utilisation * min(each, default=0.0)
    most = max((s.coverage * s.rate_factor for s in problem.scenarios), default=1.0)
    nodes = ceil(2.0 * max(1.0, most) * gpus / gpu.per_node) + 2 * max(
        ceil(problem.configurations[c].gpus[n] / gpu.per_node) for c in _holding(problem, n)
    )
    return int(affordable if problem.objective == MAKESPAN and affordable < inf else min(nodes, affordable))

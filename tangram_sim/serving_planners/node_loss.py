"""Plans that bear the loss of any one node: which replicas each node holds, and rows for its loss.

A replica's GPUs of one kind sit on one node; where no node holds them, on nodes of their own. Nodes of a kind
are variables: each by itself where there are few, else in classes of equal nodes that hold the same. With
z[j,c] the replicas of configuration c that a node of class j holds a part of, and m[j] nodes in the class,

    sum_c size[c] z[j,c] <= GPUs of a node,  sum_j m[j] z[j,c] >= spans[c] y[c]  for every kind of c,

and for each class the rows of shares once more, with y[c] - z[j,c] replicas. GPUs without a limit are rented
by full nodes: no more nodes of the kind than its GPUs in use fill.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, inf

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving_planners.answer import HostNode
from tangram_sim.serving_planners.problem import MAKESPAN, RentalProblem
from tangram_sim.serving_planners.program import LinearProgram

MOST_CONFIGURATIONS = 40  # of a program with placed nodes
_ALONE = 6  # nodes of a kind up to which each is a class by itself
_MOST_NODES = 4096  # of a kind


@dataclass(frozen=True, slots=True)
class _NodeClass:
    """`count` nodes of kind `gpu` with `gpus` GPUs each, that hold the same; variables by configuration."""

    gpu: int
    count: int
    gpus: int
    held: dict[int, int]


def footprint(problem: RentalProblem, c: int, gpu: int) -> tuple[int, int]:
    """(nodes of a kind that a replica of configuration c is spread over, GPUs that it takes of each)."""
    taken, per_node = problem.configurations[c].gpus[gpu], problem.gpus[gpu].per_node
    if not taken:
        return 0, 0
    return (1, taken) if taken <= per_node else (ceil(taken / per_node), per_node)


class PlacedNodes:
    """Variables and rows that place the replicas `counts` of a program on nodes."""

    def __init__(
        self, problem: RentalProblem, lp: LinearProgram, counts: Sequence[int], *, whole: bool
    ) -> None:
        self.classes: list[_NodeClass] = []
        for n, gpu in enumerate(problem.gpus):
            spans = {
                c: footprint(problem, c, n)
                for c, configuration in enumerate(problem.configurations)
                if configuration.gpus[n]
            }
            if not spans:
                continue
            mine = []
            for count, size in _sizes(problem, n):
                held = {
                    c: lp.variable(floor(size / taken), integer=whole)
                    for c, (_, taken) in spans.items()
                    if taken <= size
                }
                lp.row([(v, float(spans[c][1])) for c, v in held.items()], high=size)
                mine.append(_NodeClass(n, count, size, held))
            for c, (spread, _) in spans.items():
                placed = [(each.held[c], float(each.count)) for each in mine if c in each.held]
                lp.row([*placed, (counts[c], -float(spread))], low=0.0)
            for one, other in pairwise(mine):
                if (one.count, one.gpus) == (other.count, other.gpus):  # equal: the fuller one first
                    fuller = [(v, float(spans[c][1])) for c, v in one.held.items()]
                    lp.row([*fuller, *((v, -float(spans[c][1])) for c, v in other.held.items())], low=0.0)
            if gpu.filled:
                rented = [(counts[c], -float(problem.configurations[c].gpus[n])) for c in spans]
                _filled(lp, mine, {c: spans[c][1] for c in spans}, rented, per_node=gpu.per_node, whole=whole)
            self.classes += mine

    def placed(self, values: NDArray[np.float64]) -> tuple[HostNode, ...]:
        """The nodes that hold anything in a solution."""
        found: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        for one in self.classes:
            held = [(c, round(float(values[v]))) for c, v in one.held.items()]
            replicas = tuple((c, count) for c, count in held if count)
            found[one.gpu, replicas] = found.get((one.gpu, replicas), 0) + one.count
        return tuple(HostNode(gpu, count, replicas) for (gpu, replicas), count in found.items() if replicas)


def _filled(
    lp: LinearProgram,
    classes: Sequence[_NodeClass],
    sizes: dict[int, int],
    rented: list[tuple[int, float]],
    *,
    per_node: int,
    whole: bool,
) -> None:
    """Nodes in use are no more than the GPUs in use fill: per_node x nodes < GPUs + per_node."""
    terms = rented
    for one in classes:
        used = lp.variable(1.0, integer=whole)
        taken = [(v, float(sizes[c])) for c, v in one.held.items()]
        lp.row([*taken, (used, -float(one.gpus))], high=0.0)
        terms = [*terms, (used, float(one.count * per_node))]
    lp.row(terms, high=per_node - 1.0)


def _sizes(problem: RentalProblem, n: int) -> list[tuple[int, int]]:
    """(nodes, GPUs of each) of the classes of kind n; a node that is not full is one of its own."""
    gpu = problem.gpus[n]
    if gpu.available < inf:
        nodes, rest = divmod(int(gpu.available), gpu.per_node)
    else:
        nodes, rest = _nodes_wanted(problem, n), 0
    counts, left = [], min(nodes, _MOST_NODES)
    while left:
        counts.append(1 if left <= _ALONE else left // 2)
        left -= counts[-1]
    return [*((count, gpu.per_node) for count in counts), *([(1, rest)] if rest else [])]


def _nodes_wanted(problem: RentalProblem, n: int) -> int:
    """Nodes of a kind without limit: what the budget buys, or twice what carries everything, and two more."""
    gpu, budget = problem.gpus[n], problem.budget_usd_per_hour
    affordable = inf
    if budget < inf:
        per_usd = max(
            configuration.gpus[n] / configuration.usd_per_hour for configuration in problem.configurations
        )
        affordable = ceil(budget * per_usd / gpu.per_node)
        if problem.objective == MAKESPAN:
            return int(affordable)
    gpus = 0.0
    for w, request_type in enumerate(problem.types):
        each = [
            configuration.gpus[n] / configuration.rps[w]
            for configuration in problem.configurations
            if configuration.gpus[n] and configuration.rps[w] > 0
        ]
        gpus += request_type.amount / problem.utilisation * min(each, default=0.0)
    most = max((s.coverage * s.rate_factor for s in problem.scenarios), default=1.0)
    nodes = ceil(2.0 * max(1.0, most) * gpus / gpu.per_node) + 2 * max(
        ceil(configuration.gpus[n] / gpu.per_node) for configuration in problem.configurations
    )
    return int(min(nodes, affordable))

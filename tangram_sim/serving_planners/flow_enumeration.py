"""The best placement by enumeration with bounds, for few nodes: all partial placements at once, as arrays.

A partial placement is dropped once the remaining nodes cannot provide what T tokens/s through all layers
still need, T being the best known. Whole placements are bounded by what passes every layer and every boundary
between layers; flows are computed in the order of these bounds until none can be better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving_planners.flow_network import throughput
from tangram_sim.serving_planners.flow_problem import FlowProblem, Placement, alike

_BETTER = 1 + 1e-9
_EXPANDED = 4  # times as many partial placements as are kept may be looked at in one step
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Options = tuple[
    list[tuple[int, int]], list[float]
]  # ranges [first, end) of a node, tokens/s through it there


@dataclass(frozen=True, slots=True)
class Enumerated:
    """The best placement found above some tokens/s (None: none), and whether enumeration was complete."""

    placement: Placement | None
    tokens_per_s: float
    complete: bool


def placements_above(problem: FlowProblem, above: float, most_states: int, most_flows: int) -> Enumerated:
    """The best placement with more than `above` tokens/s.

    Incomplete where more than `most_states` partial placements, or `most_flows` whole ones, would be kept.
    """
    options = [_options(problem, i) for i in range(problem.host)]
    chosen, covered = _whole_placements(problem, options, above, most_states)
    if chosen is None or covered is None:
        return Enumerated(None, above, complete=False)
    bounds = np.minimum(covered.min(axis=1), _crossing(problem, chosen, options))
    best: Placement | None = None
    for count, row in enumerate(np.argsort(-bounds, kind="stable")):
        if bounds[row] <= above * _BETTER:
            break
        if count >= most_flows:
            return Enumerated(best, above, complete=False)
        held = zip(options, chosen[row], strict=True)
        placement: Placement = tuple(ranges[option] if ranges else None for (ranges, _), option in held)
        found = throughput(problem, placement)
        if found > above * _BETTER:
            best, above = placement, found
    return Enumerated(best, above, complete=True)


def _whole_placements(
    problem: FlowProblem, options: Sequence[Options], above: float, most_states: int
) -> tuple[Ints, Floats] | tuple[None, None]:
    """(option of every node, tokens/s processed at every layer) of placements whose flow may exceed `above`.

    Arrays of placements x nodes and placements x layers; (None, None) where there are too many.
    """
    work = [max((k + 1) * rate for k, rate in enumerate(node.tokens_per_s)) for node in problem.nodes]
    order = sorted(range(problem.host), key=lambda i: (-work[i], i))
    twin = {j: i for i, j in alike(problem)}
    rest = sum(work)
    crumbs = 1e-9 * rest
    chosen: Ints = np.zeros((1, problem.host), dtype=np.int64)
    covered: Floats = np.zeros((1, problem.layers))
    for place, i in enumerate(order):
        rest = max(0.0, rest - work[i])
        ranges, rates = options[i]
        if not ranges:
            continue
        if len(chosen) * len(ranges) > _EXPANDED * most_states:
            return None, None
        adds = np.zeros((len(ranges), problem.layers))
        for row, ((first, end), rate) in enumerate(zip(ranges, rates, strict=True)):
            adds[row, first:end] = rate
        parent, option = np.divmod(np.arange(len(chosen) * len(ranges)), len(ranges))
        if i in twin and twin[i] in order[:place]:
            ordered = chosen[parent, twin[i]] <= option
            parent, option = parent[ordered], option[ordered]
        after = covered[parent] + adds[option]
        kept = np.maximum(0.0, above * _BETTER - after).sum(axis=1) <= rest + crumbs
        parent, option = parent[kept], option[kept]
        if len(parent) > most_states:
            return None, None
        chosen, covered = chosen[parent], after[kept]
        chosen[:, i] = option
    return chosen, covered


def _options(problem: FlowProblem, node: int) -> Options:
    """(layer ranges [first, end) that a node may hold, the maximum tokens/s through it with each range)."""
    links, host = problem.link_tokens_per_s, problem.host
    into = sum(links[j][node] for j in range(host) if j != node)
    out = sum(links[node][j] for j in range(host) if j != node)
    ranges, rates = [], []
    for k, rate in enumerate(problem.nodes[node].tokens_per_s, start=1):
        for first in range(problem.layers - k + 1):
            entering = (links[host][node] if first == 0 else 0.0) + into
            leaving = links[node][host] if first + k == problem.layers else out
            passing = min(rate, entering, leaving)
            if passing > 0:
                ranges.append((first, first + k))
                rates.append(passing)
    return ranges, rates


def _crossing(problem: FlowProblem, chosen: Ints, options: Sequence[Options]) -> Floats:
    """Upper bound on each placement's tokens/s: the least that can enter, leave or cross a layer boundary."""
    links, host, layers = problem.link_tokens_per_s, problem.host, problem.layers
    first, end = np.full(chosen.shape, -1), np.full(chosen.shape, -1)
    rate = np.zeros(chosen.shape)
    for i, (ranges, rates) in enumerate(options):
        if ranges:
            table = np.array(ranges)[chosen[:, i]]
            first[:, i], end[:, i], rate[:, i] = table[:, 0], table[:, 1], np.array(rates)[chosen[:, i]]
    source = np.array([links[host][i] for i in range(host)])
    sink = np.array([links[i][host] for i in range(host)])
    least: Floats = np.minimum(
        np.where(first == 0, np.minimum(rate, source), 0.0).sum(axis=1),
        np.where(end == layers, np.minimum(rate, sink), 0.0).sum(axis=1),
    )
    for boundary in range(1, layers):
        inside = np.where((first < boundary) & (boundary < end), rate, 0.0).sum(axis=1)
        ends, holds = end == boundary, (first <= boundary) & (boundary < end)
        between = np.zeros(len(chosen))
        for i in range(host):
            reached = sum(np.where(holds[:, j], links[i][j], 0.0) for j in range(host) if j != i)
            between += np.where(ends[:, i], np.minimum(rate[:, i], reached), 0.0)
        least = np.minimum(least, inside + between)
    return least

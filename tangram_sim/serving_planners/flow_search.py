"""Placements by local search: balanced stages first, then one node at a time, judged by maximum flow."""

import time
from random import Random

import numpy as np

from tangram_sim.serving_planners.flow_network import throughput
from tangram_sim.serving_planners.flow_problem import FlowProblem, Held, Placement, relaxed_bound

_STEPS = 40_000  # of one annealing: about a second on 24 nodes
_HOT, _COLD = 0.02, 0.0005  # shares of the bound: flows that far apart are told apart


def search(problem: FlowProblem, seed: int, rounds: int, time_limit_s: float) -> tuple[Placement, float]:
    """(best placement from several starts, its tokens/s); deterministic by seed, up to the time limit."""
    random, until = Random(seed), time.monotonic() + time_limit_s
    best, most = _filled(problem), -1.0
    for start in range(rounds):
        placement = best if start % 2 and most > 0 else _start(problem, random, start)
        placement, rate = _climb(problem, placement, random, until)
        if rate > most:
            best, most = placement, rate
        if time.monotonic() > until:
            break
    return best, most


def annealed(problem: FlowProblem, seed: int, runs: int, time_limit_s: float) -> tuple[Placement, float]:
    """(best placement, its tokens/s) by compiled annealing, for many nodes: `runs` seeds from one start."""
    from tangram_sim.serving_planners.flow_kernels import anneal

    until = time.monotonic() + time_limit_s
    most = np.array([min(len(node.tokens_per_s), problem.layers) for node in problem.nodes])
    rates = np.zeros((problem.host, int(most.max())))
    for i, node in enumerate(problem.nodes):
        rates[i, : most[i]] = node.tokens_per_s[: most[i]]
    links, filled = np.array(problem.link_tokens_per_s), _filled(problem)
    best, reached = filled, -1.0
    for run in range(runs):
        first = np.array([held[0] if held else 0 for held in filled])
        end = np.array([held[1] if held else 0 for held in filled])
        rate = anneal(
            first,
            end,
            rates,
            most,
            links,
            problem.layers,
            ceiling=relaxed_bound(problem),
            steps=_STEPS,
            hot=_HOT,
            cold=_COLD,
            seed=seed + run,
        )
        if rate > reached:
            reached = float(rate)
            best = tuple((int(a), int(b)) for a, b in zip(first, end, strict=True))
        if time.monotonic() > until:
            break
    return best, reached


def _filled(problem: FlowProblem) -> Placement:
    """A placement in which each node in order takes as many layers as it can, wrapping after the last."""
    placement: list[Held] = []
    at = 0
    for node in problem.nodes:
        count = min(len(node.tokens_per_s), problem.layers - at)
        placement.append((at, at + count))
        at = (at + count) % problem.layers
    return tuple(placement)


def _start(problem: FlowProblem, random: Random, number: int) -> Placement:
    """Start placement: the filled one for `number` 0, else random numbers of layers in a random order."""
    if not number:
        return _filled(problem)
    placement: list[Held] = [None] * len(problem.nodes)
    order = list(range(len(problem.nodes)))
    random.shuffle(order)
    at = 0
    for i in order:
        most = len(problem.nodes[i].tokens_per_s)
        count = min(random.randint(max(1, most // 2), most), problem.layers - at)
        placement[i] = (at, at + count)
        at = (at + count) % problem.layers
    return tuple(placement)


def _climb(
    problem: FlowProblem, placement: Placement, random: Random, until: float
) -> tuple[Placement, float]:
    """Local search: change one node's layers at random, and keep changes that do not lower the tokens/s.

    It ends at time `until`, or after 40 changes per node in a row without an increase.
    """
    rate, idle = throughput(problem, placement), 0
    patience = 40 * len(problem.nodes)
    while idle < patience and time.monotonic() < until:
        i = random.randrange(len(placement))
        changed = list(placement)
        changed[i] = _moved(problem, placement, i, random)
        tried = throughput(problem, tuple(changed))
        idle = 0 if tried > rate * (1 + 1e-9) else idle + 1
        if tried >= rate:
            placement, rate = tuple(changed), tried
    return placement, rate


def _moved(problem: FlowProblem, placement: Placement, node: int, random: Random) -> Held:
    """A random range of layers for a node that begins or ends where others' ranges do, or anywhere."""
    count = random.randint(1, min(len(problem.nodes[node].tokens_per_s), problem.layers))
    bounds = [0, *(held[random.randrange(2)] for held in placement if held)]
    at = random.choice(bounds) if random.random() < 0.7 else random.randrange(problem.layers)
    if random.random() < 0.5:
        at -= count
    first = max(0, min(at, problem.layers - count))
    return first, first + count

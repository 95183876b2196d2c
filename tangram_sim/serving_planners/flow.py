"""Layer placements of maximum flow: search for a good one, enumeration for the proof."""

import time
from dataclasses import dataclass

from tangram_sim.serving_planners.answer import PROVEN
from tangram_sim.serving_planners.flow_enumeration import placements_above
from tangram_sim.serving_planners.flow_network import TokenPath, largest_flow, paths
from tangram_sim.serving_planners.flow_problem import FlowProblem, Placement, relaxed_bound
from tangram_sim.serving_planners.flow_search import annealed, search

_ROUNDS, _SEED = 12, 0  # of the search
_MANY, _RUNS = 9, 4  # nodes from which on the search is compiled annealing, so many times
_SEARCHED = 0.4  # of the time limit, at most
_MOST_STATES, _MOST_FLOWS = 500_000, 4000  # of an enumeration: about a second
_DOWN = (1.0, 0.25, 0.5, 0.75)  # how far below the bound an enumeration begins; all the way first


@dataclass(frozen=True, slots=True)
class PlacedFlow:
    """A placement: layers of each node, its tokens/s, the bound on tokens/s, and the paths of requests.

    `links` are tokens/s by (node, node); the host is numbered after the last node.
    """

    placement: Placement
    tokens_per_s: float
    bound: float
    paths: tuple[TokenPath, ...]
    links: dict[tuple[int, int], float]

    @property
    def gap(self) -> float:
        """Optimality gap: the largest possible increase of tokens/s, as a share of this placement's."""
        return max(0.0, self.bound / self.tokens_per_s - 1.0)

    @property
    def optimal(self) -> bool:
        """Whether the placement is proven optimal, to the tolerance PROVEN."""
        return self.gap <= PROVEN


@dataclass(frozen=True, slots=True)
class SingleKindFlow:
    """The best placement on the nodes of one kind; 0 tokens/s where they cannot hold the model."""

    kind: str
    tokens_per_s: float
    optimal: bool


def place(problem: FlowProblem, time_limit_s: float, seed: int = _SEED) -> PlacedFlow | None:
    """The placement with the most tokens/s; None where no placement carries any.

    Where the proof takes longer than `time_limit_s`, the best placement found, with its gap.
    """
    ceiling = relaxed_bound(problem)
    if sum(len(node.tokens_per_s) for node in problem.nodes) < problem.layers or ceiling <= 0:
        return None
    if problem.host < _MANY:
        placement, rate = search(problem, seed, _ROUNDS, _SEARCHED * time_limit_s)
    else:
        placement, rate = annealed(problem, seed, _RUNS, _SEARCHED * time_limit_s)
    placement, rate, bound = _proven(
        problem, placement, rate, ceiling, time.monotonic() + (1 - _SEARCHED) * time_limit_s
    )
    rate, links = largest_flow(problem, placement)
    if rate <= 0:
        return None
    kept = tuple(
        held if any(i in link for link, tokens in links.items() if tokens > 0) else None
        for i, held in enumerate(placement)
    )
    return PlacedFlow(kept, rate, max(bound, rate), tuple(paths(problem, links)), links)


def _proven(
    problem: FlowProblem, placement: Placement, rate: float, ceiling: float, until: float
) -> tuple[Placement, float, float]:
    """(placement, tokens/s, bound) after an exhaustive search among placements that could be better."""
    bound = ceiling
    for share in _DOWN:
        above = bound - share * (bound - rate)
        if bound <= rate * (1 + PROVEN) or time.monotonic() > until:
            break
        found = placements_above(problem, above, _MOST_STATES, _MOST_FLOWS)
        if found.placement is not None:
            placement, rate = found.placement, found.tokens_per_s
        if found.complete:
            bound = max(rate, above)
    return placement, rate, bound


def single_kind_flows(problem: FlowProblem, time_limit_s: float) -> list[SingleKindFlow]:
    """The best placement on every kind of node alone, in the order in which kinds first appear."""
    found = []
    for kind in dict.fromkeys(node.kind for node in problem.nodes):
        answer = place(problem.of_kind(kind), time_limit_s)
        if answer is None:
            found.append(SingleKindFlow(kind, 0.0, optimal=True))
        else:
            found.append(SingleKindFlow(kind, answer.tokens_per_s, answer.optimal))
    return found

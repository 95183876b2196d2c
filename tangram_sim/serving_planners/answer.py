"""Results of a planner of replicas: integer numbers of replicas, shares of requests, and bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

PROVEN = 1e-6  # relative gap below which an answer counts as optimal
Counts = tuple[int, ...]
Shares = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class HostNode:
    """`count` equal nodes of `gpus` GPUs of kind `gpu`, and the replicas of which each holds a part."""

    gpu: int
    count: int
    gpus: int
    replicas: tuple[tuple[int, int], ...]  # configuration, replicas


@dataclass(frozen=True, slots=True)
class Rental:
    """A plan: `counts[c]` replicas of configuration c, which get the share `shares[c][w]` of type w.

    `value` is the objective: seconds (makespan) or dollars an hour (cost). `bound` is a lower bound on it for
    every plan of the problem. `nodes` are given where the plan must tolerate the loss of any one node.
    """

    counts: Counts
    shares: Shares
    value: float
    bound: float
    nodes: tuple[HostNode, ...] = ()

    @property
    def gap(self) -> float:
        """Optimality gap: the largest possible improvement on `value`, as a share of `value`."""
        return max(0.0, 1.0 - self.bound / self.value)

    @property
    def optimal(self) -> bool:
        """Whether the plan is proven optimal, to the tolerance PROVEN."""
        return self.gap <= PROVEN

    def among(self, chosen: Sequence[int], configurations: int, types: int) -> "Rental":
        """The plan renumbered: its configurations become those numbered `chosen` among `configurations`."""
        counts, shares = [0] * configurations, [(0.0,) * types] * configurations
        for place, c in enumerate(chosen):
            counts[c], shares[c] = self.counts[place], self.shares[place]
        nodes = tuple(
            replace(node, replicas=tuple((chosen[place], held) for place, held in node.replicas))
            for node in self.nodes
        )
        return replace(self, counts=tuple(counts), shares=tuple(shares), nodes=nodes)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No plan was found; `proven`: there is none, otherwise the time limit was reached."""

    proven: bool

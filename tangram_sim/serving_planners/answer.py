"""What a planner of replicas answers: whole numbers of them, shares of requests, and what is proven of it."""

from dataclasses import dataclass

PROVEN = 1e-6  # relative gap below which an answer counts as optimal
Counts = tuple[int, ...]
Shares = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Rental:
    """An answer: `counts[c]` replicas, share `shares[c][w]` of type w, the objective and its bound.

    `value` is seconds (makespan) or dollars an hour (cost); no plan of the problem is below `bound`.
    """

    counts: Counts
    shares: Shares
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """How much less the best plan could be at most, as a share of the value."""
        return max(0.0, 1.0 - self.bound / self.value)

    @property
    def optimal(self) -> bool:
        """Whether it is proven that nothing is better."""
        return self.gap <= PROVEN


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No plan: proven to be none, or none found in time."""

    proven: bool

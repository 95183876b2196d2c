"""The Pareto front of a purchase, and the mixes that were simulated."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tangram_sim.studies.candidate_loop import pareto
from tangram_sim.studies.documents import PlanDocument


@dataclass(frozen=True)
class Simulated:
    """One mix with its plans, one per model; throughput is 0 if a model does not fit."""

    mix: tuple[int, ...]
    name: str
    cost: float  # of several models in one run that trains them all, as long as that takes
    tokens_per_s: float  # as simulated, times goodput where that is known
    bound_tokens_per_s: float  # by work: no plan is faster, failures or not
    documents: tuple[PlanDocument, ...]  # one per model
    reason: str = ""
    cut_short: bool = False  # time was over before a search was: more may find a faster plan

    @property
    def gap(self) -> float:
        """Optimality gap: upper bound over throughput, less one; inf without a plan."""
        return self.bound_tokens_per_s / self.tokens_per_s - 1 if self.tokens_per_s else float("inf")


@dataclass
class Front:
    """The Pareto front of cost and throughput, by rising cost, and all mixes simulated.

    While the search runs or after a deadline ended it, some mixes are `waiting`: each might join the front.
    """

    points: list[Simulated]
    simulated: list[Simulated]
    mixes: int  # within the limits
    left_out: int  # not simulated: bounded away
    waiting: int = 0  # not simulated, and not bounded away
    # (least cost, most cost, most tokens/s) of mixes not planned in full: not at all, or cut short.
    may_reach: tuple[tuple[float, float, float], ...] = ()

    def is_proven(self, at: int) -> bool:
        """Whether it is proven that no mix cheaper than the point after `at` is faster than the point `at`.

        Mixes that might be were planned in full; bounds exclude the others.
        """
        end = self.points[at + 1].cost if at + 1 < len(self.points) else inf
        low = self.points[at]
        return not any(
            least < end and low.cost <= most and rate > low.tokens_per_s
            for least, most, rate in self.may_reach
        )


def front_of(simulated: Sequence[Simulated]) -> list[Simulated]:
    """Pareto front of the mixes (throughput against cost), by rising cost."""
    ordered = sorted(simulated, key=lambda item: item.mix)
    return pareto(ordered, lambda item: item.tokens_per_s, lambda item: item.cost)

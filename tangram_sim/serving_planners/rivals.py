"""Comparison plans: the best plan of every single kind, and the best plans without one of three levers.

The levers are those of arXiv 2502.00722: the composition of kinds (without it: one kind), the parallelism of
every replica (without it: all replicas have the same number of GPUs), the share of each type of request that
a replica gets (without it: the same mix of types for all).
"""

import time
from dataclasses import dataclass
from math import inf

from tangram_sim.serving_planners.answer import Rental, Unanswered
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.problem import COST, RentalProblem


@dataclass(frozen=True, slots=True)
class SingleKind:
    """The best plan with one GPU kind only, or why there is none.

    `capped`: limited by availability and budget; otherwise by the budget alone.
    """

    gpu: str
    capped: bool
    answer: Rental | Unanswered

    @property
    def value(self) -> float:
        """Objective of its plan; inf where there is none."""
        return value_of(self.answer)


@dataclass(frozen=True, slots=True)
class Lever:
    """The best plan without one of the three levers (see the module)."""

    name: str
    answer: Rental | Unanswered


def single_kinds(problem: RentalProblem, time_limit_s: float, until: float = inf) -> list[SingleKind]:
    """The best plan of every kind alone, with and without its cap; at most `time_limit_s` for each.

    In the problem's order; kinds whose turn comes after `until` (time.perf_counter) have no plan.
    """
    found = []
    for n, gpu in enumerate(problem.gpus):
        alone = frozenset(
            c for c, configuration in enumerate(problem.configurations) if configuration.kinds() == {n}
        )
        for capped in (True, False):
            limited = problem.budget_usd_per_hour < inf or (capped and gpu.available < inf)
            late = time.perf_counter() > until
            answer: Rental | Unanswered = Unanswered(proven=not late)
            if late:
                pass
            elif alone and (limited or problem.objective == COST):
                answer = solve(problem, allowed=alone, capped=capped, time_limit_s=time_limit_s)
            found.append(SingleKind(gpu.name, capped, answer))
    return found


def without_levers(problem: RentalProblem, rivals: list[SingleKind], time_limit_s: float) -> list[Lever]:
    """The best plan without each of the levers; at most `time_limit_s` for each program."""
    alone = [rival.answer for rival in rivals if rival.capped]
    sizes = [
        frozenset(
            c for c, configuration in enumerate(problem.configurations) if configuration.gpu_count == size
        )
        for size in sorted({configuration.gpu_count for configuration in problem.configurations})
    ]
    same_size = [solve(problem, allowed=some, time_limit_s=time_limit_s) for some in sizes]
    return [
        Lever("composition", min(alone, key=value_of)),
        Lever("parallelism", min(same_size, key=value_of)),
        Lever("request_shares", solve(problem, common_shares=True, time_limit_s=time_limit_s)),
    ]


def value_of(answer: Rental | Unanswered) -> float:
    """Objective of a plan, in seconds or USD an hour; inf where there is none."""
    return answer.value if isinstance(answer, Rental) else inf

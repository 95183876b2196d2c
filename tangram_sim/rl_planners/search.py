"""Search over placements: nodes to pools, pools to layouts, simulation, and a lower bound.

Every choice of nodes has a lower bound on its step; the choice with the lowest is priced and simulated first,
until no bound is below the best simulated step. The lowest remaining bound is the lower bound of the result.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from tangram_sim.errors import InfeasibleError, OutOfTimeError, TangramError
from tangram_sim.planners.deadline import Deadline
from tangram_sim.post_training.plan import SPLIT
from tangram_sim.post_training.step import StepOutcome
from tangram_sim.rl_planners.baselines import baselines
from tangram_sim.rl_planners.bound import Advantage, advantages
from tangram_sim.rl_planners.candidates import RoleChoices, RoleNodes
from tangram_sim.rl_planners.pools import Pools
from tangram_sim.rl_planners.problem import ANY, Counts, Judge, RlProblem

_PATIENCE = 120  # candidates played without a better plan, on small fleets
_LARGE = 20  # the same on fleets of which not every choice of nodes is a candidate
_CURVE = 16  # ratios of the same GPUs
_RULES = 20  # nodes up to which other rules' plans are candidates, too: their search costs seconds beyond


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Seconds of a step for one division of the nodes into training and rollout."""

    training: Counts
    rollout: Counts
    training_gpus: int
    rollout_gpus: int
    step_s: float


@dataclass(frozen=True)
class RlSearchResult:
    """Result of a search: the best plan, simulated, other plans, and a lower bound.

    `ranked` holds other good plans, best first. `curve`: steps by the ratio of training to rollout on the
    same GPUs. `stopped`: the time limit ended the search early.
    """

    problem: RlProblem
    best: StepOutcome
    ranked: tuple[StepOutcome, ...]
    curve: tuple[CurvePoint, ...]
    kinds: tuple[Advantage, ...]
    bound_s: float
    plans: int
    stopped: bool = False

    @property
    def gap(self) -> float:
        """Optimality gap: how much longer the best step is than the lower bound, relative to the bound."""
        return self.best.step_s / self.bound_s - 1.0 if self.bound_s else float("inf")


@dataclass
class RlSearch:
    """One search of one problem; `pools` and `judge` may be shared with baselines."""

    problem: RlProblem
    deadline: Deadline = field(default_factory=Deadline)
    pools: Pools = field(init=False)
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        self.pools, self.judge = Pools(self.problem), Judge(self.problem)

    def run(self) -> RlSearchResult:
        """The best plan found, with alternatives and bound.

        Raises InfeasibleError, with the reason, where no placement fits; OutOfTimeError where the time limit
        passed before one was found.
        """
        problem = self.problem
        kinds = tuple(advantages(problem))
        candidates = RoleChoices(problem, self.pools, kinds)
        lower_s, stopped = self._look(candidates)
        for rule in baselines() if problem.placement == ANY and sum(problem.counts) <= _RULES else ():
            plan = None if self.deadline.over() else rule.plan(problem, self.pools, self.judge)
            if plan is not None:
                self.judge.outcome(plan)
        outcomes = [item for item in self.judge.played.values() if isinstance(item, StepOutcome)]
        if not outcomes:
            raise self._refusal(stopped)
        curve = () if stopped else tuple(self._curve(candidates))
        outcomes = [item for item in self.judge.played.values() if isinstance(item, StepOutcome)]
        outcomes.sort(key=lambda outcome: (outcome.step_s, outcome.plan.gpus))
        return RlSearchResult(
            problem,
            outcomes[0],
            ranked=tuple(outcomes[1:6]),
            curve=curve,
            kinds=kinds,
            bound_s=min(lower_s, outcomes[0].step_s),
            plans=len(self.judge.played),
            stopped=stopped,
        )

    def _look(self, candidates: RoleChoices) -> tuple[float, bool]:
        """Simulate candidates by rising bound; returns (lower bound on all steps, whether time ran out). It
        ends when no bound is below the best step or, where many candidates are nearly as good, after
        `_PATIENCE` simulations without a better plan. At least one candidate is simulated."""
        heap = [
            (candidates.rough_s(role_nodes), place, False, role_nodes)
            for place, role_nodes in enumerate(candidates.every())
        ]
        heapq.heapify(heap)
        best_s, lower_s, since = float("inf"), float("inf"), 0
        while heap:
            bound_s, place, exact, role_nodes = heapq.heappop(heap)
            if bound_s >= best_s or bound_s == float("inf"):
                return min(lower_s, bound_s), False
            if self.deadline.over() and self.judge.played:
                return min(lower_s, bound_s), True
            if not exact:
                heapq.heappush(heap, (max(candidates.bound_s(role_nodes), bound_s), place, True, role_nodes))
                continue
            if since > (_PATIENCE if candidates.small else _LARGE):
                return min(lower_s, bound_s), False
            since += 1
            for plan in candidates.plans(role_nodes):
                step_s = self.judge.step_s(plan)
                if step_s < best_s:
                    best_s, since = step_s, 0
            lower_s = min(lower_s, candidates.played_bound_s(role_nodes))
        return lower_s, False

    def _curve(self, candidates: RoleChoices) -> Iterator[CurvePoint]:
        """Yields steps by training ratio on the same GPUs, split; kinds worst at rollout train first."""
        problem = self.problem
        if problem.placement not in (ANY, SPLIT):
            return
        ratio = {kind.kind: (kind.ratio is None, kind.ratio or 0.0) for kind in candidates.kinds}
        order = sorted(range(len(problem.counts)), key=lambda place: ratio[problem.kinds[place]])
        cuts, trains = list[Counts](), [0] * len(problem.counts)
        for place in order:
            for _ in range(problem.counts[place]):
                trains[place] += 1
                cuts.append(tuple(trains))
        every = max(len(cuts) // _CURVE, 1)
        for cut in cuts[:-1][::every]:
            if self.deadline.over():
                return
            steps = []
            for mode in problem.modes:
                role_nodes = RoleNodes(SPLIT, cut, problem.rest(cut), mode)
                steps += [self.judge.step_s(plan) for plan in candidates.plans(role_nodes)]
            rest = problem.rest(cut)
            if min(steps, default=float("inf")) < float("inf"):
                yield CurvePoint(cut, rest, problem.gpus(cut), problem.gpus(rest), min(steps))

    def _refusal(self, stopped: bool) -> InfeasibleError:
        """The error that says why no placement fits, from a simulated plan or from the roles."""
        if stopped:
            return OutOfTimeError(
                "the time limit was over before a placement that fits was found: give a longer `time_limit=`"
            )
        reasons = [str(item) for item in self.judge.played.values() if isinstance(item, TangramError)]
        problem = self.problem
        trains = self.pools.training(problem.counts)
        why = reasons[0] if reasons else "training fits on all nodes, but leaves none that hold the engine"
        if trains is None:
            why = f"no uniform layout of {problem.work.model.name} fits the fleet for training"
        return InfeasibleError(f"no placement fits: {why}; give more or larger GPUs")


def search(problem: RlProblem, deadline: Deadline | None = None) -> RlSearchResult:
    """The best placement found for a problem. Raises InfeasibleError where none fits."""
    return RlSearch(problem, deadline or Deadline()).run()

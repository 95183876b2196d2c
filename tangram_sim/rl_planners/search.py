"""Search: nodes to pools, pools to layouts, played, with a bound.

Small fleets are searched over every choice of nodes. Larger ones along the order of comparative advantage, in
which one kind after another changes from training to rollout, and then node by node around the best.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.planners.deadline import Deadline
from tangram_sim.post_training.plan import COLOCATED, SPLIT, Mode, RlPlan
from tangram_sim.post_training.step import StepOutcome
from tangram_sim.rl_planners.bound import Advantage, advantages, bound_s
from tangram_sim.rl_planners.pools import Pools
from tangram_sim.rl_planners.problem import ANY, Counts, Judge, RlProblem

EVERY = 150  # choices of nodes up to which all of them are looked at


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The step where so many nodes of each group train and the others generate."""

    training: Counts
    rollout: Counts
    training_gpus: int
    rollout_gpus: int
    step_s: float


@dataclass(frozen=True)
class RlSearchResult:
    """The best plan, played, and what it is held against.

    `ranked` holds other good plans, best first. `curve`: steps over the ratio of the same GPUs.
    `stopped`: the time limit ended the search early.
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
        """How much longer the best step is than the bound, as a share of the bound."""
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
        """The best plan found. Raises InfeasibleError, with the reason, where no placement fits."""
        problem = self.problem
        kinds = tuple(advantages(problem))
        best: RlPlan | None = None
        curve: list[CurvePoint] = []
        stopped = False
        for plan, counts in self._plans(kinds):
            if self.judge.step_s(plan) < (self.judge.step_s(best) if best else float("inf")):
                best = plan
            if counts is not None:
                self._note(curve, plan, counts)
            if self.deadline.over():
                stopped = True
                break
        if best is not None and not stopped:
            best = self._around(best)
        if best is None:
            raise self._refusal()
        outcomes = [one for one in self.judge.played.values() if isinstance(one, StepOutcome)]
        outcomes.sort(key=lambda one: (one.step_s, one.plan.gpus))
        return RlSearchResult(
            problem,
            outcomes[0],
            ranked=tuple(outcomes[1:6]),
            curve=tuple(sorted(curve, key=lambda one: one.training_gpus)),
            kinds=kinds,
            bound_s=bound_s(problem, kinds),
            plans=len(self.judge.played),
            stopped=stopped,
        )

    def _plans(self, kinds: tuple[Advantage, ...]) -> Iterator[tuple[RlPlan, Counts | None]]:
        """Plans worth playing, with the nodes that train where the others generate."""
        problem = self.problem
        if problem.placement in (ANY, COLOCATED):
            for counts in self._colocations():
                plan = self.pools.colocated(counts)
                if plan is not None:
                    yield plan, None
        if problem.placement in (ANY, SPLIT):
            for counts in self._cuts(kinds):
                yield from self._split(counts)

    def _split(self, counts: Counts) -> Iterator[tuple[RlPlan, Counts | None]]:
        for mode in self.problem.split_modes:
            plan = self.pools.plan(counts, self.problem.rest(counts), mode)
            if plan is not None:
                yield plan, counts

    def _colocations(self) -> Iterator[Counts]:
        """All nodes, the nodes of each group alone, and on small fleets every choice."""
        counts = self.problem.counts
        if len(list(self.problem.vectors())) <= EVERY:
            yield from self.problem.vectors()
            return
        yield counts
        for place in range(len(counts)):
            if len(counts) > 1:
                yield tuple(count if index == place else 0 for index, count in enumerate(counts))

    def _cuts(self, kinds: tuple[Advantage, ...]) -> Iterator[Counts]:
        """Nodes that train: every choice on small fleets, else those along the order of advantage."""
        problem = self.problem
        every = [one for one in problem.vectors() if one != problem.counts]
        if len(every) <= EVERY:
            yield from every
            return
        ratio = {one.kind: one.ratio for one in kinds}
        order = sorted(range(len(problem.counts)), key=lambda place: ratio[problem.kinds[place]])
        trains = [0] * len(problem.counts)
        for place in order:  # the worst at rollout trains first
            for _ in range(problem.counts[place]):
                trains[place] += 1
                if tuple(trains) != problem.counts:
                    yield tuple(trains)

    def _around(self, best: RlPlan) -> RlPlan:
        """The best plan that moving nodes between the pools reaches, one at a time."""
        if self.problem.placement == COLOCATED:
            return best
        at = self._best_cut()
        while at is not None and not self.deadline.over():
            now = self.judge.step_s(best)
            for counts in self._neighbours(at):
                for plan, _ in self._split(counts):
                    if self.judge.step_s(plan) < self.judge.step_s(best) * (1 - 1e-9):
                        best, at = plan, counts
                if self.deadline.over():
                    break
            if self.judge.step_s(best) >= now:
                return best
        return best

    def _best_cut(self) -> Counts | None:
        """The nodes that train in the best split plan played."""
        found: tuple[float, Counts] | None = None
        for plan, outcome in self.judge.played.items():
            if plan.placement == SPLIT and isinstance(outcome, StepOutcome):
                names = {group.name: group.count for group in plan.training.cluster.groups}
                counts = tuple(names.get(group.name, 0) for group in self.problem.fleet.groups)
                if found is None or outcome.step_s < found[0]:
                    found = outcome.step_s, counts
        return found[1] if found else None

    def _neighbours(self, at: Counts) -> Iterator[Counts]:
        """One node more or fewer for training, or one kind exchanged for another."""
        places = range(len(at))
        for place in places:
            for change in (1, -1):
                moved = [count + change * (index == place) for index, count in enumerate(at)]
                if self._possible(moved):
                    yield tuple(moved)
        for first in places:
            for second in places:
                moved = [count + (index == first) - (index == second) for index, count in enumerate(at)]
                if first != second and self._possible(moved):
                    yield tuple(moved)

    def _possible(self, counts: list[int]) -> bool:
        whole = self.problem.counts
        within = all(0 <= count <= most for count, most in zip(counts, whole, strict=True))
        return within and 0 < sum(counts) < sum(whole)

    def _note(self, curve: list[CurvePoint], plan: RlPlan, counts: Counts) -> None:
        """Keep the best step at a ratio."""
        step_s = self.judge.step_s(plan)
        problem = self.problem
        point = CurvePoint(
            counts, problem.rest(counts), problem.gpus(counts), problem.gpus(problem.rest(counts)), step_s
        )
        for index, one in enumerate(curve):
            if one.training_gpus == point.training_gpus:
                if step_s < one.step_s:
                    curve[index] = point
                return
        if step_s < float("inf"):
            curve.append(point)

    def _refusal(self) -> InfeasibleError:
        """Why no placement fits, in the words of a plan that was played, or of the roles."""
        reasons = [str(one) for one in self.judge.played.values() if isinstance(one, TangramError)]
        problem = self.problem
        trains = self.pools.training(problem.counts)
        why = reasons[0] if reasons else "training fits on all nodes, but leaves none that hold the engine"
        if trains is None:
            why = f"no uniform layout of {problem.work.model.name} fits the fleet for training"
        return InfeasibleError(f"no placement fits: {why}; give more or larger GPUs")


def search(problem: RlProblem, deadline: Deadline | None = None) -> RlSearchResult:
    """The best placement found for a problem. Raises InfeasibleError where none fits."""
    return RlSearch(problem, deadline or Deadline()).run()


def split_at(problem: RlProblem, pools: Pools, training: Counts, mode: Mode) -> RlPlan | None:
    """The plan in which these nodes train and all others generate; None where a role does not fit."""
    return pools.plan(training, problem.rest(training), mode)

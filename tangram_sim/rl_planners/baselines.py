"""Baseline rules for which GPUs train and which generate, with the same pools and the same simulator.

Rules are our own where only a paper's abstract was available; the paper's results are shown with them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random

from tangram_sim.post_training.plan import SPLIT, RlPlan
from tangram_sim.rl_planners.pools import Pools
from tangram_sim.rl_planners.problem import Counts, Judge, RlProblem


class RlBaseline(ABC):
    """A rule that solves a placement problem. `claim`: result reported by its paper or framework."""

    name: str
    claim: str = ""

    @abstractmethod
    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:
        """The rule's plan; None where it finds none that fits."""


def best_mode(
    problem: RlProblem, pools: Pools, judge: Judge, training: Counts, *, plain: bool = False
) -> RlPlan | None:
    """Split pools with these training nodes, in the fastest mode allowed; `plain`: default modes only."""
    modes = problem.plain_modes if plain else problem.modes
    found = [pools.plan(training, problem.rest(training), mode) for mode in modes]
    plans = [item for item in found if item is not None]
    return min(plans, key=judge.step_s, default=None)


def fastest_first(problem: RlProblem) -> list[int]:
    """Group numbers of the fleet, those with the highest peak compute per GPU first."""
    peaks = [group.node.gpu.peak_flop_per_s("bf16") for group in problem.fleet.groups]
    return sorted(range(len(peaks)), key=lambda place: -peaks[place])


def cuts(problem: RlProblem) -> list[Counts]:
    """Training nodes by group, one node more each time, fastest GPUs first; some node always generates."""
    trains, found = [0] * len(problem.counts), list[Counts]()
    for place in fastest_first(problem):
        for _ in range(problem.counts[place]):
            trains[place] += 1
            found.append(tuple(trains))
    return found[:-1]


def stages(problem: RlProblem, pools: Pools) -> list[tuple[float, float, Counts]]:
    """(training seconds, rollout seconds, training nodes) of every cut for which both roles fit."""
    pairs = [(pools.training(cut), pools.rollout(problem.rest(cut)), cut) for cut in cuts(problem)]
    return [(trains.seconds, rolls.seconds, cut) for trains, rolls, cut in pairs if trains and rolls]


class AllColocated(RlBaseline):
    """All GPUs alternate between both roles under one uniform layout, as slow as the slowest kind."""

    name = "all-colocated"

    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:  # noqa: ARG002
        """See RlBaseline."""
        return pools.colocated(problem.counts)


class FastestTrain(RlBaseline):
    """Fastest kinds train until training takes no longer than generation; the rest generates."""

    name = "fastest-train"

    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:
        """See RlBaseline."""
        for trains_s, generates_s, cut in stages(problem, pools):
            if trains_s <= generates_s:
                return best_mode(problem, pools, judge, cut, plain=True)
        found = [best_mode(problem, pools, judge, cut, plain=True) for cut in reversed(cuts(problem))]
        return next((item for item in found if item is not None), None)  # most trainers


@dataclass(frozen=True)
class FixedRatio(RlBaseline):
    """A fixed share of the GPUs generates, regardless of kind; the fastest GPUs train."""

    generate: float
    name: str = ""
    claim: str = ""
    plain: bool = False  # modes of frameworks by default alone

    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:
        """See RlBaseline."""
        whole = problem.gpus(problem.counts)
        ordered = sorted(
            cuts(problem), key=lambda cut: abs(problem.gpus(problem.rest(cut)) / whole - self.generate)
        )
        found = (best_mode(problem, pools, judge, cut, plain=self.plain) for cut in ordered)
        return next((item for item in found if item is not None), None)


class StreamBalance(RlBaseline):
    """Both roles are profiled, and nodes moved from the faster to the slower one until both are equal."""

    name = "streamrl-balance"
    claim = "up to 2.66x throughput (arXiv 2504.15930)"

    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:
        """See RlBaseline."""
        found = [(abs(trains_s - generates_s), cut) for trains_s, generates_s, cut in stages(problem, pools)]
        return best_mode(problem, pools, judge, min(found)[1]) if found else None


class EqualReplicas(RlBaseline):
    """BiDiRL's static split: identical replicas of the least width, the cut with the shortest longer role."""

    name = "bidirl-static"
    claim = "picks the measured best of 3 + 3 splits, after profiling the machine"

    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:
        """See RlBaseline."""
        found = [(max(trains_s, generates_s), cut) for trains_s, generates_s, cut in stages(problem, pools)]
        if not found:
            return None
        cut = min(found)[1]
        trains = pools.training(cut)
        least = next(iter(pools.replicas(problem.rest(cut), SPLIT)), None)
        if trains is None or least is None:
            return None
        plans = [RlPlan(trains.pool, least, SPLIT, mode, problem.sync_method) for mode in problem.modes]
        return min(plans, key=judge.step_s)


class GraphPartition(RlBaseline):
    """AReaL-Hex-like: local search that moves the node which shortens the longer role most."""

    name = "areal-hex"
    claim = "up to 1.50x throughput against one kind (H800, H20; arXiv 2511.00796)"

    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:
        """See RlBaseline."""
        candidates = cuts(problem)
        if not candidates:
            return None
        at = candidates[len(candidates) // 2]

        def longer(cut: Counts) -> float:
            trains, generates = pools.training(cut), pools.rollout(problem.rest(cut))
            return max(trains.seconds, generates.seconds) if trains and generates else float("inf")

        while True:
            moves = [
                tuple(count + step * (index == place) for index, count in enumerate(at))
                for place in range(len(at))
                for step in (1, -1)
            ]
            moves = [move for move in moves if _within(move, problem.counts)]
            best = min(moves, key=longer, default=at)
            if longer(best) >= longer(at):
                return best_mode(problem, pools, judge, at)
            at = best


def _within(counts: Counts, whole: Counts) -> bool:
    inside = all(0 <= count <= most for count, most in zip(counts, whole, strict=True))
    return inside and 0 < sum(counts) < sum(whole)


class HalvedSwaps(RlBaseline):
    """HetRL-like: random cuts changed by swaps of nodes; each round drops the slower half."""

    name = "hetrl"
    claim = "3.17x in the mean over verl and others, up to 9.17x (arXiv 2512.12476)"
    arms, rounds, seed = 8, 3, 0

    def plan(self, problem: RlProblem, pools: Pools, judge: Judge) -> RlPlan | None:
        """See RlBaseline."""
        random = Random(self.seed)
        every = [cut for cut in (self._drawn(problem, random) for _ in range(4 * self.arms)) if cut]
        arms = list(dict.fromkeys(every))[: self.arms]
        best: RlPlan | None = None

        def tried(cut: Counts) -> float:
            nonlocal best
            plan = best_mode(problem, pools, judge, cut)
            if plan is not None and (best is None or judge.step_s(plan) < judge.step_s(best)):
                best = plan
            return judge.step_s(plan) if plan is not None else float("inf")

        for _ in range(self.rounds):
            arms = sorted(arms, key=tried)[: max(len(arms) // 2, 1)]
            arms += [moved for arm in arms if _within(moved := self._moved(arm, random), problem.counts)]
        for cut in arms:
            tried(cut)
        return best

    def _drawn(self, problem: RlProblem, random: Random) -> Counts | None:
        cut = tuple(random.randint(0, count) for count in problem.counts)
        return cut if _within(cut, problem.counts) else None

    def _moved(self, cut: Counts, random: Random) -> Counts:
        place = random.randrange(len(cut))
        step = random.choice((-1, 1))
        return tuple(count + step * (index == place) for index, count in enumerate(cut))


def baselines() -> tuple[RlBaseline, ...]:
    """All baselines, naive rules first."""
    return (
        AllColocated(),
        FastestTrain(),
        FixedRatio(0.75, "areal-75-25", "up to 2.57x against synchronous systems (arXiv 2505.24298)"),
        FixedRatio(0.5, "half-and-half", plain=True),
        StreamBalance(),
        EqualReplicas(),
        GraphPartition(),
        HalvedSwaps(),
    )


NAIVE = ("all-colocated", "fastest-train", "areal-75-25", "half-and-half")

"""Candidate assignments of nodes to both roles, with lower bounds that order the search.

A bound is rough at first (compute of the kinds alone, known cuts of the generation bound) and exact in its
training part once the layouts of those nodes are priced.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from tangram_sim.post_training.plan import (
    ASYNC,
    COLOCATED,
    HYBRID,
    ONE_STEP_OFF,
    SPLIT,
    SYNC,
    Mode,
    RlPlan,
    RolloutReplicas,
    TrainingPool,
)
from tangram_sim.post_training.rollout import BY_SPEED
from tangram_sim.post_training.step import (
    OTHER,
    SCORING,
    SWITCH,
    TRAINING,
    phases_before_rollout,
    synced,
)
from tangram_sim.rl_planners.bound import Advantage
from tangram_sim.rl_planners.generation_bound import GenerationBound
from tangram_sim.rl_planners.pools import BestRollout, Pools
from tangram_sim.rl_planners.problem import ANY, Counts, RlProblem

EVERY = 2000  # pairs of nodes that train and nodes that generate, up to which all are looked at
_WIDEST = 64  # GPUs of a replica: no sync to a narrower one is bound to be faster


@dataclass(frozen=True, slots=True)
class RoleNodes:
    """Nodes of each group that train, nodes that only generate, and the mode that combines both."""

    placement: str
    training: Counts
    rollout: Counts
    mode: Mode


@dataclass
class RoleChoices:
    """All candidate node assignments of a problem, their lower bounds, and their plans."""

    problem: RlProblem
    pools: Pools
    kinds: Sequence[Advantage]
    generation: GenerationBound = field(init=False)
    _syncs: dict[tuple[Counts, frozenset[str], str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.generation = GenerationBound(self.problem)
        trains = {advantage.kind: advantage.trains for advantage in self.kinds}
        self.trains = [trains[kind] for kind in self.problem.kinds]
        self.node_gpus = [group.node.gpus for group in self.problem.fleet.groups]

    def every(self) -> Iterator[RoleNodes]:
        """All candidates of small fleets; in larger ones all other nodes, or all but a group, generate."""
        problem = self.problem
        wanted = problem.placement
        vectors = list(problem.vectors())
        for training in vectors:
            if wanted in (ANY, COLOCATED):
                yield RoleNodes(COLOCATED, training, (0,) * len(training), Mode(SYNC))
            for rollout in self._beside(training):
                if wanted in (ANY, SPLIT):
                    for mode in problem.modes:
                        yield RoleNodes(SPLIT, training, rollout, mode)
                if wanted in (ANY, HYBRID):
                    yield RoleNodes(HYBRID, training, rollout, Mode(SYNC))
                    if problem.staleness:
                        yield RoleNodes(HYBRID, training, rollout, Mode(ONE_STEP_OFF, eta=1))

    @cached_property
    def small(self) -> bool:
        """Whether the fleet is small enough to consider every assignment of nodes."""
        found = 1
        for count in self.problem.counts:
            found *= (count + 1) * (count + 2) // 2
        return found <= EVERY

    def _beside(self, training: Counts) -> Iterator[Counts]:
        rest = self.problem.rest(training)
        if self.small:
            yield from (item for item in product(*(range(count + 1) for count in rest)) if any(item))
            return
        less = [
            tuple(0 if at == place else count for at, count in enumerate(rest)) for place in range(len(rest))
        ]
        yield from (fromkey for fromkey in dict.fromkeys([rest, *less]) if any(fromkey))

    def gpus(self, counts: Counts) -> Counts:
        """Numbers of GPUs of each group for these numbers of nodes."""
        return tuple(count * gpus for count, gpus in zip(counts, self.node_gpus, strict=True))

    def rough_s(self, role_nodes: RoleNodes) -> float:
        """Rough lower bound in seconds on a step, computed without pricing a layout."""
        extra, work = self.problem.overheads, self.problem.work
        gpus = self.gpus(role_nodes.training)
        slowest = min(rate for rate, count in zip(self.trains, gpus, strict=True) if count)
        trained = work.sequences / (slowest * sum(gpus)) if slowest else float("inf")
        switch = extra.switch_s if role_nodes.placement != SPLIT else 0.0
        return self._bound_s(role_nodes, _Spent(trained + extra.step_s, extra.sync_s, switch), exact=False)

    def bound_s(self, role_nodes: RoleNodes) -> float:
        """Lower bound in seconds on a step with the fastest training layout; inf where none fits."""
        spent = self._spent(role_nodes)
        return self._bound_s(role_nodes, spent, exact=True) if spent is not None else float("inf")

    def played_bound_s(self, role_nodes: RoleNodes) -> float:
        """Lower bound in seconds of a candidate with known plans, for replicas of one width per group.

        Asynchronous loops keep the bound for any schedule, since not all of their replicas are simulated.
        """
        spent, bound_s = self._spent(role_nodes), self.bound_s(role_nodes)
        if spent is None or role_nodes.mode.kind == ASYNC:
            return bound_s
        found = self._rollout(role_nodes, spent)
        return max(bound_s, spent.step_s(role_nodes, found.least_s)) if found is not None else float("inf")

    def _rollout(self, role_nodes: RoleNodes, spent: "_Spent") -> BestRollout | None:
        """The rollout pool of a candidate's plan."""
        if role_nodes.placement == COLOCATED:
            return self.pools.rollout(role_nodes.training, COLOCATED)
        if role_nodes.placement == HYBRID:
            from_s = spent.trained + spent.switch if role_nodes.mode.kind == ONE_STEP_OFF else 0.0
            return self.pools.hybrid_rollout(role_nodes.training, role_nodes.rollout, from_s)
        return self.pools.rollout(role_nodes.rollout)

    def _spent(self, role_nodes: RoleNodes) -> "_Spent | None":
        """Seconds of a candidate's training pool and weight sync; None where no layout fits."""
        trains, problem = self.pools.layout(role_nodes.training), self.problem
        if trains is None:
            return None
        plan = self._stand_in(role_nodes, trains.pool, problem.kinds[0])
        phases = phases_before_rollout(problem.work, plan, trains.phases, problem.overheads)
        trained = sum(phases[name] for name in (*SCORING, *TRAINING, OTHER))
        return _Spent(
            trained, self._sync_s(role_nodes, trains.pool) + problem.overheads.sync_s, phases[SWITCH]
        )

    def _stand_in(self, role_nodes: RoleNodes, pool: TrainingPool, kind: str) -> RlPlan:
        """A plan with the candidate's placement, for phases that do not depend on its engines."""
        replicas = (RolloutReplicas(kind, 1, _WIDEST),)
        lent = replicas if role_nodes.placement == HYBRID else ()
        return RlPlan(
            pool, replicas, role_nodes.placement, role_nodes.mode, self.problem.sync_method, lent=lent
        )

    def _sync_s(self, role_nodes: RoleNodes, pool: TrainingPool) -> float:
        """Least seconds of the weight sync: to the widest engines, on the best-connected kind."""
        there = zip(self.problem.kinds, role_nodes.rollout, strict=True)
        kinds = frozenset(kind for kind, count in there if count) or frozenset(self.problem.kinds[:1])
        key = role_nodes.training, kinds, role_nodes.placement
        if key not in self._syncs:
            problem = self.problem
            self._syncs[key] = min(
                synced(
                    problem.work, self._stand_in(role_nodes, pool, kind), problem.overheads, problem.hwdb
                ).seconds
                for kind in kinds
            )
        return self._syncs[key]

    def _bound_s(self, role_nodes: RoleNodes, spent: "_Spent", *, exact: bool) -> float:
        """Lower bound in seconds on a step with the times in `spent` for training pool and weight sync."""
        generation, own = self.generation, self.gpus(role_nodes.rollout)
        whole = self.gpus(tuple(map(sum, zip(role_nodes.training, role_nodes.rollout, strict=True))))
        trained, sync = spent.trained, spent.sync
        if role_nodes.mode.kind == ASYNC:
            steps, last = role_nodes.mode.eta + 1, trained / role_nodes.mode.fetches
            steady = generation.steady_s(own, role_nodes.mode.eta, exact=exact)
            longest = generation.longest_s(own, role_nodes.mode.eta)
            if role_nodes.mode.share is not None:  # nothing is begun for the next step
                return max(max(steady, longest) + last, trained) + sync
            return max(steady, (longest + last) / steps, trained) + sync  # rollout, too, waits for each sync
        if role_nodes.placement == SPLIT:
            generated = generation.burst_s(own, exact=exact)
        elif role_nodes.mode.kind == ONE_STEP_OFF:
            generated = generation.lent_s(own, whole, trained + spent.switch, exact=exact)
        else:
            generated = generation.burst_s(whole, exact=exact)
        return spent.step_s(role_nodes, generated)

    def plans(self, role_nodes: RoleNodes) -> Iterator[RlPlan]:
        """Yields the plans of a candidate to simulate."""
        trains = self.pools.layout(role_nodes.training)
        if trains is None:
            return
        problem = self.problem
        if role_nodes.mode.kind == ASYNC:
            for replicas in self.pools.steady(role_nodes.rollout, role_nodes.mode.eta + 1):
                yield RlPlan(trains.pool, replicas, SPLIT, role_nodes.mode, problem.sync_method, BY_SPEED)
            return
        spent = self._spent(role_nodes)
        generates = self._rollout(role_nodes, spent) if spent is not None else None
        if generates is not None:
            pool = trains.pool if role_nodes.placement == SPLIT else replace(trains.pool, offload=True)
            yield RlPlan(
                training=pool,
                rollout=generates.replicas,
                placement=role_nodes.placement,
                mode=role_nodes.mode,
                sync_method=problem.sync_method,
                dispatch=generates.dispatch,
                lent=generates.lent,
            )


@dataclass(frozen=True, slots=True)
class _Spent:
    """Seconds of training (scoring, updates, fixed costs), of the weight sync, and of role switches."""

    trained: float
    sync: float
    switch: float

    def step_s(self, role_nodes: RoleNodes, generated: float) -> float:
        """Seconds of a step with `generated` seconds of generation, in modes other than asynchronous."""
        if role_nodes.mode.kind == ONE_STEP_OFF:
            return self.sync + max(generated, self.trained + self.switch)
        return self.sync + generated + self.trained + self.switch

"""The best layout of each role on some nodes of the fleet, cached by numbers of nodes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.models import Experts
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.plan import (
    COLOCATED,
    SPLIT,
    Mode,
    RlPlan,
    RolloutReplicas,
    TrainingPool,
)
from tangram_sim.post_training.rollout import BY_SPEED, EVEN
from tangram_sim.post_training.step import priced_training, rolled_out
from tangram_sim.post_training.training_phases import TrainingPhases, passes_of
from tangram_sim.rl_planners.engine_estimates import EngineEstimates
from tangram_sim.rl_planners.problem import Counts, RlProblem

COLOCATED_SHARE, SPLIT_SHARE = 0.6, 0.85  # of memory that an engine takes
_DEEPEST = 8  # pipeline stages
_PLAYED = 16  # rollout layouts of some nodes that are played, best first by closed form
_STEADY = 2  # of rollout that never stops
_ROUNDED = 0.93  # packs of other sizes may take so much less a token


@dataclass(frozen=True)
class BestTraining:
    """The fastest training layout found: its pool, prices, and seconds per step of updates and scoring."""

    pool: TrainingPool
    phases: TrainingPhases
    seconds: float


@dataclass(frozen=True)
class BestRollout:
    """The fastest rollout replicas found, the dispatch of groups, and seconds of a burst.

    `lent` replicas are on GPUs that also train. `least_s`: lower bound for all replicas of one width per
    group on these nodes, simulated or not.
    """

    replicas: tuple[RolloutReplicas, ...]
    dispatch: str
    seconds: float
    lent: tuple[RolloutReplicas, ...] = ()
    least_s: float = 0.0


@dataclass
class Pools:
    """Cache of the best pools of a problem by nodes of each group.

    A pool may leave nodes idle, so the best pool on fewer nodes is also a candidate on more.
    """

    problem: RlProblem
    _layouts: dict[Counts, BestTraining | None] = field(default_factory=dict)
    _token_s: dict[tuple[object, ...], tuple[int, float, float]] = field(default_factory=dict)
    _unfit: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    _training: dict[Counts, BestTraining | None] = field(default_factory=dict)
    _hybrid: dict[tuple[Counts, Counts, float], BestRollout | None] = field(default_factory=dict)
    _rollout: dict[tuple[Counts, str], BestRollout | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._estimates = EngineEstimates(self.problem)

    def training(self, counts: Counts) -> BestTraining | None:
        """The best training pool on these nodes or some of them; None where nothing fits."""
        if counts not in self._training:
            found = [self.layout(counts)] if any(counts) else []
            found += [self.training(fewer) for fewer in self._fewer(counts)]
            fitting = [item for item in found if item is not None]
            self._training[counts] = min(
                fitting, key=lambda best_training: best_training.seconds, default=None
            )
        return self._training[counts]

    def rollout(self, counts: Counts, placement: str = SPLIT) -> BestRollout | None:
        """The best rollout pool on these nodes (if split, or some of them); None where nothing fits."""
        key = (counts, placement)
        if key not in self._rollout:
            found = [self._best_replicas(self.replicas(counts, placement))] if any(counts) else []
            if placement == SPLIT:
                found += [self.rollout(fewer, placement) for fewer in self._fewer(counts)]
            fitting = [item for item in found if item is not None]
            best = min(fitting, key=lambda best_rollout: best_rollout.seconds, default=None)
            least_s = min((best_rollout.least_s for best_rollout in fitting), default=0.0)
            self._rollout[key] = replace(best, least_s=least_s) if best is not None else None
        return self._rollout[key]

    def _fewer(self, counts: Counts) -> Iterator[Counts]:
        """Yields the nodes without those of one group each: a slow kind may slow down a fast one."""
        used = [place for place, count in enumerate(counts) if count]
        if len(used) > 1:
            for place in used:
                yield tuple(0 if index == place else count for index, count in enumerate(counts))

    def plan(self, training: Counts, rollout: Counts, mode: Mode) -> RlPlan | None:
        """The plan with split pools on these nodes; None where a role does not fit."""
        trains, generates = self.training(training), self.rollout(rollout)
        if trains is None or generates is None:
            return None
        return RlPlan(
            trains.pool,
            generates.replicas,
            SPLIT,
            mode,
            self.problem.sync_method,
            generates.dispatch,
        )

    def colocated(self, counts: Counts) -> RlPlan | None:
        """The plan in which these nodes alternate between both roles; None where one does not fit."""
        trains = self.layout(counts)
        generates = self.rollout(counts, COLOCATED)
        if trains is None or generates is None:
            return None
        pool = replace(trains.pool, offload=True)
        method = self.problem.sync_method
        return RlPlan(pool, generates.replicas, COLOCATED, Mode(), method, generates.dispatch)

    def hybrid_rollout(self, training: Counts, rollout: Counts, from_s: float) -> BestRollout | None:
        """The best replicas on nodes that only generate and, after `from_s`, on nodes that also train."""
        key = training, rollout, from_s
        if key not in self._hybrid:
            pairs = product(self.replicas(rollout, SPLIT), self.replicas(training, COLOCATED))
            self._hybrid[key] = self._best_replicas(pairs=pairs, from_s=from_s)
        return self._hybrid[key]

    def layout(self, counts: Counts) -> BestTraining | None:
        """The fastest uniform layout on all of these nodes; None where none fits."""
        if counts not in self._layouts:
            self._layouts[counts] = self._best_layout(counts)
        return self._layouts[counts]

    def layouts(self, counts: Counts) -> Iterator[TrainingPool]:
        """Yields valid uniform layouts of the policy on these nodes."""
        problem = self.problem
        model, gpus = problem.work.model, problem.gpus(counts)
        cluster = problem.part(counts)
        inside = min(group.node.gpus for group in cluster.groups)
        heads = min(block.attention.heads for block in model.blocks)
        sparse = [block.feed_forward for block in model.blocks if isinstance(block.feed_forward, Experts)]
        tps = [tp for tp in (1, 2, 4, 8) if tp <= inside and heads % tp == 0]
        pps = [pp for pp in (1, 2, 4, 8, 16) if pp <= min(_DEEPEST * 2, model.layers)]
        for tp, pp in product(tps, pps):
            dp = gpus // (tp * pp)
            if gpus % (tp * pp) or dp > problem.work.update_sequences:
                continue
            ep = 1
            if sparse:
                ep = max(
                    index
                    for index in range(1, min(dp, 16) + 1)
                    if dp % index == sparse[0].experts % index == 0
                )
            for recompute in ("none", "full"):
                layout = Uniform(tp=tp, pp=pp, dp=dp, ep=ep, zero_stage=1, recompute=recompute)
                yield TrainingPool(cluster, layout, problem.pack_tokens, stack=problem.stack)

    def _best_layout(self, counts: Counts) -> BestTraining | None:
        best: BestTraining | None = None
        fits_plain: set[tuple[int, int]] = set()
        pools = sorted(
            self.layouts(counts),
            key=lambda layout: (self._least_s(layout), layout.layout.recompute != "none"),
        )
        for pool in pools:
            degrees = (pool.layout.tp, pool.layout.pp)
            if degrees in fits_plain:  # recomputation only costs where none is needed
                continue
            if best is not None and self._least_s(pool) >= best.seconds:
                continue
            dp, pack = self._unfit.get(self._alike(pool), (0, 0))
            if pool.dp <= dp and self._pack(pool) >= pack:
                continue
            seconds, phases = self._trained(pool)
            if phases is None:
                continue
            if phases.first_stage_bytes > phases.capacity_bytes:
                self._unfit[self._alike(pool)] = pool.dp, self._pack(pool)
                continue
            if pool.layout.recompute == "none":
                fits_plain.add(degrees)
            if best is None or seconds < best.seconds:
                best = BestTraining(pool, phases, seconds)
        return best

    def _trained(self, pool: TrainingPool) -> tuple[float, TrainingPhases | None]:
        """(seconds of updates and scoring of a step, their prices); (inf, None) for an invalid layout."""
        work = self.problem.work
        try:
            phases = priced_training(work, pool, self.problem.hwdb)
        except TangramError:
            return float("inf"), None
        known = self._token_s.get(self._alike(pool))
        if known is None or self._pack(pool) > known[0]:
            self._token_s[self._alike(pool)] = self._pack(pool), *phases.token_s
        passes = work.old_logprobs + work.reference
        return work.updates * phases.update_s + passes * phases.forward_s, phases

    def _alike(self, pool: TrainingPool) -> tuple[object, ...]:
        """Key of pools whose compute per token is equal, regardless of the data-parallel degree."""
        layout, groups = pool.layout, pool.cluster.groups
        return layout.tp, layout.pp, layout.ep, layout.recompute, *(group.name for group in groups)

    def _pack(self, pool: TrainingPool) -> int:
        """Tokens in a micro-batch of the pool."""
        work = self.problem.work
        taken = passes_of(work, pool, work.update_sequences, pool.pack_tokens, 1.0)
        return taken.sequences * taken.seq

    def _least_s(self, pool: TrainingPool) -> float:
        """Lower bound in seconds on a pool's updates and scoring, from similar pools; 0: none known.

        A token takes at least as long in a smaller micro-batch as in a larger one.
        """
        work = self.problem.work
        taken = passes_of(work, pool, work.update_sequences, pool.pack_tokens, 1.0)
        pack, update_s, forward_s = self._token_s.get(self._alike(pool), (0, 0.0, 0.0))
        if taken.sequences * taken.seq > pack:
            return 0.0
        filled = 1.0 + (pool.layout.pp - 1) / taken.count
        tokens = taken.count * taken.sequences * taken.seq * work.updates * filled
        scored = (work.old_logprobs + work.reference) * work.trained_tokens / pool.dp
        return _ROUNDED * (update_s * tokens + forward_s * scored)

    def replicas(self, counts: Counts, placement: str) -> Iterator[tuple[RolloutReplicas, ...]]:
        """Yields replicas that use all GPUs of these nodes, with one width for each group."""
        problem = self.problem
        share = COLOCATED_SHARE if placement == COLOCATED else SPLIT_SHARE
        options: list[list[RolloutReplicas]] = []
        for place, (count, group) in enumerate(zip(counts, problem.fleet.groups, strict=True)):
            if not count:
                continue
            gpus, gpu = count * group.node.gpus, group.node.gpu
            options.append(
                [
                    RolloutReplicas(gpu.name, gpus // tp, tp, engine=problem.engine, memory_fraction=share)
                    for tp in problem.widths(place, gpus, share)
                    if gpus % tp == 0
                ]
            )
        yield from product(*options)

    def _best_replicas(
        self,
        alone: Iterable[tuple[RolloutReplicas, ...]] = (),
        *,
        pairs: Iterable[tuple[tuple[RolloutReplicas, ...], tuple[RolloutReplicas, ...]]] = (),
        from_s: float = 0.0,
    ) -> BestRollout | None:
        """The fastest replicas in `alone`, or in `pairs` of own ones and ones lent from `from_s` on."""
        extra, estimates = self.problem.overheads, self._estimates
        ranked = list[tuple[float, int, tuple[RolloutReplicas, ...], tuple[RolloutReplicas, ...]]]()
        for own, lent in (*((item, ()) for item in alone), *pairs):
            try:
                ranked.append((estimates.burst_s((*own, *lent)), len(ranked), own, lent))
            except InfeasibleError:
                continue
        best: BestRollout | None = None
        played, left_s = 0, float("inf")
        for _, _, own, lent in sorted(ranked, key=lambda item: item[:2]):
            least_s = estimates.least_burst_s((*own, *lent))
            if best is not None and least_s >= best.seconds:
                continue
            if played >= _PLAYED:
                left_s = min(left_s, least_s)
                continue
            played += 1
            unequal = len(own) + len(lent) > 1
            for dispatch in (BY_SPEED,) if from_s else (EVEN, BY_SPEED) if unequal else (EVEN,):
                seconds = rolled_out(
                    self.problem.work,
                    own,
                    dispatch,
                    extra,
                    self.problem.hwdb,
                    lent=lent,
                    lent_from_s=from_s,
                ).seconds
                if best is None or seconds < best.seconds:
                    best = BestRollout(own, dispatch, seconds, lent)
        return replace(best, least_s=min(left_s, best.seconds)) if best is not None else None

    def steady(self, counts: Counts, steps: int) -> list[tuple[RolloutReplicas, ...]]:
        """The best few sets of replicas for continuous rollout with `steps` steps of responses begun."""
        ranked = list[tuple[float, int, tuple[RolloutReplicas, ...]]]()
        for replicas in self.replicas(counts, SPLIT):
            try:
                ranked.append((self._estimates.steady_s(replicas, steps), len(ranked), replicas))
            except InfeasibleError:
                continue
        return [replicas for _, _, replicas in sorted(ranked)[:_STEADY]]

"""The best layout of each role on some nodes of the fleet, found once for each number of nodes."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.models import Experts
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.plan import COLOCATED, SPLIT, Mode, RlPlan, RolloutReplicas, TrainingPool
from tangram_sim.post_training.rollout import BY_SPEED, EVEN, fleet_of, speed
from tangram_sim.post_training.step import priced_training, rolled_out
from tangram_sim.post_training.sync import weight_bytes
from tangram_sim.post_training.training_phases import TrainingPhases
from tangram_sim.rl_planners.problem import Counts, RlProblem

COLOCATED_SHARE, SPLIT_SHARE = 0.6, 0.85  # of memory that an engine takes
_DEEPEST = 8  # pipeline stages
_PLAYED = 3  # rollout layouts of some nodes that are played, best first by closed form


@dataclass(frozen=True)
class BestTraining:
    """The fastest layout found for training: its pool, and seconds a step of updates and scoring."""

    pool: TrainingPool
    phases: TrainingPhases
    seconds: float


@dataclass(frozen=True)
class BestRollout:
    """The fastest replicas found for rollout, how groups are dispatched, and seconds of a burst."""

    replicas: tuple[RolloutReplicas, ...]
    dispatch: str
    seconds: float


@dataclass
class Pools:
    """Best pools of a problem by nodes of each group.

    A pool may leave nodes idle: what is best on fewer nodes is a plan on more of them, too.
    """

    problem: RlProblem
    _training: dict[Counts, BestTraining | None] = field(default_factory=dict)
    _rollout: dict[tuple[Counts, str], BestRollout | None] = field(default_factory=dict)
    evaluated: int = 0

    def training(self, counts: Counts) -> BestTraining | None:
        """The best training pool on these nodes; None where nothing fits."""
        if counts not in self._training:
            found = [self._best_layout(counts)] if any(counts) else []
            found += [self.training(fewer) for fewer in self._fewer(counts)]
            fitting = [one for one in found if one is not None]
            self._training[counts] = min(fitting, key=lambda one: one.seconds, default=None)
        return self._training[counts]

    def rollout(self, counts: Counts, placement: str = SPLIT) -> BestRollout | None:
        """The best rollout pool on these nodes; None where nothing fits."""
        key = (counts, placement)
        if key not in self._rollout:
            found = [self._best_replicas(counts, placement)] if any(counts) else []
            if placement == SPLIT:
                found += [self.rollout(fewer, placement) for fewer in self._fewer(counts)]
            fitting = [one for one in found if one is not None]
            self._rollout[key] = min(fitting, key=lambda one: one.seconds, default=None)
        return self._rollout[key]

    def _fewer(self, counts: Counts) -> Iterator[Counts]:
        """The nodes without those of one group: a slow kind may hold a fast one up."""
        used = [place for place, count in enumerate(counts) if count]
        if len(used) > 1:
            for place in used:
                yield tuple(0 if index == place else count for index, count in enumerate(counts))

    def plan(self, training: Counts, rollout: Counts, mode: Mode) -> RlPlan | None:
        """Split pools on these nodes; None where a role does not fit."""
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
        """Both roles by turns on these nodes; None where one does not fit."""
        trains = self._best_layout(counts)
        generates = self.rollout(counts, COLOCATED)
        if trains is None or generates is None:
            return None
        pool = replace(trains.pool, offload=True)
        method = self.problem.sync_method
        return RlPlan(pool, generates.replicas, COLOCATED, Mode(), method, generates.dispatch)

    def layouts(self, counts: Counts) -> Iterator[TrainingPool]:
        """Uniform layouts of the policy on these nodes that keep the laws of model and fleet."""
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
                ep = max(one for one in range(1, min(dp, 16) + 1) if dp % one == sparse[0].experts % one == 0)
            for recompute in ("none", "full"):
                layout = Uniform(tp=tp, pp=pp, dp=dp, ep=ep, zero_stage=1, recompute=recompute)
                yield TrainingPool(cluster, layout, problem.pack_tokens, stack=problem.stack)

    def _best_layout(self, counts: Counts) -> BestTraining | None:
        best: BestTraining | None = None
        fits_plain: set[tuple[int, int]] = set()
        for pool in self.layouts(counts):
            degrees = (pool.layout.tp, pool.layout.pp)
            if degrees in fits_plain:  # recomputation only costs where none is needed
                continue
            seconds, phases = self._trained(pool)
            if phases is None or phases.first_stage_bytes > phases.capacity_bytes:
                continue
            fits_plain.add(degrees)
            if best is None or seconds < best.seconds:
                best = BestTraining(pool, phases, seconds)
        return best

    def _trained(self, pool: TrainingPool) -> tuple[float, TrainingPhases | None]:
        """Seconds of updates and scoring of a step, and their parts; None where a law is broken."""
        work = self.problem.work
        self.evaluated += 1
        try:
            phases = priced_training(work, pool, self.problem.hwdb)
        except TangramError:
            return float("inf"), None
        passes = work.old_logprobs + work.reference
        return work.updates * phases.update_s + passes * phases.forward_s, phases

    def replicas(self, counts: Counts, placement: str) -> Iterator[tuple[RolloutReplicas, ...]]:
        """Replicas on these nodes: one width for each group, all of its GPUs used."""
        problem = self.problem
        model = problem.work.model
        heads = min(block.attention.heads for block in model.blocks)
        share = COLOCATED_SHARE if placement == COLOCATED else SPLIT_SHARE
        size = weight_bytes(model, problem.work.rollout_precision)
        options: list[list[RolloutReplicas]] = []
        for count, group in zip(counts, problem.fleet.groups, strict=True):
            if not count:
                continue
            gpus, gpu = count * group.node.gpus, group.node.gpu
            widths = [tp for tp in (1, 2, 4, 8, 16, 32) if heads % tp == 0 and tp <= gpus]
            inside = [tp for tp in widths if tp <= group.node.gpus] or widths[:1]
            if size / inside[-1] > 0.9 * share * gpu.memory_bytes:
                inside = widths
            options.append(
                [
                    RolloutReplicas(gpu.name, gpus // tp, tp, engine=problem.engine, memory_fraction=share)
                    for tp in inside
                    if gpus % tp == 0 and size / tp < 0.95 * share * gpu.memory_bytes
                ]
            )
        yield from product(*options)

    def _best_replicas(self, counts: Counts, placement: str) -> BestRollout | None:
        work, extra = self.problem.work, self.problem.overheads
        ranked = list[tuple[float, int, tuple[RolloutReplicas, ...]]]()
        for replicas in self.replicas(counts, placement):
            try:
                ranked.append((self._burst_s(replicas), len(ranked), replicas))
            except InfeasibleError:
                continue
        best: BestRollout | None = None
        for _, _, replicas in sorted(ranked)[:_PLAYED]:
            for dispatch in (EVEN, BY_SPEED) if len(replicas) > 1 else (EVEN,):
                self.evaluated += 1
                seconds = rolled_out(work, replicas, dispatch, extra, self.problem.hwdb).seconds
                if best is None or seconds < best.seconds:
                    best = BestRollout(replicas, dispatch, seconds)
        return best

    def _burst_s(self, replicas: tuple[RolloutReplicas, ...]) -> float:
        """Seconds of a burst in closed form: tokens over the speed of all, and the longest response alone."""
        work, extra = self.problem.work, self.problem.overheads
        fleet = fleet_of(work, replicas, self.problem.hwdb, extra.rollout_scale, extra.rollout_iteration_s)
        context = work.prompt_tokens + work.lengths.mean / 2.0
        each = work.sequences / len(fleet)
        rate = sum(speed(one, each, context) for one in fleet)
        last = max(one.table.decode_step_s(1, context) for one in fleet)
        longest = work.lengths.longest(work.sequences) - work.lengths.mean
        return work.sequences * work.lengths.mean / rate + longest * last

"""One step of post-training: phases of the pools simulated as ops, which yields overlap and waits."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from tangram_sim.cost.device import capacities
from tangram_sim.errors import InfeasibleError
from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import has_experts
from tangram_sim.post_training.asynchronous import Loop, play_loop
from tangram_sim.post_training.overheads import Overheads, load_overheads
from tangram_sim.post_training.plan import (
    ASYNC,
    COLOCATED,
    HYBRID,
    ONE_STEP_OFF,
    RlPlan,
    RolloutReplicas,
    TrainingPool,
)
from tangram_sim.post_training.rollout import Rollout, fleet_of, play_rollout
from tangram_sim.post_training.sync import BROADCAST, GATHER, Sync, sync_of
from tangram_sim.post_training.training_phases import TrainingPhases, phases_of, unevenness
from tangram_sim.post_training.workload import PostTraining
from tangram_sim.serving.fleet import FAST
from tangram_sim.sim import contention
from tangram_sim.sim.critical import critical_path
from tangram_sim.units import show_bytes

# Phases in the order in which a step has them.
GENERATE, REWARD, OLD, REFERENCE, VALUES = "generation", "reward", "old_logprobs", "reference", "values"
UPDATE, CRITIC, SYNC, SWITCH, OTHER = "update", "critic_update", "weight_sync", "switch", "other"
SCORING = (REWARD, OLD, REFERENCE, VALUES)
TRAINING = (UPDATE, CRITIC)
PHASES = (GENERATE, *SCORING, *TRAINING, SYNC, SWITCH, OTHER)
_ROLLOUT, _TRAINING = "rollout", "training"
_STEPS = 8  # played where steps overlap; the last ones are steady


@dataclass(frozen=True)
class StepOutcome:
    """A simulated step: `phases_s`, busy seconds of each phase; `exposed_s`, seconds the step waits for it.

    `idle` is the share of a step in which each pool is idle; ages are in versions, between the weights that
    began a sequence and those that it trains.
    """

    work: PostTraining
    plan: RlPlan
    step_s: float
    phases_s: dict[str, float]
    exposed_s: dict[str, float]
    idle: dict[str, float]
    rollout: Rollout
    training: TrainingPhases
    sync: Sync
    memory: dict[str, tuple[float, float]]  # bytes a GPU and what there is, by phase
    loop: Loop | None = None
    ages: tuple[int, ...] = field(default=(0,))

    @property
    def trained_tokens_per_s(self) -> float:
        """Prompt and response tokens of consumed sequences per second."""
        return self.work.trained_tokens / self.step_s

    @property
    def generated_tokens_per_s(self) -> float:
        """Response tokens per second."""
        return self.rollout.generated_tokens / self.step_s


def play_step(
    work: PostTraining,
    plan: RlPlan,
    hwdb: Hwdb,
    *,
    overheads: Overheads | None = None,
    seed: int = 0,
    engine: str = FAST,
    must_fit: bool = True,
) -> StepOutcome:
    """Simulate one step of `work` under `plan`; for overlapping modes a step in steady state.

    `engine` is the rollout simulator, `fast` or `reference`. Raises InfeasibleError, naming the phase, where
    memory does not suffice (for training only if it `must_fit`); BadInputError for invalid layouts.
    """
    extra = overheads or load_overheads(hwdb)
    training = priced_training(work, plan.training, hwdb)
    colocated = plan.placement == COLOCATED
    sync = synced(work, plan, extra, hwdb)
    phases = phases_before_rollout(work, plan, training, extra)
    phases[SYNC] = sync.seconds + extra.sync_s
    rollout = rolled_out(
        work,
        plan.rollout,
        plan.dispatch,
        extra,
        hwdb,
        seed=seed,
        engine=engine,
        lent=plan.lent,
        lent_from_s=lent_from_s(phases) if plan.mode.kind == ONE_STEP_OFF and plan.lent else 0.0,
    )
    phases[GENERATE] = rollout.seconds
    memory = _memory(plan, training, hwdb, must_fit)
    loop = None
    if colocated or plan.mode.kind != ASYNC:
        step_s, exposed, idle = _played(phases, plan)
        ages = (1,) if plan.mode.kind == ONE_STEP_OFF else (0,)
    else:
        train_s = sum(phases[name] for name in (*SCORING, *TRAINING, OTHER))
        fleet = fleet_of(work, plan.rollout, hwdb, extra.rollout_scale, extra.rollout_iteration_s)
        loop = play_loop(fleet, work, plan.mode, train_s, phases[SYNC], seed=seed, engine=engine)
        step_s, ages = loop.step_s, tuple(loop.ages.tolist())
        exposed = {**phases, GENERATE: loop.waited_s, SWITCH: 0.0}
        idle = {_TRAINING: max(1.0 - train_s / step_s, 0.0), _ROLLOUT: loop.rollout_idle}
    return StepOutcome(
        work,
        plan,
        step_s,
        phases_s=phases,
        exposed_s=exposed,
        idle=idle,
        rollout=rollout,
        training=training,
        sync=sync,
        memory=memory,
        loop=loop,
        ages=ages,
    )


def synced(work: PostTraining, plan: RlPlan, extra: Overheads, hwdb: Hwdb) -> Sync:
    """The weight sync of a plan, to engines of their own and to those on training GPUs in parallel."""

    def to(replicas: tuple[RolloutReplicas, ...], *, beside: bool) -> Sync:
        auto = BROADCAST if beside else GATHER
        return sync_of(
            work.model,
            work.rollout_precision,
            min(one.tp * one.pp for one in replicas),
            plan.training.cluster,
            plan.sync_method if plan.sync_method != "auto" else auto,
            overheads=extra,
            hwdb=hwdb,
            rollout=[one.gpu for one in replicas] if beside else (),
        )

    own = to(plan.rollout, beside=plan.placement != COLOCATED)
    return max((own, to(plan.lent, beside=False)), key=lambda one: one.seconds) if plan.lent else own


def lent_from_s(phases: dict[str, float]) -> float:
    """Seconds until lent GPUs generate if steps overlap: the step that they train, and a switch."""
    return sum(phases[name] for name in (*SCORING, *TRAINING, OTHER, SWITCH))


def rolled_out(
    work: PostTraining,
    replicas: tuple[RolloutReplicas, ...],
    dispatch: str,
    extra: Overheads,
    hwdb: Hwdb,
    *,
    seed: int = 0,
    engine: str = FAST,
    lent: tuple[RolloutReplicas, ...] = (),
    lent_from_s: float = 0.0,
) -> Rollout:
    """The simulated rollout of one step on these replicas; cached. Raises TangramError.

    `lent` replicas are on training GPUs and become available after `lent_from_s`.
    """
    scales = (extra.rollout_scale, extra.rollout_iteration_s)
    own = sum(one.count for one in replicas)
    late = (own, lent_from_s) if lent and lent_from_s else None
    return _rolled_out(work, (*replicas, *lent), dispatch, scales, late, seed=seed, engine=engine, hwdb=hwdb)


@lru_cache(maxsize=1024)
def _rolled_out(
    work: PostTraining,
    replicas: tuple[RolloutReplicas, ...],
    dispatch: str,
    scales: tuple[float, float],
    late: tuple[int, float] | None,
    seed: int,
    engine: str,
    hwdb: Hwdb,
) -> Rollout:
    lengths = work.lengths.draw(work.prompts, work.samples, seed)
    fleet = fleet_of(work, replicas, hwdb, *scales)
    starts_s = None
    if late is not None:
        starts_s = np.zeros(len(fleet))
        starts_s[late[0] :] = late[1] / work.generated_share
    found = play_rollout(
        fleet, work.prompt_tokens, lengths, dispatch=dispatch, engine=engine, starts_s=starts_s
    )
    return replace(found, seconds=found.seconds * work.generated_share)


@lru_cache(maxsize=4096)
def priced_training(work: PostTraining, pool: TrainingPool, hwdb: Hwdb) -> TrainingPhases:
    """Prices of updates and forward-only passes of the policy on a training pool; cached."""
    lengths = work.lengths.draw(work.prompts, work.samples, 0)
    uneven = unevenness(lengths, work.prompt_tokens, pool.dp, work.updates)
    return phases_of(work.model, work, pool, hwdb, uneven)


def phases_before_rollout(
    work: PostTraining, plan: RlPlan, training: TrainingPhases, extra: Overheads
) -> dict[str, float]:
    """Seconds of every phase except generation and weight sync."""
    forward = training.forward_s * extra.forward_scale
    update = training.update_s * extra.update_scale * work.updates
    if has_experts(work.model):
        forward, update = forward * extra.sparse_update_scale, update * extra.sparse_update_scale
    critic = work.critic.parameters / work.model.parameters if work.critic is not None else 0.0
    scorer = work.reward_model.parameters / work.model.parameters if work.reward_model is not None else 0.0
    return {
        GENERATE: 0.0,
        REWARD: work.reward_s + forward * scorer,
        OLD: forward if work.old_logprobs else 0.0,
        REFERENCE: forward if work.reference else 0.0,
        VALUES: forward * critic,
        UPDATE: update,
        CRITIC: update * critic,
        SYNC: 0.0,
        SWITCH: switch_s(training, extra) if plan.switches else 0.0,
        OTHER: extra.step_s,
    }


def switch_s(training: TrainingPhases, extra: Overheads) -> float:
    """Seconds for GPUs to switch roles: engines sleep and wake, training state is offloaded and reloaded."""
    return extra.switch_s + 2.0 * training.static_bytes / extra.host_bytes_per_s


def _memory(
    plan: RlPlan, training: TrainingPhases, hwdb: Hwdb, must_fit: bool
) -> dict[str, tuple[float, float]]:
    """(bytes used, capacity) of the fullest GPU by phase. Raises InfeasibleError naming the phase."""
    if must_fit:
        training.require_fit()
    held = {UPDATE: (training.first_stage_bytes, training.capacity_bytes)}
    for one in (*plan.rollout, *plan.lent):
        gpu = hwdb.gpu(one.gpu)
        memory, _ = capacities(gpu, hwdb.efficiency(gpu, "bf16"))
        share = one.memory_fraction or 0.9
        shared = plan.placement == COLOCATED or one in plan.lent
        kept = training.static_bytes if shared and not plan.training.offload else 0.0
        taken = (share * memory + kept, memory)
        held[GENERATE] = max(held.get(GENERATE, taken), taken, key=lambda pair: pair[0] / pair[1])
        if must_fit and share * memory + kept > memory * 1.02:
            raise InfeasibleError(
                f"generation: the engine takes {show_bytes(share * memory)} beside {show_bytes(kept)} of "
                f"training state, of {show_bytes(memory)} on a {one.gpu}; give `offload`, a smaller share of "
                "memory for the engine, or `placement=split`"
            )
    return held


def _played(phases: dict[str, float], plan: RlPlan) -> tuple[float, dict[str, float], dict[str, float]]:
    """(step seconds, exposed seconds by phase, idle share by pool) of modes other than asynchronous."""
    colocated, hybrid = plan.placement == COLOCATED, plan.placement == HYBRID
    ahead = plan.mode.kind == ONE_STEP_OFF
    rollout_pool = _TRAINING if colocated else _ROLLOUT
    builder = GraphBuilder()
    last_update: tuple[int, ...] = ()
    last_generated: tuple[int, ...] = ()
    ready: tuple[int, ...] = ()
    ends = list[int]()
    for _ in range(_STEPS if ahead else 1):
        before = (*last_update, *last_generated) if ahead else last_update
        switch = builder.op(SWITCH, _TRAINING, 0.0 if ahead else phases[SWITCH], before)
        synced = [builder.op(SYNC, _TRAINING, phases[SYNC], (switch, *before))]
        if not colocated:
            synced.append(builder.op(SYNC, _ROLLOUT, phases[SYNC], (switch, *before)))
        generated: tuple[int, ...] = (builder.op(GENERATE, rollout_pool, phases[GENERATE], synced),)
        if hybrid and not ahead:
            generated += (builder.op(GENERATE, _TRAINING, phases[GENERATE], synced),)
        batch = (*ready, *synced) if ahead else generated
        op = -1
        for name in (*SCORING, *TRAINING, OTHER):
            op = builder.op(name, _TRAINING, phases[name], batch if op < 0 else (op,))
        if hybrid and ahead:  # the training GPUs generate until the batch is complete
            lent = max(phases[GENERATE] - lent_from_s(phases), 0.0)
            op = builder.op(SWITCH, _TRAINING, phases[SWITCH], (op,))
            op = builder.op(GENERATE, _TRAINING, lent, (op,))
        last_update, last_generated, ready = (op,), generated, generated
        ends.append(op)
    timeline = contention.play(builder.freeze())
    busy = dict(zip(timeline.graph.resources, timeline.busy_s().tolist(), strict=True))
    path = critical_path(timeline).seconds_by_kind()
    steps = len(ends)
    if not ahead:
        total = timeline.makespan_s
        idle = {name: 1.0 - spent / total for name, spent in busy.items()} if total else {}
        return total, {name: path.get(name, 0.0) for name in PHASES}, idle
    step_s = float(timeline.end_s[ends[-1]] - timeline.end_s[ends[-2]])
    exposed = {name: path.get(name, 0.0) / steps for name in PHASES}
    idle = {name: max(1.0 - spent / steps / step_s, 0.0) for name, spent in busy.items()}
    return step_s, exposed, idle


def interval(step_s: float, sigma: float) -> tuple[float, float]:
    """90 % prediction interval of a step around its median, in seconds."""
    reach = float(np.exp(1.645 * sigma))
    return step_s / reach, step_s * reach

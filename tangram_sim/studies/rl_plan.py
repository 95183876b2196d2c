"""Post-training plans as documents: best placement, pools, decisions, prices and assumptions."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import gpu_rent
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.lengths import LognormalLengths, lognormal
from tangram_sim.post_training.plan import COLOCATED, HYBRID, Mode, RlPlan, RolloutReplicas, TrainingPool
from tangram_sim.post_training.step import UPDATE, StepOutcome, interval, play_step
from tangram_sim.rl_planners.problem import RlProblem
from tangram_sim.rl_planners.search import RlSearch
from tangram_sim.studies.rl_documents import (
    RlAdvantageDocument,
    RlDecisionsDocument,
    RlLayoutDocument,
    RlPlanDocument,
    RlPointDocument,
    RlPoolDocument,
)
from tangram_sim.units import HOUR_S, MEGA
from tangram_sim.version import __version__

_BAND = (0.5, 0.75, 1.5, 2.0)  # of the stated mean response: lengths drift as the policy learns


@dataclass(frozen=True)
class RlPrices:
    """USD per GPU-hour by kind: as given, else the lowest dated rent in the database."""

    hwdb: Hwdb
    given: Mapping[str, float]

    def of(self, gpu: str) -> float | None:
        """USD an hour of one GPU; None where no price is known."""
        if gpu in self.given:
            return self.given[gpu]
        rent, _ = gpu_rent(self.hwdb, gpu)
        return rent or None

    def usd_per_hour(self, gpus: Mapping[str, int]) -> float | None:
        """USD an hour of so many GPUs by kind; None where one of them has no price."""
        prices = [(self.of(kind), count) for kind, count in gpus.items()]
        if any(price is None for price, _ in prices):
            return None
        return sum((price or 0.0) * count for price, count in prices)

    def unpriced(self, kinds: Sequence[str]) -> list[str]:
        """Kinds without a price."""
        return [kind for kind in dict.fromkeys(kinds) if self.of(kind) is None]


def kinds_of(cluster: Cluster) -> dict[str, int]:
    """GPUs of a cluster by kind."""
    found: dict[str, int] = {}
    for group in cluster.groups:
        name = group.node.gpu.name
        found[name] = found.get(name, 0) + group.count * group.node.gpus
    return found


def rollout_kinds(plan: RlPlan) -> dict[str, int]:
    """GPUs of the rollout replicas by kind; in a colocated plan they train, too."""
    return _by_kind(plan.rollout)


def _by_kind(replicas: Sequence[RolloutReplicas]) -> dict[str, int]:
    found: dict[str, int] = {}
    for replica in replicas:
        found[replica.gpu] = found.get(replica.gpu, 0) + replica.gpus
    return found


def plan_document(outcome: StepOutcome, problem: RlProblem, prices: RlPrices) -> RlPlanDocument:
    """Document of a simulated plan; results of the search are added by the caller."""
    plan = outcome.plan
    low, high = interval(outcome.step_s, problem.overheads.sigma)
    gpus = kinds_of(plan.training.cluster)
    if plan.placement != COLOCATED:
        for kind, count in rollout_kinds(plan).items():
            gpus[kind] = gpus.get(kind, 0) + count
    hourly = prices.usd_per_hour(kinds_of(problem.fleet))  # what is owned and idle is paid for, too
    tokens = outcome.trained_tokens_per_s
    ages = np.array(outcome.ages, dtype=np.float64)
    return RlPlanDocument(
        package_version=__version__,
        step_s=outcome.step_s,
        step_s_low=low,
        step_s_high=high,
        trained_tokens_per_s=tokens,
        generated_tokens_per_s=outcome.generated_tokens_per_s,
        usd_per_hour=hourly,
        usd_per_million_trained_tokens=hourly / HOUR_S / tokens * MEGA if hourly is not None else None,
        decisions=decisions_of(plan, problem.fleet),
        pools=pools_of(outcome),
        idle_gpus={
            kind: count - gpus.get(kind, 0)
            for kind, count in kinds_of(problem.fleet).items()
            if count > gpus.get(kind, 0)
        },
        phases_s=outcome.phases_s,
        exposed_s=outcome.exposed_s,
        long_tail_s=outcome.rollout.tail_s,
        ages={
            "mean": float(ages.mean()),
            "p95": float(np.quantile(ages, 0.95)),
            "most": float(ages.max()),
        },
        longer_responses=other_lengths(outcome, problem),
        assumptions=[*lengths_assumed(outcome)],
    )


def lengths_assumed(outcome: StepOutcome) -> list[str]:
    """Sentences that state the assumed response lengths."""
    work = outcome.work
    found = [
        f"responses of {work.lengths.mean:,.0f} tokens in the mean, at most {work.lengths.cap:,}; plans are "
        "for these lengths"
    ]
    if isinstance(work.lengths, LognormalLengths):
        found.append(
            f"lengths are lognormal, sigma {work.lengths.sigma:.2f}, {work.lengths.capped_share:.1%} at the "
            f"cap, correlation {work.lengths.correlation:g} within a prompt (assumed)"
        )
    found.append("what staleness does to learning is not modelled: the bound on it is yours")
    return found


def other_lengths(outcome: StepOutcome, problem: RlProblem) -> dict[str, float]:
    """Seconds of the same plan's step at other mean response lengths, by that mean; only those that fit."""
    lengths = outcome.work.lengths
    if not isinstance(lengths, LognormalLengths):
        return {}
    found = {}
    for factor in _BAND:
        mean = lengths.mean * factor
        if mean > lengths.cap:
            continue
        work = replace(outcome.work, lengths=lognormal(mean, lengths.cap, lengths.sigma, lengths.correlation))
        try:
            again = play_step(work, outcome.plan, problem.hwdb, overheads=problem.overheads)
        except TangramError:
            continue
        found[f"{mean:.0f}"] = again.step_s
    return found


def pools_of(outcome: StepOutcome) -> list[RlPoolDocument]:
    """The pools of a plan, with busy and idle time and memory."""
    plan, phases = outcome.plan, outcome.phases_s
    update = outcome.memory.get(UPDATE, (0.0, 0.0))
    engine = outcome.memory.get("generation", (0.0, 0.0))
    nodes = {
        group.node.gpu.name: sum(
            node_group.count
            for node_group in plan.training.cluster.groups
            if node_group.node.gpu.name == group.node.gpu.name
        )
        for group in plan.training.cluster.groups
    }
    fullest = max(update, engine, key=lambda item: item[0] / item[1] if item[1] else 0.0)
    if plan.placement == COLOCATED:
        busy = sum(phases.values())
        return [
            RlPoolDocument(
                role="training and rollout by turns",
                nodes=nodes,
                gpus=plan.gpus,
                busy_s=busy,
                idle_share=max(1.0 - busy / outcome.step_s, 0.0),
                memory_bytes=fullest[0],
                memory_capacity_bytes=fullest[1],
            )
        ]
    return [
        RlPoolDocument(
            role="training, and rollout by turns" if plan.placement == HYBRID else "training",
            nodes=nodes,
            gpus=plan.training.gpus,
            busy_s=outcome.step_s * (1.0 - outcome.idle["training"]),
            idle_share=outcome.idle["training"],
            memory_bytes=update[0],
            memory_capacity_bytes=update[1],
        ),
        RlPoolDocument(
            role="rollout",
            nodes=rollout_kinds(plan),
            gpus=plan.rollout_gpus,
            busy_s=outcome.step_s * (1.0 - outcome.idle["rollout"]),
            idle_share=outcome.idle["rollout"],
            memory_bytes=engine[0],
            memory_capacity_bytes=engine[1],
        ),
    ]


def decisions_of(plan: RlPlan, fleet: Cluster) -> RlDecisionsDocument:
    """The decisions of a plan as a document; nodes by group of `fleet`."""
    counts = {group.name: group.count for group in plan.training.cluster.groups}
    layout = plan.training.layout
    return RlDecisionsDocument(
        placement=plan.placement,
        mode=plan.mode.kind,
        staleness=plan.mode.eta,
        share=plan.mode.share,
        at_sync=plan.mode.at_sync,
        fetches=plan.mode.fetches,
        sync_method=plan.sync_method,
        dispatch=plan.dispatch,
        training_nodes=[counts.get(group.name, 0) for group in fleet.groups],
        layout=RlLayoutDocument.from_objects(layout, dp=plan.training.dp),
        pack_tokens=plan.training.pack_tokens,
        rollout=list(plan.rollout),
        lent=list(plan.lent),
    )


def plan_from(decisions: RlDecisionsDocument, problem: RlProblem) -> RlPlan:
    """The plan of a document, on the problem's fleet. Raises BadInputError where the two do not agree."""
    if len(decisions.training_nodes) != len(problem.counts):
        raise BadInputError(
            f"the plan is for a fleet of {len(decisions.training_nodes)} groups of nodes, this one has "
            f"{len(problem.counts)}"
        )
    wanted = tuple(decisions.training_nodes)
    if not any(wanted) or any(item > there for item, there in zip(wanted, problem.counts, strict=True)):
        raise BadInputError(
            f"the plan trains on {list(wanted)} nodes of each group, the fleet has {list(problem.counts)}: "
            "give one node or more, and no more than there are"
        )
    layout = Uniform(**decisions.layout.model_dump())
    pool = TrainingPool(
        problem.part(wanted),
        layout,
        decisions.pack_tokens,
        stack=problem.stack,
        offload=decisions.placement in (COLOCATED, HYBRID),
    )
    plan = RlPlan(
        training=pool,
        rollout=tuple(decisions.rollout),
        placement=decisions.placement,
        mode=Mode(decisions.mode, decisions.staleness, decisions.share, decisions.at_sync, decisions.fetches),
        sync_method=decisions.sync_method,
        dispatch=decisions.dispatch,
        lent=tuple(decisions.lent),
    )
    for kind, count in _by_kind(plan.lent).items():
        if count > kinds_of(pool.cluster).get(kind, 0):
            raise BadInputError(f"the plan generates on {count} {kind} that train, fewer of them do")
    taken = {} if plan.placement == COLOCATED else kinds_of(pool.cluster)
    there = kinds_of(pool.cluster if plan.placement == COLOCATED else problem.fleet)
    for kind, count in rollout_kinds(plan).items():
        free = there.get(kind, 0) - taken.get(kind, 0)
        if count > free:
            raise BadInputError(f"the plan generates on {count} {kind}, {free} are there for rollout")
    return plan


def searched_document(problem: RlProblem, prices: RlPrices, deadline: Deadline) -> RlPlanDocument:
    """Best placement found, lower bound, curve of splits, advantages, other plans. Raises InfeasibleError."""
    cpu = time.process_time()
    found = RlSearch(problem, deadline).run()
    document = plan_document(found.best, problem, prices)
    return document.with_fields(
        lower_bound_s=found.bound_s,
        gap=found.gap,
        curve=[RlPointDocument.from_objects(curve_point) for curve_point in found.curve],
        kinds=[
            RlAdvantageDocument.from_objects(
                kind, gpu=kind.kind, trains_per_s=kind.trains, generates_per_s=kind.generates
            )
            for kind in found.kinds
        ],
        alternatives={in_words(step_outcome.plan): step_outcome.step_s for step_outcome in found.ranked},
        plans=found.plans,
        planning_cpu_s=time.process_time() - cpu,
        stopped=found.stopped,
    )


def in_words(plan: RlPlan) -> str:
    """A plan on one line: GPUs that train, GPUs that generate, mode."""
    trains = " + ".join(f"{count} {kind}" for kind, count in kinds_of(plan.training.cluster).items())
    generates = " + ".join(
        f"{rollout_replicas.gpus} {rollout_replicas.gpu} (tp {rollout_replicas.tp})"
        for rollout_replicas in plan.rollout
    )
    if plan.placement == COLOCATED:
        return f"colocated on {trains}, engines of tp {plan.rollout[0].tp}"
    if plan.placement == HYBRID:
        return f"{trains} train and generate by turns beside {generates}, {plan.mode.kind}"
    return f"{trains} train, {generates} generate, {plan.mode.kind}"

"""Uniform layouts that training frameworks can be told: over which groups, degrees, layers of every stage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import accumulate
from math import gcd

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors, expert_degrees, head_counts
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import LaunchBudget, budget
from tangram_sim.planners.uniform.frameworks import Framework, objections
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds, stage_places
from tangram_sim.planners.uniform.shape import Shape, UniformPlan
from tangram_sim.planners.uniform.trivial import least_bytes
from tangram_sim.studies.launchable_bounds import CONTEXT, StepBounds
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import chunked
from tangram_sim.training.schedules.named import schedule_named
from tangram_sim.training.step.ideal import ideal_seconds


@dataclass(frozen=True, slots=True)
class LaunchCandidate:
    """A uniform layout, the job it runs (its schedule), and bounds on its step (`StepBound`)."""

    least_s: float
    state_bytes: float
    job: Job
    layout: Uniform

    @property
    def batch(self) -> object:
        """What layouts share that are estimated together."""
        one = self.layout
        return self.job.schedule, one.order, one.pp, one.vpp, one.tp * one.cp * one.dp, one.layers

    @property
    def kind(self) -> object:
        """What layouts share that exceed their bounds by about as much: groups, stages' GPUs, chunks."""
        one = self.layout
        return frozenset(one.order), one.tp * one.cp * one.dp, one.vpp


@dataclass(frozen=True)
class LaunchLayouts:
    """All layouts of a model on a cluster that one of some frameworks can be told, with bounds on steps."""

    model: Model
    cluster: Cluster
    job: Job
    hwdb: Hwdb
    options: SearchOptions
    frameworks: Sequence[Framework]

    @property
    def _budget(self) -> LaunchBudget:
        return budget(self.options.effort).launchable

    def batches(self) -> list[list[LaunchCandidate]]:
        """All candidates, those estimated together side by side, the least bounds first."""
        batches: dict[object, list[LaunchCandidate]] = {}
        sizes = [one for one in divisors(self.job.global_batch) if one <= self._budget.microbatch]
        recompute = self.options.constraints.recompute
        bounds = StepBounds(self.model, self.cluster, self.job, self.hwdb, tuple(sizes), recompute)
        for order in orders(self.cluster, self.job, self.options):
            for candidate in self._degrees(order, bounds):
                batches.setdefault(candidate.batch, []).append(candidate)
        ordered = [sorted(batch, key=lambda one: one.least_s) for batch in batches.values()]
        return sorted(ordered, key=lambda batch: batch[0].least_s)

    def _degrees(self, order: tuple[str, ...], bounds: StepBounds) -> Iterator[LaunchCandidate]:
        """Degrees that use most of the GPUs of an order, with every microbatch."""
        model, job = self.model, self.job
        groups = {group.name: group for group in self.cluster.groups}
        members = [groups[name] for name in order]
        gpus = sum(group.count * group.node.gpus for group in members)
        inside = gcd(*(group.node.gpus for group in members))
        heads = gcd(*head_counts(model))
        any_context = any(framework.context for framework in self.frameworks)
        context = [cp for cp in CONTEXT if job.seq % cp == 0 and (cp == 1 or any_context)]
        for tp in divisors(gcd(inside, heads)):
            for cp in context:
                for pp in range(1, min(model.layers, gpus // (tp * cp), self._budget.stages) + 1):
                    room = gpus // (tp * cp * pp)
                    dp = max(one for one in divisors(job.global_batch) if one <= room)
                    if tp * cp * pp * dp < self._budget.used * gpus or not self._allowed(tp, dp, cp):
                        continue
                    layers = layers_by_speed(model, members, job, self.hwdb, pp, tp * cp * dp)
                    for staged, vpp, cut in self._schedules(pp, layers):
                        wanted = Uniform(tp, pp, dp, cp, vpp=vpp, layers=cut, order=order)
                        yield from self._sized(staged, wanted, bounds)

    def _allowed(self, tp: int, dp: int, cp: int) -> bool:
        fixed = dict(self.options.constraints.fixed)
        return all(fixed.get(name, value) == value for name, value in (("tp", tp), ("dp", dp), ("cp", cp)))

    def _schedules(self, pp: int, layers: tuple[int, ...]) -> Iterator[tuple[Job, int, tuple[int, ...]]]:
        """(job, chunks per stage, blocks per stage): as asked, even where that differs, and interleaved."""
        model, job = self.model, self.job
        even = (model.layers // pp,) * pp
        for cut in dict.fromkeys([layers, even] if model.layers % pp == 0 else [layers]):
            if not chunked(job.schedule):
                yield job, 1, cut
            interleaves = job.schedule in ("1f1b", "interleaved") and any(
                one.chunks for one in self.frameworks
            )
            for vpp in self._budget.chunks if pp > 1 and interleaves else ():
                if all(blocks % vpp == 0 for blocks in cut):
                    yield replace(job, schedule="interleaved"), vpp, cut

    def _sized(self, job: Job, wanted: Uniform, bounds: StepBounds) -> Iterator[LaunchCandidate]:
        """Microbatches and recomputation for given degrees, but for what cannot fit."""
        sizes = [
            size
            for size in divisors(job.global_batch // wanted.dp)
            if size <= self._budget.microbatch
            and not (wanted.vpp > 1 and job.global_batch // (wanted.dp * size) % wanted.pp)
        ]
        replicas, shards = wanted.dp * wanted.cp, wanted.tp > 1
        ep, zero = expert_degrees(self.model, replicas)[-1], 3 if replicas > 1 else 0
        spread = Layout(wanted.tp, wanted.dp, wanted.cp, ep, zero_stage=zero)
        state_bytes = least_bytes(self.model, job, spread, 1)
        for size, recompute, bound in bounds.of(job, wanted, sizes) if sizes else ():
            if bound.state_bytes >= state_bytes:
                sized = replace(wanted, micro_batch=size, sequence_parallel=shards, recompute=recompute)
                yield LaunchCandidate(bound.least_s, bound.state_bytes, job, sized)

    def savers(self, one: LaunchCandidate) -> Iterator[LaunchCandidate]:
        """Expert degrees and ZeRO stages for given degrees, as far as a framework has them and state fits."""
        wanted, constraints = one.layout, self.options.constraints
        replicas, shards = wanted.dp * wanted.cp, wanted.sequence_parallel
        for ep in expert_degrees(self.model, replicas):
            for zero in (0, 1, 2, 3) if replicas > 1 else (0,):
                layout = Layout(wanted.tp, wanted.dp, wanted.cp, ep, 1, zero, wanted.recompute, shards)
                if not constraints.allows(layout, wanted.micro_batch * wanted.dp):
                    continue
                if least_bytes(self.model, one.job, layout, 1) > one.state_bytes:
                    continue
                saved = replace(one, layout=replace(wanted, ep=ep, zero_stage=zero))
                if _permitted(self.model, saved, self.frameworks):
                    yield saved


def orders(cluster: Cluster, job: Job, options: SearchOptions) -> list[tuple[str, ...]]:
    """Which groups hold the model, front to back: all, without the slowest ones, or one alone.

    Slow are GPUs of few operations a second, or with little of a network to themselves. Groups whose GPUs
    lack the dtype, and those excluded, are left out. An order asked for is the only one.
    """
    dtype = job.precision.compute
    out = {part for name in options.exclude for part in name.split("+")}
    usable = [
        group for group in cluster.groups if group.node.gpu.peak_flop_per_s(dtype) and group.name not in out
    ]
    names = {group.name for group in usable}
    if options.order:
        asked = tuple(part for name in options.order for part in name.split("+"))
        return [asked] if set(asked) <= names else []
    compute = {group.name: group.node.gpu.peak_flop_per_s(dtype) for group in usable}
    network = {group.name: group.node.nic_bytes_per_s / group.node.gpus for group in usable}
    fast = sorted(usable, key=lambda group: -compute[group.name])
    found: dict[tuple[str, ...], None] = {}
    for pace in (compute, network):
        for slowest in sorted(set(pace.values())):
            some = [group for group in fast if pace[group.name] >= slowest]
            for ordered in (some, some[::-1], [group for group in usable if group in some]):
                found[tuple(group.name for group in ordered)] = None
    for group in usable:
        found[(group.name,)] = None
    return list(found)


def layers_by_speed(
    model: Model, groups: Sequence[NodeGroup], job: Job, hwdb: Hwdb, pp: int, width: int
) -> tuple[int, ...]:
    """Blocks of every stage of `width` GPUs, so that none takes much longer: the slowest GPU sets its pace.

    Block by block to the stage that ends first with it; every stage has one, the first also the embedding and
    the last the head.
    """
    ends = list(accumulate(group.count * group.node.gpus for group in groups))
    each = [ideal_seconds(model, group.node.gpu, job, hwdb) for group in groups]
    pace, taken = [], [0.0] * pp
    for stage in range(pp):
        first = next(kind for kind, end in enumerate(ends) if end > stage * width)
        last = next(kind for kind, end in enumerate(ends) if end >= (stage + 1) * width)
        some = each[first : last + 1]
        pace.append(max(sum(seconds[1:-1]) for seconds in some) / model.layers)
        taken[stage] += max(seconds[0] for seconds in some) if stage == 0 else 0.0
        taken[stage] += max(seconds[-1] for seconds in some) if stage == pp - 1 else 0.0
    counts = [1] * pp
    nexts = [(taken[stage] + 2 * pace[stage], abs(2 * stage + 1 - pp), stage) for stage in range(pp)]
    heapify(nexts)
    for _ in range(model.layers - pp):
        _, off_middle, stage = nexts[0]
        counts[stage] += 1
        heapreplace(nexts, (taken[stage] + (counts[stage] + 1) * pace[stage], off_middle, stage))
    return tuple(counts)


def _permitted(model: Model, one: LaunchCandidate, frameworks: Iterable[Framework]) -> bool:
    """Whether one of the frameworks can be told a candidate."""
    wanted, schedule = one.layout, schedule_named(one.job.schedule)
    places = tuple(stage_places(chunk_bounds(model, wanted), wanted.pp, wanted.vpp, schedule))
    view = UniformPlan(
        Shape(wanted.tp, wanted.cp, wanted.dp, wanted.ep, places, ()),
        model,
        one.job,
        wanted.micro_batch,
        one.job.global_batch // (wanted.micro_batch * wanted.dp),
        wanted.zero_stage,
        wanted.recompute,
        wanted.sequence_parallel,
    )
    return any(not objections(framework, view) for framework in frameworks)

"""Uniform layouts that training frameworks can be told: over which groups, degrees, layers of every stage."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heapreplace
from itertools import accumulate, product
from math import gcd, prod
from typing import overload

import numpy as np

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors, expert_degrees, head_counts
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import LaunchBudget, budget
from tangram_sim.planners.uniform.frameworks import Framework, objections, rule_objections, takes
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds, stage_places
from tangram_sim.planners.uniform.shape import Shape, UniformPlan
from tangram_sim.planners.uniform.trivial import least_bytes
from tangram_sim.studies.launchable_bounds import CONTEXT, Degrees, StepBounds
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import chunked
from tangram_sim.training.schedules.named import schedule_named
from tangram_sim.training.step.ideal import ideal_seconds


@dataclass(frozen=True, slots=True)
class LaunchCandidate:
    """A uniform layout, the job it runs (its schedule), and its bounds (`StepBound`)."""

    least_s: float
    state_bytes: float
    job: Job
    layout: Uniform

    @property
    def batch(self) -> object:
        """What layouts share that are estimated together."""
        one = self.layout
        where = one.order, one.stage_groups
        return self.job.schedule, where, one.pp, one.vpp, one.tp * one.cp * one.dp, one.layers


@dataclass(frozen=True, slots=True, eq=False)
class LaunchBatch(Sequence[LaunchCandidate]):
    """Candidates of one schedule, cut, order of groups and number of GPUs per stage, least bounds first."""

    job: Job
    alike: Uniform
    width: int  # GPUs of a stage
    degrees: tuple[Degrees, ...]
    least_s: Floats
    state_bytes: Floats

    @property
    def kind(self) -> object:
        """What layouts share that exceed their bounds by about as much: groups, stages' GPUs, chunks."""
        return frozenset(self.alike.order or self.alike.stage_groups), self.width, self.alike.vpp

    def __len__(self) -> int:
        return len(self.degrees)

    @overload
    def __getitem__(self, place: int) -> LaunchCandidate: ...
    @overload
    def __getitem__(self, place: slice) -> list[LaunchCandidate]: ...
    def __getitem__(self, place: int | slice) -> LaunchCandidate | list[LaunchCandidate]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        tp, cp, dp, size, recompute = self.degrees[place]
        layout = replace(
            self.alike,
            tp=tp,
            dp=dp,
            cp=cp,
            micro_batch=size,
            recompute=recompute,
            sequence_parallel=tp > 1,
        )
        return LaunchCandidate(float(self.least_s[place]), float(self.state_bytes[place]), self.job, layout)

    def below(self, least_s: float) -> list[LaunchCandidate]:
        """Those with lesser bounds than this."""
        return self[: int(np.searchsorted(self.least_s, least_s))]


@dataclass(frozen=True)
class LaunchLayouts:
    """All layouts of a model on a cluster that one of some frameworks can be told, with bounds on steps."""

    model: Model
    cluster: Cluster
    job: Job
    hwdb: Hwdb
    options: SearchOptions
    frameworks: Sequence[Framework]
    with_model: bool = True  # the frameworks have to have the model, too
    # By all that rules ask of a layout: very many layouts differ in their microbatch or groups alone.
    _permitted: dict[tuple[object, ...], bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def budget(self) -> LaunchBudget:
        """What looking for them may spend."""
        return budget(self.options.effort).launchable

    @cached_property
    def bounds(self) -> StepBounds:
        """Bounds for all sizes of microbatches that are looked at."""
        return StepBounds(
            self.model,
            self.cluster,
            self.job,
            self.hwdb,
            tuple(one for one in divisors(self.job.global_batch) if one <= self.budget.microbatch),
            self.options.constraints.recompute,
        )

    def takes(self, *, staged: bool = False) -> bool:
        """Whether some framework has what the job asks for in any layout; `staged`: its schedule, too."""
        return any(takes(framework, self.job, staged=staged) for framework in self.frameworks)

    def batches(self) -> list[LaunchBatch]:
        """All candidates, those estimated together side by side, the least bounds first."""
        if not self.takes():
            return []
        bounds = self.bounds
        found = [
            batch
            for order in orders(self.cluster, self.job, self.options)
            for (pp, _), degrees in self._degrees(order).items()
            for batch in self._batches(order, pp, degrees, bounds)
        ]
        return sorted(found, key=lambda batch: batch.least_s[0])

    def _degrees(self, order: tuple[str, ...]) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
        """(tp, cp, dp) that use most of the GPUs of an order, by (stages, GPUs of each)."""
        model, job = self.model, self.job
        members = self._members(order)
        gpus = sum(group.count * group.node.gpus for group in members)
        inside = gcd(*(group.node.gpus for group in members))
        heads, context = gcd(*head_counts(model)), self.context_degrees()
        replicas, found = divisors(job.global_batch), dict[tuple[int, int], list[tuple[int, int, int]]]()
        for tp in divisors(gcd(inside, heads)):
            for cp in context:
                for pp in range(1, min(model.layers, gpus // (tp * cp), self.budget.stages) + 1):
                    dp = replicas[bisect_right(replicas, gpus // (tp * cp * pp)) - 1]
                    width = tp * cp * dp
                    if width * pp >= self.budget.used * gpus and self.allowed(tp, dp, cp):
                        found.setdefault((pp, width), []).append((tp, cp, dp))
        return found

    def context_degrees(self) -> list[int]:
        """Context-parallel degrees that the sequence and one of the frameworks allow."""
        any_context = any(framework.context for framework in self.frameworks)
        return [cp for cp in CONTEXT if self.job.seq % cp == 0 and (cp == 1 or any_context)]

    @property
    def chunks(self) -> tuple[int, ...]:
        """How many chunks a stage may hold, above one; under 1f1b as far as the options leave that open."""
        asked = self.job.schedule
        able = asked == "interleaved" or (asked == "1f1b" and self.options.interleave)
        return self.budget.chunks if able and any(one.chunks for one in self.frameworks) else ()

    def _members(self, order: tuple[str, ...]) -> list[NodeGroup]:
        groups = {group.name: group for group in self.cluster.groups}
        return [groups[name] for name in order]

    def allowed(self, tp: int, dp: int, cp: int) -> bool:
        """Whether degrees are those that were asked for, where some were."""
        fixed = dict(self.options.constraints.fixed)
        return all(fixed.get(name, value) == value for name, value in (("tp", tp), ("dp", dp), ("cp", cp)))

    def _batches(
        self, order: tuple[str, ...], pp: int, degrees: Sequence[tuple[int, int, int]], bounds: StepBounds
    ) -> Iterator[LaunchBatch]:
        """Every schedule and cut, with every microbatch and recomputation, but for what cannot fit."""
        width = prod(degrees[0])
        layers = layers_by_speed(self.model, self._members(order), self.job, self.hwdb, pp, width)
        rows_of: dict[bool, list[Degrees]] = {}  # by whether stages hold several chunks
        for job, vpp, cut in self._schedules(pp, layers):
            if (vpp > 1) not in rows_of:
                rows_of[vpp > 1] = [
                    Degrees(*some, size, recompute)
                    for some in degrees
                    for recompute in bounds.recompute
                    for size in self.sizes(some[-1], pp, vpp, bounds.sizes)
                ]
            rows = rows_of[vpp > 1]
            if not rows:
                continue
            alike = Uniform(pp=pp, vpp=vpp, layers=cut, order=order)
            least_s, state_bytes = bounds.of(job, alike, rows)
            needed = {some: self.state_bytes(job, *some) for some in degrees}
            fits = np.flatnonzero(state_bytes >= [needed[row[:3]] for row in rows])
            if len(fits):
                best = fits[np.argsort(least_s[fits], kind="stable")]
                ordered = tuple(rows[place] for place in best.tolist())
                yield LaunchBatch(job, alike, width, ordered, least_s[best], state_bytes[best])

    def _schedules(self, pp: int, layers: tuple[int, ...]) -> Iterator[tuple[Job, int, tuple[int, ...]]]:
        """(job, chunks per stage, blocks per stage): as asked, even where that differs, and interleaved."""
        model, job = self.model, self.job
        even = (model.layers // pp,) * pp
        for cut in dict.fromkeys([layers, even] if model.layers % pp == 0 else [layers]):
            if not chunked(job.schedule) and any(
                takes(framework, job, staged=pp > 1) for framework in self.frameworks
            ):
                yield job, 1, cut
            for vpp in self.chunks if pp > 1 else ():
                if all(blocks % vpp == 0 for blocks in cut):
                    yield replace(job, schedule="interleaved"), vpp, cut

    def sizes(self, dp: int, pp: int, vpp: int, sizes: Sequence[int]) -> list[int]:
        """Sequences per rank and microbatch that `dp` replicas can share out."""
        each = self.job.global_batch // dp
        return [size for size in sizes if each % size == 0 and not (vpp > 1 and each // size % pp)]

    def state_bytes(self, job: Job, tp: int, cp: int, dp: int) -> float:
        """What state of the whole model takes at least, spread as far as these degrees allow."""
        replicas = dp * cp
        ep, zero = expert_degrees(self.model, replicas)[-1], 3 if replicas > 1 else 0
        return least_bytes(self.model, job, Layout(tp, dp, cp, ep, zero_stage=zero), 1)

    def savers(self, one: LaunchCandidate) -> Iterator[LaunchCandidate]:
        """Expert degrees and ZeRO stages for given degrees, as far as a framework has them and state fits."""
        wanted = one.layout
        degrees = Degrees(wanted.tp, wanted.cp, wanted.dp, wanted.micro_batch, wanted.recompute)
        for layout in self.shardings(degrees):
            if least_bytes(self.model, one.job, layout, 1) > one.state_bytes:
                continue
            shared = replace(wanted, sequence_parallel=layout.sequence_parallel)
            saved = replace(one, layout=replace(shared, ep=layout.ep, zero_stage=layout.zero_stage))
            if self.permits(saved):
                yield saved

    def shardings(self, degrees: Degrees, *, staged: bool = False) -> Iterator[Layout]:
        """Layouts with every expert degree and ZeRO stage that options allow; `staged`: of several stages.

        Sequence parallel under tensor parallelism, and not only where a framework has the latter alone.
        """
        tp, cp, dp, size, recompute = degrees
        zeros = (0, 1, 2, 3) if dp * cp > 1 else (0,)
        able = [one for one in self.frameworks if one.tensor_with_stages or not staged]
        has = {True in one.sequence_parallel for one in able} if tp > 1 else {False}
        for ep, zero, shared in product(expert_degrees(self.model, dp * cp), zeros, sorted(has)):
            layout = Layout(tp, dp, cp, ep, 1, zero, recompute, shared)
            if self.options.constraints.allows(layout, size * dp):
                yield layout

    def permits(self, one: LaunchCandidate) -> bool:
        """Whether one of the frameworks can be told a candidate."""
        wanted = one.layout
        key = one.job, replace(wanted, order=(), stage_groups=(), micro_batch=1)
        if key not in self._permitted:
            rules = objections if self.with_model else rule_objections
            bounds, schedule = chunk_bounds(self.model, wanted), schedule_named(one.job.schedule)
            places = tuple(stage_places(bounds, wanted.pp, wanted.vpp, schedule))
            view = UniformPlan(
                Shape(wanted.tp, wanted.cp, wanted.dp, wanted.ep, places, ()),
                self.model,
                one.job,
                wanted.micro_batch,
                one.job.global_batch // (wanted.micro_batch * wanted.dp),
                wanted.zero_stage,
                wanted.recompute,
                wanted.sequence_parallel,
            )
            self._permitted[key] = any(not rules(framework, view) for framework in self.frameworks)
        return self._permitted[key]


def usable_groups(cluster: Cluster, job: Job, options: SearchOptions) -> list[NodeGroup]:
    """Node groups that are not excluded and whose GPUs have units for the job's number format."""
    dtype = job.precision.compute
    out = {part for name in options.exclude for part in name.split("+")}
    return [
        group for group in cluster.groups if group.node.gpu.peak_flop_per_s(dtype) and group.name not in out
    ]


def orders(cluster: Cluster, job: Job, options: SearchOptions) -> list[tuple[str, ...]]:
    """Which groups hold the model, front to back: all, without the slowest ones, or one alone.

    Slow are GPUs of few operations a second, or with little of a network to themselves. Groups whose GPUs
    lack the dtype, and those excluded, are left out, as are orders of several vendors' GPUs, which no
    collective library spans. An order asked for is the only one.
    """
    dtype = job.precision.compute
    usable = usable_groups(cluster, job, options)
    names = {group.name for group in usable}
    if options.order:
        asked = tuple(part for name in options.order for part in name.split("+"))
        makers = {group.node.gpu.vendor for group in usable if group.name in asked}
        return [asked] if set(asked) <= names and len(makers) == 1 else []
    compute = {group.name: group.node.gpu.peak_flop_per_s(dtype) for group in usable}
    network = {group.name: group.node.nic_bytes_per_s / group.node.gpus for group in usable}
    fast = sorted(usable, key=lambda group: -compute[group.name])
    found: dict[tuple[str, ...], None] = {}
    for vendor in dict.fromkeys(group.node.gpu.vendor for group in usable):
        ours = [group for group in fast if group.node.gpu.vendor == vendor]
        floors = [(pace, slowest) for pace in (compute, network) for slowest in sorted(set(pace.values()))]
        for pace, slowest in floors:
            some = [group for group in ours if pace[group.name] >= slowest]
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

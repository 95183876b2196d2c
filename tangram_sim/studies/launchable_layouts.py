"""Uniform layouts that training frameworks can launch: all stages have the same degrees and sharding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd
from typing import NamedTuple

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.layouts import divisors, expert_degrees, head_counts
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import Framework, objections, rule_objections
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds, stage_layout, stage_places
from tangram_sim.planners.uniform.shape import Shape, UniformPlan
from tangram_sim.training.job import Job
from tangram_sim.training.problem import TrainingProblem
from tangram_sim.training.schedules.named import schedule_named

CONTEXT = (1, 2, 4, 8)  # context-parallel degrees


@dataclass(frozen=True, slots=True)
class LaunchBudget:
    """Limits on the search for a launchable plan: which uniform layouts are estimated."""

    chains: int = 8000  # layouts over any sequence of groups that are estimated
    wave: int = 48  # of these at a time
    stages: int = 64  # the deepest pipeline
    microbatch: int = 16  # sequences per rank of the largest
    chunks: tuple[int, ...] = (2, 4)  # per stage that holds several
    refined: int = 12  # best layouts on a set of node groups whose layers are moved over boundaries
    near: float = 1.05  # of these, how much slower than the best one they are estimated to be, at most
    alike: int = 6  # of these, of the same degrees on the same groups
    rounds: int = 3  # passes over these
    ops: int = 150_000  # of steps with shared links that are played while layers of one layout move


LAUNCHES = {"quick": LaunchBudget(4000), "normal": LaunchBudget(), "exhaustive": LaunchBudget(60_000)}


class Degrees(NamedTuple):
    """Degrees, microbatch and recomputation of a stage; expert degree and ZeRO stage are left open."""

    tp: int
    cp: int
    dp: int
    size: int  # sequences per rank and microbatch
    recompute: str

    @property
    def width(self) -> int:
        """GPUs of a stage."""
        return self.tp * self.cp * self.dp


@dataclass(frozen=True, slots=True)
class LaunchCandidate:
    """A uniform layout, the job it runs (with its schedule), and its predicted step in seconds.

    `sharing`: ratio of the step with shared links to that without.
    """

    least_s: float
    job: Job
    layout: Uniform
    sharing: float = 1.0

    @property
    def batch(self) -> object:
        """Key of the layouts that can be estimated together with this one."""
        uniform = self.layout
        return (
            self.job.schedule,
            uniform.stage_groups,
            uniform.pp,
            uniform.vpp,
            uniform.tp * uniform.cp * uniform.dp,
            uniform.layers,
        )


@dataclass(frozen=True)
class LaunchLayouts(TrainingProblem):
    """Enumerates the uniform layouts of a model on a cluster that one of `frameworks` can launch."""

    options: SearchOptions
    frameworks: Sequence[Framework]
    with_model: bool = True  # the frameworks have to have the model, too
    # By all that rules ask of a layout: very many layouts differ in their microbatch or groups alone.
    _permitted: dict[tuple[object, ...], bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def budget(self) -> LaunchBudget:
        """Limits of the search at the chosen effort."""
        return LAUNCHES[self.options.effort]

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Sequences per rank and microbatch to try."""
        return tuple(
            divisor for divisor in divisors(self.job.global_batch) if divisor <= self.budget.microbatch
        )

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks per stage to try, above one; () where schedule, options or frameworks allow none."""
        asked = self.job.schedule
        able = asked == "interleaved" or (asked == "1f1b" and self.options.interleave)
        return self.budget.chunks if able and any(framework.chunks for framework in self.frameworks) else ()

    def degrees(self, groups: Sequence[NodeGroup]) -> Iterator[Degrees]:
        """Yields the degrees of stages on one or several of these groups."""
        widest = sum(group.count * group.node.gpus for group in groups)
        largest, most = gcd(*head_counts(self.model)), max(group.node.gpus for group in groups)
        tensor = [tp for tp in divisors(largest) if tp <= most]
        any_context = any(framework.context for framework in self.frameworks)
        context = [cp for cp in CONTEXT if self.job.seq % cp == 0 and (cp == 1 or any_context)]
        fixed = dict(self.options.constraints.fixed)
        for tp, cp, dp in product(tensor, context, divisors(self.job.global_batch)):
            asked = all(
                fixed.get(name, value) == value for name, value in (("tp", tp), ("dp", dp), ("cp", cp))
            )
            if tp * cp * dp > widest or not asked:
                continue
            each = self.job.global_batch // dp
            for recompute in self.options.constraints.recompute:
                for size in self.microbatches:
                    if each % size == 0:
                        yield Degrees(tp, cp, dp, size, recompute)

    def shardings(self, degrees: Degrees) -> Iterator[Layout]:
        """Yields layouts of these degrees with every expert degree and ZeRO stage that the options allow.

        With tensor parallelism: sequence parallel, and also not where a framework has only the latter.
        """
        tp, cp, dp, size, recompute = degrees
        zeros = (0, 1, 2, 3) if dp * cp > 1 else (0,)
        shared = {True in framework.sequence_parallel for framework in self.frameworks} if tp > 1 else {False}
        for ep, zero, sequences in product(expert_degrees(self.model, dp * cp), zeros, sorted(shared)):
            layout = Layout(tp, dp, cp, ep, zero_stage=zero, recompute=recompute, sequence_parallel=sequences)
            if self.options.constraints.allows(layout, size * dp):
                yield layout

    def candidate(self, layout: Layout, size: int, pp: int) -> LaunchCandidate:
        """A candidate of `pp` stages under a layout, `size` sequences per rank, to check against rules."""
        chunks = 2 if pp > 1 and schedule_named(self.job.schedule).chunks[0] > 1 else 1
        wanted = Uniform(
            tp=layout.tp,
            pp=pp,
            vpp=chunks,
            dp=layout.dp,
            cp=layout.cp,
            ep=layout.ep,
            zero_stage=layout.zero_stage,
            micro_batch=size,
            recompute=layout.recompute,
            sequence_parallel=layout.sequence_parallel,
        )
        return LaunchCandidate(0.0, self.job, wanted)

    def permits(self, launch_candidate: LaunchCandidate) -> bool:
        """Whether one of the frameworks can launch a candidate."""
        wanted = launch_candidate.layout
        key = launch_candidate.job, replace(wanted, order=(), stage_groups=(), micro_batch=1)
        if key not in self._permitted:
            rules = objections if self.with_model else rule_objections
            bounds, schedule = chunk_bounds(self.model, wanted), schedule_named(launch_candidate.job.schedule)
            places = tuple(stage_places(bounds, wanted.pp, wanted.vpp, schedule))
            view = UniformPlan(
                Shape(wanted.tp, wanted.cp, wanted.dp, wanted.ep, places, ()),
                stage_layout(wanted, wanted.dp),
                self.model,
                launch_candidate.job,
                wanted.micro_batch,
                launch_candidate.job.global_batch // (wanted.micro_batch * wanted.dp),
            )
            self._permitted[key] = any(not rules(framework, view) for framework in self.frameworks)
        return self._permitted[key]


def usable_groups(cluster: Cluster, job: Job, options: SearchOptions) -> list[NodeGroup]:
    """Node groups that are not excluded and whose GPUs have units for the job's number format.

    With `order`: the groups named there, front to back; [] if it names anything else.
    """
    dtype = job.precision.compute
    out = {part for name in options.exclude for part in name.split("+")}
    able = {
        group.name: group
        for group in cluster.groups
        if group.node.gpu.peak_flop_per_s(dtype) and group.name not in out
    }
    asked = [part for name in options.order for part in name.split("+")] or list(able)
    return [able[name] for name in asked] if all(name in able for name in asked) else []

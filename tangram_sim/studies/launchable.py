"""Plans that training frameworks can launch: one layout in every stage, more layers where GPUs are faster.

Uniform layouts over groups of the cluster, as the rules of a framework allow them, are estimated together in
the order of a bound on their steps; the best are refined layer by layer and played with shared links.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import accumulate
from math import gcd

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.layouts import divisors, expert_degrees, head_counts
from tangram_sim.planners.api import Counts, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, StageAssignment
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, Framework, launching, objections
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds, stage_places, uniform_plan
from tangram_sim.planners.uniform.shape import Shape, UniformPlan
from tangram_sim.planners.uniform.trivial import ideal_before, least_s
from tangram_sim.studies.batch_estimates import Estimate, Estimator
from tangram_sim.studies.forecast import Forecast, forecast
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import chunked
from tangram_sim.training.schedules.named import schedule_named
from tangram_sim.training.step.lowered import Lowering

ESTIMATED = 1000  # layouts estimated beside a plan: about a CPU second
PROBES = 4  # of these, of every kind of batch at first
MOST_STAGES = 64
LARGEST_MICROBATCH = 16  # sequences per rank
CONTEXT = (1, 2, 4, 8)
CHUNKS = (2, 4)  # per stage that holds several
USED = 0.6  # of the GPUs of an order, at least: smaller shares are orders of their own
REFINED, ROUNDS = 2, 3  # best layouts refined, passes over their boundaries


@dataclass(frozen=True)
class Launchable:
    """A plan that frameworks can be told as it is, played; and which."""

    forecast: Forecast
    frameworks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A uniform layout, the job it runs (its schedule), and seconds that its step takes at least."""

    least_s: float
    job: Job
    layout: Uniform

    @property
    def batch(self) -> object:
        """What layouts share that are estimated together."""
        one = self.layout
        return self.job.schedule, one.order, one.pp, one.vpp, one.tp * one.cp * one.dp, one.layers


def nearest(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    options: SearchOptions,
    frameworks: Sequence[str] = tuple(FRAMEWORKS),
    most: int = ESTIMATED,
    deadline: Deadline | None = None,
) -> Launchable | None:
    """The fastest plan found that one of some frameworks can launch; None where none fits.

    `hwdb` says how far memory may be filled. `most` layouts are estimated, or what the `deadline` leaves time
    for. What the options fix, order and exclude holds; pieces of a node group have no name in a framework and
    are left out.
    """
    known, deadline = [FRAMEWORKS[name] for name in frameworks], deadline or Deadline()
    found: list[tuple[float, _Candidate]] = []
    estimator = Estimator(model, cluster, hwdb)

    def best_of(able: list[_Candidate]) -> float:
        answers = estimator.estimate([one.job for one in able], [one.layout for one in able])
        fit = [
            (answer.step_s, one)
            for one, answer in zip(able, answers, strict=True)
            if isinstance(answer, Estimate) and answer.feasible
        ]
        found.extend(fit)
        return min((step_s for step_s, _ in fit), default=float("inf"))

    # Bounds know nothing of networks. So a few layouts of every kind of batch say first which kinds are worth
    # a closer look; batches of one kind stay in the order of their bounds.
    batches = [
        (_kind(batch, options), batch) for batch in _batches(model, cluster, job, hwdb, options, known)
    ]
    promise: dict[object, float] = {}
    best_s, asked = float("inf"), 0
    for kind, batch in batches:
        if kind in promise or asked >= most or (asked and deadline.over()):
            continue
        able = list(_savers(model, batch[len(batch) // 2], options.constraints, known))
        some = able[:: -(-len(able) // PROBES) or 1]
        promise[kind] = best_of(some)
        asked, best_s = asked + len(some), min(best_s, promise[kind])
    for _, batch in sorted(batches, key=lambda pair: promise.get(pair[0], float("inf"))):
        if asked >= most or deadline.over():
            break
        likely = [one for one in batch if one.least_s < best_s]
        able = [saved for one in likely for saved in _savers(model, one, options.constraints, known)]
        asked, best_s = asked + len(able), min(best_s, best_of(able))
    found.sort(key=lambda pair: pair[0])
    plans = [_refined(model, cluster, one, hwdb, known, deadline) for _, one in found[:REFINED]]
    told = [(plan, names) for plan in plans if (names := _names(plan, frameworks))]
    whole = hwdb.filled_to(1.0)
    played = [Launchable(forecast(plan, whole), names) for plan, names in dict(told).items()]
    return min(played, key=lambda one: one.forecast.step_s, default=None)


def _names(plan: Plan, frameworks: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in launching(plan) if name in frameworks)


def _batches(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    options: SearchOptions,
    frameworks: Sequence[Framework],
) -> list[list[_Candidate]]:
    """All candidates, those estimated together side by side, the least bound first."""
    batches: dict[object, list[_Candidate]] = {}
    for order in orders(cluster, job, options):
        for candidate in _degrees(model, cluster, job, hwdb, order, options.constraints, frameworks):
            batches.setdefault(candidate.batch, []).append(candidate)
    return sorted(batches.values(), key=lambda batch: min(one.least_s for one in batch))


def _kind(batch: list[_Candidate], options: SearchOptions) -> object:
    """What a first look tells apart: every batch where a framework is asked for, some 10 ms each.

    Beside a plan only the groups that hold the model and how many stages.
    """
    one = batch[0]
    return one.batch if options.frameworks else (frozenset(one.layout.order), one.layout.pp)


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


def _degrees(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    order: tuple[str, ...],
    constraints: Constraints,
    frameworks: Sequence[Framework],
) -> Iterator[_Candidate]:
    """Degrees that use most of the GPUs of an order, with every microbatch."""
    groups = {group.name: group for group in cluster.groups}
    members = [groups[name] for name in order]
    gpus = sum(group.count * group.node.gpus for group in members)
    inside = gcd(*(group.node.gpus for group in members))
    heads = gcd(*head_counts(model))
    context = [cp for cp in CONTEXT if job.seq % cp == 0 and (cp == 1 or any(f.context for f in frameworks))]
    for tp in divisors(gcd(inside, heads)):
        for cp in context:
            for pp in range(1, min(model.layers, gpus // (tp * cp), MOST_STAGES) + 1):
                room = gpus // (tp * cp * pp)
                dp = max(one for one in divisors(job.global_batch) if one <= room)
                if tp * cp * pp * dp < USED * gpus or not _degrees_allowed(constraints, tp, dp, cp):
                    continue
                layers = layers_by_speed(model, members, job, hwdb, pp, tp * cp * dp)
                for staged, vpp, cut in _schedules(model, job, pp, layers, frameworks):
                    wanted = Uniform(tp, pp, dp, cp, vpp=vpp, layers=cut, order=order)
                    yield from _sized(model, cluster, staged, hwdb, wanted)


def _degrees_allowed(constraints: Constraints, tp: int, dp: int, cp: int) -> bool:
    fixed = dict(constraints.fixed)
    return all(fixed.get(name, value) == value for name, value in (("tp", tp), ("dp", dp), ("cp", cp)))


def _schedules(
    model: Model, job: Job, pp: int, layers: tuple[int, ...], frameworks: Sequence[Framework]
) -> Iterator[tuple[Job, int, tuple[int, ...]]]:
    """(job, chunks per stage, blocks per stage): as asked, even where that differs, and interleaved."""
    even = (model.layers // pp,) * pp
    for cut in dict.fromkeys([layers, even] if model.layers % pp == 0 else [layers]):
        if not chunked(job.schedule):
            yield job, 1, cut
        interleaves = job.schedule in ("1f1b", "interleaved") and any(one.chunks for one in frameworks)
        for vpp in CHUNKS if pp > 1 and interleaves else ():
            if all(blocks % vpp == 0 for blocks in cut):
                yield replace(job, schedule="interleaved"), vpp, cut


def _sized(model: Model, cluster: Cluster, job: Job, hwdb: Hwdb, wanted: Uniform) -> Iterator[_Candidate]:
    """Microbatches for given degrees."""
    for size in divisors(job.global_batch // wanted.dp):
        ragged = wanted.vpp > 1 and job.global_batch // (wanted.dp * size) % wanted.pp
        if size > LARGEST_MICROBATCH or ragged:
            continue
        sized = replace(wanted, micro_batch=size, sequence_parallel=wanted.tp > 1)
        yield _Candidate(least_s(model, cluster, job, sized, hwdb), job, sized)


def _savers(
    model: Model, one: _Candidate, constraints: Constraints, frameworks: Sequence[Framework]
) -> Iterator[_Candidate]:
    """Expert degrees, ZeRO stages and recomputation for given degrees, as far as a framework has them."""
    wanted = one.layout
    replicas = wanted.dp * wanted.cp
    for ep in expert_degrees(model, replicas):
        for zero in (0, 1, 2, 3) if replicas > 1 else (0,):
            for recompute in constraints.recompute:
                shards = wanted.sequence_parallel
                layout = Layout(wanted.tp, wanted.dp, wanted.cp, ep, 1, zero, recompute, shards)
                if not constraints.allows(layout, wanted.micro_batch * wanted.dp):
                    continue
                saved = replace(one, layout=replace(wanted, ep=ep, zero_stage=zero, recompute=recompute))
                if _permitted(model, saved, frameworks):
                    yield saved


def layers_by_speed(
    model: Model, groups: Sequence[NodeGroup], job: Job, hwdb: Hwdb, pp: int, width: int
) -> tuple[int, ...]:
    """Blocks of every stage of `width` GPUs, so that none takes much longer: the slowest GPU sets its pace.

    Block by block to the stage that ends first with it; every stage has one.
    """
    ends = list(accumulate(group.count * group.node.gpus for group in groups))
    each = [ideal_before(model, group.node.gpu, job, hwdb)[-1] / model.layers for group in groups]
    pace = []
    for stage in range(pp):
        first = next(kind for kind, end in enumerate(ends) if end > stage * width)
        last = next(kind for kind, end in enumerate(ends) if end >= (stage + 1) * width)
        pace.append(max(each[first : last + 1]))
    counts = [1] * pp
    nexts = [(2 * pace[stage], abs(2 * stage + 1 - pp), stage) for stage in range(pp)]
    heapify(nexts)
    for _ in range(model.layers - pp):
        _, off_middle, stage = nexts[0]
        counts[stage] += 1
        heapreplace(nexts, ((counts[stage] + 1) * pace[stage], off_middle, stage))
    return tuple(counts)


def _permitted(model: Model, one: _Candidate, frameworks: Iterable[Framework]) -> bool:
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


def _refined(
    model: Model,
    cluster: Cluster,
    one: _Candidate,
    hwdb: Hwdb,
    frameworks: Sequence[Framework],
    deadline: Deadline,
) -> Plan:
    """The plan of a candidate, single layers moved over its boundaries where that shortens the step."""
    made = uniform_plan(model, cluster, one.job, one.layout)
    even = not any(framework.uneven_stages for framework in frameworks)
    if one.layout.vpp > 1 or one.layout.pp == 1 or even or deadline.over():
        return made
    lowering = Lowering.of(made, hwdb)
    evaluator = PlanEvaluator(model, cluster, one.job, lowering, Counts())
    pipeline = made.pipelines[0]
    seats = []
    for stage in pipeline.stages:
        part = stage.parts[0]
        start = 0 if stage.embedding else stage.chunks[0][0] + 1
        stop = model.layers + 2 if stage.head else stage.chunks[-1][1] + 1
        seats.append(StageAssignment(part.island, part.ranks, part.layouts[0].layout, start, stop))
    try:
        moved = evaluator.refine(tuple(seats), pipeline.microbatch, ROUNDS)
        step_s, refined, _ = evaluator.play(moved, pipeline.microbatch)
    except TangramError:  # a layout that the evaluator cannot lower stays as it was estimated
        return made
    return replace(made, pipelines=(refined,)) if step_s < float("inf") else made

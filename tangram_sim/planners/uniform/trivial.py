"""The plan that needs no search: the best single Megatron layout over all GPUs or over one kind of GPU."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, product
from math import gcd, inf

from tangram_sim.clusters import Cluster, Gpu, Island
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.layouts import divisors, expert_degrees
from tangram_sim.planners.api import Counts, Scored
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds, uniform_plan
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import puts_off_weights
from tangram_sim.training.step.ideal import ideal_seconds
from tangram_sim.training.step.lowered import LoweredStep, Lowering

OPS_WITHOUT_PLAY = 300  # that take about as long to play as a layout takes to be looked at
LISTED = 256  # layouts bounded between two looks at the clock
LISTING = 0.5  # of the time that is left, at most: what is bounded but not played is no plan
EACH = 8  # layouts of every set of groups that are played in turns, before the rest by their bounds
COMPARED = 4  # sets of groups whose best layouts are compared though time is over
# Savers of memory, (ZeRO stage, recomputation): the first that fits is taken.
SAVERS = ((0, "none"), (1, "none"), (1, "selective"), (1, "full"), (3, "full"))


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """Limits on simulating layouts: a deadline, at most `at_most` ops, and only layouts with a bound below
    `limit_s`."""

    deadline: Deadline
    at_most: float = inf
    limit_s: float = inf


def trivial(
    model: Model,
    cluster: Cluster,
    job: Job,
    islands: Sequence[Island],
    lowering: Lowering,
    constraints: Constraints,
    counts: Counts,
    some: bool,
    limits: PlayLimits,
    chunks: Sequence[int] = (1,),
) -> Scored | None:
    """The fastest uniform layout over all `islands`, or over one of them; None where none fits.

    `chunks`: numbers of chunks per stage. `islands` come in the order in which stages take them. Layouts name
    whole node groups: if only `some` of the cluster may be used, or in another order than the file's, islands
    that are parts of a group are left out.
    """
    names = [tuple(island.name.split("+")) for island in islands]
    known = {group.name for group in cluster.groups}
    whole = [item for item in names if set(item) <= known]
    every = tuple(name for item in names for name in item) if len(whole) == len(names) else ()
    orders = [every] if every else [] if some else [()]
    orders += [item for item in whole if item != every]
    return fastest_uniform(
        model, cluster, job, lowering, orders, constraints, counts=counts, limits=limits, chunks=chunks
    )


def fastest_uniform(
    model: Model,
    cluster: Cluster,
    job: Job,
    lowering: Lowering,
    orders: Sequence[tuple[str, ...]],
    constraints: Constraints,
    counts: Counts,
    limits: PlayLimits,
    chunks: Sequence[int] = (1,),
) -> Scored | None:
    """The fastest of all layouts over the groups of one of `orders` (empty: the cluster in file order).

    Layouts are simulated in the order of a lower bound, until no other can be faster or `limits` are reached.
    """
    deadline, limit_s, at_most = limits.deadline, limits.limit_s, limits.at_most
    best: Scored | None = None
    candidates: list[tuple[float, int, Uniform]] = []
    first: list[tuple[int, tuple[float, int, Uniform]]] = []  # of every order those with the least bounds
    for turn, order in enumerate(orders):
        listing = deadline.share(LISTING * deadline.left_s() / (len(orders) - turn))
        seats, begin = UniformSeats.of(model, cluster, job, order, lowering.prices.hwdb), len(candidates)
        for plain, vpp in product(layouts(model, cluster, job, order, constraints), chunks):
            wanted = replace(plain, vpp=vpp)
            if (len(candidates) - begin) % LISTED == LISTED - 1 and listing.over():
                break
            candidates.append((seats.least_s(wanted), len(candidates), wanted))
        first += enumerate(sorted(candidates[begin:], key=lambda candidate: candidate[:2])[:EACH])
    # Bounds know no communication: time may end before slow links are left behind, so all take turns first.
    turns = [item for _, item in sorted(first, key=lambda item: (item[0], *item[1][:2]))]
    rest = sorted(candidates, key=lambda candidate: candidate[:2])
    for turn, (bound_s, _, wanted) in enumerate(dict.fromkeys([*turns, *rest])):
        soon = best is not None and turn >= min(len(orders), COMPARED)
        if at_most <= 0 or (deadline.over() if soon else deadline.over_without_answer()):
            break
        if bound_s >= (limit_s if best is None else min(best.step_s, limit_s)):
            continue
        at_most -= OPS_WITHOUT_PLAY
        found = _first_that_fits(model, cluster, job, wanted, lowering, constraints, counts=counts)
        if found is not None:
            seconds = _played_s(found[1])
            at_most -= len(found[1].template.graph)
            if best is None or seconds < best.step_s:
                best = Scored(*found, seconds)
    return best


def layouts(
    model: Model, cluster: Cluster, job: Job, order: tuple[str, ...], constraints: Constraints
) -> Iterator[Uniform]:
    """Yields layouts that use as many GPUs as the batch allows; tp stays inside the smallest node."""
    groups = [group for group in cluster.groups if not order or group.name in order]
    gpus = sum(group.count * group.node.gpus for group in groups)
    node = gcd(*(group.node.gpus for group in groups))
    experts = sorted({1, *expert_degrees(model, gpus)})
    fixed = dict(constraints.fixed)
    for tp in divisors(node):
        shards = constraints.sequence_parallel
        sequence_parallel = tp > 1 if shards is None else shards
        for pp in divisors(gpus // tp):
            room = gpus // tp // pp
            dp = fixed.get("dp", max(divisor for divisor in divisors(job.global_batch) if divisor <= room))
            if pp > model.layers or dp > room or job.global_batch % dp:
                continue
            for ep in experts:
                if dp % ep:
                    continue
                for size in divisors(job.global_batch // dp):
                    wanted = Uniform(tp, pp, dp, ep=ep, micro_batch=size, order=order)
                    yield replace(wanted, sequence_parallel=sequence_parallel)


@dataclass(frozen=True)
class UniformSeats:
    """Node groups in the order in which uniform layouts take them; computes lower bounds for such layouts."""

    model: Model
    job: Job
    ends: Sequence[int]  # the GPUs up to the end of every group
    before: Sequence[tuple[Sequence[float], Sequence[int]]]  # by kind: its ideal seconds, groups up to each

    @staticmethod
    def of(model: Model, cluster: Cluster, job: Job, order: tuple[str, ...], hwdb: Hwdb) -> "UniformSeats":
        """The groups named in `order`; if empty, all groups in file order."""
        place = {name: number for number, name in enumerate(order)}
        groups = [group for group in cluster.groups if not order or group.name in place]
        groups.sort(key=lambda group: place.get(group.name, 0))
        ends = list(accumulate(group.count * group.node.gpus for group in groups))
        before = [
            (
                ideal_before(model, gpu, job, hwdb),
                list(accumulate((group.node.gpu == gpu for group in groups), initial=0)),
            )
            for gpu in dict.fromkeys(group.node.gpu for group in groups)
        ]
        return UniformSeats(model, job, ends, before)

    def least_s(self, wanted: Uniform) -> float:
        """Lower bound in seconds on a step under one layout.

        The largest M t_i + sum of t_j over the stages j in front of i, for forward and backward of M
        microbatches; without that sum if the schedule delays weight gradients or stages hold several chunks.
        t_i is the ideal work of a stage's blocks on its slowest GPU.
        """
        job = self.job
        wide, passed, least = wanted.tp * wanted.cp * wanted.dp, 0.0, 0.0
        microbatches = job.global_batch // (wanted.micro_batch * wanted.dp)
        for place, (start, stop) in enumerate(chunk_bounds(self.model, replace(wanted, vpp=1))):
            first = bisect_right(self.ends, place * wide)
            last = bisect_left(self.ends, (place + 1) * wide) + 1
            work = max(own[stop] - own[start] for own, upto in self.before if upto[last] > upto[first])
            seconds = work * wanted.micro_batch / (wanted.tp * wanted.cp)
            least = max(least, microbatches * seconds + passed)
            passed += 0.0 if wanted.vpp > 1 or puts_off_weights(job.schedule) else seconds
        return least


@lru_cache(maxsize=256)
def ideal_before(model: Model, gpu: Gpu, job: Job, hwdb: Hwdb) -> tuple[float, ...]:
    """Ideal GPU-seconds per sequence of all blocks before each boundary."""
    return tuple(accumulate(ideal_seconds(model, gpu, job, hwdb)[1:-1], initial=0.0))


def least_bytes(model: Model, job: Job, layout: Layout, pp: int) -> float:
    """Lower bound on bytes of weights, gradients and optimizer state per GPU of the fullest of `pp` stages.

    For a stage with the mean number of parameters, all of them sharded as experts are.
    """
    state, gradients = job.trainable * job.optimizer_bytes, job.trainable * job.recipe.gradient_bytes
    each, rest = layout.tp * layout.ep, layout.tp * layout.dp * layout.cp
    weights = (job.bytes_per_parameter - state - gradients) / (rest if layout.zero_stage == 3 else each)
    whole = weights + gradients / (rest if layout.zero_stage >= 2 else each)
    return model.parameters / pp * (whole + state / (rest if layout.zero_stage else each))


def _first_that_fits(
    model: Model,
    cluster: Cluster,
    job: Job,
    wanted: Uniform,
    lowering: Lowering,
    constraints: Constraints,
    counts: Counts,
) -> tuple[Plan, LoweredStep] | None:
    """(plan, lowered step) with the first combination in SAVERS that fits memory; None where none does.

    Combinations that cannot suffice are not priced.
    """
    room = max(
        group.node.gpu.memory_bytes
        for group in cluster.groups
        if not wanted.order or group.name in wanted.order
    )
    savers: Sequence[tuple[int, str]] = SAVERS
    if "zero_stage" in dict(constraints.fixed):
        savers = tuple((dict(constraints.fixed)["zero_stage"], item) for item in RECOMPUTE)
    for zero, recompute in savers:
        layout = Layout(
            wanted.tp,
            wanted.dp,
            cp=1,
            ep=wanted.ep,
            pp=1,
            zero_stage=zero,
            recompute=recompute,
            sequence_parallel=wanted.sequence_parallel,
        )
        if not constraints.allows(layout, wanted.micro_batch * wanted.dp):
            continue
        if least_bytes(model, job, layout, wanted.pp) > room:
            continue
        try:
            plan = uniform_plan(model, cluster, job, replace(wanted, zero_stage=zero, recompute=recompute))
            step = lowering.lower(plan.pipelines[0])
        except TangramError:  # a law of the model that these degrees break: heads, experts, layers
            return None
        counts.played += 1
        if step.fits():
            return plan, step
    return None


def _played_s(step: LoweredStep) -> float:
    from tangram_sim.training.schedules.step import play_steps

    return float(play_steps(step.template, step.template.durations(step.times)[None, :])[0])

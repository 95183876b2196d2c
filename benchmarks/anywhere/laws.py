"""Laws of whole answers: what a better, larger or equal question must do to the step of the best plan.

Each law asks the planner two questions and compares steps. A planner that searched everything would keep all
of them; how often and by how much they are broken says what a search misses.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from benchmarks.anywhere.worlds import World
from tangram_sim.clusters import Cluster, Link, Node, NodeGroup
from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Experts
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.studies import tried
from tangram_sim.training.job import Job

NEVER = float("inf")  # the step where there is no plan
ROUNDING = 1e-6  # relative; below it two steps are one


@dataclass(frozen=True, slots=True)
class Verdict:
    """One comparison: by what share the law is broken, 0 where it holds."""

    law: str
    what: str
    base_s: float
    other_s: float
    broken: float


@dataclass(frozen=True)
class Question:
    """What is asked of the planner."""

    world: World
    cluster: Cluster
    job: Job
    wishes: SearchOptions = field(default_factory=SearchOptions)

    def answer(self, hwdb: Hwdb, margin: float | None = None) -> tuple[float, float | None]:
        """The step of the fastest plan found (inf where there is none), and the share of memory it leaves."""
        # Whatever frameworks could launch; every plan in one margin: a wider question may do with none.
        fastest = replace(self.wishes, beside=False, memory_margin=margin)
        try:
            found = tried.plan(self.world.model, self.cluster, self.job, wishes=fastest, hwdb=hwdb)
        except InfeasibleError:
            return NEVER, margin
        return found.document.step_s, found.document.memory_margin

    def step_s(self, hwdb: Hwdb, margin: float | None = None) -> float:
        """The step alone."""
        return self.answer(hwdb, margin)[0]


Law = Callable[[Question, random.Random], Iterator[tuple[str, Question, float, float]]]
"""(what was changed, the other question, least and most of its step over the first one's)."""


def split(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """Nodes of one group listed as two groups are the same nodes, but for racks: those are of one group."""
    several = [
        place
        for place, group in enumerate(base.cluster.groups)
        if group.count > 1 and group.node.scale_up_nodes == 1
    ]
    if several:
        place = rng.choice(several)
        groups = list(base.cluster.groups)
        first = rng.randint(1, groups[place].count - 1)
        parts = [
            replace(groups[place], count=first),
            replace(groups[place], count=groups[place].count - first),
        ]
        groups[place : place + 1] = parts
        if not base.cluster.network.between and base.cluster.network.oversubscription == 1.0:
            yield f"g{place} listed as two groups", _with(base, groups), 1.0, 1.0


def more(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """Another node, or another group, may stay idle."""
    place = rng.randrange(len(base.cluster.groups))
    groups = list(base.cluster.groups)
    groups[place] = replace(groups[place], count=groups[place].count + 1)
    yield f"one more node in g{place}", _with(base, groups), 0.0, 1.0
    twin = rng.choice(base.cluster.groups)
    slower = replace(twin.node, nic_bytes_per_s=twin.node.nic_bytes_per_s / 3)
    yield (
        "a group with a third of the NIC",
        _with(base, [*base.cluster.groups, NodeGroup("", 1, slower)]),
        0.0,
        1.0,
    )


def fewer(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """A group more never hurts, of another kind of GPU or the same: without it the best plan is no faster."""
    groups = base.cluster.groups
    if len(groups) > 1 and not base.cluster.network.between:
        place = rng.randrange(len(groups))
        left = [*groups[:place], *groups[place + 1 :]]
        yield f"without g{place}", _with(base, left), 1.0, NEVER


def halved(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """A slower network or link never makes the best plan faster."""
    place = rng.randrange(len(base.cluster.groups))
    groups = list(base.cluster.groups)
    node = groups[place].node
    groups[place] = replace(groups[place], node=replace(node, nic_bytes_per_s=node.nic_bytes_per_s / 2))
    yield f"half the NIC of g{place}", _with(base, groups), 1.0, NEVER
    names = sorted({group.node.intra.name for group in base.cluster.groups if group.node.gpus > 1})
    if names:  # rows of efficiencies go by name: a link of that name is changed wherever it is
        name = rng.choice(names)
        groups = [replace(group, node=_slower(group.node, name)) for group in base.cluster.groups]
        yield f"half of {name}", _with(base, groups), 1.0, NEVER


def doubled(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """Twice the batch: the plan with twice the microbatches takes at most twice as long."""
    job = replace(base.job, global_batch=2 * base.job.global_batch)
    yield "twice the batch", replace(base, job=job), 1.0, 2.0


def faster(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """GPUs and links twice as fast halve the step, or less: launches take as long as before."""
    groups = [replace(group, node=_twice(group.node)) for group in base.cluster.groups]
    yield "everything twice as fast", _with(base, groups), 0.5, 1.0


def restricted(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """A plan under a restriction is one that the free search could have found."""
    fixes = [
        ("tp", 1),
        ("tp", 2),
        ("cp", 1),
        ("dp", 1),
        ("dp", 2),
        ("zero_stage", 0),
        ("zero_stage", 1),
        ("pp", 1),
    ]
    for name, value in rng.sample(fixes, 3):
        asked = SearchOptions(constraints=Constraints(fixed=((name, value),)))
        yield f"--fix {name}={value}", replace(base, wishes=asked), 1.0, NEVER
    yield (
        "--recompute none",
        replace(base, wishes=SearchOptions(constraints=Constraints(recompute=("none",)))),
        1.0,
        NEVER,
    )
    groups = [group.name for group in base.cluster.groups]
    shuffled = rng.sample(groups, len(groups))
    yield (
        f"--order {','.join(shuffled)}",
        replace(base, wishes=SearchOptions(order=tuple(shuffled))),
        1.0,
        NEVER,
    )
    out = rng.choice(groups)
    yield f"--exclude {out}", replace(base, wishes=SearchOptions(exclude=(out,))), 1.0, NEVER
    yield "--whole-islands", replace(base, wishes=SearchOptions(sub_islands=False)), 1.0, NEVER
    yield "--one-pipeline", replace(base, wishes=SearchOptions(replicate=False)), 1.0, NEVER


def chosen(base: Question, rng: random.Random) -> Iterator[tuple[str, Question, float, float]]:
    """Left to choose, `auto` is no slower than the schedule and the parallelizer of the question, and one
    whose layouts are all uniform is no faster than the grid that holds them: of mixtures it does not, since
    fully sharded experts (FSEP) are layouts of the other alone.
    """
    yield "--schedule auto", replace(base, job=replace(base.job, schedule=tried.AUTO)), 0.0, 1.0
    mixed = any(isinstance(block.feed_forward, Experts) for block in base.world.model.blocks)
    for name, least, most in (
        (tried.AUTO, 0.0, 1.0),
        ("galvatron-uniform", 0.0 if mixed else 1.0, NEVER),
    ):
        yield f"--parallelizer {name}", replace(base, wishes=SearchOptions(parallelizer=name)), least, most


LAWS: dict[str, Law] = {
    "split": split,
    "more": more,
    "fewer": fewer,
    "halved": halved,
    "doubled": doubled,
    "faster": faster,
    "restricted": restricted,
    "chosen": chosen,
}


def verdicts(
    world: World, names: tuple[str, ...] = tuple(LAWS), hwdb: Hwdb | None = None
) -> Iterator[Verdict]:
    """Every comparison of some laws in one world; a restriction that contradicts the world is left out."""
    hwdb = hwdb or Hwdb.load()
    base = Question(world, world.cluster, world.job)
    base_s, margin = base.answer(hwdb)
    for name in names:
        rng = random.Random(f"{world.seed} {name}")
        for what, other, least, most in LAWS[name](base, rng):
            try:
                other_s = other.step_s(hwdb, margin)
            except (BadInputError, UnknownNameError):  # islands that join groups have names of their own
                continue
            yield Verdict(name, what, base_s, other_s, _broken(base_s, other_s, least, most))


def _broken(base_s: float, other_s: float, least: float, most: float) -> float:
    """The share by which `other_s` lies outside `least` to `most` times `base_s`."""
    if base_s == NEVER:
        return 1.0 if other_s < NEVER and least >= 1.0 else 0.0
    over = other_s / (most * base_s) - 1 if most < NEVER else 0.0
    under = 1 - other_s / (least * base_s) if least else 0.0
    found = max(over, under)
    return found if found > ROUNDING else 0.0


def _with(base: Question, groups: list[NodeGroup]) -> Question:
    """The same question about other groups, named by their places."""
    named = tuple(replace(group, name=f"g{place}") for place, group in enumerate(groups))
    return replace(base, cluster=replace(base.cluster, groups=named))


def _slower(node: Node, name: str) -> Node:
    """A node whose GPUs are joined at half the rate, where the link between them is that one."""
    if node.intra.name != name:
        return node
    return replace(node, intra=replace(node.intra, bytes_per_s=node.intra.bytes_per_s / 2))


def _twice(node: Node) -> Node:
    """A node whose GPUs, links and NICs do everything in half the time."""

    def link(given: Link) -> Link:
        return replace(given, bytes_per_s=2 * given.bytes_per_s, latency_s=given.latency_s / 2)

    gpu = replace(
        node.gpu,
        peaks=tuple((dtype, 2 * peak) for dtype, peak in node.gpu.peaks),
        memory_bytes_per_s=2 * node.gpu.memory_bytes_per_s,
    )
    return replace(
        node,
        gpu=gpu,
        intra=link(node.intra),
        bridge=node.bridge and link(node.bridge),
        nic_bytes_per_s=2 * node.nic_bytes_per_s,
        nic_latency_s=node.nic_latency_s / 2,
    )

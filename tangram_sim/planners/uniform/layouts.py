"""Plans of one explicit uniform layout over a cluster, as `tangram estimate` prices.

Ranks are numbered node by node in file order (or in the given order of groups), tp fastest, then cp, dp, pp;
a stage with several GPU kinds runs at its slowest member.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.laws import degree_laws
from tangram_sim.planners.uniform.degrees import Uniform as Uniform  # noqa: PLC0414 - callers import it here
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayerLayout, Part, Pipeline, Plan, Stage
from tangram_sim.training.schedules import Schedule, schedule_named

AMONG = " of "  # between the groups that a stage stands on and those that are taken as one: `g1 of g0+g1`


def settle_chunks(job: Job, wanted: Uniform) -> tuple[Job, Uniform]:
    """Several chunks under 1f1b select the interleaved schedule; a schedule may fix the chunks."""
    least, most = schedule_named(job.schedule).chunks
    if wanted.vpp > 1 and job.schedule == "1f1b":
        return replace(job, schedule="interleaved"), wanted
    if wanted.vpp == 1 and least == most:
        return job, replace(wanted, vpp=least)
    return job, wanted


def rank_order(cluster: Cluster, order: Sequence[str]) -> list[int]:
    """Global ranks in the order of the stages. Raises UnknownNameError, BadInputError for duplicates."""
    names = [group.name for group in cluster.groups]
    for name in order:
        if name not in names:
            raise unknown_name(
                "node group", name, names, "`order=` takes group names g0, g1, ... in file order."
            )
    if len(set(order)) != len(order):
        raise BadInputError(f"`order=` names a group twice: {','.join(order)}; name each once")
    begins, ranks = {}, 0
    for group in cluster.groups:
        begins[group.name] = ranks, ranks + group.count * group.node.gpus
        ranks = begins[group.name][1]
    return [rank for name in (order or names) for rank in range(*begins[name])]


def _places_in(group: NodeGroup, first: int, width: int) -> list[tuple[int, ...]]:
    """Ranks of every stage of `width` GPUs that a node group, whose ranks begin at `first`, can hold.

    A stage stands on whole nodes, or on a part of one node.
    """
    gpus = group.node.gpus
    if width % gpus == 0:
        starts = [first + width * place for place in range(group.count * gpus // width)]
    elif width < gpus:
        pieces = gpus // width
        starts = [
            first + gpus * node + width * index for node in range(group.count) for index in range(pieces)
        ]
    else:
        starts = []
    return [tuple(range(start, start + width)) for start in starts]


def places_together(cluster: Cluster, names: str, width: int) -> list[tuple[int, ...]]:
    """Ranks of consecutive stages of `width` GPUs on a node group, or on several groups as one (`g0+g1`).

    `g1 of g0+g1`: only those stages of the combined groups that lie on g1 alone.
    """
    on, _, among = names.partition(AMONG)
    parts = (among or on).split("+")
    ranks = rank_order(cluster, parts)  # raises for unknown names
    if len(parts) == 1:
        return _places_in(next(group for group in cluster.groups if group.name == names), ranks[0], width)
    places = [tuple(ranks[start : start + width]) for start in range(0, len(ranks) - width + 1, width)]
    group_of = _group_of(cluster)
    return [one for one in places if not among or {group_of[rank] for rank in one} == {*on.split("+")}]


def stage_ranks(cluster: Cluster, wanted: Uniform, width: int) -> list[tuple[int, ...]]:
    """The ranks of every stage of `width` GPUs, front to back.

    With `stage_groups`, nodes of a group are filled from the last stage backwards. Raises UnknownNameError
    for unknown groups, InfeasibleError where a group has too few GPUs.
    """
    if not wanted.stage_groups:
        ranks = rank_order(cluster, wanted.order)
        return [tuple(ranks[stage * width : (stage + 1) * width]) for stage in range(wanted.pp)]
    if len(wanted.stage_groups) != wanted.pp:
        raise BadInputError(
            f"{len(wanted.stage_groups)} stage groups are named for {wanted.pp} stages; name one each"
        )
    names = dict.fromkeys(wanted.stage_groups)
    apart = dict.fromkeys(name.partition(AMONG)[2] or name for name in names)
    rank_order(cluster, [part for name in apart for part in name.split("+")])  # raises for one named twice
    places = {name: places_together(cluster, name, width) for name in names}
    found = []
    for name in wanted.stage_groups[::-1]:
        if not places[name]:
            raise InfeasibleError(
                f"stage groups: {name} has no room for {wanted.stage_groups.count(name)} stages of "
                f"{width} GPUs"
            )
        found.append(places[name].pop())
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Settled:
    """A valid uniform layout with all open options filled in."""

    dp: int
    microbatch: int  # sequences of one pipeline pass, whole stage
    microbatches: int
    layout: Layout
    bounds: tuple[tuple[int, int], ...]  # blocks of every chunk, see `chunk_bounds`


def settle(model: Model, cluster: Cluster, job: Job, wanted: Uniform, available: int) -> Settled:
    """Check a uniform layout against model, job and the `available` GPUs, and fill in open options.

    Raises BadInputError or InfeasibleError naming the violated rule, with its numbers.
    """
    dp = _degrees(cluster, wanted, available)
    _check(model, job, wanted, dp)
    microbatch = wanted.micro_batch * dp
    if microbatch > job.global_batch:
        raise BadInputError(
            f"`micro_batch={wanted.micro_batch}` x {_chosen(wanted, dp)} = {microbatch} sequences are one "
            f"microbatch, more than the global batch of {job.global_batch}; {_instead(job, wanted, dp)}"
        )
    if job.global_batch % microbatch:
        raise BadInputError(
            f"a global batch of {job.global_batch} is not a multiple of micro-batch {wanted.micro_batch} x "
            f"{_chosen(wanted, dp)} = {microbatch}; {_instead(job, wanted, dp)}"
        )
    microbatches = job.global_batch // microbatch
    if schedule_named(job.schedule).whole_rounds and microbatches % wanted.pp:
        raise BadInputError(
            f"`vpp={wanted.vpp}`: the {job.schedule} schedule needs microbatches in multiples of `pp=` "
            f"{wanted.pp}, a global batch of {job.global_batch} gives {microbatches}; change `micro_batch=`, "
            "`dp=`, `pp=` or `global_batch=`"
        )
    return Settled(dp, microbatch, microbatches, stage_layout(wanted, dp), tuple(chunk_bounds(model, wanted)))


def stage_layout(wanted: Uniform, dp: int) -> Layout:
    """The layout of every stage (pp 1: pipeline stages are not inner stages)."""
    return Layout(
        wanted.tp,
        dp,
        wanted.cp,
        wanted.ep,
        pp=1,
        zero_stage=wanted.zero_stage,
        recompute=wanted.recompute,
        sequence_parallel=wanted.sequence_parallel,
    )


def stage_places(
    bounds: Sequence[tuple[int, int]], pp: int, vpp: int, schedule: Schedule
) -> list[tuple[tuple[int, int], ...]]:
    """The chunks of every stage, front to back, without empty ones."""
    chunks = [tuple(bounds[schedule.place(stage, chunk, pp)] for chunk in range(vpp)) for stage in range(pp)]
    return [tuple(chunk for chunk in own if chunk[1] > chunk[0]) for own in chunks]


def uniform_plan(model: Model, cluster: Cluster, job: Job, wanted: Uniform) -> Plan:
    """The plan of one uniform layout.

    Raises BadInputError or InfeasibleError naming the violated rule, with its numbers.
    """
    available = rank_order(cluster, wanted.order)
    settled = settle(model, cluster, job, wanted, len(available))
    seats = stage_ranks(cluster, wanted, settled.layout.gpus)
    group_of = _group_of(cluster)
    stages = []
    schedule = schedule_named(job.schedule)
    ends = schedule.place(0, 0, wanted.pp), wanted.pp * wanted.vpp - 1
    for stage, kept in enumerate(stage_places(settled.bounds, wanted.pp, wanted.vpp, schedule)):
        ranks = seats[stage]
        island = "+".join(dict.fromkeys(group_of[rank] for rank in ranks))
        places = [schedule.place(stage, chunk, wanted.pp) for chunk in range(wanted.vpp)]
        first, last = settled.bounds[places[0]], settled.bounds[places[-1]]
        runs = (LayerLayout((first[0], last[1]), settled.layout),)
        part = Part(island, ranks, settled.microbatch, runs)
        stages.append(Stage(kept, ends[0] in places, ends[1] in places, (part,)))
    return Plan(model, cluster, job, (Pipeline(settled.microbatches, settled.microbatch, tuple(stages)),))


def _degrees(cluster: Cluster, wanted: Uniform, available: int) -> int:
    """The data-parallel degree. Raises BadInputError, or InfeasibleError for too few GPUs."""
    degrees = {"tp": wanted.tp, "pp": wanted.pp, "cp": wanted.cp, "ep": wanted.ep, "vpp": wanted.vpp}
    for name, value in {**degrees, "micro_batch": wanted.micro_batch}.items():
        if value < 1:
            raise BadInputError(f"`{name}={value}`: give 1 or more")
    if wanted.dp < 0:
        raise BadInputError(f"`dp={wanted.dp}`: give 1 or more, or 0 for as many replicas as the GPUs hold")
    if not 0 <= wanted.zero_stage <= 3:
        raise BadInputError(f"`zero_stage={wanted.zero_stage}`: ZeRO stages are 0 to 3")
    per_replica = wanted.tp * wanted.pp * wanted.cp
    dp = wanted.dp or max(available // per_replica, 1)
    if per_replica * dp > available:
        among = f" in {', '.join(wanted.order)}" if wanted.order else ""
        raise InfeasibleError(
            f"`tp={wanted.tp}` x `pp={wanted.pp}` x `dp={dp}` x `cp={wanted.cp}` = {per_replica * dp} GPUs; "
            f"{cluster.name} has {available}{among}; lower a degree"
        )
    return dp


def _chosen(wanted: Uniform, dp: int) -> str:
    """Text for the data-parallel degree, and whether it was given or derived."""
    return f"dp {dp}" if wanted.dp else f"dp {dp} (as many replicas as the GPUs hold: `dp=` is not given)"


def _instead(job: Job, wanted: Uniform, dp: int) -> str:
    """Advice: smaller dp degrees that divide the batch evenly, and batches that this dp divides."""
    microbatch = wanted.micro_batch * dp
    fitting = [index for index in range(1, dp) if job.global_batch % (wanted.micro_batch * index) == 0]
    below = job.global_batch // microbatch * microbatch
    batches = " or ".join(str(size) for size in (below, below + microbatch) if size)
    degrees = f"`dp=` {' or '.join(map(str, fitting[-3:]))}, or " if fitting else ""
    return f"give {degrees}`global_batch={batches}`"


def _group_of(cluster: Cluster) -> list[str]:
    return [group.name for group in cluster.groups for _ in range(group.count * group.node.gpus)]


def _check(model: Model, job: Job, wanted: Uniform, dp: int) -> None:
    """Raise BadInputError where the degrees or the schedule are invalid for this model."""
    for broken in degree_laws(model, job.seq, stage_layout(wanted, dp)):
        raise BadInputError(f"`{broken.name}={broken.value}` {broken.why}{broken.advice}")
    least, most = schedule_named(job.schedule).chunks
    if wanted.vpp > 1 and most == 1:
        raise BadInputError(f"`vpp={wanted.vpp}` needs `schedule=interleaved` (it is {job.schedule})")
    if least > 1 and (wanted.pp == 1 or not least <= wanted.vpp <= most):
        chunks = f"`vpp={least}`" + ("" if least == most else f" to {most}")
        raise BadInputError(
            f"`schedule={job.schedule}` needs `pp=2` or more and {chunks} (they are {wanted.pp} and "
            f"{wanted.vpp})"
        )


def chunk_bounds(model: Model, wanted: Uniform) -> list[tuple[int, int]]:
    """Blocks [start, stop) of every chunk, in forward order. Raises BadInputError for invalid `layers`."""
    places = wanted.pp * wanted.vpp
    counts = list(wanted.layers)
    if not counts:
        if places > model.layers:
            raise BadInputError(
                f"`pp={wanted.pp}` x `vpp={wanted.vpp}` = {places} places for the {model.layers} layers of "
                f"{model.name}; lower one"
            )
        base, extra = divmod(model.layers, places)
        # Uneven shares go to the middle: the ends also hold embedding and head.
        first = (places - extra) // 2
        counts = [base + (1 if first <= place < first + extra else 0) for place in range(places)]
    if len(counts) == wanted.pp and wanted.vpp > 1:
        if any(count % wanted.vpp for count in counts):
            raise BadInputError(
                f"`layers={','.join(map(str, counts))}`: with `vpp={wanted.vpp}` give multiples of it, "
                f"or {places} numbers"
            )
        counts = [counts[place % wanted.pp] // wanted.vpp for place in range(places)]
    if len(counts) != places or sum(counts) != model.layers or any(count < 0 for count in counts):
        raise BadInputError(
            f"`layers={','.join(map(str, wanted.layers))}`: needs {places} numbers, none negative, that add "
            f"up to the {model.layers} layers of {model.name} (they are {len(counts)}, in all {sum(counts)})"
        )
    # A stage at either end may hold the embedding or the head alone; anywhere else it would hold nothing.
    if any(count == 0 for count in (counts if wanted.vpp > 1 else counts[1:-1])):
        raise BadInputError(
            f"`layers={','.join(map(str, wanted.layers))}`: a stage would hold nothing; only the first and "
            "the last one, which hold the embedding and the head, may have 0 layers (and without `vpp=`)"
        )
    bounds, start = [], 0
    for count in counts:
        bounds.append((start, start + count))
        start += count
    return bounds

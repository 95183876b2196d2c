"""One explicit uniform layout over a cluster: the plan that `tangram estimate` prices.

Ranks are numbered node by node in file order (or in the order of groups asked for), tp fastest, then cp,
dp, pp; a stage that spans GPU kinds runs at its slowest member.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.jobs import Job
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import expert_degrees
from tangram_sim.plans import LayerLayout, Part, Pipeline, Plan, Stage


@dataclass(frozen=True, slots=True)
class Uniform:
    """Degrees of one layout for the whole model. `micro_batch` counts sequences per data-parallel rank; dp 0 = the rest."""

    tp: int = 1
    pp: int = 1
    dp: int = 0
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    zero_stage: int = 0
    micro_batch: int = 1
    recompute: str = "none"
    sequence_parallel: bool = False
    layers: tuple[int, ...] = ()  # blocks per stage (or per chunk, stage by stage within a round); () = even
    order: tuple[str, ...] = ()  # node groups; ranks are numbered in this order


def rank_order(cluster: Cluster, order: Sequence[str]) -> list[int]:
    """Global ranks in the order that stages take them."""
    names = [group.name for group in cluster.groups]
    for name in order:
        if name not in names:
            raise unknown_name("node group", name, names, "--order takes group names g0, g1, ... in file order.")
    if len(set(order)) != len(order):
        raise BadInputError(f"--order names a group twice: {','.join(order)}; name each once")
    begins, ranks = {}, 0
    for group in cluster.groups:
        begins[group.name] = ranks, ranks + group.count * group.node.gpus
        ranks = begins[group.name][1]
    return [rank for name in (order or names) for rank in range(*begins[name])]


def uniform_plan(model: Model, cluster: Cluster, job: Job, wanted: Uniform) -> Plan:
    """The plan of one uniform layout.

    Raises BadInputError or InfeasibleError naming the law that is broken, with its numbers.
    """
    available = rank_order(cluster, wanted.order)
    degrees = {"tp": wanted.tp, "pp": wanted.pp, "cp": wanted.cp, "ep": wanted.ep, "vpp": wanted.vpp, "micro-batch": wanted.micro_batch}
    for name, value in degrees.items():
        if value < 1:
            raise BadInputError(f"--{name} is {value}; give 1 or more")
    per_replica = wanted.tp * wanted.pp * wanted.cp
    dp = wanted.dp or len(available) // per_replica
    needed = per_replica * dp
    if dp < 1 or needed > len(available):
        raise InfeasibleError(
            f"tp {wanted.tp} x pp {wanted.pp} x dp {max(dp, 1)} x cp {wanted.cp} = {per_replica * max(dp, 1)} GPUs, "
            f"{cluster.name} has {len(available)}; lower a degree"
        )
    _check(model, job, wanted, dp)
    microbatch = wanted.micro_batch * dp
    if job.global_batch % microbatch:
        raise BadInputError(
            f"a global batch of {job.global_batch} is not a multiple of micro-batch {wanted.micro_batch} x dp {dp} = "
            f"{microbatch}; change --micro-batch, --dp or --global-batch"
        )
    layout = Layout(wanted.tp, dp, wanted.cp, wanted.ep, 1, wanted.zero_stage, wanted.recompute, wanted.sequence_parallel)
    share = wanted.tp * wanted.cp * dp
    bounds = chunk_bounds(model, wanted)
    names = {rank: group for rank, group in zip(rank_order(cluster, ()), _group_of(cluster), strict=True)}
    stages = []
    for stage in range(wanted.pp):
        ranks = tuple(available[stage * share : (stage + 1) * share])
        chunks = tuple(bounds[chunk * wanted.pp + stage] for chunk in range(wanted.vpp))
        kept = tuple(chunk for chunk in chunks if chunk[1] > chunk[0])
        island = "+".join(dict.fromkeys(names[rank] for rank in ranks))
        part = Part(island, ranks, microbatch, (LayerLayout((chunks[0][0], chunks[-1][1]), layout),))
        stages.append(Stage(kept, stage == 0, stage == wanted.pp - 1, (part,)))
    return Plan(model, cluster, job, (Pipeline(job.global_batch // microbatch, microbatch, tuple(stages)),))


def _group_of(cluster: Cluster) -> list[str]:
    return [group.name for group in cluster.groups for _ in range(group.count * group.node.gpus)]


def _check(model: Model, job: Job, wanted: Uniform, dp: int) -> None:
    heads = model.blocks[0].attention.heads
    if heads % wanted.tp:
        raise BadInputError(f"--tp {wanted.tp} does not divide the {heads} attention heads of {model.name}; give a divisor")
    if job.seq % wanted.cp:
        raise BadInputError(f"--cp {wanted.cp} does not divide the sequence of {job.seq} tokens; give a divisor")
    if wanted.ep not in expert_degrees(model, dp * wanted.cp):
        raise BadInputError(
            f"--ep {wanted.ep}: {model.name} on dp {dp} x cp {wanted.cp} allows ep "
            f"{', '.join(map(str, expert_degrees(model, dp * wanted.cp)))}"
        )
    if wanted.vpp > 1 and job.schedule != "interleaved":
        raise BadInputError(f"--vpp {wanted.vpp} needs --schedule interleaved (it is {job.schedule})")
    if wanted.vpp > 1 and wanted.pp == 1:
        raise BadInputError(f"--vpp {wanted.vpp} needs a pipeline: give --pp 2 or more")


def chunk_bounds(model: Model, wanted: Uniform) -> list[tuple[int, int]]:
    """Blocks [start, stop) of every chunk in forward order (chunk c of stage s is entry c * pp + s)."""
    places = wanted.pp * wanted.vpp
    counts = list(wanted.layers)
    if not counts:
        if places > model.layers:
            raise BadInputError(f"pp {wanted.pp} x vpp {wanted.vpp} = {places} places for {model.layers} layers; lower one")
        base, extra = divmod(model.layers, places)
        # Uneven shares go to the middle: the ends also hold embedding and head.
        first = (places - extra) // 2
        counts = [base + (1 if first <= place < first + extra else 0) for place in range(places)]
    if len(counts) == wanted.pp and wanted.vpp > 1:
        if any(count % wanted.vpp for count in counts):
            raise BadInputError(f"--layers {','.join(map(str, counts))}: with --vpp {wanted.vpp} give multiples of it, or {places} numbers")
        counts = [counts[place % wanted.pp] // wanted.vpp for place in range(places)]
    if len(counts) != places or sum(counts) != model.layers or any(count < 0 for count in counts):
        raise BadInputError(
            f"--layers {','.join(map(str, wanted.layers))}: needs {places} numbers, none negative, that add up to the "
            f"{model.layers} layers of {model.name} (they are {len(counts)} and add up to {sum(counts)})"
        )
    bounds, start = [], 0
    for count in counts:
        bounds.append((start, start + count))
        start += count
    return bounds

"""The Tangram planner: islands, enumeration, pruning, composition, and finalists played whole.

Tao et al., "Tangram: Hiding GPU Heterogeneity for Efficient LLM Parallelization", arXiv:2606.16907.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, Island
from tangram_sim.cost.collectives import network_rate, transfer_s
from tangram_sim.cost.device import device_rates
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.jobs import Job
from tangram_sim.lowering.atoms import Embedding, Head, atoms_of
from tangram_sim.lowering.placement import Placement
from tangram_sim.lowering.prices import StagePrices
from tangram_sim.lowering.step import Lowering
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.api import Candidate, Counts, Found, Scored, Wishes
from tangram_sim.planners.bound import WorkBound
from tangram_sim.planners.compose import Composed, compose_table
from tangram_sim.planners.enumerate import Enumeration
from tangram_sim.planners.finalists import Referee, Seat, seats_of
from tangram_sim.planners.islands import find_islands
from tangram_sim.registry import parallelizer as parallelizer_named
from tangram_sim.units import show_bytes

SLACK = 0.03  # pipelines this close to the best objective are played whole
PLAYED, REFINED = 48, 6  # finalists per microbatch size; of these refined, over all sizes
LIMITS = (1.2, 1.4, 1.7, 2.0, 2.5, 3.5, 5.0, 10.0, 100.0, float("inf"))  # of the lower bound, tried in turn
MAX_STATES = 1500  # node-count combinations the composition keeps apart before nodes are taken in groups

Progress = Callable[[int, int, str], None]


def usable_islands(cluster: Cluster, job: Job, hwdb: Hwdb, wishes: Wishes) -> tuple[tuple[Island, ...], list[str]]:
    """Islands the planner may use, and notes on those it may not.

    Raises InfeasibleError when none is left, UnknownNameError for names in --order or --exclude that
    are no island.
    """
    islands = find_islands(cluster, job.recipe.gemm_dtype, hwdb=hwdb)
    names = [island.name for island in islands]
    for option, given in (("--order", wishes.order), ("--exclude", wishes.exclude)):
        for name in given:
            if name not in names:
                raise unknown_name("island", name, names, f"{option} takes names that `tangram islands` prints.")
    both = sorted(set(wishes.order) & set(wishes.exclude))
    if both:
        raise BadInputError(f"--order and --exclude both name {', '.join(both)}; drop it from one of them")
    if len(set(wishes.order)) != len(wishes.order):
        raise BadInputError(f"--order names an island twice: {','.join(wishes.order)}; name each once")
    notes, usable = [], []
    for island in islands:
        if island.name in wishes.exclude or (wishes.order and island.name not in wishes.order):
            notes.append(f"{island.name} ({island.gpu.name}) left out as asked")
        elif not island.gpu.peak_flop_per_s(job.recipe.gemm_dtype):
            notes.append(f"{island.name} ({island.gpu.name}) left out: no {job.dtype} units")
        else:
            usable.append(island)
    if not usable:
        raise InfeasibleError(f"no island of {cluster.name} is left to plan on: {'; '.join(notes)}")
    return tuple(usable), notes


def node_units(islands: Sequence[Island]) -> tuple[int, ...]:
    """Nodes taken at a time from each island so that the composition's count states stay below MAX_STATES."""
    units = [1] * len(islands)
    while np.prod([island.nodes // unit + 1 for island, unit in zip(islands, units, strict=True)]) > MAX_STATES:
        widest = max(range(len(islands)), key=lambda kind: islands[kind].nodes // units[kind])
        units[widest] *= 2
    return tuple(units)


def hop_seconds(islands: Sequence[Island], cluster: Cluster, hwdb: Hwdb, size: float, order: Sequence[str]) -> NDArray[np.float64]:
    """(kinds, kinds): seconds to hand one microbatch from a node of one island to a node of the next.

    inf where --order forbids the neighbourhood. One node on each side: the finalists' play knows better.
    """
    hops = np.zeros((len(islands), len(islands)))
    for a, source in enumerate(islands):
        for b, target in enumerate(islands):
            if order and order.index(source.name) > order.index(target.name):
                hops[a, b] = np.inf
                continue
            limits = [cluster.group_limit(i, j) for i in source.groups for j in target.groups]
            rate = min(*(rate for rate, _ in limits), source.nic_bytes_per_s, target.nic_bytes_per_s)
            rate *= hwdb.network_efficiency.value
            if a == b:
                rate = min(rate, network_rate(source, hwdb))
                if source.scale_up_nodes >= source.nodes > 1:
                    rate = source.intra.bytes_per_s * hwdb.link_efficiency(source.intra).value * source.gpus_per_node
            hops[a, b] = transfer_s(size, rate, max(latency for _, latency in limits))
    return hops


def tangram(
    model: Model, cluster: Cluster, job: Job, hwdb: Hwdb, wishes: Wishes = Wishes(), progress: Progress | None = None
) -> Found:
    """Plan `model` on `cluster`: the best pipelines found, played whole, best first.

    Raises InfeasibleError with what is missing when nothing fits.
    """
    islands, notes = usable_islands(cluster, job, hwdb, wishes)
    counts = Counts()
    every: list[Candidate] = []
    bound = WorkBound(model, job, islands, hwdb)
    units = node_units(islands) if wishes.sub_islands else tuple(island.nodes for island in islands)
    if wishes.sub_islands and max(units) > 1:
        taken = ", ".join(f"{island.name} by {unit}" for island, unit in zip(islands, units, strict=True) if unit > 1)
        notes.append(f"nodes are taken in groups ({taken}): layouts that split a group were not searched")
    islands = tuple(island.part(island.nodes - island.nodes % unit) for island, unit in zip(islands, units, strict=True))
    enumeration = Enumeration(
        model,
        job,
        islands,
        parallelizer_named(wishes.parallelizer)(),
        wishes.constraints,
        hwdb,
        bound,
        counts,
        every if wishes.every_candidate else None,
        _tied_s(model, job, islands),
    )
    lowering = Lowering(Placement(cluster, hwdb), StagePrices(model, job, hwdb))
    referee = Referee(model, cluster, job, lowering, counts)
    work = np.concatenate([[0.0], np.cumsum(bound.seconds.min(axis=0))])
    search = _Search(enumeration, referee, bound.step_s(), units, work, wishes.order)
    played = search.run(progress)
    enumeration.count_pruned()
    if not played:
        raise InfeasibleError(_why_not(model, cluster, job, islands, hwdb, enumeration))
    ranked = _rank(played, referee, max(wishes.top, 1))
    return Found(ranked, bound.step_s(), counts, notes, every)


class _Search:
    """Sweeps over microbatch sizes under a limit on the step, below which nothing is dropped.

    A coarse sweep (islands whole or in halves) finds a good plan in little time; its played step, plus
    SLACK, is the limit of the full sweep. Without such a plan limits widen from the lower bound upward.
    """

    def __init__(
        self,
        enumeration: Enumeration,
        referee: Referee,
        bound_s: float,
        units: Sequence[int],
        work: NDArray[np.float64],
        order: Sequence[str],
    ) -> None:
        self.enumeration, self.referee, self.bound_s = enumeration, referee, bound_s
        self.units, self.work, self.order = units, work, order
        self.best_s = float("inf")
        self.best_of: dict[int, float] = {}  # by microbatch size
        self.played: dict[tuple[tuple[Seat, ...], int], float] = {}

    def run(self, progress: Progress | None) -> list[tuple[float, tuple[Seat, ...], int]]:
        """Everything that was played and fits."""
        sizes = microbatch_sizes(self.enumeration.job)
        halves = [max(unit, -(-island.nodes // 2)) for island, unit in zip(self.enumeration.islands, self.units, strict=True)]
        sweeps = [(halves, float("inf")), *((self.units, self.bound_s * factor) for factor in LIMITS)]
        for number, (units, limit_s) in enumerate(sweeps):
            for position, microbatch in enumerate(sizes):
                if progress:
                    progress(position, len(sizes), f"microbatch {microbatch}, sweep {number + 1}")
                self._size(microbatch, min(limit_s, self.best_s * (1 + SLACK)), units)
            if number and self.best_s <= limit_s:
                break
            if self.best_s < float("inf"):  # the full sweep needs no other limit than the best plan
                sizes.sort(key=lambda size: (self.best_of.get(size, float("inf")), size))
                sweeps[number + 1 :] = [(self.units, float("inf"))]
        if progress:
            progress(len(sizes), len(sizes), "finalists")
        return [(seconds, seats, microbatch) for (seats, microbatch), seconds in self.played.items()]

    def _size(self, microbatch: int, limit_s: float, units: Sequence[int]) -> None:
        """Compose and play pipelines of one microbatch size that could end below `limit_s`."""
        enumeration, job, islands = self.enumeration, self.enumeration.job, self.enumeration.islands
        table = enumeration.table(microbatch, limit_s, units)
        placement = self.referee.lowering.placement
        size = microbatch * job.seq * enumeration.model.hidden * job.recipe.activation_bytes
        hops = hop_seconds(islands, placement.cluster, enumeration.hwdb, size, self.order)
        node_counts = [island.nodes // unit for island, unit in zip(islands, units, strict=True)]
        composed = compose_table(table, node_counts, hops, self.work, limit_s)
        enumeration.counts.composed += len(composed)
        for seats in _distinct(composed, islands, placement):
            seconds = self.referee.play(seats, microbatch)[0]
            if seconds < float("inf"):
                self.played[seats, microbatch] = seconds
                self.best_s = min(self.best_s, seconds)
                self.best_of[microbatch] = min(self.best_of.get(microbatch, seconds), seconds)


def microbatch_sizes(job: Job) -> list[int]:
    """Divisors of the global batch, those that give a pipeline of moderate length first.

    The order changes nothing but the time: a good plan found early prunes the sizes after it.
    """
    return sorted(divisors(job.global_batch), key=lambda size: (abs(np.log2(job.global_batch / size) - 5.0), size))


def _distinct(composed: list[Composed], islands: Sequence[Island], placement: Placement) -> list[tuple[Seat, ...]]:
    """The best PLAYED different pipelines."""
    seen = dict.fromkeys(seats_of(one, islands, placement) for one in composed[: 4 * PLAYED])
    return list(seen)[:PLAYED]


def _rank(played: list[tuple[float, tuple[Seat, ...], int]], referee: Referee, top: int) -> list[Scored]:
    """Refine the best finalists and return the `top` different plans, fastest first."""
    played = sorted(played, key=lambda entry: (entry[0], len(entry[1])))
    refined = [(referee.refine(seats, microbatch), microbatch) for _, seats, microbatch in played[:REFINED]]
    pool = dict.fromkeys([*refined, *((seats, microbatch) for _, seats, microbatch in played)])
    scored = [referee.scored(seats, microbatch) for seats, microbatch in pool]
    scored.sort(key=lambda one: one.step_s)
    chosen: list[Scored] = []
    shapes: set[object] = set()
    for one in scored:
        shape = _shape(one)
        if shape not in shapes:
            shapes.add(shape)
            chosen.append(one)
        if len(chosen) == top:
            break
    return chosen


def _shape(scored: Scored) -> object:
    """What makes two plans different to a person: islands, GPUs, layouts and microbatch, not single layers."""
    pipeline = scored.plan.pipelines[0]
    return pipeline.microbatch, tuple((stage.parts[0].island, len(stage.ranks), stage.layout) for stage in pipeline.stages)


def _tied_s(model: Model, job: Job, islands: Sequence[Island]) -> float:
    """Least time of the all-reduce of a tied matrix between different stages."""
    if not model.tied:
        return 0.0
    size = model.vocab * (model.embedding_dim or model.hidden) * job.recipe.gradient_bytes
    return transfer_s(size, max(max(island.nic_bytes_per_s * island.nodes, island.intra.bytes_per_s * island.gpus) for island in islands), 0.0)


def _why_not(model: Model, cluster: Cluster, job: Job, islands: Sequence[Island], hwdb: Hwdb, enumeration: Enumeration) -> str:
    """The words of an infeasible request: what is needed at least, what there is, what was tried."""
    hidden = model.hidden
    parameters = [atom.parameters if isinstance(atom, Embedding | Head) else atom.parameters(hidden) for atom in atoms_of(model)]
    per = job.recipe.weight_bytes + job.recipe.gradient_bytes + job.optimizer_bytes
    needed = sum(parameters) * per
    there = sum(device_rates(island.gpu, job.recipe, hwdb).usable_memory_bytes * island.gpus for island in islands)
    text = (
        f"{model.name} fits no plan on {cluster.name}: weights, gradients and {job.optimizer} state alone need "
        f"{show_bytes(needed)} ({per:g} bytes per parameter), the usable islands hold {show_bytes(there)}."
    )
    constraints = enumeration.constraints
    fixed = [f"{name}={value}" for name, value in constraints.fixed]
    if constraints.microbatch_per_rank:
        fixed.append(f"microbatch per rank {constraints.microbatch_per_rank}")
    if len(constraints.recompute) == 1:
        fixed.append(f"recompute {constraints.recompute[0]}")
    if needed <= there:
        text += " Activations, or layouts that divide neither heads nor batch, do not fit beside them."
    text += f" Tried: ZeRO 0-3, recompute {'/'.join(constraints.recompute)}, sequence parallelism, every split over stages."
    if fixed:
        text += f" Fixed by you: {', '.join(fixed)}; relax one of them."
    else:
        text += " Use more or larger GPUs, a smaller model or shorter --seq."
    return text

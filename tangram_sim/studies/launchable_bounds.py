"""Bounds on the steps of uniform layouts, from what blocks take and keep under them on every node group.

All degrees and microbatches are priced together, once for every group, as single stages with nobody beside
them: no gradients to reduce, no weights to gather. Layouts add to that.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.models import Block, Model, has_experts
from tangram_sim.parallelizers.layouts import divisors, expert_counts, head_counts
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import in_flight, puts_off_weights
from tangram_sim.training.stage import state
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

CONTEXT = (1, 2, 4, 8)  # context-parallel degrees
# Blocks in the middle of a stage take what they add to a chain of blocks; the first of a chain may hide a
# little more behind others than the periodic rest.
SURE = 0.98
_KEPT = 64  # answers: several cuts and schedules are asked about with the same degrees


class Degrees(NamedTuple):
    """What layouts of one depth, cut, order of groups and number of GPUs per stage differ in."""

    tp: int
    cp: int
    dp: int
    size: int  # sequences per rank and microbatch
    recompute: str


class StepBound(NamedTuple):
    """Of some layouts: seconds that steps take at least, and what state of the whole model may take.

    A layout does not fit where that state, held by one GPU as if there were one stage, takes more.
    """

    least_s: Floats
    state_bytes: Floats


class Blocks(NamedTuple):
    """What the blocks in front of each boundary take and keep for a microbatch, by degrees.

    Arrays [rows, blocks + 1], a row for tensor- and context-parallel degrees, recomputation and size.
    """

    seconds: Floats
    kept_bytes: Floats
    beside_bytes: Floats  # [rows]: while one of them works, at least
    embedding_s: Floats  # [rows]
    head_s: Floats


@dataclass(frozen=True, slots=True)
class PricedGroup:
    """A node group: its blocks by degrees, and what of a GPU's memory there is for them."""

    blocks: Blocks
    first_row: dict[tuple[int, int], int]  # by tensor- and context-parallel degree
    usable_bytes: float
    fragmentation: float


@dataclass
class StepBounds:
    """Bounds for one model, cluster and job, for these `sizes` of microbatches (sequences per rank)."""

    model: Model
    cluster: Cluster
    job: Job
    hwdb: Hwdb
    sizes: tuple[int, ...]
    recompute: Sequence[str]
    _groups: dict[str, PricedGroup] = field(default_factory=dict)
    _found: OrderedDict[tuple[str, tuple[Degrees, ...]], tuple[NDArray[np.int64], Floats]] = field(
        default_factory=OrderedDict
    )  # rows and shares by group, of degrees asked about last

    def __post_init__(self) -> None:
        self._placement = Placement(self.cluster, self.hwdb)
        blocks = [atom for atom in atoms_of(self.model) if isinstance(atom, Block)]
        parameters = [block.parameters(self.model.hidden) for block in blocks]
        self._share = np.concatenate([[0.0], np.cumsum(parameters)]) / self.model.parameters

    def of(self, job: Job, alike: Uniform, degrees: Sequence[Degrees]) -> StepBound:
        """Bounds of layouts that are `alike` but for these degrees, which come to the same GPUs per stage.

        `job` has the schedule. Stage i works M t_i in all, and its first microbatch passes all stages in
        front twice, unless a schedule puts weight gradients off or stages hold several chunks; t_i is what
        its blocks take on its slowest GPUs.
        """
        members = [group for group in self.cluster.groups if group.name in alike.order]
        members.sort(key=lambda group: alike.order.index(group.name))
        ends = list(accumulate(group.count * group.node.gpus for group in members))
        wide = degrees[0].tp * degrees[0].cp * degrees[0].dp
        counts = alike.layers or [stop - start for start, stop in chunk_bounds(self.model, alike)]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        passes = np.array([job.global_batch // (one.size * one.dp) for one in degrees])
        work = np.zeros((len(degrees), alike.pp))
        room = np.full(len(degrees), np.inf)
        for kind, group in enumerate(members):
            # Stages that hold any of its GPUs.
            first, last = (ends[kind - 1] if kind else 0) // wide, min(-(-ends[kind] // wide), alike.pp)
            if first >= last:
                continue
            known, rows, share = self.rows(group, degrees)
            blocks, near = known.blocks, bounds[first : last + 1]
            taken = np.diff(share[:, None] * blocks.seconds[rows[:, None], near], axis=1)
            if first == 0:
                taken[:, 0] += share * blocks.embedding_s[rows]
            if last == alike.pp and alike.vpp == 1:
                taken[:, -1] += share * blocks.head_s[rows]
            # Over all ranks of a wider stage experts may spread further, by that share at most.
            spread = min(group.count * group.node.gpus / wide, 1.0) if has_experts(self.model) else 1.0
            work[:, first:last] = np.maximum(work[:, first:last], spread * taken)
            # The first of them has most microbatches in flight.
            kept = np.diff(share[:, None] * blocks.kept_bytes[rows[:, None], near[:2]], axis=1)[:, 0]
            behind, part = alike.pp - 1 - first, float(np.diff(self._share[near[:2]])[0])
            held = _held(job, behind, alike, passes)
            busy = held * (kept / alike.vpp) + share * blocks.beside_bytes[rows]
            room = np.minimum(room, (known.usable_bytes - (1.0 + known.fragmentation) * busy) / part)
        passed = np.cumsum(work, axis=1) - work
        if alike.vpp > 1 or puts_off_weights(job.schedule):
            passed[:] = 0.0
        return StepBound(SURE * (passes[:, None] * work + passed).max(axis=1), room)

    def rows(
        self, group: NodeGroup, degrees: Sequence[Degrees]
    ) -> tuple[PricedGroup, NDArray[np.int64], Floats]:
        """The blocks of a group, the row of each layout's degrees, and by what to multiply its figures."""
        if group.name not in self._groups:
            self._groups[group.name] = self._priced(group)
        known, key = self._groups[group.name], (group.name, tuple(degrees))
        if key not in self._found:
            self._found[key] = self._rows_of(known, degrees)
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return known, *self._found[key]

    def _rows_of(self, known: PricedGroup, degrees: Sequence[Degrees]) -> tuple[NDArray[np.int64], Floats]:
        rows, share = list[int](), list[float]()
        for one in degrees:
            fewer = one.cp
            while (one.tp, fewer) not in known.first_row:  # more ranks than the group has
                fewer //= 2
            share.append(fewer / one.cp)
            told = self.recompute.index(one.recompute) * len(self.sizes) + self.sizes.index(one.size)
            rows.append(known.first_row[one.tp, fewer] + told)
        return np.array(rows), np.array(share)

    def _priced(self, group: NodeGroup) -> PricedGroup:
        """All degrees that a group has GPUs for, mixtures under the best of their expert degrees."""
        model, job, count = self.model, self.job, len(self.sizes) * len(self.recompute)
        groups = [one.name for one in self.cluster.groups]
        ends = [0, *accumulate(one.count * one.node.gpus for one in self.cluster.groups)]
        ranks = tuple(range(*ends[groups.index(group.name) :][:2]))
        island = self._placement.island(ranks).anonymous()
        keys, layouts, microbatch = list[tuple[int, int]](), list[Layout](), list[int]()
        for tp in divisors(gcd(group.node.gpus, *head_counts(model))):
            for cp in (cp for cp in CONTEXT if job.seq % cp == 0 and tp * cp <= len(ranks)):
                for ep, dp in _expert_shares(model, len(ranks) // (tp * cp), cp):
                    keys.append((tp, cp))
                    for recompute in self.recompute:
                        layout = Layout(tp, dp, cp, ep, recompute=recompute, sequence_parallel=tp > 1)
                        layouts += [layout] * len(self.sizes)
                        microbatch += [size * dp for size in self.sizes]
        setting = Setting(model, island, job, tuple(microbatch), tuple(layouts), self.hwdb)
        pricer, (embedding, *blocks, head) = Pricer(setting), atoms_of(model)
        seconds, kept, beside = np.zeros((3, len(layouts), model.layers + 1))
        for block in dict.fromkeys(blocks):
            places = 1 + np.flatnonzero([one == block for one in blocks])
            held = state.held(setting, block)
            # What adds gradients up is not there from ZeRO-2 on.
            least_s = pricer.added_s(block) - state.accumulation_s(setting, block)
            seconds[:, places] = least_s[:, None]
            kept[:, places] = held.activation[:, None]
            beside[:, places] = (held.transient + held.scratch)[:, None]
        seconds, kept = np.cumsum(seconds, axis=1), np.cumsum(kept, axis=1)
        least, ends_s = beside[:, 1:].min(axis=1), [pricer.added_s(atom) for atom in (embedding, head)]
        found: dict[tuple[int, int], Blocks] = {}
        for number, key in enumerate(keys):
            rows = slice(number * count, (number + 1) * count)
            some = Blocks(seconds[rows], kept[rows], least[rows], ends_s[0][rows], ends_s[1][rows])
            best = found.get(key, some)
            found[key] = Blocks(*(np.minimum(one, other) for one, other in zip(some, best, strict=True)))
        first_row = {key: number * count for number, key in enumerate(found)}
        every = Blocks(*(np.concatenate(columns) for columns in zip(*found.values(), strict=True)))
        return PricedGroup(every, first_row, setting.rates.usable_memory_bytes, setting.rates.fragmentation)


def _held(job: Job, behind: int, alike: Uniform, passes: NDArray[np.int64]) -> Floats:
    """Microbatches in flight on a stage with so many behind it, for each number of microbatches."""
    some, where = np.unique(passes, return_inverse=True)
    held = [in_flight(job.schedule, behind, alike.pp, alike.vpp, number) for number in some.tolist()]
    return np.array(held, dtype=np.float64)[where]


def _expert_shares(model: Model, most: int, cp: int) -> Iterator[tuple[int, int]]:
    """(expert degree, fewest replicas that hold it beside `cp` ranks), as far as `most` replicas do."""
    for ep in divisors(gcd(*expert_counts(model)) or 1):
        dp = ep // gcd(ep, cp)
        if dp <= most:
            yield ep, dp

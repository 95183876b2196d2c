"""Bounds on the steps of uniform layouts, from what blocks take and keep under them on every node group.

All degrees and microbatches are priced together, once for every group, as single stages with nobody beside
them: no gradients to reduce, no weights to gather. Layouts add to that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import gcd
from typing import NamedTuple

import numpy as np

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
from tangram_sim.training.schedules import holds_whole_depth, in_flight
from tangram_sim.training.stage import state
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

CONTEXT = (1, 2, 4, 8)  # context-parallel degrees
# Blocks in the middle of a stage take what they add to a chain of blocks; the first of a chain may hide a
# little more behind others than the periodic rest.
SURE = 0.98


class StepBound(NamedTuple):
    """Of one layout: seconds that its step takes at least, and what state of the whole model may take.

    A layout does not fit where that state, held by one GPU as if there were one stage, takes more.
    """

    least_s: float
    state_bytes: float


class _Blocks(NamedTuple):
    """What the blocks in front of each boundary take and keep for a microbatch under tp and cp degrees.

    Arrays [rows, blocks + 1], a row for every recomputation and size.
    """

    seconds: Floats
    kept_bytes: Floats
    beside_bytes: Floats  # [rows]: while one of them works, at least
    embedding_s: Floats  # [rows]
    head_s: Floats


@dataclass(frozen=True, slots=True)
class _Group:
    """A node group: its blocks by degrees, and what of a GPU's memory there is for them."""

    blocks: dict[tuple[int, int], _Blocks]
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
    _groups: dict[str, _Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._placement = Placement(self.cluster, self.hwdb)
        blocks = [atom for atom in atoms_of(self.model) if isinstance(atom, Block)]
        parameters = [block.parameters(self.model.hidden) for block in blocks]
        self._share = np.concatenate([[0.0], np.cumsum(parameters)]) / self.model.parameters

    def of(self, job: Job, wanted: Uniform, sizes: Sequence[int]) -> Iterator[tuple[int, str, StepBound]]:
        """(size, recomputation, bound) of a layout with each of these microbatches; `job` has the schedule.

        Stage i works M t_i in all, and its first microbatch passes all stages in front twice, unless a
        schedule puts weight gradients off or stages hold several chunks; t_i is what its blocks take on its
        slowest GPUs.
        """
        told = [(size, recompute) for recompute in self.recompute for size in sizes]
        rows = [
            number * len(self.sizes) + self.sizes.index(size)
            for number in range(len(self.recompute))
            for size in sizes
        ]
        members = [group for group in self.cluster.groups if group.name in wanted.order]
        members.sort(key=lambda group: wanted.order.index(group.name))
        ends = list(accumulate(group.count * group.node.gpus for group in members))
        wide = wanted.tp * wanted.cp * wanted.dp
        counts = wanted.layers or [stop - start for start, stop in chunk_bounds(self.model, wanted)]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        microbatches = [job.global_batch // (size * wanted.dp) for size, _ in told]
        work = np.zeros((len(rows), wanted.pp))
        room = np.full(len(rows), np.inf)
        for kind, group in enumerate(members):
            # Stages that hold any of its GPUs.
            first, last = (ends[kind - 1] if kind else 0) // wide, min(-(-ends[kind] // wide), wanted.pp)
            if first >= last:
                continue
            known, blocks = self._blocks(group, wanted.tp, wanted.cp)
            seconds = blocks.seconds[rows][:, bounds[first : last + 1]]
            taken = np.diff(seconds, axis=1)
            if first == 0:
                taken[:, 0] += blocks.embedding_s[rows]
            if last == wanted.pp and wanted.vpp == 1:
                taken[:, -1] += blocks.head_s[rows]
            # Over all ranks of a wider stage experts may spread further, by that share at most.
            share = min(group.count * group.node.gpus / wide, 1.0) if has_experts(self.model) else 1.0
            work[:, first:last] = np.maximum(work[:, first:last], share * taken)
            # The first of them has most microbatches in flight.
            near = bounds[first : first + 2]
            kept = np.diff(blocks.kept_bytes[rows][:, near], axis=1)[:, 0] / wanted.vpp
            behind, part = wanted.pp - 1 - first, float(np.diff(self._share[near])[0])
            held = [in_flight(job.schedule, behind, wanted.pp, wanted.vpp, some) for some in microbatches]
            busy = np.array(held) * kept + blocks.beside_bytes[rows]
            room = np.minimum(room, (known.usable_bytes - (1.0 + known.fragmentation) * busy) / part)
        passed = np.cumsum(work, axis=1) - work
        if wanted.vpp > 1 or holds_whole_depth(job.schedule):
            passed[:] = 0.0
        least_s = SURE * (np.array(microbatches)[:, None] * work + passed).max(axis=1)
        for one, seconds, most in zip(told, least_s.tolist(), room.tolist(), strict=True):
            yield *one, StepBound(seconds, most)

    def _blocks(self, group: NodeGroup, tp: int, cp: int) -> tuple[_Group, _Blocks]:
        if group.name not in self._groups:
            self._groups[group.name] = self._priced(group)
        known, fewer = self._groups[group.name], cp
        while (tp, fewer) not in known.blocks:  # more ranks than the group has
            fewer //= 2
        found = known.blocks[tp, fewer]
        return known, found if fewer == cp else _Blocks(*(column * (fewer / cp) for column in found))

    def _priced(self, group: NodeGroup) -> _Group:
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
        found: dict[tuple[int, int], _Blocks] = {}
        for number, key in enumerate(keys):
            rows = slice(number * count, (number + 1) * count)
            some = _Blocks(seconds[rows], kept[rows], least[rows], ends_s[0][rows], ends_s[1][rows])
            best = found.get(key, some)
            found[key] = _Blocks(*(np.minimum(one, other) for one, other in zip(some, best, strict=True)))
        return _Group(found, setting.rates.usable_memory_bytes, setting.rates.fragmentation)


def _expert_shares(model: Model, most: int, cp: int) -> Iterator[tuple[int, int]]:
    """(expert degree, fewest replicas that hold it beside `cp` ranks), as far as `most` replicas do."""
    for ep in divisors(gcd(*expert_counts(model)) or 1):
        dp = ep // gcd(ep, cp)
        if dp <= most:
            yield ep, dp

"""Chains: uniform layouts whose stages stand on any sequence of node groups, cut by an exact program.

For given degrees all stages have one width in GPUs. A node group holds so many stages of that width; which
groups they stand on, front to back, and how many layers each takes is found exactly under the prices of
`StepBounds` (no transfers between stages, no reductions of gradients): for a limit on every stage's seconds a
program over counts of stages per group covers as many layers as it can from the last stage backwards
(`chain_kernels.cover`): how many stages stand behind one says what microbatches it holds.
Limits from the least possible one upwards trade the slowest stage against the sum of all.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heapreplace
from itertools import accumulate, permutations, product
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.models import Block
from tangram_sim.opgraph import IntArray
from tangram_sim.parallelizers.layouts import divisors, head_counts
from tangram_sim.planners.uniform.layouts import Uniform, places_in
from tangram_sim.planners.uniform.trivial import least_bytes
from tangram_sim.studies.launchable_bounds import Blocks, Degrees, PricedGroup
from tangram_sim.studies.launchable_layouts import LaunchCandidate, LaunchLayouts, usable_groups
from tangram_sim.training.schedules import chunked, in_flight

# Set by hand on the cases of `python -m benchmarks launchable` (benchmarks/results/launchable.md).
_STATES = 30_000  # counts of stages per group that are told apart, at most
_BISECTIONS = 14  # of the least limit on a stage's seconds
_ABOVE = (1.0, 1.02, 1.06, 1.15, 1.35, 1.8)  # limits over the least one
_NEAR = 1.25  # chains whose step by these prices is so many times the best one's, at most


@dataclass(frozen=True, slots=True)
class Chain:
    """The group (a number) and the atoms [start, stop) of every stage, front to back; the step by bounds."""

    step_s: float
    groups: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...]

    def blocks(self, layers: int) -> tuple[int, ...]:
        """Transformer blocks of every stage, of a model of so many layers."""
        return tuple(min(stop, layers + 1) - max(start, 1) for start, stop in self.cuts)


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Stages of one width under given degrees: what `chain_kernels.cover` takes, and the groups' names."""

    names: tuple[str, ...]
    passes: int
    slots: IntArray
    seconds: Floats  # [groups, atoms + 1], of the atoms in front of each boundary
    kept: Floats  # bytes, likewise
    beside: Floats
    usable: Floats
    state: Floats  # bytes, [atoms + 1]
    held: Floats

    @property
    def least_s(self) -> float:
        """Seconds of the slowest stage at least, were all GPUs to end together."""
        return float(1.0 / (self.slots / self.seconds[:, -1]).sum())

    @property
    def bound_s(self) -> float:
        """Seconds of a step at least."""
        return self.passes * self.least_s

    def solve(self, depth: int) -> Chain | None:
        """The chain with the least step by these prices, of at most `depth` stages; None where none fits."""
        room = self._room()
        if self._cover(np.inf, depth, room) < 0:
            return None
        low, high = self.least_s, float(self.seconds[:, -1].max())
        for _ in range(_BISECTIONS):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self._cover(middle, depth, room) >= 0 else (middle, high)
        best: Chain | None = None
        for factor in _ABOVE:
            found = self._cover(factor * high, depth, room)
            if found < 0:
                continue
            chain = self._chain(found, room)
            if best is None or chain.step_s < best.step_s:
                best = chain
        return best

    def feasible(self, limit_s: float, depth: int) -> bool:
        """Whether some chain of at most `depth` stages has none that takes longer than the limit."""
        return self._cover(limit_s, depth, self._room()) >= 0

    def _room(self) -> tuple[IntArray, IntArray, Floats]:
        """What the program fills for every state."""
        states = int(np.prod(self.slots + 1))
        return np.zeros(states, np.int32), np.zeros(states, np.int32), np.zeros((2, states))

    def _cover(self, limit_s: float, depth: int, room: tuple[IntArray, IntArray, Floats]) -> int:
        from tangram_sim.studies.chain_kernels import cover

        prices = self.slots, self.seconds, self.kept, self.beside, self.usable, self.state, self.held
        return int(cover(float(limit_s), self.passes, depth, *prices, *room))

    def _chain(self, found: int, room: tuple[IntArray, IntArray, Floats]) -> Chain:
        """The stages that lead to a state, the last one of which is the first of the pipeline."""
        first, taken, spent = room
        strides = np.concatenate([[1], np.cumprod(self.slots + 1)[:-1]])
        step_s = float(spent[0, found] + (self.passes - 1) * spent[1, found])
        groups, cuts, state = list[int](), list[tuple[int, int]](), found
        while state:
            group = int(taken[state])
            before = state - int(strides[group])
            groups.append(group)
            cuts.append((int(first[state]), int(first[before])))
            state = before
        return Chain(step_s, tuple(groups), tuple(cuts))

    def levelled(self, groups: Sequence[int]) -> Chain | None:
        """Stages on these groups, front to back, that take as equally long as can be; None where none fits.

        Blocks, taken for alike, go one by one to the stage that ends first with one more.
        """
        blocks, stages = len(self.state) - 3, len(groups)
        if stages > blocks:
            return None
        inner = (self.seconds[:, -2] - self.seconds[:, 1]) / blocks
        pace = [float(inner[group]) for group in groups]
        spent = [0.0] * stages
        spent[0] += float(self.seconds[groups[0], 1])
        spent[-1] += _between(self.seconds[groups[-1]], (blocks + 1, blocks + 2))
        counts = [1] * stages
        nexts = [(spent[stage] + 2 * pace[stage], -stage) for stage in range(stages)]
        heapify(nexts)
        for _ in range(blocks - stages):
            stage = -nexts[0][1]
            counts[stage] += 1
            heapreplace(nexts, (spent[stage] + (counts[stage] + 1) * pace[stage], -stage))
        ends = [1 + end for end in accumulate(counts)]
        ends[-1] += 1
        cuts = tuple(zip([0, *ends[:-1]], ends, strict=True))
        if not self._fits(groups, cuts):
            return None
        own_s = [_between(self.seconds[group], cut) for group, cut in zip(groups, cuts, strict=True)]
        return Chain(sum(own_s) + (self.passes - 1) * max(own_s), tuple(groups), cuts)

    def _fits(self, groups: Sequence[int], cuts: Sequence[tuple[int, int]]) -> bool:
        """Whether every stage has the memory for its atoms."""
        return all(
            self.held[behind] * _between(self.kept[group], cut)
            + self.beside[group]
            + _between(self.state, cut)
            <= self.usable[group]
            for behind, (group, cut) in enumerate(zip(reversed(groups), reversed(cuts), strict=True))
        )

    def variants(self, chain: Chain) -> Iterator[Chain]:
        """The chain; levelled ones on the same groups, in its order and with those of a group together."""
        yield chain
        counts = Counter(chain.groups)
        side_by_side = (
            tuple(group for group in order for _ in range(counts[group])) for order in permutations(counts)
        )
        for groups in dict.fromkeys((chain.groups, *side_by_side)):
            if (found := self.levelled(groups)) is not None:
                yield found


def _between(sums: Floats, cut: tuple[int, int]) -> float:
    """What the atoms [start, stop) add to running sums."""
    return float(sums[cut[1]] - sums[cut[0]])


class Chains:
    """Chains of a model on a cluster with all ways of sharding, found as far as their bounds leave hope."""

    def __init__(self, layouts: LaunchLayouts) -> None:
        self.layouts = layouts
        job = layouts.job
        none = chunked(job.schedule) or layouts.options.order or not layouts.takes(staged=True)
        waiting = [] if none else [*_problems(layouts)]
        self._waiting = sorted(waiting, key=lambda pair: -pair[1].bound_s)

    def first(self) -> list[LaunchCandidate]:
        """Those near the best one by the bounds' prices, the least steps first."""
        best_s, found = float("inf"), list[LaunchCandidate]()
        while self._waiting and self._waiting[-1][1].bound_s <= _NEAR * best_s:
            some = self._solved()
            found += some
            best_s = min([best_s, *(one.least_s for one in some)])
        return sorted(found, key=lambda one: one.least_s)

    def below(self, limit_s: float) -> list[LaunchCandidate]:
        """All others whose bounds lie below a step, the least ones first."""
        found = list[LaunchCandidate]()
        while self._waiting and self._waiting[-1][1].bound_s < limit_s:
            found += [one for one in self._solved() if one.least_s < limit_s]
        return sorted(found, key=lambda one: one.least_s)

    def _solved(self) -> list[LaunchCandidate]:
        """Chains under the degrees with the least bound, which wait no longer, with every way of sharding."""
        layouts = self.layouts
        degrees, stateless = self._waiting.pop()
        found = dict[LaunchCandidate, None]()
        for layout in layouts.shardings(degrees):
            state = stateless.state * least_bytes(layouts.model, layouts.job, layout, 1)
            problem = replace(stateless, state=state)
            chain = problem.solve(min(layouts.budget.stages, layouts.model.layers + 2))
            if chain is None or len(chain.groups) < 2:
                continue
            for variant in problem.variants(chain):
                own = Uniform(
                    tp=layout.tp,
                    pp=len(variant.groups),
                    dp=layout.dp,
                    cp=layout.cp,
                    ep=layout.ep,
                    zero_stage=layout.zero_stage,
                    micro_batch=degrees.size,
                    recompute=layout.recompute,
                    sequence_parallel=layout.sequence_parallel,
                    layers=variant.blocks(layouts.model.layers),
                    stage_groups=tuple(problem.names[group] for group in variant.groups),
                )
                found[LaunchCandidate(variant.step_s, float("inf"), layouts.job, own)] = None
        return [one for one in found if layouts.permits(one)]


def _problems(layouts: LaunchLayouts) -> Iterator[tuple[Degrees, ChainProblem]]:
    """Every problem of one vendor's groups, with its degrees; `state` is shares of what sharding takes."""
    usable = usable_groups(layouts.cluster, layouts.job, layouts.options)
    for vendor in dict.fromkeys(group.node.gpu.vendor for group in usable):
        groups = [group for group in usable if group.node.gpu.vendor == vendor]
        alike: dict[tuple[int, int], list[Degrees]] = {}
        for degrees in _degrees(layouts, groups):
            alike.setdefault((degrees.tp * degrees.cp * degrees.dp, degrees.tp), []).append(degrees)
        for (width, tp), rows in alike.items():
            able = [group for group in groups if group.node.gpus % tp == 0]  # tp stays inside a node
            yield from _of_width(layouts, able, width, rows)


def _degrees(layouts: LaunchLayouts, groups: Sequence[NodeGroup]) -> Iterator[Degrees]:
    """Degrees whose stages are no wider than the largest group."""
    job, bounds = layouts.job, layouts.bounds
    widest = max(group.count * group.node.gpus for group in groups)
    largest = gcd(*head_counts(layouts.model))
    tensor = [tp for tp in divisors(largest) if tp <= max(group.node.gpus for group in groups)]
    for tp, cp, dp in product(tensor, layouts.context_degrees(), divisors(job.global_batch)):
        if tp * cp * dp <= widest and layouts.allowed(tp, dp, cp):
            for recompute in bounds.recompute:
                for size in layouts.sizes(dp, 1, 1, bounds.sizes):
                    yield Degrees(tp, cp, dp, size, recompute)


def _of_width(
    layouts: LaunchLayouts, groups: Sequence[NodeGroup], width: int, rows: Sequence[Degrees]
) -> Iterator[tuple[Degrees, ChainProblem]]:
    """The problems of stages of one width, for every row of degrees."""
    model, job, bounds = layouts.model, layouts.job, layouts.bounds
    own = [(group, slots) for group in groups if (slots := len(places_in(group, 0, width)))]
    states = np.prod([slots + 1.0 for _, slots in own]) if own else 0.0
    if sum(slots for _, slots in own) < 2 or states > _STATES:
        return
    parameters = [
        atom.parameters(model.hidden) if isinstance(atom, Block) else atom.parameters
        for atom in atoms_of(model)
    ]
    share = np.concatenate([[0.0], np.cumsum(parameters)]) / model.parameters
    priced = [bounds.rows(group, rows) for group, _ in own]
    names = tuple(group.name for group, _ in own)
    slots_of = np.array([slots for _, slots in own], np.int32)
    usable = np.array([known.usable_bytes for known, _, _ in priced])
    seconds = np.stack([scale[:, None] * _in_front(known.blocks, where) for known, where, scale in priced], 1)
    kept, beside = zip(*(_kept(known, where, scale) for known, where, scale in priced), strict=True)
    kept_of, beside_of = np.stack(kept, 1), np.stack(beside, 1)
    for number, degrees in enumerate(rows):
        passes = job.global_batch // (degrees.size * degrees.dp)
        held = _held(job.schedule, layouts.budget.stages, passes)
        prices = seconds[number], kept_of[number], beside_of[number]
        yield degrees, ChainProblem(names, passes, slots_of, *prices, usable, share, held)


def _in_front(blocks: Blocks, where: NDArray[np.int64]) -> Floats:
    """Seconds of the atoms in front of each boundary, [rows, atoms + 1]."""
    embedding, head = blocks.embedding_s[where, None], blocks.head_s[where, None]
    inner = embedding + blocks.seconds[where]
    return np.concatenate([np.zeros_like(embedding), inner, inner[:, -1:] + head], axis=1)


def _kept(known: PricedGroup, where: NDArray[np.int64], scale: Floats) -> tuple[Floats, Floats]:
    """(bytes that atoms in front of each boundary keep of a microbatch, bytes beside them), with reserves."""
    blocks, reserve = known.blocks, 1.0 + known.fragmentation
    inner = blocks.kept_bytes[where]
    kept = np.concatenate([np.zeros_like(inner[:, :1]), inner, inner[:, -1:]], axis=1)
    return reserve * scale[:, None] * kept, reserve * scale * blocks.beside_bytes[where]


@cache
def _held(schedule: str, depth: int, passes: int) -> Floats:
    """Microbatches in flight on a stage with so many behind it, from 0 to `depth` - 1."""
    return np.array(
        [in_flight(schedule, behind, behind + 1, 1, passes) for behind in range(depth)], np.float64
    )

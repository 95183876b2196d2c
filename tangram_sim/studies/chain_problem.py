"""Chains of stages of one width over node groups: which groups they stand on, and how many layers each takes.

The program behind plans for a framework. For a limit on the seconds between two microbatches, a dynamic
program goes over counts of stages per group from the last stage backwards (`chain_kernels.cover`): the number
of stages behind one sets how many microbatches it holds. Limits from the least possible one up trade the
slowest stage's time against the number of stages; the best chain is improved by moving atoms and stages.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import accumulate, islice, pairwise, permutations
from math import inf

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.opgraph import IntArray
from tangram_sim.studies.chain_prices import PASSED, ChainPrices, StageRoom

# Times shorter a step becomes when its chain is improved, at most: 1.03 was seen, and 1.15 of six stages and
# sixteen microbatches, where the first one's way through all of them counts.
_GAINED, _GAINED_IF_FEW = 1.06, 0.25
_PRECISION = 0.002  # of the least limit on the seconds between two microbatches
_ABOVE = (1.0, 1.015, 1.03, 1.06, 1.1, 1.15, 1.25, 1.4, 1.8)  # limits over the least one
_REACH = 4  # stages that an atom moves at most
_MOVED = 2000  # rounds over all of these moves, times the stages squared: each move plays a step
_ORDERS = 24  # of groups side by side that a chain is tried in, at most


@dataclass(frozen=True, slots=True)
class Chain:
    """The group (a number) and the atoms [start, stop) of every stage, front to back; seconds of its step."""

    step_s: float
    groups: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...]

    def blocks(self, layers: int, chunks: int = 1) -> tuple[int, ...]:
        """Transformer blocks of every stage for `layers` layers: all first chunks, then all second ones.

        Chunks of a stage differ by at most one block; the chunk with the head has no more than the others.
        """
        counts = [min(stop, layers + 1) - max(start, 1) for start, stop in self.cuts]
        return tuple(
            count // chunks + (chunk < count % chunks) for chunk in range(chunks) for count in counts
        )


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Stages of one width under one layout on G groups, to be placed and cut; see `ChainPrices`."""

    names: tuple[str, ...]
    passes: int
    slots: IntArray
    prices: ChainPrices
    eager: bool = False
    chunks: int = 1  # of a stage; with several `solve` finds chains of exactly as many stages as it is told
    ordered: bool = False

    @property
    def bound_s(self) -> float:
        """Lower bound, seconds, on the step: all GPUs end together."""
        return float(self.passes / (self.slots / self.prices.sums[0, :, -1]).sum())

    def interleaved_bounds_s(self, chunks: int, most: int) -> list[float]:
        """Lower bounds in seconds on the step of 1 to `most` stages of `chunks` chunks, on fastest groups."""
        whole_s = np.sort(np.repeat(self.prices.sums[0, :, -1], self.slots))[:most]
        bounds = (self.passes - 1.0 / chunks) / np.cumsum(1.0 / whole_s) + whole_s[0] / chunks
        return [float(bound_s) for bound_s in bounds]

    def on(self, groups: Sequence[int]) -> "ChainProblem":
        """The same problem on some of the groups."""
        some = [group in groups for group in range(len(self.slots))]
        return replace(self, slots=np.where(some, self.slots, 0).astype(np.int32))

    def surely_slower(self, depth: int, below_s: float, chunks: int = 1, held: Floats | None = None) -> bool:
        """`surely_slower` for `depth` stages of `chunks` chunks; `held` replaces microbatches in flight."""
        room = StageRoom(self.prices.sums, self.prices.fixed, self.prices.held if held is None else held)
        return surely_slower(below_s, self.passes, depth, chunks, self.slots, room)

    def solve(self, depth: int, below_s: float = inf) -> list[Chain]:
        """Chains of at most `depth` stages, the fastest first, one for each number of stages per group.

        Empty where no chain is faster than `below_s` or likely to become so by `improved`.
        """
        if self.surely_slower(depth, below_s, self.chunks):
            return []
        passed_s = PASSED / self.chunks * float(self.prices.sums[0, self.slots > 0, -1].min(initial=inf))
        sums, fixed, hops, *_ = self.prices
        every_s = (sums[0] + sums[2])[:, -1].sum() + fixed[4:].sum() + 2 * hops.sum()
        most_s = 1.001 * float(every_s)  # one stage may take all of it, to rounding
        longest_s = min((below_s - passed_s) / (self.passes - PASSED), most_s)
        found = dict[object, Chain]()
        # Where both ends read one matrix, it matters which groups they stand on.
        for back in np.flatnonzero(self.slots).tolist() if self.prices.tied.any() else (-1,):
            self._search(found, longest_s, depth, back, below_s)
        some = [chain for chain in found.values() if chain.step_s <= self._gained(chain) * below_s]
        return sorted(some, key=lambda chain: chain.step_s)

    def _search(
        self, found: dict[object, Chain], longest_s: float, depth: int, back: int, below_s: float
    ) -> None:
        """Add the best chains whose last stage is on group `back` to `found`, for rising limits.

        `found` keeps the fastest for each number of stages per group.
        """
        room = self._room()

        def keep(limit_s: float) -> bool:
            row = self._cover(limit_s, depth, back, room)
            if row >= 0:
                chain = self._chain(row, room)
                stages = frozenset(Counter(chain.groups).items())
                found[stages] = min(found.get(stages, chain), chain, key=lambda item: item.step_s)
            return row >= 0

        if not keep(longest_s):
            return
        low, high = self.bound_s / self.passes, longest_s
        while high > low * (1.0 + _PRECISION):
            middle = (low * high) ** 0.5
            fits = self._cover(middle, depth, back, room) >= 0
            low, high = (low, middle) if fits else (middle, high)
        for factor in _ABOVE:
            if factor * high > longest_s:
                break
            keep(factor * high)
            if back < 0 and all(chain.step_s > self._gained(chain) * below_s for chain in found.values()):
                break

    def _gained(self, chain: Chain) -> float:
        """Largest factor by which `improved` is expected to shorten the step of a chain."""
        return _GAINED + _GAINED_IF_FEW * min(len(chain.groups) / self.passes, 1.0)

    def _room(self) -> tuple[Floats, Floats, IntArray]:
        """Work arrays of `cover` for every row and first atom: excess, latency and taken."""
        shape = int(np.prod(self.slots + 1)) * len(self.slots), self.prices.sums.shape[2]
        return np.empty(shape), np.empty(shape), np.empty((2, *shape), np.int32)

    def _cover(self, limit_s: float, depth: int, back: int, room: tuple[Floats, Floats, IntArray]) -> int:
        from tangram_sim.studies.chain_kernels import cover

        eager = self.eager or self.chunks > 1  # twice as many in flight hide what stages wait for each other
        asked = float(limit_s), self.passes, depth, eager, self.chunks, self.ordered, self.slots
        return int(cover(*asked, self.prices, back, *room))

    def _chain(self, found: int, room: tuple[Floats, Floats, IntArray]) -> Chain:
        """The chain that ends in row `found` of the filled arrays, from first stage to last."""
        row, start, atoms, taken = found, 0, self.prices.sums.shape[2] - 1, room[2]
        groups, cuts = list[int](), list[tuple[int, int]]()
        while start < atoms:
            stop = int(taken[1, row, start])
            groups.append(row % len(self.slots))
            cuts.append((start, stop))
            row, start = int(taken[0, row, start]), stop
        return Chain(self.step_s(groups, cuts), tuple(groups), tuple(cuts))

    def step_s(self, groups: Sequence[int], cuts: Sequence[tuple[int, int]]) -> float:
        """Seconds of the step of a chain; inf where a stage has not the memory for its atoms."""
        from tangram_sim.studies.chain_kernels import step_of

        asked = self.passes, self.eager, self.chunks, self.prices
        return float(step_of(*asked, *_arrays(groups, cuts), inf))

    def stage_times(self, chain: Chain) -> tuple[Floats, Floats]:
        """([S, 4] seconds of forward, backward, after the last pass, and 0; [S] seconds to the next stage).

        The last entry of the second array is the transfer from the last stage to the first (several chunks).
        """
        from tangram_sim.studies.chain_kernels import stage_times

        (groups, bounds), stages = _arrays(chain.groups, chain.cuts), len(chain.groups)
        filled = np.zeros((stages, 4)), np.zeros(stages)
        stage_times(self.chunks, self.prices, groups, bounds, *filled)
        filled[1][-1] = self.prices.hops[groups[-1], groups[0]]
        return filled

    def improved(self, chain: Chain, reach: int = _REACH, *, same_order: bool = False) -> Chain:
        """The chain after local search: atoms move up to `reach` stages, stages swap, while the step shrinks.

        `same_order`: stages do not swap places.
        """
        from tangram_sim.studies.chain_kernels import improve

        groups, bounds = _arrays(chain.groups, chain.cuts)
        rounds = max(_MOVED // len(groups) ** 2, 1)
        asked = self.passes, self.eager, self.chunks, self.ordered or same_order
        step_s = float(improve(*asked, self.prices, groups, bounds, reach, rounds))
        ends = bounds.tolist()
        return Chain(step_s, tuple(groups.tolist()), tuple(pairwise(ends)))

    def side_by_side(self, depth: int, *, even: bool = False) -> list[Chain]:
        """Chains of the `depth` fastest stages or fewer, stages of a group adjacent; cheaper than `solve`.

        `even`: exactly `depth` stages with equally many blocks; [] where that is impossible.
        """
        fastest = [int(group) for group in np.argsort(self.prices.sums[0, :, -1], kind="stable")]
        taken = [group for group in fastest for _ in range(self.slots[group])][:depth]
        if self.ordered:
            taken.sort()
        cuts = self._equal(depth) if even else None
        found = []
        for groups in dict.fromkeys((tuple(taken), tuple(taken if self.ordered else taken[::-1]))):
            own = cuts if even else self._levelled(groups)
            if own is not None and (step_s := self.step_s(groups, own)) < inf:
                found.append(Chain(step_s, groups, own))
        return sorted(found, key=lambda chain: chain.step_s)

    def _equal(self, depth: int) -> tuple[tuple[int, int], ...] | None:
        atoms = self.prices.sums.shape[2] - 1
        each, rest = divmod(atoms - 2, depth)
        ends = [0, *(1 + each * stage for stage in range(1, depth)), atoms]
        return None if rest else tuple(pairwise(ends))

    def variants(self, chain: Chain, *, even: bool = False) -> Iterator[Chain]:
        """Chains with as many stages per group as `chain`, blocks rebalanced to equal stage times.

        Tried in the order of `chain` and with a group's stages adjacent. `even`: all keep its cuts.
        """
        counts = Counter(chain.groups)
        side_by_side = (
            tuple(group for group in order for _ in range(counts[group])) for order in permutations(counts)
        )
        orders = dict.fromkeys((chain.groups, *islice(side_by_side, 0 if self.ordered else _ORDERS)))
        for groups in orders:
            cuts = chain.cuts if even else self._levelled(groups)
            if cuts is not None and (step_s := self.step_s(groups, cuts)) < inf:
                yield Chain(step_s, groups, cuts)

    def _levelled(self, groups: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
        """Cuts for stages on these groups, front to back: each block goes to the stage that ends first."""
        seconds = self.prices.sums[0]
        blocks, stages = seconds.shape[1] - 3, len(groups)
        if stages * self.chunks > blocks:
            return None
        inner = (seconds[:, -2] - seconds[:, 1]) / blocks
        pace = [float(inner[group]) for group in groups]
        spent = [0.0] * stages
        spent[0] += float(seconds[groups[0], 1])
        spent[-1] += float(seconds[groups[-1], -1] - seconds[groups[-1], -2])
        counts = [1] * stages
        nexts = [(spent[stage] + 2 * pace[stage], -stage) for stage in range(stages)]
        heapify(nexts)
        for _ in range(blocks - stages):
            stage = -nexts[0][1]
            counts[stage] += 1
            heapreplace(nexts, (spent[stage] + (counts[stage] + 1) * pace[stage], -stage))
        ends = [1 + end for end in accumulate(counts)]
        ends[-1] += 1
        return tuple(zip([0, *ends[:-1]], ends, strict=True))


def surely_slower(
    below_s: float, passes: int, depth: int, chunks: int, slots: IntArray, room: StageRoom
) -> bool:
    """Whether no chain takes less than a limit, for want of memory or speed: asked before `solve`.

    `passes` are microbatches, `depth` stages at most, `slots` those that each group holds.
    """
    from tangram_sim.studies.chain_kernels import lacks_room

    return bool(lacks_room(below_s, passes, depth, chunks, slots, room))


def _arrays(groups: Sequence[int], cuts: Sequence[tuple[int, int]]) -> tuple[IntArray, IntArray]:
    """(group number of every stage [S], atom boundaries [S + 1]) as arrays."""
    return np.array(groups, np.int32), np.array([*(start for start, _ in cuts), cuts[-1][1]], np.int32)

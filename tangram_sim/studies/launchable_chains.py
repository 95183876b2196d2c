"""Chains: uniform layouts whose stages stand on any sequence of node groups, found by an exact program.

For given degrees all stages have one width in GPUs, and a node group holds so many stages of that width.
Degrees wait in the order of a bound on their steps (`StepBounds`). Those that may be faster than the best
step known are priced on every group with every expert degree and ZeRO stage (`chain_prices`), and solved on
every set of groups (`chain_problem`): a question about fewer groups asks a part of what this one asks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import gcd, inf

import numpy as np

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.layouts import divisors, head_counts
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import Uniform, places_in
from tangram_sim.studies.chain_prices import group_prices
from tangram_sim.studies.chain_problem import Chain, ChainProblem
from tangram_sim.studies.chain_roads import ChainRoads, chain_roads, held_ahead, stages_held
from tangram_sim.studies.launchable_bounds import Degrees
from tangram_sim.studies.launchable_layouts import LaunchCandidate, LaunchLayouts, usable_groups
from tangram_sim.training.schedules import chunked

# Set by hand on the cases of `python -m benchmarks anywhere --narrower`.
_STATES = 6000  # counts of stages per group that are told apart, at most
_WAVES = (
    32,
    64,
    128,
    256,
)  # degrees priced together: the first find a step that others have to beat
_CHAINS = 3  # of one problem that differ in how many stages each group holds
# Chains whose steps are so many times the best one's by the program are estimated, too; of several chunks
# more, for their steps are up to 5 % longer than that.
_HOPE = (1.03, 1.08)
_SUBSETS = 5  # groups of which every set is looked at; of more all, all but one, and the fastest ones


class Chains:
    """Chains of a model on a cluster with all ways of sharding, found as far as their bounds leave hope."""

    def __init__(self, layouts: LaunchLayouts) -> None:
        self.layouts = layouts
        self._placement = Placement(layouts.cluster, layouts.hwdb)
        self._known: dict[tuple[tuple[str, ...], int], ChainRoads] = {}
        self._solved: dict[LaunchCandidate, tuple[ChainProblem, Chain]] = {}
        self._depth = min(layouts.budget.stages, layouts.model.layers + 2)
        first = 0
        self._ranks: dict[str, tuple[int, ...]] = {}
        for group in layouts.cluster.groups:
            gpus = group.count * group.node.gpus
            self._ranks[group.name] = tuple(range(first, first + gpus))
            first += gpus
        uneven = any(framework.uneven_stages for framework in layouts.frameworks)
        none = layouts.options.order or not layouts.takes(staged=True) or not uneven
        self._waiting = [] if none else sorted(_bounded(layouts), key=lambda one: one[0])

    def waves(self, best_s: Callable[[], float]) -> Iterator[list[LaunchCandidate]]:
        """Chains that may be faster than the best step known, wave by wave, the least steps first."""
        sizes, start = iter(_WAVES), 0
        while start < len(self._waiting) and self._waiting[start][0] < best_s():
            stop = start + next(sizes, _WAVES[-1])
            some = [degrees for bound_s, degrees in self._waiting[start:stop] if bound_s < best_s()]
            found = dict.fromkeys(self._solve(some, best_s()))
            yield sorted(found, key=lambda one: one.least_s)
            start = stop

    def variants(self, best: Iterable[LaunchCandidate]) -> list[LaunchCandidate]:
        """Other orders and cuts of chains found, the least steps first."""
        found = dict[LaunchCandidate, None]()
        for one in best:
            problem, chain = self._solved[one]
            for other in problem.variants(chain):
                found[self._candidate(one, problem, problem.improved(other))] = None
        return sorted(found, key=lambda one: one.least_s)

    def __contains__(self, one: LaunchCandidate) -> bool:
        return one in self._solved

    def _candidate(self, like: LaunchCandidate, problem: ChainProblem, chain: Chain) -> LaunchCandidate:
        where = tuple(problem.names[group] for group in chain.groups)
        layers = chain.blocks(self.layouts.model.layers, problem.chunks)
        layout = replace(like.layout, pp=len(where), vpp=problem.chunks, layers=layers, stage_groups=where)
        job = replace(like.job, schedule="interleaved") if problem.chunks > 1 else like.job
        return replace(like, least_s=chain.step_s, job=job, layout=layout)

    def _solve(self, wave: Sequence[Degrees], limit_s: float) -> Iterator[LaunchCandidate]:
        """The chains of some degrees on every set of groups that may be faster than a limit."""
        # The likeliest first: what they come to spares most of the others.
        for wanted, problem in sorted(self._problems(wave, limit_s), key=lambda pair: pair[1].bound_s):
            rates, vain = problem.slots / problem.sums[0, :, -1], list[set[int]]()
            for groups in _subsets(rates):
                # What is too slow, or does not fit, on some groups is no better on a part of them.
                if any(set(groups) <= one for one in vain):
                    continue
                if problem.passes >= limit_s * rates[list(groups)].sum():
                    vain.append(set(groups))
                    continue
                plain, fruitless = problem.on(groups), True
                for own, depth in self._schedules(plain):
                    if own.chunks > 1 and own.interleaved_bound_s(depth) >= limit_s:
                        continue
                    chains = own.solve(depth, limit_s)
                    fruitless = fruitless and not chains
                    for chain in map(own.improved, chains[:_CHAINS]):
                        found = self._candidate(wanted, own, chain)
                        if chain.step_s < limit_s and len(chain.groups) > 1 and self.layouts.permits(found):
                            limit_s = min(limit_s, _HOPE[own.chunks > 1] * chain.step_s)
                            self._solved[found] = own, chain
                            yield found
                if fruitless:
                    vain.append(set(groups))

    def _schedules(self, plain: ChainProblem) -> Iterator[tuple[ChainProblem, int]]:
        """The problem with one chunk in a stage, and at most how many stages; with several, and how many.

        Interleaved stages take microbatches in rounds of as many as there are stages.
        """
        if not chunked(self.layouts.job.schedule):
            yield plain, self._depth
        for chunks in self.layouts.chunks:
            most = min(self._depth, int(plain.slots.sum()), self.layouts.model.layers // chunks)
            for depth in divisors(plain.passes):
                if 2 <= depth <= most:
                    held = held_ahead("interleaved", depth, plain.passes, chunks)
                    yield replace(plain, held=held, chunks=chunks), depth

    def _problems(
        self, wave: Sequence[Degrees], limit_s: float
    ) -> Iterator[tuple[LaunchCandidate, ChainProblem]]:
        """Problems of some degrees that may be faster than a limit: each way of sharding, each vendor."""
        layouts, job = self.layouts, self.layouts.job
        rows = [(degrees, one) for degrees in wave for one in layouts.shardings(degrees, staged=True)]
        rows = [(degrees, one) for degrees, one in rows if layouts.permits(_pair(layouts, degrees, one))]
        usable, eager = usable_groups(layouts.cluster, job, layouts.options), job.schedule == "gpipe"
        priced = {group.name: self._priced(group, rows) for group in usable}
        for vendor in dict.fromkeys(group.node.gpu.vendor for group in usable):
            groups = [group for group in usable if group.node.gpu.vendor == vendor]
            for number, (degrees, layout) in enumerate(rows):
                able = [group for group in groups if stages_held(group, layout)]
                if not able:
                    continue
                slots = np.array([stages_held(group, layout) for group in able], np.int32)
                if slots.sum() < 2 or np.prod(slots + 1.0) > _STATES:
                    continue
                known = [priced[group.name][number] for group in able]
                passes, size = job.global_batch // (degrees.size * degrees.dp), degrees.size * degrees.dp
                rate = sum(slots[place] / own[0, -1] for place, (own, _) in enumerate(known))
                if passes >= limit_s * rate:
                    continue
                sums, fixed = (np.stack(some, axis=1) for some in zip(*known, strict=True))
                names = tuple(group.name for group in able)
                roads = self._roads(names, layout.gpus)
                handed = size * job.boundary_bytes(layouts.model, 1)
                copies = layout.gradient_copies if layouts.model.tied else 0
                tied_s = roads.exchange_s(copies * job.tied_bytes(layouts.model))
                problem = ChainProblem(
                    names,
                    passes,
                    slots,
                    sums,
                    fixed,
                    roads.hop_s(handed),
                    roads.beside_s(handed),
                    tied_s,
                    held_ahead(job.schedule, self._depth, passes),
                    eager,
                )
                yield _pair(layouts, degrees, layout), problem

    def _priced(
        self, group: NodeGroup, rows: Sequence[tuple[Degrees, Layout]]
    ) -> dict[int, tuple[Floats, Floats]]:
        """(sums, fixed) on a group, by the number of the row, of layouts that it has stages for."""
        able = [number for number, (_, layout) in enumerate(rows) if stages_held(group, layout)]
        if not able:
            return {}
        island = self._placement.island(self._ranks[group.name]).anonymous()
        some, layouts = [rows[number] for number in able], self.layouts
        sequences = [degrees.size * degrees.dp for degrees, _ in some]
        job = replace(layouts.job, schedule="1f1b")  # stages alone know of no schedule
        of = [layout for _, layout in some]
        sums, fixed = group_prices(layouts.model, island, job, layouts.hwdb, of, sequences)
        return {number: (sums[:, place], fixed[:, place]) for place, number in enumerate(able)}

    def _roads(self, names: tuple[str, ...], width: int) -> ChainRoads:
        """Roads between stages of one width on these groups."""
        if (names, width) not in self._known:
            groups = {group.name: group for group in self.layouts.cluster.groups}
            places = [places_in(groups[name], self._ranks[name][0], width) for name in names]
            tied = self.layouts.model.tied
            self._known[names, width] = chain_roads(self._placement, places, tied=tied)
        return self._known[names, width]


def _pair(layouts: LaunchLayouts, degrees: Degrees, layout: Layout) -> LaunchCandidate:
    """Two stages under a layout: what a framework says of the layout alone."""
    own = Uniform(
        tp=layout.tp,
        pp=2,
        vpp=2 if chunked(layouts.job.schedule) else 1,
        dp=layout.dp,
        cp=layout.cp,
        ep=layout.ep,
        zero_stage=layout.zero_stage,
        micro_batch=degrees.size,
        recompute=layout.recompute,
        sequence_parallel=layout.sequence_parallel,
    )
    return LaunchCandidate(0.0, inf, layouts.job, own)


def _subsets(rates: Floats) -> Iterator[tuple[int, ...]]:
    """Sets of groups to look at, all first: every one, or of many all but one and the fastest ones."""
    groups = range(len(rates))
    if len(rates) <= _SUBSETS:
        for size in range(len(rates), 0, -1):
            yield from combinations(groups, size)
        return
    yield tuple(groups)
    yield from combinations(groups, len(rates) - 1)
    fastest = np.argsort(-rates, kind="stable").tolist()
    yield from (tuple(sorted(fastest[:size])) for size in range(1, len(rates) - 1))


def _bounded(layouts: LaunchLayouts) -> Iterator[tuple[float, Degrees]]:
    """All degrees with seconds that no chain under them is faster than, of one vendor's groups."""
    job, bounds = layouts.job, layouts.bounds
    usable = usable_groups(layouts.cluster, job, layouts.options)
    for vendor in dict.fromkeys(group.node.gpu.vendor for group in usable):
        groups = [group for group in usable if group.node.gpu.vendor == vendor]
        alike: dict[tuple[int, int], list[Degrees]] = {}
        for degrees in _degrees(layouts, groups):
            alike.setdefault((degrees.tp * degrees.cp * degrees.dp, degrees.tp), []).append(degrees)
        for (width, tp), rows in alike.items():
            layout = Layout(tp, width // tp)
            able = [(group, slots) for group in groups if (slots := stages_held(group, layout))]
            if sum(slots for _, slots in able) < 2:
                continue
            rates = np.zeros(len(rows))
            for group, slots in able:
                known, where, scale = bounds.rows(group, rows)
                blocks = known.blocks
                whole = blocks.embedding_s[where] + blocks.seconds[where, -1] + blocks.head_s[where]
                rates += slots / (scale * whole)
            for degrees, rate in zip(rows, rates.tolist(), strict=True):
                yield job.global_batch // (degrees.size * degrees.dp) / rate, degrees


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

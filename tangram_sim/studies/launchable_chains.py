"""Chains: uniform layouts whose stages stand on any sequence of node groups, found by an exact program.

For given degrees all stages have one width in GPUs, and a node group holds so many stages of that width.
Where groups together hold more than one by one, stages stand on them side by side, too, and a stage on
several has the pace of the slowest of these.
Degrees wait in the order of a bound on their steps (`PassBounds`). Those that may be faster than the best
step known are priced on every ground with every expert degree and ZeRO stage (`chain_prices`), and solved on
every set of grounds (`chain_problem`): a question about fewer groups asks a part of what this one asks.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import inf

import numpy as np

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.layouts import Layout
from tangram_sim.models import has_experts
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.frameworks import takes
from tangram_sim.planners.uniform.layouts import AMONG, places_together, rank_order, uniform_plan
from tangram_sim.sim import contention
from tangram_sim.studies.chain_prices import ChainPrices, group_prices
from tangram_sim.studies.chain_problem import Chain, ChainProblem
from tangram_sim.studies.chain_roads import ChainRoads, chain_roads, held_ahead, stages_held
from tangram_sim.studies.launchable_bounds import PassBounds
from tangram_sim.studies.launchable_layouts import Degrees, LaunchCandidate, LaunchLayouts, usable_groups
from tangram_sim.training.schedules import StageTimes, chunked, step_template
from tangram_sim.training.step.links import with_links

# Set by hand on the cases of `python -m benchmarks anywhere --narrower`.
_STATES = 6000  # counts of stages per ground that are told apart, at most
_WAVES = (32, 64, 128, 256)  # degrees priced together: the first find a step that others have to beat
_CHAINS = 3  # of one problem that differ in how many stages each ground holds
# Chains with steps so many times the best one's by the program are estimated, too; of interleaved ones the
# program knows less: what their transfers share and hide.
_HOPE, _HOPE_INTERLEAVED = 1.03, 1.08
_SHARED = 1.01  # times longer a step is by links that are shared: other orders are looked at from there on
_SETTLED = (2, 3)  # times its depth in microbatches: from there on each further one takes as long
_SHORT = 5  # times its depth: a pipeline that is played to its end
_SUBSETS = 5  # grounds of which every set is looked at; of more all, all but one, and the fastest ones


@dataclass(frozen=True, slots=True)
class _Ground:
    """Node groups on all of which every stage stands; `among`: those that it is one of, taken as one."""

    groups: tuple[str, ...]
    among: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The names of its groups, as `stage_ranks` takes them."""
        return "+".join(self.groups) + (AMONG + "+".join(self.among) if self.among else "")


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Grounds that have no group in common, and how many stages of a width each holds."""

    grounds: tuple[_Ground, ...]
    slots: tuple[int, ...]


class Chains:
    """Chains of a model on a cluster with all ways of sharding, found as far as their bounds leave hope."""

    def __init__(self, layouts: LaunchLayouts) -> None:
        self.layouts, self._bounds = layouts, PassBounds(layouts)
        self._placement = Placement(layouts.cluster, layouts.hwdb)
        self._roads_of: dict[tuple[tuple[str, ...], int], ChainRoads] = {}
        self._arranged: dict[tuple[str, int, int], list[_Arrangement]] = {}
        self._solved: dict[LaunchCandidate, tuple[ChainProblem, Chain, bool]] = {}
        self._depth = min(layouts.budget.stages, layouts.model.layers + 2)
        self._depths: dict[Layout, int] = {}
        self._allowed_s = self._best_s = inf  # of the wave: the step to beat, the best one by the program
        uneven = [framework for framework in layouts.frameworks if framework.uneven_stages]
        self._even, self._uneven = (
            len(uneven) < len(layouts.frameworks),
            replace(layouts, frameworks=uneven, _permitted={}),
        )
        usable = usable_groups(layouts.cluster, layouts.job, layouts.options)
        self._vendors: dict[str, list[NodeGroup]] = {}
        for group in usable:
            self._vendors.setdefault(group.node.gpu.vendor, []).append(group)
        able = any(takes(framework, layouts.job) for framework in layouts.frameworks)
        if not able or (layouts.options.order and len(self._vendors) > 1):
            self._vendors = {}  # no collective library spans them
        self._waiting = sorted(self._bounded(), key=lambda item: item[0])

    def waves(self, best_s: Callable[[], float]) -> Iterator[list[LaunchCandidate]]:
        """Chains that may be faster than the best step known, wave by wave, the least steps first."""
        sizes, start = iter(_WAVES), 0
        while start < len(self._waiting) and self._waiting[start][0] < best_s():
            stop = start + next(sizes, _WAVES[-1])
            some = [(item, where) for bound_s, item, where in self._waiting[start:stop] if bound_s < best_s()]
            found = dict.fromkeys(self._solve(some, best_s()))
            yield sorted(found, key=lambda launch_candidate: launch_candidate.least_s)
            start = stop

    def variants(self, best: Iterable[LaunchCandidate]) -> list[LaunchCandidate]:
        """Other orders and cuts of chains found, the least steps first."""
        found = dict[LaunchCandidate, None]()
        for launch_candidate in best:
            problem, chain, even = self._solved[launch_candidate]
            for other in () if even else problem.variants(chain):
                found[self._candidate(launch_candidate, problem, problem.improved(other))] = None
            for candidate, _ in self._side_by_side(launch_candidate, problem, chain, even=even):
                found[candidate] = None
        return sorted(found, key=lambda launch_candidate: launch_candidate.least_s)

    def _side_by_side(
        self, like: LaunchCandidate, problem: ChainProblem, chain: Chain, *, even: bool
    ) -> Iterator[tuple[LaunchCandidate, Chain]]:
        """A chain with the stages of each group side by side: few links are shared so, whatever else waits.

        Stages do not change places: their times, by which they would, do not count what links share.
        """
        for other in problem.variants(chain, even=even):
            moved = other if even else problem.improved(other, same_order=True)
            yield self._candidate(like, problem, moved), moved

    def _candidate(self, like: LaunchCandidate, problem: ChainProblem, chain: Chain) -> LaunchCandidate:
        where = tuple(problem.names[ground] for ground in chain.groups)
        layers = chain.blocks(self.layouts.model.layers, problem.chunks)
        layout = replace(like.layout, pp=len(where), vpp=problem.chunks, layers=layers, stage_groups=where)
        job = replace(like.job, schedule="interleaved") if problem.chunks > 1 else like.job
        alone = LaunchCandidate(chain.step_s, job, layout)
        longer = self._longer(alone, problem, chain)
        return replace(alone, least_s=chain.step_s * longer, sharing=longer)

    def _longer(self, candidate: LaunchCandidate, problem: ChainProblem, chain: Chain) -> float:
        """Times longer the step of a chain is as its transfers share links, as they do when it is played."""
        depth, chunks, layouts = candidate.layout.pp, candidate.layout.vpp, self.layouts
        if depth == 1:
            return 1.0
        times, hop_s = problem.stage_times(chain)
        counts = np.array(candidate.layout.layers, float).reshape(chunks, depth).T
        shares = counts / counts.sum(axis=1, keepdims=True) if chunks > 1 else np.ones((depth, 1))
        asked = StageTimes(
            forward_s=times[:, :1] * shares,
            backward_input_s=times[:, 1:2] * shares,
            backward_weight_s=0.0 * shares,
            send_forward_s=hop_s,
            send_backward_s=hop_s,
            sync_s=times[:, 2],
            optimizer_s=np.zeros(depth),
            tied_s=float(problem.prices.tied[chain.groups[0], chain.groups[-1]]),
        )
        pipeline = uniform_plan(layouts.model, layouts.cluster, candidate.job, candidate.layout).pipelines[0]
        size = pipeline.microbatch * layouts.job.boundary_bytes(layouts.model, 1)
        settled, steps = problem.passes > _SHORT * depth, list[float]()
        for passes in (factor * depth for factor in _SETTLED) if settled else (problem.passes,):
            template = step_template(candidate.job.schedule, depth, passes, chunks, tied=asked.tied_s > 0.0)
            graph = template.with_durations(asked)
            graph = with_links(graph, template, pipeline, self._placement, size)
            steps.append(contention.play(graph).makespan_s)
        periods = problem.passes / depth - _SETTLED[1] if settled else 0.0
        return max((steps[-1] + periods * (steps[-1] - steps[0])) / chain.step_s, 1.0)

    def _solve(
        self, wave: Sequence[tuple[Degrees, _Arrangement]], limit_s: float
    ) -> Iterator[LaunchCandidate]:
        """The chains of some degrees on every set of grounds that may be faster than a limit."""
        # The likeliest first: what they come to spares most of the others.
        found = self._problems(wave, limit_s)
        self._allowed_s, self._best_s = limit_s, inf
        for wanted, problem, depth in sorted(found, key=lambda item: item[1].bound_s):
            rates, vain = problem.slots / problem.prices.sums[0, :, -1], list[set[int]]()
            together = [ground for ground, name in enumerate(problem.names) if "+" in name.split(AMONG)[0]]
            for grounds in _subsets(rates, together):
                # What is too slow, or does not fit, on some grounds is no better on a part of them.
                if any(set(grounds) <= item for item in vain):
                    continue
                if problem.passes >= limit_s * rates[list(grounds)].sum():
                    vain.append(set(grounds))
                    continue
                own, fruitless = problem.on(grounds), True
                for chain_problem, chain, even in self._chains(wanted, own, depth):
                    fruitless = False
                    if chain.step_s >= self._limit_s(chain_problem.chunks):
                        continue
                    pairs = [(self._candidate(wanted, chain_problem, chain), chain)]
                    if pairs[0][0].sharing > _SHARED:
                        pairs += self._side_by_side(wanted, chain_problem, chain, even=even)
                    below_s = self._limit_s(chain_problem.chunks)
                    pairs = [
                        pair for pair in pairs if pair[0].least_s < below_s and self.layouts.permits(pair[0])
                    ]
                    if not pairs:
                        continue
                    candidate, chain = min(pairs, key=lambda pair: pair[0].least_s)
                    self._best_s = min(self._best_s, candidate.least_s)
                    limit_s = self._limit_s(max((1, *self.layouts.chunks)))
                    self._solved[candidate] = chain_problem, chain, even
                    yield candidate
                if fruitless:
                    vain.append(set(grounds))

    def _limit_s(self, chunks: int) -> float:
        """What chains with stages of so many chunks have to be faster than: the program of one wave."""
        return min(self._allowed_s, (_HOPE_INTERLEAVED if chunks > 1 else _HOPE) * self._best_s)

    def _chains(
        self, like: LaunchCandidate, plain: ChainProblem, depth: int
    ) -> Iterator[tuple[ChainProblem, Chain, bool]]:
        """(problem, chain, whether all stages are of equal depth) of at most so many stages.

        Interleaved stages take microbatches in rounds of as many as there are stages.
        """
        layers, many = self.layouts.model.layers, np.prod(plain.slots + 1.0) > _STATES
        most = min(depth, int(plain.slots.sum()))
        if not chunked(self.layouts.job.schedule):
            chains = plain.side_by_side(depth) if many else plain.solve(depth, self._limit_s(1))
            for chain in map(plain.improved, chains[:_CHAINS]):
                yield plain, chain, False
            for stages in (
                divisors(layers) if most > 1 and self._even and not self._uneven.permits(like) else ()
            ):
                if stages <= most:
                    for chain in plain.side_by_side(stages, even=True)[:1]:
                        yield plain, chain if plain.ordered else plain.improved(chain, reach=0), True
        if most < 2 or not self.layouts.chunks:
            return
        bounds = {chunks: plain.interleaved_bounds_s(chunks, most) for chunks in self.layouts.chunks}
        for chunks, stages in product(self.layouts.chunks, divisors(plain.passes)):
            limit_s = self._limit_s(chunks)
            if not 2 <= stages <= min(most, layers // chunks) or bounds[chunks][stages - 1] >= limit_s:
                continue
            held = held_ahead("interleaved", stages, plain.passes, chunks)
            own = replace(plain, prices=plain.prices._replace(held=held), chunks=chunks)
            chains = own.side_by_side(stages) if many else own.solve(stages, limit_s)
            for chain in map(own.improved, chains[:_CHAINS]):
                yield own, chain, False

    def _problems(
        self, wave: Sequence[tuple[Degrees, _Arrangement]], limit_s: float
    ) -> Iterator[tuple[LaunchCandidate, ChainProblem, int]]:
        """(layout, problem, most stages) of degrees that may be faster than a limit, each way of sharding."""
        layouts, job = self.layouts, self.layouts.job
        rows: list[tuple[Degrees, Layout, int, _Arrangement]] = []
        asked: dict[tuple[str, ...], dict[tuple[Degrees, Layout], int]] = {}
        for degrees, arrangement in wave:
            for layout in layouts.shardings(degrees):
                depth = self._most_stages(layout)
                if not depth:
                    continue
                rows.append((degrees, layout, depth, arrangement))
                for ground in arrangement.grounds:
                    numbers = asked.setdefault(ground.groups, {})
                    numbers.setdefault((degrees, layout), len(numbers))
        priced = {groups: self._priced(groups, list(of)) for groups, of in asked.items()}
        for degrees, layout, depth, arrangement in rows:
            passes, size = job.global_batch // (degrees.size * degrees.dp), degrees.size * degrees.dp
            slots = np.minimum(np.array(arrangement.slots, np.int32), depth)
            row = [(item.groups, asked[item.groups][degrees, layout]) for item in arrangement.grounds]
            sums, fixed = (
                np.stack([priced[groups][part][:, number] for groups, number in row], axis=1)
                for part in (0, 1)
            )
            if passes >= limit_s * (slots / sums[0, :, -1]).sum():
                continue
            roads = self._roads(arrangement, degrees)
            problem = ChainProblem(
                tuple(item.name for item in arrangement.grounds),
                passes,
                slots,
                ChainPrices(
                    sums,
                    fixed,
                    *roads.seconds(layouts.model, job, size, [layout]),
                    held_ahead(job.schedule if not chunked(job.schedule) else "1f1b", self._depth, passes),
                ),
                job.schedule == "gpipe",
                ordered=bool(layouts.options.order),
            )
            yield layouts.candidate(layout, degrees.size, min(depth, 2)), problem, depth

    def _most_stages(self, layout: Layout) -> int:
        """Stages that some framework lets a layout have; 0 for none.

        Without sequence parallelism under tensor parallelism only one: it is for what else does not launch.
        """
        if layout not in self._depths:
            permits = self.layouts.permits
            several = layout.sequence_parallel == (layout.tp > 1)
            if several and permits(self.layouts.candidate(layout, 1, 2)):
                self._depths[layout] = self._depth
            else:
                self._depths[layout] = int(
                    not chunked(self.layouts.job.schedule) and permits(self.layouts.candidate(layout, 1, 1))
                )
        return self._depths[layout]

    def _priced(self, groups: Sequence[str], rows: Sequence[tuple[Degrees, Layout]]) -> tuple[Floats, Floats]:
        """Prices of layouts of stages that stand on all of some groups."""
        ranks = rank_order(self.layouts.cluster, groups)
        island = self._placement.island(tuple(ranks)).anonymous()
        job = replace(self.layouts.job, schedule="1f1b")  # stages alone know of no schedule
        sequences, of = [item.size * item.dp for item, _ in rows], [layout for _, layout in rows]
        return group_prices(self.layouts.model, island, job, self.layouts.hwdb, of, sequences)

    def _roads(self, arrangement: _Arrangement, degrees: Degrees) -> ChainRoads:
        """Roads between stages of one width on these grounds."""
        key = tuple(ground.name for ground in arrangement.grounds), degrees.width
        if key not in self._roads_of:
            places = [places_together(self.layouts.cluster, name, degrees.width) for name in key[0]]
            self._roads_of[key] = chain_roads(self._placement, places, tied=self.layouts.model.tied)
        return self._roads_of[key]

    def _bounded(self) -> Iterator[tuple[float, Degrees, _Arrangement]]:
        """All degrees and arrangements, with seconds that no chain there is faster than."""
        spread = has_experts(self.layouts.model)
        for vendor, groups in self._vendors.items():
            alike: dict[tuple[int, int], list[Degrees]] = {}
            for degrees in self.layouts.degrees(groups):
                alike.setdefault((degrees.tp, degrees.width), []).append(degrees)
            for (tp, width), rows in alike.items():
                passes = np.array([self.layouts.job.global_batch // (row.size * row.dp) for row in rows])
                whole_s = {
                    group.name: self._bounds.whole_s(group, rows)
                    * (min(group.count * group.node.gpus / width, 1.0) if spread else 1.0)
                    for group in groups
                    if group.node.gpus % tp == 0
                }
                for arrangement in self._arrangements(vendor, tp, width):
                    rates = np.zeros(len(rows))
                    for ground, slots in zip(arrangement.grounds, arrangement.slots, strict=True):
                        rates += slots / np.max([whole_s[name] for name in ground.groups], axis=0)
                    for degrees, bound_s in zip(rows, (passes / rates).tolist(), strict=True):
                        yield bound_s, degrees, arrangement

    def _arrangements(self, vendor: str, tp: int, width: int) -> list[_Arrangement]:
        """Every group by itself; and several as one where they hold more stages so."""
        groups = [group for group in self._vendors[vendor] if group.node.gpus % tp == 0]
        alone = {group.name: stages_held(group, Layout(tp, width // tp)) for group in groups}
        found = [{_Ground((name,)): slots for name, slots in alone.items() if slots}]
        for some in _joined(groups, adjacent=bool(self.layouts.options.order)):
            together = _side_by_side(some, width)
            names = {group.name for group in some}
            if sum(together.values()) > sum(alone[name] for name in names):
                others = {ground: slots for ground, slots in found[0].items() if not names & {*ground.groups}}
                found.append(together | others)
        return [_Arrangement(tuple(held), tuple(held.values())) for held in found if held]


def _side_by_side(some: tuple[NodeGroup, ...], width: int) -> dict[_Ground, int]:
    """Stages of so many GPUs by the groups that they stand on, where they take GPUs group by group."""
    owners = [group.name for group in some for _ in range(group.count * group.node.gpus)]
    names = tuple(dict.fromkeys(owners))
    stages = [owners[start : start + width] for start in range(0, len(owners) - width + 1, width)]
    return Counter(_Ground(tuple(dict.fromkeys(stage)), names) for stage in stages)


def _joined(groups: Sequence[NodeGroup], *, adjacent: bool) -> Iterator[tuple[NodeGroup, ...]]:
    """Two groups and more that may be one ground: every set of few, all of many; of an order neighbours."""
    count = len(groups)
    if adjacent:
        yield from (tuple(groups[a:b]) for a in range(count) for b in range(a + 2, count + 1))
    elif count <= _SUBSETS:
        for size in range(2, count + 1):
            yield from combinations(groups, size)
    else:
        yield tuple(groups)
        yield from combinations(groups, 2)


def _subsets(rates: Floats, together: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Sets of grounds to look at, all first: every one, or of many all but one and the fastest ones.

    Where stages of some grounds stand on several groups `together`, one of these is in every set.
    """
    grounds = range(len(rates))
    if len(rates) <= _SUBSETS:
        every: Iterable[tuple[int, ...]] = (
            some for size in range(len(rates), 0, -1) for some in combinations(grounds, size)
        )
    else:
        fastest = np.argsort(-rates, kind="stable").tolist()
        few = (tuple(sorted(fastest[:size])) for size in range(1, len(rates) - 1))
        every = (tuple(grounds), *combinations(grounds, len(rates) - 1), *few)
    yield from (some for some in every if not together or set(together) & set(some))

"""Chains: uniform layouts whose stages stand on any sequence of node groups, found by an exact program.

For given degrees all stages have one width in GPUs, and a node group holds a number of stages of that width.
Where joined groups hold more than they do one by one, stages may span them too; a stage on several groups
runs at the speed of the slowest. Degrees are queued by a lower bound on their steps (`PassBounds`). Those
that may beat the best step known are priced on every ground with every expert degree and ZeRO stage
(`chain_prices`) and solved on every set of grounds (`chain_problem`): a question about fewer groups asks a
part of what this one asks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.layouts import Layout
from tangram_sim.models import has_experts
from tangram_sim.opgraph import OpGraph
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.frameworks import takes
from tangram_sim.planners.uniform.layouts import AMONG, places_together, rank_order, uniform_plan
from tangram_sim.sim import contention
from tangram_sim.studies.chain_grounds import Arrangement, arrangements, subsets
from tangram_sim.studies.chain_prices import ChainPrices, StageRoom, group_prices
from tangram_sim.studies.chain_problem import Chain, ChainProblem, surely_slower
from tangram_sim.studies.chain_roads import ChainRoads, chain_roads, held_ahead
from tangram_sim.studies.launchable_bounds import PassBounds
from tangram_sim.studies.launchable_layouts import Degrees, LaunchCandidate, LaunchLayouts, usable_groups
from tangram_sim.training.schedules import StageTimes, StepTemplate, chunked, step_template
from tangram_sim.training.schedules.step import SYNC
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


class _Row(NamedTuple):
    """One sharding under some degrees: lower bound on its step in seconds, and its prices on each ground.

    `prices`: `sums` and `fixed` of `group_prices`, and the index of the layout in them, by ground.
    """

    bound_s: float
    degrees: Degrees
    layout: Layout
    depth: int  # stages at most
    arrangement: Arrangement
    passes: int
    prices: list[tuple[Floats, Floats, int]]


class Chains:
    """Finds chains of a model on a cluster under all shardings, guided by lower bounds."""

    def __init__(self, layouts: LaunchLayouts) -> None:
        self.layouts, self._bounds = layouts, PassBounds(layouts)
        self._placement = Placement(layouts.cluster, layouts.hwdb)
        self._roads_of: dict[tuple[tuple[str, ...], int], ChainRoads] = {}
        self._links_of: dict[tuple[object, ...], tuple[StepTemplate, OpGraph]] = {}
        self._solved: dict[LaunchCandidate, tuple[ChainProblem, Chain, bool]] = {}
        self._depth = min(layouts.budget.stages, layouts.model.layers + 2)
        self._depths: dict[Layout, int] = {}
        self._sharded: dict[Degrees, list[tuple[Layout, int]]] = {}
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
        """Yields batches of chains that may beat the best step known; rising in predicted step."""
        sizes, start = iter(_WAVES), 0
        while start < len(self._waiting) and self._waiting[start][0] < best_s():
            stop = start + next(sizes, _WAVES[-1])
            some = [(item, where) for bound_s, item, where in self._waiting[start:stop] if bound_s < best_s()]
            found = dict.fromkeys(self._solve(some, best_s()))
            yield sorted(found, key=lambda launch_candidate: launch_candidate.least_s)
            start = stop

    def variants(self, best: Iterable[LaunchCandidate], below_s: float) -> list[LaunchCandidate]:
        """Other orders and cuts of the chains `best` with steps below `below_s`, the shortest first."""
        found = dict[LaunchCandidate, None]()
        for launch_candidate in best:
            problem, chain, even = self._solved[launch_candidate]
            others = [] if even else [problem.improved(other) for other in problem.variants(chain)]
            others += self._side_by_side(problem, chain, even=even)
            for other in dict.fromkeys(item for item in others if item.step_s < below_s):
                found[self._candidate(launch_candidate, problem, other)] = None
        return sorted(found, key=lambda launch_candidate: launch_candidate.least_s)

    def _side_by_side(self, problem: ChainProblem, chain: Chain, *, even: bool) -> list[Chain]:
        """Variants of a chain with the stages of each group adjacent, so that few transfers share links.

        Stages do not swap places: their times ignore link sharing, so swaps would be judged wrongly.
        """
        others = problem.variants(chain, even=even)
        return [other if even else problem.improved(other, same_order=True) for other in others]

    def _candidate(self, like: LaunchCandidate, problem: ChainProblem, chain: Chain) -> LaunchCandidate:
        where = tuple(problem.names[ground] for ground in chain.groups)
        layers = chain.blocks(self.layouts.model.layers, problem.chunks)
        layout = replace(like.layout, pp=len(where), vpp=problem.chunks, layers=layers, stage_groups=where)
        job = replace(like.job, schedule="interleaved") if problem.chunks > 1 else like.job
        longer = self._longer(LaunchCandidate(chain.step_s, job, layout), problem, chain)
        return LaunchCandidate(chain.step_s * longer, job, layout, sharing=longer)

    def _longer(self, candidate: LaunchCandidate, problem: ChainProblem, chain: Chain) -> float:
        """Ratio, 1 or more, of a chain's step with shared links to its step without."""
        depth, chunks = candidate.layout.pp, candidate.layout.vpp
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
        settled, steps = problem.passes > _SHORT * depth, list[float]()
        for passes in (factor * depth for factor in _SETTLED) if settled else (problem.passes,):
            template, linked = self._linked(candidate, passes, tied=asked.tied_s > 0.0)
            seconds = template.durations(asked)
            sent = np.where(linked.kind == SYNC, seconds, 1.0) * linked.bytes
            graph = replace(linked.with_durations(seconds), bytes=sent)
            steps.append(contention.play(graph).makespan_s)
        periods = problem.passes / depth - _SETTLED[1] if settled else 0.0
        return max((steps[-1] + periods * (steps[-1] - steps[0])) / chain.step_s, 1.0)

    def _linked(self, candidate: LaunchCandidate, passes: int, *, tied: bool) -> tuple[StepTemplate, OpGraph]:
        """A step of seconds with shared links: those of a candidate, and of others with its ranks."""
        layout, job = candidate.layout, candidate.job
        width, microbatch = layout.tp * layout.cp * layout.dp, layout.micro_batch * layout.dp
        key = job.schedule, layout.stage_groups, width, layout.vpp, microbatch, passes, tied
        if key not in self._links_of:
            pipeline = uniform_plan(self.layouts.model, self.layouts.cluster, job, layout).pipelines[0]
            template = step_template(job.schedule, layout.pp, passes, layout.vpp, tied=tied)
            size = job.boundary_bytes(self.layouts.model, microbatch)
            graph = template.graph.with_durations(np.ones(len(template.graph)))
            self._links_of[key] = template, with_links(graph, template, pipeline, self._placement, size)
        return self._links_of[key]

    def _solve(
        self, wave: Sequence[tuple[Degrees, Arrangement]], limit_s: float
    ) -> Iterator[LaunchCandidate]:
        """Yields the chains of a wave, on every set of grounds, whose step may be below `limit_s`."""
        # The likeliest first: what they come to spares most of the others.
        found, most_chunks = self._rows(wave, limit_s), max((1, *self.layouts.chunks))
        self._allowed_s, self._best_s = limit_s, inf
        for row in sorted(found, key=lambda item: item.bound_s):
            if row.bound_s >= limit_s:
                break
            problem, depth = self._problem(row, limit_s), row.depth
            if problem is None:
                continue
            wanted = self.layouts.candidate(row.layout, row.degrees.size, min(depth, 2))
            rates, vain = problem.slots / problem.prices.sums[0, :, -1], list[set[int]]()
            together = [ground for ground, name in enumerate(problem.names) if "+" in name.split(AMONG)[0]]
            for grounds in subsets(rates, together):
                # What is too slow, or does not fit, on some grounds is no better on a part of them.
                if any(set(grounds) <= item for item in vain):
                    continue
                if problem.passes >= limit_s * rates[list(grounds)].sum():
                    vain.append(set(grounds))
                    continue
                own, fruitless = problem.on(grounds), True
                if own.surely_slower(depth, limit_s, most_chunks):
                    vain.append(set(grounds))
                    continue
                for chain_problem, chain, even in self._chains(wanted, own, depth):
                    fruitless = False
                    if chain.step_s >= self._limit_s(chain_problem.chunks):
                        continue
                    pairs = [(self._candidate(wanted, chain_problem, chain), chain)]
                    below_s = self._limit_s(chain_problem.chunks)
                    if pairs[0][0].sharing > _SHARED:
                        pairs += [
                            (self._candidate(wanted, chain_problem, other), other)
                            for other in self._side_by_side(chain_problem, chain, even=even)
                            if other.step_s < below_s
                        ]
                    pairs = [
                        pair for pair in pairs if pair[0].least_s < below_s and self.layouts.permits(pair[0])
                    ]
                    if not pairs:
                        continue
                    candidate, chain = min(pairs, key=lambda pair: pair[0].least_s)
                    self._best_s = min(self._best_s, candidate.least_s)
                    limit_s = self._limit_s(most_chunks)
                    self._solved[candidate] = chain_problem, chain, even
                    yield candidate
                if fruitless:
                    vain.append(set(grounds))

    def _limit_s(self, chunks: int) -> float:
        """Step in seconds that chains with `chunks` chunks per stage must beat within one wave."""
        return min(self._allowed_s, (_HOPE_INTERLEAVED if chunks > 1 else _HOPE) * self._best_s)

    def _chains(
        self, like: LaunchCandidate, plain: ChainProblem, depth: int
    ) -> Iterator[tuple[ChainProblem, Chain, bool]]:
        """Yields (problem, chain, whether all stages have equally many blocks), with at most `depth` stages.

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
            if plain.surely_slower(stages, limit_s, chunks, held):
                continue
            own = replace(plain, prices=plain.prices._replace(held=held), chunks=chunks)
            chains = own.side_by_side(stages) if many else own.solve(stages, limit_s)
            for chain in map(own.improved, chains[:_CHAINS]):
                yield own, chain, False

    def _rows(self, wave: Sequence[tuple[Degrees, Arrangement]], limit_s: float) -> list[_Row]:
        """Shardings of a wave that may be faster than `limit_s`, with their prices."""
        able: list[tuple[Degrees, Layout, int, Arrangement]] = []
        asked: dict[tuple[str, ...], dict[tuple[Degrees, Layout], int]] = {}
        for degrees, arrangement in wave:
            for layout, depth in self._shardings(degrees):
                able.append((degrees, layout, depth, arrangement))
                for ground in arrangement.grounds:
                    numbers = asked.setdefault(ground.groups, {})
                    numbers.setdefault((degrees, layout), len(numbers))
        priced = {groups: self._priced(groups, list(of)) for groups, of in asked.items()}
        whole_s = {groups: sums[0, :, -1].tolist() for groups, (sums, _) in priced.items()}
        found = list[_Row]()
        for degrees, layout, depth, arrangement in able:
            passes, rate, prices = self.layouts.job.global_batch // (degrees.size * degrees.dp), 0.0, []
            for ground, slots in zip(arrangement.grounds, arrangement.slots, strict=True):
                number = asked[ground.groups][degrees, layout]
                rate += min(slots, depth) / whole_s[ground.groups][number]
                prices.append((*priced[ground.groups], number))
            if passes < limit_s * rate:
                able_row = passes / rate, degrees, layout, depth, arrangement
                found.append(_Row(*able_row, passes=passes, prices=prices))
        return found

    def _problem(self, row: _Row, limit_s: float) -> ChainProblem | None:
        """The chain problem of a row; None if it surely has no chain faster than `limit_s`."""
        layouts, job, degrees = self.layouts, self.layouts.job, row.degrees
        slots = np.minimum(np.array(row.arrangement.slots, np.int32), row.depth)
        sums = np.stack([sums[:, number] for sums, _, number in row.prices], axis=1)
        fixed = np.stack([fixed[:, number] for _, fixed, number in row.prices], axis=1)
        schedule = job.schedule if not chunked(job.schedule) else "1f1b"
        held, chunks = held_ahead(schedule, self._depth, row.passes), max((1, *layouts.chunks))
        if surely_slower(limit_s, row.passes, row.depth, chunks, slots, StageRoom(sums, fixed, held)):
            return None
        road_s = self._roads(row.arrangement, degrees).seconds(
            layouts.model, job, degrees.size * degrees.dp, [row.layout]
        )
        names = tuple(ground.name for ground in row.arrangement.grounds)
        prices = ChainPrices(sums, fixed, *road_s, held)
        gpipe, ordered = job.schedule == "gpipe", bool(layouts.options.order)
        return ChainProblem(names, row.passes, slots, prices, gpipe, ordered=ordered)

    def _shardings(self, degrees: Degrees) -> list[tuple[Layout, int]]:
        """(layout, most stages) for all layouts of these degrees that a framework can launch."""
        if degrees not in self._sharded:
            able = [(layout, self._most_stages(layout)) for layout in self.layouts.shardings(degrees)]
            self._sharded[degrees] = [(layout, depth) for layout, depth in able if depth]
        return self._sharded[degrees]

    def _most_stages(self, layout: Layout) -> int:
        """Most stages that some framework allows under a layout; 0: none.

        Tensor parallelism without sequence parallelism: 1 only, for models that launch no other way.
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
        """`group_prices` of layouts for stages that span all of `groups`."""
        ranks = rank_order(self.layouts.cluster, groups)
        island = self._placement.island(tuple(ranks)).anonymous()
        job = replace(self.layouts.job, schedule="1f1b")  # stages alone know of no schedule
        sequences, of = [item.size * item.dp for item, _ in rows], [layout for _, layout in rows]
        return group_prices(self.layouts.model, island, job, self.layouts.hwdb, of, sequences)

    def _roads(self, arrangement: Arrangement, degrees: Degrees) -> ChainRoads:
        """Links between stages of one width on the grounds of an arrangement."""
        key = tuple(ground.name for ground in arrangement.grounds), degrees.width
        if key not in self._roads_of:
            places = [places_together(self.layouts.cluster, name, degrees.width) for name in key[0]]
            self._roads_of[key] = chain_roads(self._placement, places, tied=self.layouts.model.tied)
        return self._roads_of[key]

    def _bounded(self) -> Iterator[tuple[float, Degrees, Arrangement]]:
        """Yields (lower bound on the step in seconds, degrees, arrangement) for all of them."""
        spread, ordered = has_experts(self.layouts.model), bool(self.layouts.options.order)
        for groups in self._vendors.values():
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
                for arrangement in arrangements(groups, tp, width, ordered=ordered):
                    rates = np.zeros(len(rows))
                    for ground, slots in zip(arrangement.grounds, arrangement.slots, strict=True):
                        rates += slots / np.max([whole_s[name] for name in ground.groups], axis=0)
                    for degrees, bound_s in zip(rows, (passes / rates).tolist(), strict=True):
                        yield bound_s, degrees, arrangement

"""What parallelizers share that choose a strategy per layer: menus, choice per inner stage, answers.

For every number of stages behind the slice that changes anything (more of them, more microbatches held), each
inner stage gets the fastest runs of layers that fit; the answer is the Pareto set of what was found.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from tangram_sim.cost.collectives import transfer_s
from tangram_sim.errors import InfeasibleError
from tangram_sim.layouts import Layout
from tangram_sim.lowering.setting import Setting
from tangram_sim.parallelizers import mixing
from tangram_sim.parallelizers.api import Answer, Parallelizer, Rejection, Request
from tangram_sim.parallelizers.grid import balanced_cuts
from tangram_sim.parallelizers.layouts import divisors, objection
from tangram_sim.parallelizers.menu import Menu, Run
from tangram_sim.parallelizers.mixing import Program
from tangram_sim.plans import UNLIMITED, LayoutRun, PartialPlan, passage
from tangram_sim.schedules import holds_whole_depth, in_flight
from tangram_sim.units import show_bytes

_MENUS = 96  # (island part, microbatch, inner depth) whose strategies stay priced
_ROOM = 1 - 1e-12  # of the memory, so that sums in another order still fit


class LayerWise(Parallelizer):
    """Chooses among `strategies` for each layer; subclasses say which, and where inner pipelines are cut."""

    switches = True  # whether layers of one stage may differ
    exact = False  # whether layers are chosen by the exact program rather than a mix of two strategies

    def __init__(self) -> None:
        self._menus: OrderedDict[tuple[object, ...], Menu] = OrderedDict()

    @abstractmethod
    def strategies(self, request: Request, gpus: int) -> Iterable[Layout]:
        """Layouts of one inner stage of `gpus` GPUs (pp = 1) that a layer may have."""

    def depths(self, request: Request) -> tuple[int, ...]:
        """Inner pipeline depths: powers of two, inside one node so that nothing is counted twice."""
        if request.island.nodes > 1:
            return (1,)
        return tuple(depth for depth in divisors(request.island.gpus_per_node) if depth & (depth - 1) == 0)

    def cuts(self, request: Request, menu: Menu, behind: int) -> tuple[int, ...] | None:  # noqa: ARG002 - for subclasses
        """Where the inner pipeline is cut when `behind` stages follow the slice; None when nothing fits."""
        return balanced_cuts(menu.pricer, request.slice.start, request.slice.stop, menu.depth)

    def parallelize(self, request: Request) -> Answer:
        """The Pareto set of the best plans for each number of stages behind the slice."""
        try:
            menus = [self._menu(request, depth) for depth in self.depths(request)]
        except InfeasibleError as error:
            return Answer((), (Rejection(Layout(dp=request.island.gpus), str(error)),), 1, 0, exact=False)
        rejected, considered = list[Rejection](), 0
        found: dict[object, PartialPlan] = {}
        for menu in menus:
            considered += len(menu.objections) + len(menu.layouts)
            rejected += [Rejection(layout, reason) for layout, reason in menu.objections]
            if not menu.layouts:
                continue
            if len(request.slice) < menu.depth:
                reason = (
                    f"pp={menu.depth} inner stages, but the slice has only {len(request.slice)} atoms to cut"
                )
                rejected += [Rejection(_deep(layout, menu.depth), reason) for layout in menu.layouts]
                continue
            rejected += self._too_large(request, menu)
            for partial in self._best(request, menu):
                found.setdefault((partial.layout, partial.runs, partial.cuts), partial)
        if not considered:
            layout = Layout(dp=request.island.gpus)
            reason = f"{self.name} has no strategy for {request.island.gpus} GPUs under what was fixed"
            return Answer((), (Rejection(layout, reason),), 1, 0, exact=False)
        considered += sum(bool(partial.runs) for partial in found.values())
        answered = _undominated([one for one in found.values() if one.slowest_s <= request.pace_s])
        return Answer(
            tuple(answered),
            tuple(rejected),
            considered,
            considered - len(rejected) - len(answered),
            exact=False,  # with respect to sums of layer prices, and for these strategies only
        )

    def price(self, request: Request, layout: Layout) -> PartialPlan:
        """Price one layout for all layers; `stages_behind` is -1 when it does not fit."""
        if layout.pp not in self.depths(request):
            raise InfeasibleError(f"{layout}: {request.island.name} allows no inner pipeline of {layout.pp}")
        menu = self._menu(request, layout.pp)
        for rejected, reason in menu.objections:
            if rejected == layout:
                raise InfeasibleError(f"{layout}: {reason}")
        start, stop = request.slice.start, request.slice.stop
        index = self._index(menu, replace(layout, pp=1))
        cuts = balanced_cuts(menu.pricer, start, stop, menu.depth)
        if len(cuts) <= menu.depth:
            raise InfeasibleError(f"{layout}: the slice has only {len(request.slice)} atoms to cut")
        return self._partial(request, menu, cuts, [[(low, high, index)] for low, high in pairwise(cuts)])

    def reprice(self, request: Request, partial: PartialPlan) -> PartialPlan:
        """Price a layout, or its runs and inner cuts; one stage may be asked with a shorter or longer slice."""
        if not partial.runs:
            return self.price(request, partial.layout)
        start, stop = request.slice.start, request.slice.stop
        cuts = (start, stop) if partial.layout.pp == 1 else partial.cuts
        if (cuts[0], cuts[-1]) != (start, stop):
            raise InfeasibleError(f"inner stages cut at {partial.cuts} do not hold atoms [{start}, {stop})")
        menu = self._menu(request, partial.layout.pp)
        last = len(partial.runs) - 1
        stages = []
        for low, high in pairwise(cuts):
            runs: list[Run] = []
            for number, run in enumerate(partial.runs):
                begin = max(low, run.start if number else low)
                end = min(high, run.stop if number < last else high)
                if begin < end:
                    runs.append((begin, end, self._index(menu, replace(run.layout, pp=1))))
            stages.append(runs)
        return self._partial(request, menu, cuts, stages)

    def _index(self, menu: Menu, layout: Layout) -> int:
        if layout not in menu.layouts:
            raise InfeasibleError(f"{layout} is none of the strategies of {self.name} here")
        return menu.layouts.index(layout)

    def _menu(self, request: Request, depth: int) -> Menu:
        model, job, island = request.slice.model, request.job, request.island
        key = (model, island, job, request.microbatch, request.constraints, request.hwdb, depth)
        if key in self._menus:
            return self._menus[key]
        part = island if depth == 1 else island.part(island.nodes, island.gpus_per_node // depth)
        rates = Setting(model, part, job, request.microbatch, (), request.hwdb).rates
        admitted, objections = list[Layout](), list[tuple[Layout, str]]()
        for layout in dict.fromkeys(self.strategies(request, part.gpus)):
            deep = _deep(layout, depth)
            if not request.constraints.allows(deep, request.microbatch):
                continue
            reason = objection(model, job, deep, request.microbatch, rates.fused_attention)
            if reason:
                objections.append((deep, reason))
            else:
                admitted.append(layout)
        setting = Setting(model, part, job, request.microbatch, tuple(admitted), request.hwdb)
        rate = island.intra.bytes_per_s * request.hwdb.link_efficiency(island.intra).value * part.gpus
        size = _boundary_bytes(request)
        hop = transfer_s(size, rate, island.intra.latency_s) if depth > 1 else 0.0
        self._menus[key] = Menu(setting, hop, depth, tuple(objections))
        if len(self._menus) > _MENUS:
            self._menus.popitem(last=False)
        return self._menus[key]

    def _best(self, request: Request, menu: Menu) -> Iterator[PartialPlan]:
        """The best plan for every number of stages behind, from none to as many as the model has atoms for."""
        atoms, part = request.slice.model.layers + 2, request.slice
        outside = len(part) if holds_whole_depth(request.job.schedule) else part.stop
        most = min(atoms - outside, request.microbatches - 1)
        behind = 0
        while behind <= most:
            cuts = self.cuts(request, menu, behind)
            stages = self.chosen(request, menu, cuts, behind) if cuts else None
            if cuts is None or stages is None:
                return
            partial = self._partial(request, menu, cuts, stages)
            if partial.stages_behind >= 0:
                yield partial
            if partial.slowest_s > request.pace_s:  # with more behind it only becomes slower
                return
            behind = max(behind, partial.stages_behind) + 1

    def chosen(
        self, request: Request, menu: Menu, cuts: Sequence[int], behind: int
    ) -> list[tuple[Run, ...]] | None:
        """The runs of every inner stage; None when one of them does not fit."""
        stages = []
        for (low, high), held in zip(pairwise(cuts), held_in(request, menu.depth, behind), strict=True):
            runs = self.choose(menu, low, high, held, request.microbatches)
            if runs is None:
                return None
            stages.append(runs)
        return stages

    def choose(
        self, menu: Menu, start: int, stop: int, held: int, microbatches: int
    ) -> tuple[Run, ...] | None:
        """The fastest runs for atoms [start, stop) with `held` microbatches in flight; None: nothing fits."""
        from tangram_sim.parallelizers.kernels import best_mix

        sides, room = menu.sides(start, stop), menu.capacity_bytes * _ROOM
        switch_s = menu.switch_s if self.switches else np.full_like(menu.switch_s, np.inf)
        front_s = sides.front_s + sides.front_tail_s / microbatches
        front_bytes = sides.front_static + held * sides.front_activation
        p, q, blocks, seconds = best_mix(
            front_s,
            front_bytes,
            sides.front_transient,
            sides.back_s + sides.back_tail_s / microbatches,
            sides.back_static + held * sides.back_activation,
            sides.back_transient,
            switch_s,
            room,
        )
        mixed: tuple[Run, ...] | None = None
        if p == q and p >= 0:
            mixed = ((start, stop, p),)
        elif p >= 0:
            cut = start + blocks + (start == 0)
            mixed = ((start, cut, p), (cut, stop, q))
        if not self.exact or front_s.shape[1] <= 2:
            return mixed
        transient = np.stack(
            [menu.prices(atom, atom + 1).transient_bytes for atom in range(start, stop)], axis=0
        )
        if start == 0:  # the ends go with their neighbours
            transient = np.concatenate([transient[:2].max(axis=0, keepdims=True), transient[2:]])
        if len(transient) == front_s.shape[1]:
            transient = np.concatenate([transient[:-2], transient[-2:].max(axis=0, keepdims=True)])
        program = Program(np.diff(front_s).T, np.diff(front_bytes).T, transient, switch_s, room)
        found = mixing.exact(program)
        if not found.strategies or found.seconds >= seconds:
            return mixed
        runs, first = list[Run](), start
        for strategy, same in groupby(found.strategies):
            end = first + len(list(same)) + (first == 0 == start)
            runs.append((first, end, strategy))
            first = end
        runs[-1] = (runs[-1][0], stop, runs[-1][2])
        return tuple(runs)

    def _too_large(self, request: Request, menu: Menu) -> Iterator[Rejection]:
        """Strategies that cannot be used for all layers even with nothing behind the slice."""
        cuts = balanced_cuts(menu.pricer, request.slice.start, request.slice.stop, menu.depth)
        capacity = menu.capacity_bytes
        needed, fits = np.zeros(len(menu.layouts)), np.ones(len(menu.layouts), dtype=bool)
        for (low, high), held in zip(pairwise(cuts), held_in(request, menu.depth, 0), strict=True):
            prices = menu.prices(low, high)
            free = capacity - prices.static_bytes - prices.transient_bytes
            fits &= free / np.maximum(prices.activation_bytes, 1e-300) >= held
            needed = np.maximum(
                needed, prices.static_bytes + held * prices.activation_bytes + prices.transient_bytes
            )
        for index in np.flatnonzero(~fits):
            size = float(needed[index])
            reason = f"for all layers needs {show_bytes(size)} per GPU, {show_bytes(capacity)} usable"
            yield Rejection(_deep(menu.layouts[index], menu.depth), reason, size, capacity)

    def _partial(
        self, request: Request, menu: Menu, cuts: Sequence[int], stages: Sequence[Sequence[Run]]
    ) -> PartialPlan:
        priced = tuple(menu.stage(runs) for runs in stages)
        last = menu.depth - 1
        whole = holds_whole_depth(request.job.schedule)
        behind = min(
            _most_behind(request, stage.in_flight_limit(), last if whole else last - place)
            for place, stage in enumerate(priced)
        )
        runs = _joined([run for stage in stages for run in stage])
        layouts = [_deep(menu.layouts[index], menu.depth) for _, _, index in runs]
        usual = len(runs) == 1 and (
            menu.depth == 1
            or tuple(cuts) == balanced_cuts(menu.pricer, request.slice.start, request.slice.stop, menu.depth)
        )
        return PartialPlan(
            start=request.slice.start,
            stop=request.slice.stop,
            island=request.island.name,
            nodes=request.island.nodes,
            layout=layouts[0],
            microbatch=request.microbatch,
            cuts=tuple(cuts),
            stages=priced,
            hop_s=menu.hop_s,
            stages_behind=behind,
            boundary_bytes=_boundary_bytes(request),
            measured=request.island.gpu.measured,
            runs=()
            if usual
            else tuple(
                LayoutRun(low, high, layout) for (low, high, _), layout in zip(runs, layouts, strict=True)
            ),
        )


def held_in(request: Request, depth: int, behind: int) -> list[int]:
    """Microbatches that each inner stage holds when `behind` stages follow the slice."""
    last, whole = depth - 1, holds_whole_depth(request.job.schedule)
    others = [behind + (last if whole else last - place) for place in range(depth)]
    return [in_flight(request.job.schedule, other, other + 1, 1, request.microbatches) for other in others]


def _deep(layout: Layout, depth: int) -> Layout:
    return layout if depth == 1 else replace(layout, pp=depth)


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Neighbouring runs of one strategy as one."""
    joined: list[Run] = []
    for start, stop, index in runs:
        if joined and joined[-1][2] == index:
            joined[-1] = (joined[-1][0], stop, index)
        else:
            joined.append((start, stop, index))
    return joined


def _boundary_bytes(request: Request) -> float:
    job = request.job
    return request.microbatch * job.seq * request.slice.model.hidden * job.recipe.activation_bytes


def _most_behind(request: Request, limit: int, inner_behind: int) -> int:
    """The most stages behind the slice when an inner stage can hold `limit` microbatches; -1: it never fits."""
    schedule, microbatches = request.job.schedule, request.microbatches
    if limit >= in_flight(schedule, UNLIMITED - 1, UNLIMITED, 1, microbatches):
        return UNLIMITED
    least = in_flight(schedule, inner_behind, inner_behind + 1, 1, microbatches)
    return limit - 1 - inner_behind if limit >= least else -1


def _undominated(partials: Sequence[PartialPlan]) -> list[PartialPlan]:
    """Partial plans that no other is as good as in everything the composition compares."""
    from tangram_sim.parallelizers.kernels import pareto

    if not partials:
        return []
    costs = []
    for partial in partials:
        stages = partial.stages
        latency, forward, closing = passage(
            [stage.forward_s for stage in stages],
            [stage.backward_s for stage in stages],
            [stage.gradient_sync_s + stage.optimizer_s for stage in stages],
            partial.hop_s,
        )
        costs.append((partial.slowest_s, latency, forward, closing, len(stages), -partial.stages_behind))
    kept = pareto(np.array(costs, dtype=np.float64), np.ones(len(costs), dtype=bool))
    return [partial for partial, keep in zip(partials, kept, strict=True) if keep]

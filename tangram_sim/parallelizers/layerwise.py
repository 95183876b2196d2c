"""Base of parallelizers that choose a strategy per layer: menus, choice per inner stage, answers.

For every number of stages behind the slice that changes anything (more of them, more microbatches held), each
inner stage gets the fastest runs of layers that fit; the answer is the Pareto set of what was found.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from tangram_sim.errors import InfeasibleError
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers import mixing
from tangram_sim.parallelizers.api import Answer, Parallelizer, Rejection, Request
from tangram_sim.parallelizers.assembly import (
    deep,
    depths_allowed,
    held_in,
    inner_gpus,
    menu_of,
    partial_of,
    undominated,
)
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.parallelizers.layouts import divisors, expert_degrees
from tangram_sim.parallelizers.menu import Menu, Run
from tangram_sim.parallelizers.mixing import MixingProblem
from tangram_sim.training.plan import PartialPlan
from tangram_sim.training.schedules import holds_whole_depth
from tangram_sim.training.stage import state
from tangram_sim.training.stage.setting import Setting
from tangram_sim.units import show_bytes

_MENUS = 96  # (island part, microbatch, inner depth) whose strategies stay priced
ROOM = 1 - 1e-12  # of the memory, so that sums in another order still fit


class LayerWise(Parallelizer):
    """Chooses among `strategies` for each layer; subclasses define these, and the cuts of inner pipelines."""

    switches = True  # whether layers of one stage may differ
    exact = False  # whether layers are chosen by the exact program rather than a mix of two strategies

    def __init__(self) -> None:
        self._menus: OrderedDict[tuple[object, ...], Menu] = OrderedDict()

    @abstractmethod
    def strategies(self, request: Request, gpus: int) -> Iterable[Layout]:
        """Layouts (pp = 1) of one inner stage of `gpus` GPUs that a layer may use."""

    def depths(self, request: Request) -> tuple[int, ...]:
        """Inner pipeline depths: powers of two, inside one node."""
        return tuple(depth for depth in depths_allowed(request) if depth & (depth - 1) == 0)

    def cuts(self, request: Request, menu: Menu, behind: int) -> tuple[int, ...] | None:  # noqa: ARG002 - for subclasses
        """Cuts of the inner pipeline when `behind` stages follow the slice; None when nothing fits."""
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
                rejected += [Rejection(deep(layout, menu.depth), reason) for layout in menu.layouts]
                continue
            rejected += self._too_large(request, menu)
            for partial in self._best(request, menu):
                found.setdefault((partial.layout, partial.runs, partial.cuts), partial)
        if not considered:
            layout = Layout(dp=request.island.gpus)
            reason = f"{self.name} has no strategy for {request.island.gpus} GPUs under what was fixed"
            return Answer((), (Rejection(layout, reason),), 1, 0, exact=False)
        considered += sum(bool(partial.runs) for partial in found.values())
        answered = undominated(request, list(found.values()))
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
        return partial_of(request, menu, cuts, [[(low, high, index)] for low, high in pairwise(cuts)])

    def reprice(self, request: Request, partial: PartialPlan) -> PartialPlan:
        """Price a layout, or runs and inner cuts; the outer runs are adapted to the ends of the slice."""
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
        return partial_of(request, menu, cuts, stages)

    def _index(self, menu: Menu, layout: Layout) -> int:
        if layout not in menu.layouts:
            raise InfeasibleError(f"{layout} is none of the strategies of {self.name} here")
        return menu.layouts.index(layout)

    def _menu(self, request: Request, depth: int) -> Menu:
        island = request.island
        key = (
            request.slice.model,
            island,
            request.job,
            request.microbatch,
            request.constraints,
            request.hwdb.edition,
            depth,
        )
        if key not in self._menus:
            layouts = self.strategies(request, inner_gpus(request, depth))
            self._menus[key] = menu_of(request, depth, layouts)
            if len(self._menus) > _MENUS:
                self._menus.popitem(last=False)
        return self._menus[key]

    def _best(self, request: Request, menu: Menu) -> Iterator[PartialPlan]:
        """Yields the best plan for each number of stages behind, as far as the model has atoms."""
        atoms, part = request.slice.model.layers + 2, request.slice
        outside = len(part) if holds_whole_depth(request.job.schedule) else part.stop
        most = min(atoms - outside, request.microbatches - 1)
        behind = 0
        while behind <= most:
            arranged = self.arrange(request, menu, behind)
            if arranged is None:
                return
            partial = partial_of(request, menu, *arranged)
            if partial.stages_behind >= 0:
                yield partial
            if partial.slowest_s > request.pace_s:  # with more behind it only becomes slower
                return
            behind = max(behind, partial.stages_behind) + 1

    def arrange(
        self, request: Request, menu: Menu, behind: int
    ) -> tuple[tuple[int, ...], list[tuple[Run, ...]]] | None:
        """(inner cuts, runs of every inner stage) with `behind` stages behind; None: nothing fits."""
        cuts = self.cuts(request, menu, behind)
        stages = self.chosen(request, menu, cuts, behind) if cuts else None
        return None if cuts is None or stages is None else (cuts, stages)

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

        sides, room = menu.sides(start, stop), menu.capacity_bytes * ROOM
        switch_s = menu.switch_s if self.switches else np.full_like(menu.switch_s, np.inf)
        front_s = sides.front_s + sides.front_tail_s / microbatches
        front_bytes = sides.front_static + held * sides.front_activation
        p, q, blocks, _ = best_mix(
            front_s,
            front_bytes,
            sides.front_transient,
            back_s=sides.back_s + sides.back_tail_s / microbatches,
            back_bytes=sides.back_static + held * sides.back_activation,
            back_transient=sides.back_transient,
            switch_s=switch_s,
            capacity=room,
        )
        mixed: tuple[Run, ...] | None = None
        if p == q and p >= 0:
            mixed = ((start, stop, p),)
        elif p >= 0:
            cut = start + blocks + (start == 0)
            mixed = ((start, cut, p), (cut, stop, q))
        if not self.exact or front_s.shape[1] <= 2:
            return mixed
        choice = mixing.exact(self._program(menu, start, stop, held, microbatches))
        if not choice.strategies:
            return mixed
        runs, first = list[Run](), start
        for strategy, same in groupby(choice.strategies):
            end = first + len(list(same)) + (first == 0)
            runs.append((first, end, strategy))
            first = end
        runs[-1] = (runs[-1][0], stop, runs[-1][2])
        if mixed and _cost(menu, mixed, held, microbatches) <= _cost(menu, runs, held, microbatches):
            return mixed
        return tuple(runs)

    def _program(self, menu: Menu, start: int, stop: int, held: int, microbatches: int) -> MixingProblem:
        """The mixing problem over blocks of [start, stop); embedding and head are added to their neighbours.

        A run of n layers costs what its first layer adds to nothing and n - 1 times what a further layer
        adds: the difference of the two is charged at every switch.
        """
        sides, switch_s = menu.sides(start, stop), menu.switch_s.copy()
        front_s = sides.front_s + sides.front_tail_s / microbatches
        front_bytes = sides.front_static + held * sides.front_activation
        blocks = front_s.shape[1] - 1
        first = start + (start == 0)
        alone = menu.prices(first, first + 1)
        tail = (alone.gradient_sync_s + alone.optimizer_s) / microbatches
        further = front_s[:, 2] - front_s[:, 1] if blocks > 2 else np.zeros(len(front_s))
        opening = np.maximum(alone.forward_s + alone.backward_s + tail - further, 1e-6 * further)
        switch_s += np.where(np.eye(len(front_s), dtype=bool), 0.0, opening[None, :])
        transient = np.stack([menu.prices(atom, atom + 1).transient_bytes for atom in range(start, stop)])
        if start == 0:
            transient = np.concatenate([transient[:2].max(axis=0, keepdims=True), transient[2:]])
        if len(transient) > blocks:
            transient = np.concatenate([transient[:-2], transient[-2:].max(axis=0, keepdims=True)])
        room = menu.capacity_bytes * ROOM
        setting = menu.setting
        if menu.pricer.borrower(start, stop):
            # Both ends hold the shared matrix once: counted where it saves least, whatever the other end is.
            saved = state.copy_bytes(setting)
            front_bytes[:, -1] += saved - saved.min()
        return MixingProblem(np.diff(front_s).T, np.diff(front_bytes).T, transient, switch_s, room)

    def _too_large(self, request: Request, menu: Menu) -> Iterator[Rejection]:
        """Rejections of strategies that do not fit for all layers, even with nothing behind the slice."""
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
            yield Rejection(deep(menu.layouts[index], menu.depth), reason, size, capacity)


def useful_recompute(request: Request) -> tuple[str, ...]:
    """Kinds of recomputation that save memory: `selective` only where kernels store the attention scores."""
    fixed = request.slice.model, request.island, request.job, request.microbatch
    fused = Setting(*fixed, (), request.hwdb).rates.fused_attention
    return ("none", "full") if fused else ("none", "selective", "full")


def sharded_layouts(
    request: Request, gpus: int, chosen: Callable[[Sequence[int]], Iterable[int]]
) -> Iterator[tuple[Layout, Sequence[int]]]:
    """Yields (layout, possible expert degrees) for TP x DP x EP x ZeRO x recomputation over all of `gpus`.

    With sequence parallelism where allowed. `chosen` selects from the possible expert degrees.
    """
    model, job = request.slice.model, request.job
    kinds = useful_recompute(request)
    for tp in divisors(gpus):
        dp = gpus // tp
        sharded = tp > 1 and job.seq % tp == 0 and request.constraints.sequence_parallel is not False
        possible = expert_degrees(model, dp)
        for ep in chosen(possible):
            for zero in range(4) if dp > 1 else (0,):
                for kind in kinds:
                    yield (
                        Layout(
                            tp,
                            dp,
                            cp=1,
                            ep=ep,
                            pp=1,
                            zero_stage=zero,
                            recompute=kind,
                            sequence_parallel=sharded,
                        ),
                        possible,
                    )


def _cost(menu: Menu, runs: Sequence[Run], held: int, microbatches: int) -> float:
    """Seconds of a microbatch plus its share of gradient sync and optimizer; inf where it does not fit."""
    stage = menu.stage(runs)
    if stage.in_flight_limit() < held:
        return float("inf")
    tail = stage.gradient_sync_s + stage.optimizer_s
    return stage.forward_s + stage.backward_s + tail / microbatches

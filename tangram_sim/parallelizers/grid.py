"""The `grid` parallelizer: every layout that slice and island allow, priced and filtered to a Pareto set.

Degrees TP x DP x CP x EP, ZeRO 0-3, recompute none/selective/full, sequence parallelism, and inner pipelines
inside one scale-up domain. All layouts of an island are priced together (`Pricer`), so a further slice on the
same island costs microseconds.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.collectives import transfer_s
from tangram_sim.cost.device import Rates
from tangram_sim.errors import InfeasibleError
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Parallelizer, Rejection, Rejections, Request
from tangram_sim.parallelizers.grid_layouts import LawfulLayouts, lawful_layouts
from tangram_sim.parallelizers.grid_prices import DepthLayouts, PricedSlices, price_slices
from tangram_sim.training.plan import PartialPlan, StagePrice
from tangram_sim.training.stage.setting import Setting
from tangram_sim.units import show_bytes

_TOGETHER = 64  # slices priced at once: their columns stay in cache
_MENUS = 128  # (island part, microbatch) pairs whose layouts stay priced: those asked about last
_PLAYED = 4  # of these, whose programs and plays stay: tens of MB each


@dataclass
class _Menu:
    """Layouts and prices of one (part of an) island for one microbatch size, for any slice."""

    families: list[DepthLayouts]
    refused: int  # layouts that break a law; which, and why
    objections: Callable[[], list[tuple[Layout, str]]]
    capacity_bytes: float
    rates: Rates
    answers: dict[tuple[object, ...], "_Kept"] = field(default_factory=dict)  # by slice signature


@dataclass(frozen=True, slots=True)
class _Kept:
    """Cached part of an answer: the Pareto set without pace limit, for the first slice of its kind."""

    partials: tuple[PartialPlan, ...]
    feasible: int


class Grid(Parallelizer):
    """Grid: exhaustive search of the layout space; exact."""

    name = "grid"
    heeds_pace = False

    def __init__(self) -> None:
        self.menus = _MENUS
        self._menus: OrderedDict[tuple[int, object], _Menu] = OrderedDict()
        self._lawful: OrderedDict[tuple[int, object], LawfulLayouts] = OrderedDict()  # not asked about yet
        self._last: tuple[Request, _Menu] | None = None

    def parallelize(self, request: Request) -> Answer:
        """The Pareto set over (seconds, forward seconds, tail, stages behind); rejections include figures."""
        return self.parallelize_many([request])[0]

    def parallelize_many(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers for many slices on one part of an island, priced together."""
        first = requests[0]
        try:
            menu = self._menu(first)
        except InfeasibleError as error:
            reason = str(error)
            nothing = Rejections(1, lambda: [Rejection(Layout(dp=first.island.gpus), reason)])
            return [Answer((), nothing, 1, 0) for _ in requests]
        keys = [(request.slice.signature, request.job.schedule, request.microbatches) for request in requests]
        asked = {
            key: request.slice for key, request in zip(keys, requests, strict=True) if key not in menu.answers
        }
        for begin in range(0, len(asked), _TOGETHER):
            some = list(asked.items())[begin : begin + _TOGETHER]
            kept = self._kept(first, menu, [item for _, item in some])
            menu.answers.update(zip([key for key, _ in some], kept, strict=True))
        return [
            self._answer(request, menu, menu.answers[key])
            for key, request in zip(keys, requests, strict=True)
        ]

    def _answer(self, request: Request, menu: _Menu, kept: _Kept) -> Answer:
        partials = tuple(
            _moved(partial, request.slice.start)
            for partial in kept.partials
            if partial.slowest_s <= request.pace_s
        )
        considered = menu.refused + sum(len(family.layouts) for family in menu.families)
        return Answer(
            partials=partials,
            rejected=Rejections(considered - kept.feasible, lambda: self._rejections(request, menu)),
            considered=considered,
            dominated=kept.feasible - len(partials),
        )

    def _kept(self, request: Request, menu: _Menu, slices: Sequence[Slice]) -> list[_Kept]:
        """The Pareto sets of these slices; prices of other layouts are discarded."""
        if not menu.families:
            return [_Kept((), 0) for _ in slices]
        priced = self._priced(request, menu, slices)
        found: list[list[PartialPlan]] = [[] for _ in slices]
        at, row = np.nonzero(priced.best())
        number = np.searchsorted(priced.first_row, row, side="right") - 1
        column = row - np.array(priced.first_row)[number]
        behind = priced.behind[at, row]
        for item, family in enumerate(menu.families):
            own = np.flatnonzero(number == item)
            stages = priced.all_stages(item, at[own], column[own], menu.rates)
            for place, kept, fits, (cuts, prices) in zip(
                at[own].tolist(), column[own].tolist(), behind[own].tolist(), stages, strict=True
            ):
                found[place].append(_partial(request, family, kept, cuts, prices, fits))
        feasible = (priced.behind >= 0).sum(axis=1).tolist()
        return [_Kept(tuple(some), count) for some, count in zip(found, feasible, strict=True)]

    def price(self, request: Request, layout: Layout) -> PartialPlan:
        """Price one layout, dominated or not; `stages_behind` is -1 when it does not fit."""
        menu = self._menu(request)
        for rejected, reason in menu.objections():
            if rejected == layout:
                raise InfeasibleError(f"{layout}: {reason}")
        for number, family in enumerate(menu.families):
            if layout in family.layouts and family.depth <= len(request.slice):
                priced = self._priced(request, menu, [request.slice])
                column = family.layouts.index(layout)
                behind = int(priced.behind[0, priced.first_row[number] + column])
                return _partial(
                    request, family, column, *priced.stages_of(number, 0, column, menu.rates), behind
                )
        raise InfeasibleError(
            f"{layout} occupies {layout.gpus} GPUs or cuts the slice in a way that {request.island.name} "
            f"({request.island.gpus} GPUs, {len(request.slice)} atoms) does not allow"
        )

    def least_seconds(self, request: Request) -> NDArray[np.float64]:
        """Compute time of the best layout for each atom; for blocks, of layouts that hold any block."""
        try:
            menu = self._menu(request)
        except InfeasibleError:
            return super().least_seconds(request)
        per_sequence = request.island.gpus / request.microbatch
        costs = [
            family.pricer.compute_s.min(axis=1) * per_sequence / family.depth for family in menu.families
        ]
        able = [
            cost
            for cost, depth_layouts in zip(costs, menu.families, strict=True)
            if depth_layouts.block_bytes is None
        ]
        if not able:
            return super().least_seconds(request)
        found = np.min(able, axis=0)
        outer = [0, -1]  # the embedding or the head may be a stage alone, under layouts that hold no block
        found[outer] = np.min(costs, axis=0)[outer]
        return np.asarray(found)

    def _menu(self, request: Request) -> _Menu:
        last = self._last
        if last is not None and last[0].alike(request):
            return last[1]
        part = (
            request.slice.model,
            request.island,
            request.job,
            request.constraints,
            request.hwdb.edition,
        )
        key = request.microbatch, part
        if key not in self._menus:
            self._menus[key] = self._build(request, part)
            if len(self._menus) > self.menus:
                self._menus.popitem(last=False)
        self._menus.move_to_end(key)
        if len(self._menus) > _PLAYED:
            for family in next(islice(reversed(self._menus.values()), _PLAYED, None)).families:
                family.pricer.forget_plays()
        self._last = request, self._menus[key]
        return self._menus[key]

    def _build(self, request: Request, part: object) -> _Menu:
        island, size = request.island, request.microbatch
        rates = Setting(request.slice.model, island, request.job, size, (), request.hwdb).rates
        if (size, part) not in self._lawful:
            found = lawful_layouts(request, rates)
            self._lawful.update({(other, part): lawful for other, lawful in found.items()})
        lawful = self._lawful.pop((size, part))
        while len(self._lawful) > self.menus:
            self._lawful.popitem(last=False)
        menu = _Menu([], lawful.refused, lawful.objections, rates.usable_memory_bytes, rates)
        for sized in lawful.depths:
            ranks = island.gpus // sized.depth
            rate = island.intra.bytes_per_s * request.hwdb.link_efficiency(island.intra).value * ranks
            hop_s = (
                transfer_s(request.boundary_bytes, rate, island.intra.latency_s) if sized.depth > 1 else 0.0
            )
            block = sized.lightest_block_bytes()
            for able in (True, False):
                chosen = np.flatnonzero((block <= menu.capacity_bytes) == able)
                if len(chosen):
                    kept, pricer = sized.pricer(chosen)
                    lightest = None if able else block[chosen]
                    menu.families.append(DepthLayouts(sized.depth, kept, pricer, hop_s, lightest))
        return menu

    def _priced(self, request: Request, menu: _Menu, slices: Sequence[Slice]) -> PricedSlices:
        return price_slices(request, menu.families, slices, menu.capacity_bytes, menu.rates)

    def _rejections(self, request: Request, menu: _Menu) -> list[Rejection]:
        priced = self._priced(request, menu, [request.slice])
        found = [Rejection(layout, reason) for layout, reason in menu.objections()]
        for number, family in enumerate(menu.families):
            if family.depth > len(request.slice):
                few = f"but the slice has only {len(request.slice)} atoms to cut"
                reason = f"pp={family.depth} inner stages, {few}"
                found += [Rejection(layout, reason) for layout in family.layouts]
                continue
            for column, layout in enumerate(family.layouts):
                row = priced.first_row[number] + column
                if priced.behind[0, row] < 0:
                    needed = float(priced.needed[0, row])
                    found.append(
                        Rejection(
                            layout,
                            f"needs {show_bytes(needed)} per GPU, {show_bytes(menu.capacity_bytes)} usable",
                            needed,
                            menu.capacity_bytes,
                        )
                    )
        return found


def _partial(
    request: Request,
    family: DepthLayouts,
    column: int,
    cuts: tuple[int, ...],
    stages: tuple[StagePrice, ...],
    behind: int,
) -> PartialPlan:
    """The partial plan of one layout of a family on the slice between these cuts."""
    return PartialPlan(
        start=cuts[0],
        stop=cuts[-1],
        island=request.island.name,
        nodes=request.island.nodes,
        layout=family.layouts[column],
        microbatch=request.microbatch,
        cuts=cuts,
        stages=stages,
        hop_s=family.hop_s,
        stages_behind=behind,
        boundary_bytes=request.boundary_bytes,
        measured=request.island.gpu.measured,
    )


def _moved(partial: PartialPlan, start: int) -> PartialPlan:
    """The partial plan of an equal slice that starts at another atom."""
    if partial.start == start:
        return partial
    shift = start - partial.start
    cuts = tuple(cut + shift for cut in partial.cuts)
    return replace(partial, start=start, stop=partial.stop + shift, cuts=cuts)

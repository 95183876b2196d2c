"""The `mist` parallelizer: recomputation and ZeRO per stage, with overlapping synchronisation.

Zhu et al., "Mist: Efficient Distributed Training of Large Language Models via Memory-Parallelism
Co-Optimization", EuroSys 2025, arXiv:2503.19050: number of recomputed layers, ZeRO, degrees. A plan cannot
express offloading, which is left out. Formulation: docs/models/mist.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers import interstage
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.assembly import held_in, partial_of
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.parallelizers.layerwise import LayerWise, sharded_layouts
from tangram_sim.parallelizers.menu import Menu, Run
from tangram_sim.training.plan import PartialPlan
from tangram_sim.training.schedules import holding, holds_whole_depth

MOST_POLICIES = 30  # kept for one stage
WINDOW = 2  # atoms by which an inner boundary may leave its balanced place
_ANSWERS = 2048


class Policies(NamedTuple):
    """Pareto-optimal ways to run one inner stage by t, d and limit; columns of equal length."""

    seconds: Floats  # t: forward and backward of a microbatch
    extra: Floats  # d: gradient synchronisation and optimizer, once per step
    limit: NDArray[np.int64]  # microbatches in flight that fit
    saving: NDArray[np.int64]  # strategy of the blocks in front
    plain: NDArray[np.int64]  # and of the rest
    blocks: NDArray[np.int64]  # blocks in front

    def at(self, rows: NDArray[np.int64]) -> "Policies":
        """The policies at the indices `rows`."""
        return Policies(
            self.seconds[rows],
            self.extra[rows],
            self.limit[rows],
            self.saving[rows],
            self.plain[rows],
            self.blocks[rows],
        )


class Mist(LayerWise):
    """Mist: degrees, ZeRO and number of recomputed layers, as Pareto points of (t, d, memory) per stage."""

    name = "mist"

    def __init__(self) -> None:
        super().__init__()
        self._policies: dict[tuple[object, ...], tuple[Menu, Policies]] = {}
        self._pipelines: dict[tuple[object, ...], tuple[Menu, interstage.StageCuts | None]] = {}

    def strategies(self, request: Request, gpus: int) -> Iterator[Layout]:
        """TP x DP x ZeRO, each without and with recomputation; experts whole or spread to the maximum."""
        ends = sharded_layouts(request, gpus, lambda possible: dict.fromkeys((possible[0], possible[-1])))
        return (layout for layout, _ in ends)

    def policies(self, menu: Menu, start: int, stop: int, most: int) -> Policies:
        """Pareto points of one inner stage; `most` is the largest number of microbatches in flight."""
        key = (id(menu), Slice(menu.setting.model, start, stop).signature, most)
        if key not in self._policies:
            if len(self._policies) >= _ANSWERS:
                self._policies.clear()
            self._policies[key] = (menu, _policies(menu, start, stop, most))  # the menu stays, so its id does
        return self._policies[key][1]

    def _best(self, request: Request, menu: Menu) -> Iterator[PartialPlan]:
        """Every Pareto point of a single stage; for inner pipelines the best for each number behind."""
        start, stop = request.slice.start, request.slice.stop
        most = holding(request.job.schedule, request.microbatches).everywhere
        if menu.depth == 1:
            found = self.policies(menu, start, stop, most)
            for index in range(len(found.seconds)):
                partial = partial_of(request, menu, (start, stop), [_runs(found, index, start, stop)])
                if partial.stages_behind >= 0:
                    yield partial
            return
        outside = len(request.slice) if holds_whole_depth(request.job.schedule) else stop
        furthest = min(request.slice.model.layers + 2 - outside, request.microbatches - 1)
        behind = 0
        while behind <= furthest:
            pipeline = self._pipeline(request, menu, behind, most)
            if pipeline is None:
                return
            stages = []
            for held, (low, high, index) in zip(
                held_in(request, menu.depth, behind), pipeline.stages, strict=True
            ):
                stages.append(_runs(_holding(self.policies(menu, low, high, most), held), index, low, high))
            cuts = (start, *(high for _, high, _ in pipeline.stages))
            partial = partial_of(request, menu, cuts, stages)
            if partial.stages_behind >= 0:
                yield partial
            behind = max(behind, partial.stages_behind) + 1

    def _pipeline(self, request: Request, menu: Menu, behind: int, most: int) -> interstage.StageCuts | None:
        start, stop = request.slice.start, request.slice.stop
        held = held_in(request, menu.depth, behind)
        key = (id(menu), request.slice.signature, start, tuple(held), most, request.microbatches)
        if key not in self._pipelines:
            if len(self._pipelines) >= _ANSWERS:
                self._pipelines.clear()
            usual = balanced_cuts(menu.pricer, start, stop, menu.depth)
            bounds = [
                {start}
                if place == 0
                else {stop}
                if place == menu.depth
                else set(range(max(start + place, cut - WINDOW), min(stop, cut + WINDOW + 1)))
                for place, cut in enumerate(usual)
            ]
            stages = []
            for place, flying in enumerate(held):
                options = {}
                for low in bounds[place]:
                    for high in bounds[place + 1]:
                        if low < high:
                            able = _holding(self.policies(menu, low, high, most), flying)
                            options[low, high] = (able.seconds, able.extra)
                stages.append(options)
            found = interstage.choose(stages, start, stop, request.microbatches)
            self._pipelines[key] = (menu, found)
        return self._pipelines[key][1]


def _runs(policies: Policies, index: int, start: int, stop: int) -> tuple[Run, ...]:
    """The runs of one policy, with the recomputing blocks in front."""
    front = int(policies.blocks[index])
    cut = start + front + (start == 0) if front else start
    saving, plain = int(policies.saving[index]), int(policies.plain[index])
    if plain < 0:
        return ((start, stop, saving),)
    return ((start, cut, saving), (cut, stop, plain)) if front else ((start, stop, plain),)


def _holding(policies: Policies, held: int) -> Policies:
    """Pareto points, by t and d alone, of the policies that fit with `held` microbatches in flight."""
    able = np.flatnonzero(policies.limit >= held)
    return policies.at(able[_undominated(policies.seconds[able], policies.extra[able])])


def _undominated(*criteria: NDArray[np.float64]) -> NDArray[np.int64]:
    from tangram_sim.parallelizers.kernels import pareto

    if not len(criteria[0]):
        return np.zeros(0, dtype=np.int64)
    costs = np.column_stack(criteria).astype(np.float64)
    return np.flatnonzero(pareto(costs, np.ones(len(costs), dtype=bool)))


def _policies(menu: Menu, start: int, stop: int, most: int) -> Policies:
    """All (strategy, number of layers that recompute) of a stage, reduced to Pareto points."""
    sides = menu.sides(start, stop)
    whole = sides.front_s.shape[1] - 1  # blocks; where there are none, front and back are both everything
    columns: list[NDArray[np.float64]] = []

    def add(saving: int, plain: int, blocks: NDArray[np.int64]) -> None:
        front = np.array([saving >= 0 and (n > 0 or plain < 0) for n in blocks], dtype=np.float64)
        back = np.array([plain >= 0 and (n < whole or saving < 0) for n in blocks], dtype=np.float64)
        f, b = max(saving, 0), max(plain, 0)

        def both(ahead: Floats, behind: Floats) -> Floats:
            return np.asarray(front * ahead[f, blocks] + back * behind[b, blocks])

        static = both(sides.front_static, sides.back_static)
        activation = both(sides.front_activation, sides.back_activation)
        transient = np.maximum(
            front * sides.front_transient[f, blocks], back * sides.back_transient[b, blocks]
        )
        free = np.maximum(menu.capacity_bytes - static - transient, 0.0) * (1 - 1e-12)
        limit = np.minimum(np.floor(free / np.maximum(activation, 1.0)), most)
        seconds = both(sides.front_s, sides.back_s)
        extra = both(sides.front_tail_s, sides.back_tail_s)
        rows = np.column_stack(
            [seconds, extra, limit, np.full(len(blocks), saving), np.full(len(blocks), plain), blocks]
        )
        columns.append(rows[limit >= 1])

    item = np.ones(1, dtype=np.int64)
    for index, layout in enumerate(menu.layouts):
        if layout.recompute == "none":
            add(-1, index, 0 * item)
            continue
        add(index, -1, whole * item)
        plain = replace(layout, recompute="none")
        if plain in menu.layouts and whole > 1:
            add(index, menu.layouts.index(plain), np.arange(1, whole))
    table = np.concatenate(columns) if columns else np.zeros((0, 6))
    table = table[_undominated(table[:, 0], table[:, 1], -table[:, 2])]
    if len(table) > MOST_POLICIES:
        table = table[_spread(table)]
    limit, saving, plain, blocks = table[:, 2:].astype(np.int64).T
    return Policies(table[:, 0], table[:, 1], limit, saving, plain, blocks)


def _spread(table: Floats) -> NDArray[np.int64]:
    """Indices of at most `MOST_POLICIES` points: the fastest of each limit first, spread over limits."""
    order = np.lexsort((table[:, 0], table[:, 2]))
    fastest = order[np.concatenate([[True], np.diff(table[order, 2]) > 0])]
    if len(fastest) > MOST_POLICIES:
        return np.asarray(fastest[np.linspace(0, len(fastest) - 1, MOST_POLICIES).round().astype(np.int64)])
    others = np.setdiff1d(np.arange(len(table)), fastest)
    others = others[np.argsort(table[others, 0], kind="stable")][: MOST_POLICIES - len(fastest)]
    return np.sort(np.concatenate([fastest, others]))

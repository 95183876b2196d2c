"""The `grid` parallelizer: every layout the slice and the island allow, priced and filtered to a Pareto set.

Degrees TP x DP x CP x EP, ZeRO 0-3, recompute none/selective/full, sequence parallelism, and inner pipelines
inside one scale-up domain. All layouts of an island are priced together (`Pricer`), so a further slice on
the same island costs microseconds.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.cost.collectives import transfer_s
from tangram_sim.cost.device import Rates
from tangram_sim.errors import InfeasibleError
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Parallelizer, Rejection, Rejections, Request
from tangram_sim.parallelizers.layouts import divisors, layouts, objection
from tangram_sim.training.plan import UNLIMITED, PartialPlan, passage
from tangram_sim.training.schedules import counted_beside, holding, in_flight
from tangram_sim.training.stage import state
from tangram_sim.training.stage.prices import stage_price
from tangram_sim.training.stage.pricing import Pricer, SlicePrices
from tangram_sim.training.stage.setting import Setting
from tangram_sim.units import show_bytes

_MENUS = 128  # (island part, microbatch) pairs whose layouts stay priced


@dataclass
class _Family:
    """Layouts of one inner pipeline depth, and the pricer of one of its stages.

    `block_bytes` is set for layouts that cannot hold even the lightest block: slices with blocks need
    not be played under them, and on models much larger than a GPU that is most layouts.
    """

    depth: int
    layouts: tuple[Layout, ...]
    pricer: Pricer
    hop_s: float
    block_bytes: NDArray[np.float64] | None


@dataclass
class _Menu:
    """What one (part of an) island offers for one microbatch, whatever the slice."""

    families: list[_Family]
    objections: list[tuple[Layout, str]]
    capacity_bytes: float
    rates: Rates
    answers: dict[tuple[object, ...], "_Priced"] = field(default_factory=dict)


@dataclass(frozen=True)
class _Priced:
    """All layouts of a menu on one slice signature; columns over (family, layout)."""

    rows: NDArray[np.int64]  # (rows, 2): family, index in family
    inner: list[list[SlicePrices]]  # per family, per inner stage; empty where the family holds no block
    cuts: list[tuple[int, ...]]  # per family, atoms relative to the slice's start
    behind: NDArray[np.int64]  # most stages behind, -1 never
    needed: NDArray[np.float64]  # bytes of the fullest inner stage with nothing behind the slice
    costs: NDArray[np.float64]  # (rows, criteria): slowest stage first
    short: list[int]  # families with more inner stages than the slice has atoms


class Grid(Parallelizer):
    """Exhaustive over its layout space; exact."""

    name = "grid"

    def __init__(self) -> None:
        self._menus: OrderedDict[tuple[object, ...], _Menu] = OrderedDict()

    def parallelize(self, request: Request) -> Answer:
        """The Pareto set over (seconds, forward seconds, tail, stages behind); rejections carry numbers."""
        try:
            menu = self._menu(request)
        except InfeasibleError as error:
            reason = str(error)
            return Answer(
                (), Rejections(1, lambda: [Rejection(Layout(dp=request.island.gpus), reason)]), 1, 0
            )
        priced = self._priced(request, menu)
        partials = tuple(self._partial(request, menu, priced, row) for row in _best(priced, request.pace_s))
        feasible = int((priced.behind >= 0).sum())
        short = sum(len(menu.families[number].layouts) for number in priced.short)
        considered = len(priced.rows) + short + len(menu.objections)
        return Answer(
            partials=partials,
            rejected=Rejections(considered - feasible, lambda: self._rejections(menu, priced)),
            considered=considered,
            dominated=feasible - len(partials),
        )

    def price(self, request: Request, layout: Layout) -> PartialPlan:
        """Price one layout, dominated or not; `stages_behind` is -1 when it does not fit."""
        menu = self._menu(request)
        for rejected, reason in menu.objections:
            if rejected == layout:
                raise InfeasibleError(f"{layout}: {reason}")
        priced = self._priced(request, menu)
        for index, (family, column) in enumerate(priced.rows.tolist()):
            if menu.families[family].layouts[column] == layout:
                return self._partial(request, menu, priced, index)
        raise InfeasibleError(
            f"{layout} occupies {layout.gpus} GPUs or cuts the slice in a way that {request.island.name} "
            f"({request.island.gpus} GPUs, {len(request.slice)} atoms) does not allow"
        )

    def _menu(self, request: Request) -> _Menu:
        key = (
            request.slice.model,
            request.island,
            request.job,
            request.microbatch,
            request.constraints,
            request.hwdb.edition,
        )
        if key not in self._menus:
            self._menus[key] = self._build(request)
            if len(self._menus) > _MENUS:
                self._menus.popitem(last=False)
        return self._menus[key]

    def _build(self, request: Request) -> _Menu:
        island, model, job = request.island, request.slice.model, request.job
        rates = Setting(model, island, job, request.microbatch, (), request.hwdb).rates
        menu = _Menu([], [], rates.usable_memory_bytes, rates)
        admitted: dict[int, list[Layout]] = {}
        copies = request.constraints.copies if island.gpus % request.constraints.copies == 0 else 1
        for layout in layouts(model, island.gpus, _inner_depths(island), copies):
            if not request.constraints.allows(layout, request.microbatch):
                continue
            reason = objection(model, job, layout, request.microbatch, rates.fused_attention)
            if reason:
                menu.objections.append((layout, reason))
            else:
                admitted.setdefault(layout.pp, []).append(layout)
        for depth, found in sorted(admitted.items()):
            part = island if depth == 1 else island.part(island.nodes, island.gpus_per_node // depth)
            single = tuple(_without_pipeline(layout) for layout in found)
            setting = Setting(model, part, job, request.microbatch, single, request.hwdb)
            ranks = island.gpus // depth
            rate = island.intra.bytes_per_s * request.hwdb.link_efficiency(island.intra).value * ranks
            hop = transfer_s(request.boundary_bytes, rate, island.intra.latency_s) if depth > 1 else 0.0
            block = _lightest_block_bytes(setting)
            for able in (True, False):
                chosen = np.flatnonzero((block <= menu.capacity_bytes) == able).tolist()
                if chosen:
                    some = replace(setting, layouts=tuple(single[column] for column in chosen))
                    kept = tuple(found[column] for column in chosen)
                    menu.families.append(
                        _Family(depth, kept, Pricer(some), hop, None if able else block[chosen])
                    )
        return menu

    def _priced(self, request: Request, menu: _Menu) -> _Priced:
        schedule, microbatches = request.job.schedule, request.microbatches
        key = (request.slice.signature, schedule, microbatches)
        if key not in menu.answers:
            menu.answers[key] = self._price_all(request, menu)
        return menu.answers[key]

    def _price_all(self, request: Request, menu: _Menu) -> _Priced:
        start, stop = request.slice.start, request.slice.stop
        rows: list[NDArray[np.int64]] = []
        inner: list[list[SlicePrices]] = []
        cuts: list[tuple[int, ...]] = []
        columns: list[NDArray[np.float64]] = []
        behind: list[NDArray[np.int64]] = []
        needed: list[NDArray[np.float64]] = []
        short: list[int] = []
        for number, family in enumerate(menu.families):
            columns_of = np.arange(len(family.layouts))
            own = np.column_stack([np.full(len(columns_of), number), columns_of])
            if family.block_bytes is not None and request.slice.layers[0] < request.slice.layers[1]:
                hopeless = np.full(len(family.layouts), -1)
                cuts.append(())
                inner.append([])
                rows.append(own)
                columns.append(np.zeros((len(hopeless), 4)))
                behind.append(hopeless)
                needed.append(family.block_bytes)
                continue
            bounds = balanced_cuts(family.pricer, start, stop, family.depth)
            cuts.append(tuple(bound - start for bound in bounds))
            stages = [family.pricer.price(low, high) for low, high in pairwise(bounds)]
            inner.append(stages)
            if len(stages) < family.depth:
                short.append(number)
                continue
            rows.append(own)
            columns.append(_criteria(stages, family.hop_s))
            # Inner stages that count beside each: those behind it, or all others where the schedule says so.
            inner_others = counted_beside(request.job.schedule, family.depth)
            fits = [
                _most_behind(request, stage, menu.capacity_bytes, menu.rates.fragmentation, inner)
                for inner, stage in zip(inner_others, stages, strict=True)
            ]
            behind.append(np.min(fits, axis=0))
            least = [
                _least_bytes(request, stage, menu.rates.fragmentation, inner)
                for inner, stage in zip(inner_others, stages, strict=True)
            ]
            needed.append(np.max(least, axis=0))
        if not rows:
            empty = np.zeros(0)
            none = np.zeros((0, 2), dtype=np.int64)
            return _Priced(none, inner, cuts, empty.astype(np.int64), empty, np.zeros((0, 6)), short)
        limit, every = np.concatenate(behind), np.concatenate(rows)
        depth = np.array([family.depth for family in menu.families], dtype=np.float64)[every[:, 0]]
        costs = np.column_stack([np.concatenate(columns), depth, -limit.astype(np.float64)])
        return _Priced(every, inner, cuts, limit, np.concatenate(needed), costs, short)

    def _partial(self, request: Request, menu: _Menu, priced: _Priced, index: int) -> PartialPlan:
        number, column = priced.rows[index].tolist()
        family, start = menu.families[number], request.slice.start
        cuts, inner = tuple(start + cut for cut in priced.cuts[number]), priced.inner[number]
        if not inner:  # somebody wants to see the price of what cannot fit
            cuts = balanced_cuts(family.pricer, start, request.slice.stop, family.depth)
            inner = [family.pricer.price(low, high) for low, high in pairwise(cuts)]
        return PartialPlan(
            start=start,
            stop=request.slice.stop,
            island=request.island.name,
            nodes=request.island.nodes,
            layout=family.layouts[column],
            microbatch=request.microbatch,
            cuts=cuts,
            stages=tuple(stage_price(stage, column, menu.rates) for stage in inner),
            hop_s=family.hop_s,
            stages_behind=int(priced.behind[index]),
            boundary_bytes=request.boundary_bytes,
            measured=request.island.gpu.measured,
        )

    def _rejections(self, menu: _Menu, priced: _Priced) -> list[Rejection]:
        found = [Rejection(layout, reason) for layout, reason in menu.objections]
        for index in np.flatnonzero(priced.behind < 0):
            number, column = priced.rows[index].tolist()
            needed = float(priced.needed[index])
            found.append(
                Rejection(
                    menu.families[number].layouts[column],
                    f"needs {show_bytes(needed)} per GPU, {show_bytes(menu.capacity_bytes)} usable",
                    needed,
                    menu.capacity_bytes,
                )
            )
        for number in priced.short:
            family, atoms = menu.families[number], len(priced.inner[number])
            reason = f"pp={family.depth} inner stages, but the slice has only {atoms} atoms to cut"
            found += [Rejection(layout, reason) for layout in family.layouts]
        return found


def _best(priced: _Priced, pace_s: float) -> list[int]:
    """Rows that fit, keep the pace, and are dominated by no other such row."""
    from tangram_sim.parallelizers.kernels import pareto

    able = np.flatnonzero((priced.behind >= 0) & (priced.costs[:, 0] <= pace_s))
    # Equal slices are sums over different prefixes: their last digits must not decide.
    mantissa, exponent = np.frexp(priced.costs[able])
    costs = np.ldexp(np.round(mantissa, 12), exponent)
    kept: list[int] = able[pareto(costs, np.ones(len(able), dtype=bool))].tolist()
    return kept


def _lightest_block_bytes(setting: Setting) -> NDArray[np.float64]:
    """Per layout, bytes that the lightest block of the model takes with one microbatch in flight."""
    held = [state.held(setting, block) for block in dict.fromkeys(setting.model.blocks)]
    factor = 1.0 + setting.rates.fragmentation
    bytes_of = np.stack([one.static + factor * (one.activation + one.transient) for one in held])
    lightest: NDArray[np.float64] = bytes_of.min(axis=0)
    return lightest


def _inner_depths(island: Island) -> tuple[int, ...]:
    """Inner pipeline depths: divisors of a node's GPUs, on one node only, so nothing is counted twice."""
    return divisors(island.gpus_per_node) if island.nodes == 1 else (1,)


def _without_pipeline(layout: Layout) -> Layout:
    return Layout(
        layout.tp,
        layout.dp,
        layout.cp,
        layout.ep,
        1,
        layout.zero_stage,
        layout.recompute,
        layout.sequence_parallel,
    )


def _criteria(stages: Sequence[SlicePrices], hop_s: float) -> NDArray[np.float64]:
    """What the composition compares: slowest stage, latency, forward latency, closing. (K, 4)."""
    slowest = np.max([stage.forward_s + stage.backward_s for stage in stages], axis=0)
    forward = [stage.forward_s for stage in stages]
    backward = [stage.backward_s for stage in stages]
    tail = [stage.gradient_sync_s + stage.optimizer_s for stage in stages]
    return np.column_stack([slowest, *passage(forward, backward, tail, hop_s)])


def _most_behind(
    request: Request, stage: SlicePrices, capacity: float, fragmentation: float, inner_behind: int
) -> NDArray[np.int64]:
    """Per layout, the most stages behind the whole partial plan at which this inner stage fits; -1 never.

    For a schedule that holds as many microbatches as the pipeline is deep: the most other stages.
    """
    free = (capacity - stage.static_bytes) / (1.0 + fragmentation) - stage.transient_bytes
    limit = np.floor(np.where(free > 0, free, 0.0) / np.maximum(stage.activation_bytes, 1.0))
    limit = np.minimum(limit, UNLIMITED).astype(np.int64)
    return holding(request.job.schedule, request.microbatches).most_behind_each(limit, inner_behind)


def _least_bytes(
    request: Request, stage: SlicePrices, fragmentation: float, inner_behind: int
) -> NDArray[np.float64]:
    """Per layout, bytes of an inner stage when no other stage stands behind the slice."""
    held = in_flight(request.job.schedule, inner_behind, inner_behind + 1, 1, request.microbatches)
    activations = held * stage.activation_bytes + stage.transient_bytes
    return stage.static_bytes + (1.0 + fragmentation) * activations


def balanced_cuts(pricer: Pricer, start: int, stop: int, depth: int) -> tuple[int, ...]:
    """Cut atoms [start, stop) into `depth` runs whose slowest is as fast as possible (first layout's times).

    Returns the boundaries, start and stop included; fewer runs when there are fewer atoms.
    """
    depth = min(depth, stop - start)
    if depth == 1:
        return (start, stop)
    weights = pricer.atom_seconds[start:stop]
    low, high = float(weights.max()), float(weights.sum())
    best = _greedy(weights, high, depth)
    for _ in range(30):
        middle = (low + high) / 2
        found = _greedy(weights, middle, depth)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    assert best is not None  # one run of everything always fits the sum
    return tuple(start + cut for cut in best)


def _greedy(weights: NDArray[np.float64], limit: float, depth: int) -> tuple[int, ...] | None:
    """Fill runs from the back up to `limit`, one atom left for each run in front; None if it takes more."""
    cuts = [len(weights)]
    for runs_in_front in range(depth - 1, -1, -1):
        stop, total = cuts[-1], 0.0
        begin = stop
        while begin > runs_in_front and total + weights[begin - 1] <= limit:
            begin -= 1
            total += weights[begin]
        if begin == stop:
            return None
        cuts.append(begin)
    return tuple(reversed(cuts)) if cuts[-1] == 0 else None

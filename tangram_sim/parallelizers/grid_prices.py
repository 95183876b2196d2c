"""Slices on one part of an island under all layouts of a menu, priced together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.device import Rates
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.training.plan import UNLIMITED, StagePrice, passage
from tangram_sim.training.schedules import counted_beside, holding, in_flight
from tangram_sim.training.stage.prices import stage_price, stage_prices
from tangram_sim.training.stage.pricing import Pricer, SlicePrices

# Slowest, latency, forward latency, closing, depth, stages behind (more is better), and the copies of a tied
# matrix that its ends on different stages exchange.
CRITERIA = 7


@dataclass
class DepthLayouts:
    """Layouts of one inner pipeline depth, and the pricer of one of its stages.

    `block_bytes` is set for layouts under which not even the lightest block fits: slices with blocks are not
    priced for them, and on models much larger than a GPU that is most layouts.
    """

    depth: int
    layouts: tuple[Layout, ...]
    pricer: Pricer
    hop_s: float
    block_bytes: NDArray[np.float64] | None

    def holds(self, asked: Slice) -> bool:
        """Whether a slice has enough atoms, and no blocks if not even one fits."""
        blocks = asked.layers[0] < asked.layers[1]
        return len(asked) >= self.depth and (self.block_bytes is None or not blocks)


@dataclass(frozen=True, slots=True)
class PricedSlices:
    """Prices of all layouts of a menu for several slices; rows number the layouts, family by family."""

    families: Sequence[DepthLayouts]
    slices: Sequence[Slice]
    first_row: list[int]  # of every family
    behind: NDArray[np.int64]  # (slices, rows): most stages behind, -1 never
    needed: NDArray[np.float64]  # (slices, rows): bytes of the fullest inner stage with nothing behind
    costs: NDArray[np.float64]  # (slices, rows, criteria), less is better
    places: list[dict[int, int]]  # per family: where a slice stands among those priced
    cuts: list[list[tuple[int, ...]]]  # per family, of those: boundaries of inner stages
    inner: list[list[SlicePrices]]  # per family, per inner stage: prices of those

    def best(self) -> NDArray[np.bool_]:
        """(slices, rows): mask of layouts that fit memory and are not dominated by another one that fits."""
        from tangram_sim.parallelizers.kernels import pareto_each

        # Equal slices are sums over different prefixes: their last digits must not decide.
        mantissa, exponent = np.frexp(self.costs)
        found: NDArray[np.bool_] = pareto_each(np.ldexp(np.round(mantissa, 12), exponent), self.behind >= 0)
        return found

    def stages_of(
        self, number: int, at: int, column: int, rates: Rates
    ) -> tuple[tuple[int, ...], tuple[StagePrice, ...]]:
        """Boundaries and prices of the inner stages of slice `at` under layout `column` of a family."""
        place = self.places[number].get(at)
        if place is not None:
            stages = tuple(
                stage_price(slice_prices, (place, column), rates) for slice_prices in self.inner[number]
            )
            return self.cuts[number][place], stages
        # Somebody wants to see the price of what cannot fit.
        family, asked = self.families[number], self.slices[at]
        cuts = balanced_cuts(family.pricer, asked.start, asked.stop, family.depth)
        prices = [family.pricer.price(low, high) for low, high in pairwise(cuts)]
        return cuts, tuple(stage_price(price, column, rates) for price in prices)

    def all_stages(
        self, number: int, at: NDArray[np.int64], columns: NDArray[np.int64], rates: Rates
    ) -> list[tuple[tuple[int, ...], tuple[StagePrice, ...]]]:
        """(boundaries, prices) as of `stages_of` for pairs of slices and layouts of a family that fit."""
        places = [self.places[number][item] for item in at.tolist()]
        own = np.array(places, dtype=np.int64)
        stages = [stage_prices(slice_prices, own, columns, rates) for slice_prices in self.inner[number]]
        cuts = [self.cuts[number][place] for place in places]
        return list(zip(cuts, zip(*stages, strict=True), strict=True)) if places else []


def price_slices(
    request: Request, families: Sequence[DepthLayouts], slices: Sequence[Slice], capacity: float, rates: Rates
) -> PricedSlices:
    """Price several slices on the request's part; the request's own slice is ignored."""
    counts = [len(family.layouts) for family in families]
    first_row = np.concatenate([[0], np.cumsum(counts)]).astype(int).tolist()
    shape = len(slices), first_row[-1]
    behind, needed = np.full(shape, -1), np.zeros(shape)
    costs = np.zeros((*shape, CRITERIA))
    places: list[dict[int, int]] = []
    all_cuts: list[list[tuple[int, ...]]] = []
    inner: list[list[SlicePrices]] = []
    for family, first, last in zip(families, first_row, first_row[1:], strict=False):
        rows = slice(first, last)
        if family.block_bytes is not None:
            needed[:, rows] = family.block_bytes
        able = [at for at, asked in enumerate(slices) if family.holds(asked)]
        places.append({at: place for place, at in enumerate(able)})
        cuts = [balanced_cuts(family.pricer, slices[at].start, slices[at].stop, family.depth) for at in able]
        all_cuts.append(cuts)
        if not able:
            inner.append([])
            continue
        every = family.pricer.price_many([pair for cut in cuts for pair in pairwise(cut)])
        stages = [every.of(slice(place, None, family.depth)) for place in range(family.depth)]
        inner.append(stages)
        # Inner stages that count beside each: those behind it, or all others where the schedule says so.
        others = counted_beside(request.job.schedule, family.depth)
        fits = [
            _most_behind(request, stage, capacity, rates.fragmentation, beside)
            for beside, stage in zip(others, stages, strict=True)
        ]
        least = [
            _least_bytes(request, stage, rates.fragmentation, beside)
            for beside, stage in zip(others, stages, strict=True)
        ]
        behind[able, rows] = np.min(fits, axis=0)
        needed[able, rows] = np.max(least, axis=0)
        costs[able, rows, :4] = _criteria(stages, family.hop_s)
        costs[:, rows, 4] = family.depth
        copies = np.array([layout.gradient_copies for layout in family.layouts])
        costs[:, rows, 6] = np.array([asked.lone_end for asked in slices])[:, None] * copies
    costs[:, :, 5] = -behind
    return PricedSlices(
        families, slices, first_row, behind, needed, costs, places=places, cuts=all_cuts, inner=inner
    )


def _criteria(stages: Sequence[SlicePrices], hop_s: float) -> NDArray[np.float64]:
    """(slices, K, 4): seconds of slowest stage, latency, forward latency, end with tail; to minimise."""
    slowest = np.max([stage.forward_s + stage.backward_s for stage in stages], axis=0)
    forward = [stage.forward_s for stage in stages]
    backward = [stage.backward_s for stage in stages]
    tail = [stage.gradient_sync_s + stage.optimizer_s for stage in stages]
    return np.stack([slowest, *passage(forward, backward, tail, hop_s)], axis=-1)


def _most_behind(
    request: Request, stage: SlicePrices, capacity: float, fragmentation: float, inner_behind: int
) -> NDArray[np.int64]:
    """Most stages behind the whole partial plan at which this inner stage fits, per layout; -1: never.

    For a schedule that holds as many microbatches as the pipeline is deep: the most other stages.
    """
    free = (capacity - stage.static_bytes) / (1.0 + fragmentation) - stage.transient_bytes
    limit = np.floor(np.where(free > 0, free, 0.0) / np.maximum(stage.activation_bytes, 1.0))
    limit = np.minimum(limit, UNLIMITED).astype(np.int64)
    return holding(request.job.schedule, request.microbatches).most_behind_each(limit, inner_behind)


def _least_bytes(
    request: Request, stage: SlicePrices, fragmentation: float, inner_behind: int
) -> NDArray[np.float64]:
    """Bytes of an inner stage per layout when no stage stands behind the slice."""
    held = in_flight(request.job.schedule, inner_behind, inner_behind + 1, 1, request.microbatches)
    activations = held * stage.activation_bytes + stage.transient_bytes
    return stage.static_bytes + (1.0 + fragmentation) * activations

"""Layouts of a part of an island under several microbatch sizes, lowered together.

A search asks about every divisor of the batch sooner or later, and lowering atoms costs about the same for
a thousand layouts as for a hundred: those of neighbouring sizes go into one setting.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.cost.device import Rates
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.laws import first_broken
from tangram_sim.parallelizers.layouts import divisors, layouts
from tangram_sim.training.stage.atom_prices import AtomPrices
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

_SIZES = 8  # lowered together: several times the length of arrays for about twice the time


@dataclass(frozen=True, slots=True)
class SizedLayouts:
    """Layouts of one inner depth that keep all laws with one microbatch size; rows of what was lowered."""

    depth: int
    layouts: tuple[Layout, ...]
    setting: Setting  # of one inner stage, without the inner pipeline
    lowered: AtomPrices
    first_row: int

    def lightest_block_bytes(self) -> NDArray[np.float64]:
        """Per layout, bytes that the lightest block of the model takes with one microbatch in flight."""
        blocks = dict(zip(self.lowered.kinds[1:-1], self.lowered.atoms[1:-1], strict=True))
        held = [self.lowered.held(kind, block) for kind, block in blocks.items()]
        factor = 1.0 + self.setting.rates.fragmentation
        bytes_of = np.stack([one.static + factor * (one.activation + one.transient) for one in held])
        lightest: NDArray[np.float64] = bytes_of[:, self._rows].min(axis=0)
        return lightest

    @property
    def _rows(self) -> slice:
        return slice(self.first_row, self.first_row + len(self.layouts))

    def pricer(self, chosen: NDArray[np.int64]) -> tuple[tuple[Layout, ...], Pricer]:
        """Some of the layouts, and what prices them."""
        if len(chosen) == len(self.layouts):
            return self.layouts, Pricer(self.setting, self.lowered, self._rows)
        single = tuple(self.setting.layouts[column] for column in chosen.tolist())
        some = Setting(
            self.setting.model,
            self.setting.island,
            self.setting.job,
            self.setting.microbatch,
            single,
            self.setting.hwdb,
        )
        kept = tuple(self.layouts[column] for column in chosen.tolist())
        return kept, Pricer(some, self.lowered, self.first_row + chosen)


@dataclass(frozen=True, slots=True)
class LawfulLayouts:
    """What the laws leave of a part's layouts with one microbatch size, and why not the rest."""

    depths: tuple[SizedLayouts, ...]
    objections: tuple[tuple[Layout, str], ...]


def _together(request: Request) -> tuple[int, ...]:
    """The microbatch of a request, and those that are asked about next to it."""
    if request.microbatch not in request.sizes:
        return (request.microbatch,)
    first = request.sizes.index(request.microbatch) // _SIZES * _SIZES
    return request.sizes[first : first + _SIZES]


def lawful_layouts(request: Request, rates: Rates) -> dict[int, LawfulLayouts]:
    """The layouts of the part that `request` is about, by microbatch size: its own and those beside it."""
    island, model, job = request.island, request.slice.model, request.job
    copies = request.constraints.copies if island.gpus % request.constraints.copies == 0 else 1
    sizes = _together(request)
    objections: dict[int, list[tuple[Layout, str]]] = {size: [] for size in sizes}
    admitted: dict[int, dict[int, list[Layout]]] = {}  # by depth and size
    for layout in layouts(model, island.gpus, _inner_depths(island), copies):
        unlawful = first_broken(model, job, layout, layout.dp, rates.fused_attention)
        for size in sizes:
            if not request.constraints.allows(layout, size):
                continue
            # Few sequences are told of before what else a layout breaks, if anything.
            few = layout.dp > size
            broken = first_broken(model, job, layout, size, rates.fused_attention) if few else unlawful
            if broken:
                objections[size].append((layout, str(broken)))
            else:
                admitted.setdefault(layout.pp, {}).setdefault(size, []).append(layout)
    depths: dict[int, list[SizedLayouts]] = {size: [] for size in sizes}
    for depth, by_size in sorted(admitted.items()):
        part = island if depth == 1 else island.part(island.nodes, island.gpus_per_node // depth)
        rows = [(size, layout) for size, some in by_size.items() for layout in some]
        single = tuple(_without_pipeline(layout) for _, layout in rows)
        microbatch = tuple(size for size, _ in rows)
        lowered = AtomPrices(Setting(model, part, job, microbatch, single, request.hwdb))
        first = 0
        for size, some in by_size.items():
            own = single[first : first + len(some)]
            setting = Setting(model, part, job, size, own, request.hwdb)
            depths[size].append(SizedLayouts(depth, tuple(some), setting, lowered, first))
            first += len(some)
    return {size: LawfulLayouts(tuple(depths[size]), tuple(objections[size])) for size in sizes}


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

"""Layouts of a part of an island under several microbatch sizes, lowered together.

A search eventually requests every divisor of the batch, and lowering atoms costs about the same for a
thousand layouts as for a hundred: those of neighbouring sizes share one setting.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.cost.device import Rates
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints, Request
from tangram_sim.parallelizers.laws import first_broken
from tangram_sim.parallelizers.layouts import divisors, layouts
from tangram_sim.training.stage.atom_prices import AtomPrices
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

_SIZES = 8  # lowered together: several times the length of arrays for about twice the time


@dataclass(frozen=True, slots=True)
class SizedLayouts:
    """Valid layouts of one inner depth with one microbatch size, as rows of a common lowering."""

    depth: int
    layouts: tuple[Layout, ...]
    setting: Setting  # of one inner stage, without the inner pipeline
    lowered: AtomPrices
    first_row: int

    def lightest_block_bytes(self) -> NDArray[np.float64]:
        """Bytes per layout of the model's lightest block with one microbatch in flight, shape (layouts,)."""
        blocks = dict(zip(self.lowered.kinds[1:-1], self.lowered.atoms[1:-1], strict=True))
        held = [self.lowered.held(kind, block) for kind, block in blocks.items()]
        factor = 1.0 + self.setting.rates.fragmentation
        bytes_of = np.stack([item.static + factor * (item.activation + item.transient) for item in held])
        lightest: NDArray[np.float64] = bytes_of[:, self._rows].min(axis=0)
        return lightest

    @property
    def _rows(self) -> slice:
        return slice(self.first_row, self.first_row + len(self.layouts))

    def pricer(self, chosen: NDArray[np.int64]) -> tuple[tuple[Layout, ...], Pricer]:
        """The layouts at the indices `chosen`, and their pricer."""
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
    """Valid layouts of a part with one microbatch size, and reasons against the others.

    Reasons are formatted on demand: thousands of layouts are invalid, and few are asked about.
    """

    depths: tuple[SizedLayouts, ...]
    refused: int
    objections: Callable[[], list[tuple[Layout, str]]]


@dataclass(frozen=True, slots=True)
class _DrawnLayouts:
    """All layouts of a number of GPUs that satisfy the constraints; `lawful`: valid for some microbatch. The
    same for equal numbers of GPUs, whatever their kind, number format and microbatch."""

    layouts: tuple[Layout, ...]
    single: tuple[Layout, ...]  # of one inner stage
    dp: NDArray[np.int64]
    pp: NDArray[np.int64]
    lawful: NDArray[np.bool_]

    def allowed(self, constraints: Constraints, microbatch: int) -> NDArray[np.bool_]:
        """Mask of layouts that satisfy the constraints on microbatches with this size, valid or not."""
        if constraints.microbatch not in (0, microbatch):
            return np.zeros(len(self.layouts), dtype=bool)
        if not constraints.microbatch_per_rank:
            return np.ones(len(self.layouts), dtype=bool)
        found: NDArray[np.bool_] = -(-microbatch // self.dp) == constraints.microbatch_per_rank
        return found


@lru_cache(maxsize=512)
def _drawn(
    model: Model,
    seq: int,
    gpus: int,
    depths: tuple[int, ...],
    copies: int,
    fused_attention: bool,
    constraints: Constraints,
) -> _DrawnLayouts:
    """Layouts of a part, cached; `constraints` must not limit microbatches."""
    some = [
        layout for layout in layouts(model, gpus, depths, copies) if constraints.allows(layout, layout.dp)
    ]
    return _DrawnLayouts(
        tuple(some),
        tuple(layout if layout.pp == 1 else replace(layout, pp=1) for layout in some),
        np.array([layout.dp for layout in some], dtype=np.int64),
        np.array([layout.pp for layout in some], dtype=np.int64),
        np.array(
            [first_broken(model, seq, layout, layout.dp, fused_attention) is None for layout in some],
            dtype=bool,
        ),
    )


def _together(request: Request) -> tuple[int, ...]:
    """The microbatch size of a request and neighbouring sizes, which are lowered together."""
    if request.microbatch not in request.sizes:
        return (request.microbatch,)
    first = request.sizes.index(request.microbatch) // _SIZES * _SIZES
    return request.sizes[first : first + _SIZES]


def lawful_layouts(request: Request, rates: Rates) -> dict[int, LawfulLayouts]:
    """Valid layouts of the request's part by microbatch size: the request's own and neighbouring sizes."""
    island, model, job, constraints = request.island, request.slice.model, request.job, request.constraints
    copies = constraints.copies if island.gpus % constraints.copies == 0 else 1
    sizes = _together(request)
    drawn = _drawn(
        model,
        job.seq,
        island.gpus,
        depths=_inner_depths(island),
        copies=copies,
        fused_attention=rates.fused_attention,
        constraints=replace(constraints, microbatch=0, microbatch_per_rank=0),
    )
    allowed = {size: drawn.allowed(constraints, size) for size in sizes}
    admitted = {size: allowed[size] & drawn.lawful & (drawn.dp <= size) for size in sizes}
    depths: dict[int, list[SizedLayouts]] = {size: [] for size in sizes}
    for depth in np.unique(drawn.pp).tolist():
        part = island if depth == 1 else island.part(island.nodes, island.gpus_per_node // depth)
        by_size = {size: np.flatnonzero(admitted[size] & (drawn.pp == depth)).tolist() for size in sizes}
        by_size = {size: some for size, some in by_size.items() if some}
        if not by_size:
            continue
        single = tuple(drawn.single[item] for some in by_size.values() for item in some)
        microbatch = tuple(size for size, some in by_size.items() for _ in some)
        lowered = AtomPrices(Setting(model, part, job, microbatch, single, request.hwdb))
        first = 0
        for size, some in by_size.items():
            own = single[first : first + len(some)]
            setting = Setting(model, part, job, size, own, request.hwdb)
            chosen = tuple(drawn.layouts[item] for item in some)
            depths[size].append(SizedLayouts(depth, chosen, setting, lowered, first))
            first += len(some)

    def objections(size: int) -> list[tuple[Layout, str]]:
        refused = np.flatnonzero(allowed[size] & ~admitted[size]).tolist()
        every = [drawn.layouts[item] for item in refused]
        return [
            (layout, str(first_broken(model, job.seq, layout, size, rates.fused_attention)))
            for layout in every
        ]

    return {
        size: LawfulLayouts(
            tuple(depths[size]),
            int(allowed[size].sum()) - int(admitted[size].sum()),
            partial(objections, size),
        )
        for size in sizes
    }


def _inner_depths(island: Island) -> tuple[int, ...]:
    """Inner pipeline depths: divisors of a node's GPUs on a single node, else only 1."""
    return divisors(island.gpus_per_node) if island.nodes == 1 else (1,)

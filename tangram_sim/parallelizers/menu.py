"""Seconds and bytes of runs of layers under each of a set of layouts, on one part of an island; their sums.

A stage may consist of several runs of layers, each under its own layout. Its price here is the sum of the
runs' prices (each run's chain is simulated) and of the re-sharding between them; the finalists of a search
are simulated whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.atoms import End, Slice
from tangram_sim.layouts import Layout
from tangram_sim.training.plan import StagePrice
from tangram_sim.training.stage import state
from tangram_sim.training.stage.pricing import Pricer, SlicePrices
from tangram_sim.training.stage.runs import Handovers
from tangram_sim.training.stage.setting import Setting

# Atoms [start, stop) under strategy number `index` of the menu.
Run: TypeAlias = tuple[int, int, int]


class Sides(NamedTuple):
    """Prices of both sides of every cut of a slice, up to block n and from there: (strategies, blocks + 1).

    `front[:, 0]` and `back[:, blocks]` are empty and 0; `front[:, blocks]` is the whole slice.
    """

    front_s: Floats  # forward and backward of one microbatch
    front_tail_s: Floats  # once per step
    front_static: Floats
    front_activation: Floats
    front_transient: Floats
    back_s: Floats
    back_tail_s: Floats
    back_static: Floats
    back_activation: Floats
    back_transient: Floats


@dataclass
class Menu:
    """K strategies (layouts of one inner stage, pp = 1) on one part of an island, and their prices."""

    setting: Setting
    hop_s: float  # between neighbouring inner stages
    depth: int
    objections: tuple[tuple[Layout, str], ...]
    _prices: dict[tuple[tuple[int, ...], End | None], SlicePrices] = field(default_factory=dict)
    _sides: dict[tuple[int, ...], Sides] = field(default_factory=dict)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts to choose from, one per strategy."""
        return self.setting.layouts

    @cached_property
    def pricer(self) -> Pricer:
        """Prices of slices under all strategies."""
        return Pricer(self.setting)

    @cached_property
    def capacity_bytes(self) -> float:
        """Usable memory of a GPU in bytes."""
        return self.setting.rates.usable_memory_bytes

    @property
    def _held(self) -> float:
        """Bytes that the allocator reserves for each byte of activations: 1 + fragmentation."""
        return 1.0 + self.setting.rates.fragmentation

    @cached_property
    def forward_switch_s(self) -> Floats:
        """(K, K): [p, q] is the seconds to pass activations from strategy p to strategy q behind it."""
        shape: dict[tuple[object, ...], int] = {}
        keys = [
            (layout.tp, layout.cp, layout.dp, layout.sequence_parallel, layout.gpus)
            for layout in self.layouts
        ]
        for number, key in enumerate(keys):
            shape.setdefault(key, number)
        firsts = {key: self.layouts[number] for key, number in shape.items()}
        handed = Handovers(self.setting)
        between = {
            (a, b): handed.seconds(firsts[a], firsts[b]) if a != b else 0.0 for a in shape for b in shape
        }
        return np.array([[between[a, b] for b in keys] for a in keys])

    @cached_property
    def switch_s(self) -> Floats:
        """(K, K): [p, q] is the seconds to pass activations from p to q and gradients back."""
        both: Floats = np.ascontiguousarray(self.forward_switch_s + self.forward_switch_s.T)
        return both

    def prices(self, start: int, stop: int, borrower: End | None = None) -> SlicePrices:
        """Prices of atoms [start, stop) under every strategy; equal slices are priced once.

        `borrower` is the end of the model in the slice whose tied matrix is stored by another run of the
        stage. Activations and transients include the allocator's overhead, so that bytes may be added and
        compared with the capacity.
        """
        key = Slice(self.setting.model, start, stop).signature, borrower
        if key not in self._prices:
            price, held = self.pricer.price(start, stop, borrower), self._held
            self._prices[key] = replace(
                price,
                activation_bytes=held * price.activation_bytes,
                transient_bytes=held * price.transient_bytes,
            )
        return self._prices[key]

    def sides(self, start: int, stop: int) -> Sides:
        """Prices of both sides of every cut of a slice, for mixes of two strategies."""
        part = Slice(self.setting.model, start, stop)
        key = part.signature
        if key not in self._sides:
            first = start + (1 if part.embedding else 0)
            blocks = max(part.layers[1] - part.layers[0], 0)
            cuts = [first + n for n in range(1, blocks)]
            zero = np.zeros(len(self.layouts))
            nothing = SlicePrices(*[zero] * 8)
            whole = self.prices(start, stop)
            front = [nothing, *(self.prices(start, cut) for cut in cuts), whole]
            back = [whole, *(self.prices(cut, stop) for cut in cuts), nothing]
            if blocks == 0:
                front, back = [whole], [whole]
            self._sides[key] = Sides(*_columns(front), *_columns(back))
        return self._sides[key]

    def _borrowers(self, runs: Sequence[Run]) -> list[End | None]:
        """For every run of a stage, the end of the model in it that reads the other end's tied matrix."""
        found: list[End | None] = [None] * len(runs)
        (start, _, first), (_, stop, last) = runs[0], runs[-1]
        if len(runs) > 1 and self.pricer.borrower(start, stop):
            end = state.borrower(self.setting, self.setting, (first, last))
            found[0 if end == "embedding" else -1] = end
        return found

    def stage(self, runs: Sequence[Run]) -> StagePrice:
        """Price of one inner stage of consecutive runs, front to back."""
        found = [
            (self.prices(start, stop, borrower), index)
            for (start, stop, index), borrower in zip(runs, self._borrowers(runs), strict=True)
        ]

        def total(name: str) -> float:
            return sum(float(getattr(prices, name)[index]) for prices, index in found)

        pairs = [(a[2], b[2]) for a, b in pairwise(runs)]
        setting = self.setting
        backward = total("backward_s") + sum(float(self.forward_switch_s[b, a]) for a, b in pairs)
        return StagePrice(
            forward_s=total("forward_s") + sum(float(self.forward_switch_s[a, b]) for a, b in pairs),
            backward_s=backward,
            backward_weight_s=min(total("backward_weight_s"), backward),
            gradient_sync_s=total("gradient_sync_s"),
            optimizer_s=total("optimizer_s"),
            static_bytes=total("static_bytes"),
            activation_bytes=total("activation_bytes") / self._held,
            transient_bytes=max(float(prices.transient_bytes[index]) for prices, index in found) / self._held,
            capacity_bytes=self.capacity_bytes,
            fragmentation=setting.rates.fragmentation,
            workspace_bytes=setting.rates.workspace_bytes,
            context_bytes=setting.rates.reserved_bytes,
        )


def _columns(prices: Sequence[SlicePrices]) -> tuple[Floats, ...]:
    """(seconds, tail, static, activation, transient), each (strategies, cuts)."""
    return tuple(
        np.ascontiguousarray(np.stack(column, axis=1))
        for column in (
            [price.forward_s + price.backward_s for price in prices],
            [price.gradient_sync_s + price.optimizer_s for price in prices],
            [price.static_bytes for price in prices],
            [price.activation_bytes for price in prices],
            [price.transient_bytes for price in prices],
        )
    )

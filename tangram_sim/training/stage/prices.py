"""Scalar prices of single stages, cached by what they depend on: for replay, estimate and finalists."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.cost.device import Rates
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import End, atom_kinds, borrowers
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import StagePrice
from tangram_sim.training.stage.atom_prices import AtomPrices
from tangram_sim.training.stage.pricing import Pricer, SlicePrices
from tangram_sim.training.stage.runs import LayerRun, price_runs
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.sharing import Sharing

_PRICED = tuple(column.name for column in fields(SlicePrices))


def stage_price(prices: SlicePrices, index: int | tuple[int, int], rates: Rates) -> StagePrice:
    """Layout `index` of a batch, or (slice, layout) of many, as a scalar noun."""
    return _on([[float(getattr(prices, name)[index]) for name in _PRICED]], rates)[0]


def stage_prices(
    prices: SlicePrices, slices: NDArray[np.int64], layouts: NDArray[np.int64], rates: Rates
) -> list[StagePrice]:
    """Pairs of a slice and a layout of many, as scalar nouns."""
    columns = [getattr(prices, name)[slices, layouts] for name in _PRICED]
    return _on(np.stack(columns, axis=1).tolist(), rates)


def _on(rows: Sequence[Sequence[float]], rates: Rates) -> list[StagePrice]:
    """Prices in the order of the columns of `SlicePrices`, with what there is on a GPU of these rates."""
    gpu = {
        "capacity_bytes": rates.usable_memory_bytes,
        "fragmentation": rates.fragmentation,
        "workspace_bytes": rates.workspace_bytes,
        "context_bytes": rates.reserved_bytes,
    }
    return [StagePrice(*row, **gpu) for row in rows]


@dataclass
class StagePrices:
    """Prices of stages of one model and job; equal stages are played once."""

    model: Model
    job: Job
    hwdb: Hwdb
    _pricers: dict[tuple[Island, Layout, int, Sharing | None], Pricer] = field(default_factory=dict)
    _prices: dict[tuple[Island, Layout, int, int, int, End | None], StagePrice] = field(default_factory=dict)
    _joined: dict[tuple[object, ...], StagePrice] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, job: Job, hwdb: Hwdb) -> "StagePrices":
        """Those that a `PriceMemory` in use has kept; else new ones."""
        memory = _IN_USE.get()
        return memory.prices(model, job, hwdb) if memory else cls(model, job, hwdb)

    @property
    def settings(self) -> int:
        """How many settings (layout, part of an island, microbatch) stay priced."""
        return len(self._pricers)

    def pricer(
        self, island: Island, layout: Layout, microbatch: int, sharing: Sharing | None = None
    ) -> Pricer:
        """The pricer of one layout on one (part of an) island, which may share its weights with others."""
        alike = island.anonymous()  # stages on equal nodes of one island, or of two, have one
        key = (alike, layout, microbatch, sharing)
        if key not in self._pricers:
            setting = Setting(
                self.model, alike, self.job, microbatch, layouts=(layout,), hwdb=self.hwdb, sharing=sharing
            )
            alone = self.pricer(island, layout, microbatch).lowered if sharing else None
            self._pricers[key] = Pricer(setting, AtomPrices(setting, alone))
        return self._pricers[key]

    def chunks(
        self, island: Island, layout: Layout, microbatch: int, runs: Sequence[tuple[int, int]]
    ) -> tuple[StagePrice, ...]:
        """The chunks of one stage on `island`, atoms [start, stop) each; one copy of a tied matrix in all."""
        return tuple(
            self.price(island, layout, microbatch, start, stop, borrower)
            for (start, stop), borrower in zip(runs, borrowers(self.model, runs), strict=True)
        )

    def price(
        self,
        island: Island,
        layout: Layout,
        microbatch: int,
        start: int,
        stop: int,
        borrower: End | None = None,
    ) -> StagePrice:
        """Atoms [start, stop) as one stage on `island`, which the layout fills (see `Pricer.price_many`)."""
        key = (island, layout, microbatch, start, stop, borrower)
        if key not in self._prices:
            run = LayerRun(self.pricer(island, layout, microbatch), start, stop, borrower)
            self._prices[key] = self.joined((run,))
        return self._prices[key]

    def joined(self, runs: tuple[LayerRun, ...], exchange_s: float = 0.0) -> StagePrice:
        """Consecutive runs of one part as one stage, each under its own setting (see `runs.price_runs`)."""
        kinds = atom_kinds(self.model)  # equal blocks have one price wherever they stand; pricers are kept
        of = ((id(run.pricer), kinds[run.start : run.stop], run.borrower) for run in runs)
        key = (*of, exchange_s)
        if key not in self._joined:
            if len(runs) == 1:
                pricer, start, stop, borrower = runs[0]
                price = stage_price(pricer.price(start, stop, borrower), 0, pricer.setting.rates)
                price = replace(price, gradient_sync_s=price.gradient_sync_s + exchange_s)
            else:
                price = price_runs(runs, exchange_s)
            self._joined[key] = price
        return self._joined[key]


_SETTINGS = 2000  # that stay priced from search to search, at some 50 KB each


@dataclass
class PriceMemory:
    """Prices of stages kept from one search to the next: fleets have most (parts of) islands in common.

    A price hangs on nothing but its key, so that no answer hangs on what was searched before.
    """

    most: int = _SETTINGS
    _kept: dict[tuple[object, ...], StagePrices] = field(default_factory=dict)

    def prices(self, model: Model, job: Job, hwdb: Hwdb) -> StagePrices:
        """The prices of a model, a job and a database; new ones where that counts which rows it hands out."""
        if hwdb.counts_reads:
            return StagePrices(model, job, hwdb)
        if sum(prices.settings for prices in self._kept.values()) > self.most:
            self._kept.clear()
        return self._kept.setdefault((model, job, hwdb.edition), StagePrices(model, job, hwdb))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use these prices for all searches of this thread until the end."""
        before = _IN_USE.set(self)
        try:
            yield
        finally:
            _IN_USE.reset(before)


@contextmanager
def prices_kept() -> Iterator[None]:
    """Keep prices of stages until the end, in the memory in use or one for the searches of a single plan."""
    with nullcontext() if _IN_USE.get() else PriceMemory().in_use():
        yield


_IN_USE: ContextVar[PriceMemory | None] = ContextVar("price_memory", default=None)

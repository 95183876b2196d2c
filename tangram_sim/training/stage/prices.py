"""Scalar prices of single stages, cached by what they depend on: for replay, estimates and finalists."""

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
    """The scalar price of layout `index` of a batch, or of (slice, layout)."""
    return _on([[float(getattr(prices, name)[index]) for name in _PRICED]], rates)[0]


def stage_prices(
    prices: SlicePrices, slices: NDArray[np.int64], layouts: NDArray[np.int64], rates: Rates
) -> list[StagePrice]:
    """Scalar prices of pairs of a slice and a layout."""
    columns = [getattr(prices, name)[slices, layouts] for name in _PRICED]
    return _on(np.stack(columns, axis=1).tolist(), rates)


def _on(rows: Sequence[Sequence[float]], rates: Rates) -> list[StagePrice]:
    """Prices from rows in the column order of `SlicePrices`, with memory figures of a GPU of these rates."""
    gpu = {
        "capacity_bytes": rates.usable_memory_bytes,
        "fragmentation": rates.fragmentation,
        "workspace_bytes": rates.workspace_bytes,
        "context_bytes": rates.reserved_bytes,
    }
    return [StagePrice(*row, **gpu) for row in rows]


@dataclass
class StagePrices:
    """Prices of stages of one model and job, cached by what they depend on."""

    model: Model
    job: Job
    hwdb: Hwdb
    _pricers: dict[tuple[Island, Layout, int, Sharing | None], Pricer] = field(default_factory=dict)
    _prices: dict[tuple[Island, Layout, int, int, int, End | None], StagePrice] = field(default_factory=dict)
    _joined: dict[tuple[object, ...], StagePrice] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model, job: Job, hwdb: Hwdb) -> "StagePrices":
        """The prices kept by the `PriceMemory` in use; else new ones."""
        memory = _IN_USE.get()
        return memory.prices(model, job, hwdb) if memory else cls(model, job, hwdb)

    @property
    def settings(self) -> int:
        """Number of settings (layout, part of an island, microbatch) with cached prices."""
        return len(self._pricers)

    def pricer(
        self, island: Island, layout: Layout, microbatch: int, sharing: Sharing | None = None
    ) -> Pricer:
        """The pricer of one layout on (a part of) one island; other parts may share its weights."""
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
        """Prices of a stage's chunks on `island`, atoms [start, stop) each; a tied matrix has one copy."""
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
        """Price of atoms [start, stop) as one stage that fills `island` (see `Pricer.price_many`)."""
        key = (island, layout, microbatch, start, stop, borrower)
        if key not in self._prices:
            run = LayerRun(self.pricer(island, layout, microbatch), start, stop, borrower)
            self._prices[key] = self.joined((run,))
        return self._prices[key]

    def joined(self, runs: tuple[LayerRun, ...], exchange_s: float = 0.0) -> StagePrice:
        """Price of a part's consecutive runs as one stage, each under its own setting (see `price_runs`)."""
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
    """Prices of stages kept between searches, since fleets have most (parts of) islands in common.

    A price depends on its key only, so results do not depend on earlier searches.
    """

    most: int = _SETTINGS
    _kept: dict[tuple[object, ...], StagePrices] = field(default_factory=dict)

    def prices(self, model: Model, job: Job, hwdb: Hwdb) -> StagePrices:
        """Prices of a model, a job and a database; new ones where the database records returned rows."""
        if hwdb.counts_reads:
            return StagePrices(model, job, hwdb)
        if sum(prices.settings for prices in self._kept.values()) > self.most:
            self._kept.clear()
        return self._kept.setdefault((model, job, hwdb.edition), StagePrices(model, job, hwdb))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Context manager: all searches of this thread use these prices."""
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

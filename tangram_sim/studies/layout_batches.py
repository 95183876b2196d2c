"""Price stages of many uniform layouts together, across batches whose stages are on equal GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from tangram_sim.clusters import Island
from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import End, atom_kinds, borrowers
from tangram_sim.models import Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import Settled, Uniform, stage_places
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import schedule_named
from tangram_sim.training.stage.atom_prices import AtomPrices
from tangram_sim.training.stage.pricing import Pricer, SlicePrices
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.sharing import runs_of

_TOGETHER = 64  # batches: every slice of theirs on one island is priced under all of their layouts

Runs: TypeAlias = tuple[tuple[int, int], ...]  # atoms [start, stop) of every chunk of a stage
_Alike: TypeAlias = tuple[tuple[int, ...], ...]  # kinds of these atoms: stages alike have one price


@dataclass
class LayoutBatch:
    """Layouts with equal depth, chunks, cuts and order of groups, hence equal ranks in each stage."""

    job: Job
    stages: list[tuple[int, ...]]  # ranks
    wanted: list[Uniform] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    place: list[int] = field(default_factory=list)  # in the caller's order


@dataclass
class BatchStage:
    """A stage under K layouts: its pricer, slices and their prices."""

    pricer: Pricer
    runs: Runs
    prices: tuple[SlicePrices, ...]

    def column(self, name: str) -> Floats:
        """The price `name` of every chunk under every layout, (K, V)."""
        return np.stack([getattr(price, name) for price in self.prices], axis=1)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a batch needs priced: island and atom kinds of each stage, one slice per sequence of kinds."""

    stages: list[tuple[Island, _Alike]]
    runs: dict[_Alike, Runs]


def priced_stages(
    model: Model, placement: Placement, hwdb: Hwdb, batches: Sequence[LayoutBatch]
) -> list[list[BatchStage] | TangramError]:
    """Priced stages of every batch, or its error; equal stages share one object.

    Lowering and simulating the atoms on an island takes nearly as long for one layout as for a hundred, so
    layouts of all batches that have stages there are priced in one setting.
    """
    found: list[list[BatchStage] | TangramError] = []
    for first in range(0, len(batches), _TOGETHER):
        some = batches[first : first + _TOGETHER]
        wanted = [_wanted(model, placement, batch) for batch in some]
        asked: dict[tuple[Job, Island], list[int]] = {}
        for number, (batch, item) in enumerate(zip(some, wanted, strict=True)):
            job = replace(batch.job, schedule="1f1b")  # stages alone know of no schedule
            for island in dict.fromkeys(island for island, _ in item.stages):
                asked.setdefault((job, island), []).append(number)
        known: dict[tuple[int, Island, _Alike], BatchStage] = {}
        failed: dict[int, TangramError] = {}
        for (job, island), numbers in asked.items():
            try:
                settings = [_setting(model, hwdb, job, island, some[number]) for number in numbers]
                stages = _on_island(settings, [_runs_on(island, wanted[number]) for number in numbers])
            except TangramError as error:  # a GPU kind without units for the dtype
                failed |= {number: error for number in numbers if number not in failed}
                continue
            for number, own in zip(numbers, stages, strict=True):
                known |= {(number, island, alike): stage for alike, stage in own.items()}
        found += [
            failed[number] if number in failed else [known[number, *of] for of in item.stages]
            for number, item in enumerate(wanted)
        ]
    return found


def _wanted(model: Model, placement: Placement, batch: LayoutBatch) -> _Wanted:
    first, kinds = batch.wanted[0], atom_kinds(model)
    schedule = schedule_named(batch.job.schedule)
    back = first.pp * first.vpp - 1  # the place of the head
    found = _Wanted([], {})
    for number, chunks in enumerate(stage_places(batch.settled[0].bounds, first.pp, first.vpp, schedule)):
        head = schedule.place(number, first.vpp - 1, first.pp) == back
        runs = tuple(runs_of(chunks, number == 0, head, model.layers))
        alike = tuple(kinds[start:stop] for start, stop in runs)
        found.runs.setdefault(alike, runs)
        found.stages.append((placement.island(batch.stages[number]).anonymous(), alike))
    return found


def _runs_on(island: Island, wanted: _Wanted) -> dict[_Alike, Runs]:
    """The different stages that a batch has on an island."""
    return {alike: wanted.runs[alike] for where, alike in wanted.stages if where == island}


def _setting(model: Model, hwdb: Hwdb, job: Job, island: Island, batch: LayoutBatch) -> Setting:
    layouts = tuple(settled_layout.layout for settled_layout in batch.settled)
    return Setting(
        model,
        island,
        job,
        tuple(settled_layout.microbatch for settled_layout in batch.settled),
        layouts,
        hwdb,
    )


def _on_island(
    settings: Sequence[Setting], asked: Sequence[dict[_Alike, Runs]]
) -> list[dict[_Alike, BatchStage]]:
    """For each batch on one island, its distinct stages, priced under its layouts."""
    model = settings[0].model
    sizes = tuple(size for item in settings if isinstance(item.microbatch, tuple) for size in item.microbatch)
    layouts = tuple(layout for item in settings for layout in item.layouts)
    lowered = AtomPrices(replace(settings[0], microbatch=sizes, layouts=layouts))
    places: dict[tuple[tuple[int, int], End | None], int] = {}  # of slices among those priced
    for own in asked:
        for runs in own.values():
            for slice_of in zip(runs, borrowers(model, runs), strict=True):
                places.setdefault(slice_of, len(places))
    slices, ends = zip(*places, strict=True)
    prices = Pricer(lowered.setting, lowered).price_many(slices, ends)
    lasts = list(accumulate(len(item.layouts) for item in settings))
    found = []
    for setting, own, last in zip(settings, asked, lasts, strict=True):
        rows = slice(last - len(setting.layouts), last)
        pricer = Pricer(setting, lowered, rows)
        found.append(
            {
                alike: BatchStage(
                    pricer,
                    runs,
                    tuple(
                        prices.of((places[slice_of], rows))
                        for slice_of in zip(runs, borrowers(model, runs), strict=True)
                    ),
                )
                for alike, runs in own.items()
            }
        )
    return found

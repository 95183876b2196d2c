"""Pricing of stages with several parts: each part on its own ranks, the stage as slow as its slowest part."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tangram_sim.errors import BadInputError
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.plan import Part, Stage, StagePrice
from tangram_sim.training.stage.peaks import capacity_bytes, device_bytes
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.runs import Chunks, LayerRun, parameters_of, with_one_copy
from tangram_sim.training.stage.sharing import Holder, Sharings, atoms_held, layout_of, shards_alike

Holders = Sequence[tuple[Holder, ...]]  # of every atom


def one_part_one_layout(stages: Sequence[Stage]) -> bool:
    """Whether every stage has one part with one layout: the simple case, which does not need this module."""
    return all(len(stage.parts) == 1 and len(stage.parts[0].layouts) == 1 for stage in stages)


@dataclass
class PartPrices:
    """Prices of parts of stages, cached."""

    placement: Placement
    prices: StagePrices
    _sharings: Sharings = field(init=False)
    _known: dict[tuple[object, ...], tuple[StagePrice, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sharings = Sharings(self.placement)

    def stage(self, stage: Stage, microbatch: int, holders: Holders) -> tuple[tuple[StagePrice, ...], ...]:
        """Prices [part][chunk] of a stage. Raises BadInputError where shares or layouts do not add up."""
        total = sum(part.sequences_per_microbatch for part in stage.parts)
        if total != microbatch:
            raise BadInputError(
                f"the parts of a stage take {total} sequences of a microbatch of {microbatch}; their "
                "sequences_per_microbatch must add up to it"
            )
        return tuple(self._part(stage, part, holders) for part in stage.parts)

    def runs(self, stage: Stage, part: Part, holders: Holders) -> Chunks:
        """The atoms of each chunk of a part as runs of one setting each, a tied matrix kept once."""
        held = atoms_held(stage, self.prices.model.layers)
        return with_one_copy([self._runs(part, start, stop, holders) for start, stop in held])

    def _runs(self, part: Part, start: int, stop: int, holders: Holders) -> tuple[LayerRun, ...]:
        layers, cuts = self.prices.model.layers, list[tuple[int, object]]()
        for atom in range(start, stop):
            layout, shared = layout_of(part, atom, layers), holders[atom]
            key = (layout, shared if len(shared) > 1 and shards_alike(shared) else ())
            if not cuts or cuts[-1][1] != key:
                cuts.append((atom, key))
        ends = [place for place, _ in cuts[1:]] + [stop]
        return tuple(
            LayerRun(self._pricer(part, place, holders), place, end)
            for (place, _), end in zip(cuts, ends, strict=True)
        )

    def _pricer(self, part: Part, atom: int, holders: Holders) -> Pricer:
        layout = layout_of(part, atom, self.prices.model.layers)
        if layout.gpus != len(part.ranks):
            raise BadInputError(
                f"layout {layout} occupies {layout.gpus} GPUs, its part has {len(part.ranks)} ranks"
            )
        shared, sharing = holders[atom], None
        if len(shared) > 1 and shards_alike(shared):
            own = next(index for index, holder in enumerate(shared) if holder.ranks == part.ranks)
            sharing = self._sharings.of(shared, own)
        island = self.placement.island(part.ranks)
        return self.prices.pricer(island, layout, part.sequences_per_microbatch, sharing)

    def _exchange_s(self, runs: Sequence[LayerRun], holders: Holders) -> float:
        """Seconds to all-reduce gradients between parts with different ZeRO stages, sharded separately."""
        job, total = self.prices.job, 0.0
        for run in runs:
            setting = run.pricer.setting
            for number, atom in enumerate(run.atoms, run.start):
                shared = holders[number]
                if len(shared) > 1 and not shards_alike(shared):
                    size = parameters_of(setting, atom) * job.recipe.gradient_bytes * job.trainable
                    total += setting.rates.data_exposed * self._sharings.exchange_s(shared, size)
        return total

    def _part(self, stage: Stage, part: Part, holders: Holders) -> tuple[StagePrice, ...]:
        held = tuple(atoms_held(stage, self.prices.model.layers))
        shared = tuple(holders[start:stop] for start, stop in held)
        key = (part.ranks, part.sequences_per_microbatch, part.layouts, held, shared)
        if key not in self._known:
            self._known[key] = tuple(
                self.prices.joined(runs, self._exchange_s(runs, holders))
                for runs in self.runs(stage, part, holders)
            )
        return self._known[key]


def slowest(parts: Sequence[StagePrice], splits_backward: bool) -> StagePrice:
    """One chunk of a stage: each pass takes as long as on its slowest part. Memory: see `stage_of_parts`.

    Gradient synchronisation ends with the last part, and is counted from the end of the slowest backward.
    Where the schedule has separate passes for weight gradients, these too last as on the slowest part.
    """
    weight = max(part.backward_weight_s for part in parts)
    backward = max(part.backward_s for part in parts)
    if splits_backward:
        backward = max(part.backward_s - part.backward_weight_s for part in parts) + weight
    return replace(
        parts[0],
        forward_s=max(part.forward_s for part in parts),
        backward_s=backward,
        backward_weight_s=min(weight, backward),
        gradient_sync_s=max(0.0, max(part.backward_s + part.gradient_sync_s for part in parts) - backward),
        optimizer_s=max(part.optimizer_s for part in parts),
    )


def stage_of_parts(
    parts: Sequence[Sequence[StagePrice]], in_flight: int, splits_backward: bool
) -> tuple[StagePrice, ...]:
    """Prices of a stage by chunk, from prices [part][chunk]: times of the slowest, memory of the fullest."""
    full = max(parts, key=lambda chunks: device_bytes(chunks, in_flight) / capacity_bytes(chunks))
    found = []
    for chunk, memory in enumerate(full):
        times = slowest([part[chunk] for part in parts], splits_backward)
        found.append(
            replace(
                memory,
                forward_s=times.forward_s,
                backward_s=times.backward_s,
                backward_weight_s=times.backward_weight_s,
                gradient_sync_s=times.gradient_sync_s,
                optimizer_s=times.optimizer_s,
            )
        )
    return tuple(found)

"""The `alpa` parallelizer: layouts from integer programs over operators, inner stages by dynamic programming.

Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning", OSDI
2022, arXiv:2201.12023. Formulation, and what a plan cannot express of it: docs/models/alpa.md.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.alpa.shardings import degrees, shardings
from tangram_sim.parallelizers.alpa.stages import split
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.assembly import held_in
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.parallelizers.layerwise import LayerWise
from tangram_sim.parallelizers.menu import Menu
from tangram_sim.training.plan import UNLIMITED
from tangram_sim.training.stage.setting import Setting

_CUTS = 4096  # answers of the t_max program that stay known


class Alpa(LayerWise):
    """Alpa: layouts nearest to the shardings that its integer program chooses; no search of recomputation.

    Recomputation is fixed in advance, as in Alpa: none, or the user's kinds if "none" is not allowed.
    """

    name = "alpa"

    def __init__(self) -> None:
        super().__init__()
        self._cuts: OrderedDict[tuple[object, ...], tuple[Menu, tuple[int, ...] | None]] = OrderedDict()

    def strategies(self, request: Request, gpus: int) -> Iterator[Layout]:
        """Yields layouts from the shardings of every kind of block, with and without sharded state."""
        model, job, island = request.slice.model, request.job, request.island
        depth = island.gpus // gpus
        part = island if depth == 1 else island.part(island.nodes, island.gpus_per_node // depth)
        setting = Setting(model, part, job, request.microbatch, (), request.hwdb)
        fixed = dict(request.constraints.fixed)
        tensor = fixed.get("tp", gpus // fixed["dp"] if fixed.get("dp") and gpus % fixed["dp"] == 0 else 0)
        kinds = ("none",) if "none" in request.constraints.recompute else request.constraints.recompute
        for tp, dp, ep, sharded in self._degrees(setting, tensor):
            sequence = request.constraints.sequence_parallel is not False and sharded
            # The rewrite after the program: all-reduce of gradients as reduce-scatter and all-gather.
            for zero in (0, 1, 2, 3) if dp > 1 else (0,):
                for kind in kinds:
                    yield Layout(
                        tp, dp, cp=1, ep=ep, pp=1, zero_stage=zero, recompute=kind, sequence_parallel=sequence
                    )

    def _degrees(self, setting: Setting, tensor: int) -> list[tuple[int, int, int, bool]]:
        if setting.island.gpus == 1:
            return [(1, 1, 1, False)]
        found: dict[tuple[int, int, int, bool], None] = {}
        # Windows change what attention costs, not how it is cut.
        kinds = (replace(item, attention=replace(item.attention, window=0)) for item in setting.model.blocks)
        for block in dict.fromkeys(kinds):
            for mesh, sharding in shardings(setting, block, tensor):
                found.update(dict.fromkeys(degrees(setting.model, setting.job, block, mesh, sharding)))
        return list(found)

    def cuts(self, request: Request, menu: Menu, behind: int) -> tuple[int, ...] | None:
        """Cuts of inner stages that minimise sum t + (m - 1) max t within memory; None where nothing fits."""
        start, stop = request.slice.start, request.slice.stop
        if menu.depth == 1 or len(request.slice) <= menu.depth:
            return balanced_cuts(menu.pricer, start, stop, menu.depth)
        held = tuple(reversed(held_in(request, menu.depth, behind)))
        key = (id(menu), request.slice.signature, held, request.microbatches)
        if key not in self._cuts:
            self._cuts[key] = (menu, self._split(request, menu, held))  # the menu stays, and so does its id
            if len(self._cuts) > _CUTS:
                self._cuts.popitem(last=False)
        found = self._cuts[key][1]
        if found is None:  # no single strategy fits a stage; a mix of two still may
            return balanced_cuts(menu.pricer, start, stop, menu.depth)
        return tuple(start + cut for cut in found)

    def _split(self, request: Request, menu: Menu, held: tuple[int, ...]) -> tuple[int, ...] | None:
        start, atoms = request.slice.start, len(request.slice)
        shape = (atoms + 1, atoms + 1, len(menu.layouts))
        seconds, limit = np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
        for low in range(atoms):
            for high in range(low + 1, atoms + 1):
                prices = menu.prices(start + low, start + high)
                free = menu.capacity_bytes - prices.static_bytes - prices.transient_bytes
                seconds[low, high] = prices.forward_s + prices.backward_s
                most = np.maximum(free, 0.0) / np.maximum(prices.activation_bytes, 1.0)
                limit[low, high] = np.minimum(most, UNLIMITED)
        devices = (1,) * len(menu.layouts)  # of the size of a part
        found = split(seconds, limit, devices, menu.depth, request.microbatches, (0, *held))
        return (0, *(high for _, high, _ in found.stages)) if found else None

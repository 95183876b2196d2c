"""Aceso: iterative bottleneck alleviation on one slice, recomputing no more blocks than memory requires.

Liu et al., "Aceso", EuroSys 2024, extended by what its model leaves out: gradient synchronisation, the
optimizer step and ZeRO are in the prices and among the moves. Formulation: docs/models/parallelizers.md.
"""

from collections import OrderedDict
from collections.abc import Iterator

from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.alleviation import Alleviated, Budget, alleviate
from tangram_sim.parallelizers.api import Answer, Request
from tangram_sim.parallelizers.assembly import held_in
from tangram_sim.parallelizers.bottleneck import Bottlenecks, Config, Stage, Strategies
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.parallelizers.layerwise import ROOM, LayerWise, useful_recompute
from tangram_sim.parallelizers.layouts import degrees, expert_degrees
from tangram_sim.parallelizers.menu import Menu, Run

EVALUATIONS, EVALUATIONS_PER_ATOM = 60, 6  # budget of one search: it grows with the slice
HOPS, BEAM, PATIENCE = 3, 3, 2
_KEPT = 128  # menus


class Aceso(LayerWise):
    """Aceso: moves that relieve the bottleneck stage, up to three deep. Anytime and deterministic. Finds a
    configuration wherever one in its space fits."""

    name = "aceso"

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[int, Config] = {}  # by inner depth: the answer with fewer stages behind
        self._strategies: OrderedDict[int, tuple[Menu, Strategies]] = OrderedDict()

    def budget(self, atoms: int) -> Budget:
        """Limits of one search; they grow with the number of atoms in the slice."""
        evaluations = EVALUATIONS + EVALUATIONS_PER_ATOM * atoms
        return Budget(evaluations=evaluations, hops=HOPS, beam=BEAM, patience=PATIENCE)

    def strategies(self, request: Request, gpus: int) -> Iterator[Layout]:
        """Yields layouts of TP x DP x CP x EP x ZeRO x recomputation x sequence parallelism."""
        model = request.slice.model
        recompute = useful_recompute(request)
        for _, tp, cp, dp in degrees(gpus, (1,)):
            for ep in expert_degrees(model, dp * cp):
                for zero in range(4) if dp * cp > 1 else (0,):
                    for kind in recompute:
                        for sharded in (False, True) if tp > 1 else (False,):
                            yield Layout(
                                tp,
                                dp,
                                cp,
                                ep,
                                pp=1,
                                zero_stage=zero,
                                recompute=kind,
                                sequence_parallel=sharded,
                            )

    def parallelize(self, request: Request) -> Answer:
        """The Pareto set of the best configurations found for each number of stages behind the slice."""
        self._before = {}
        return super().parallelize(request)

    def arrange(
        self, request: Request, menu: Menu, behind: int
    ) -> tuple[tuple[int, ...], list[tuple[Run, ...]]] | None:
        """The best configuration found as (cuts, runs); None where none fits or all exceed `pace_s`."""
        if menu.depth == 1:
            sides = menu.sides(request.slice.start, request.slice.stop)
            if float((sides.front_s.min(axis=0) + sides.back_s.min(axis=0)).min()) > request.pace_s:
                return None
        found = self.search(request, menu, behind)
        if found is None:
            return None
        space, best = found
        return best.best[0], space.runs(best.best)

    def search(
        self, request: Request, menu: Menu, behind: int
    ) -> tuple[Bottlenecks, Alleviated[Config]] | None:
        """(space, best configuration) with `behind` stages behind the slice; None where nothing fits."""
        strategies = self._strategies_of(menu)
        held = held_in(request, menu.depth, behind)
        space = Bottlenecks(menu, strategies, held, request.microbatches, menu.capacity_bytes * ROOM)
        budget = self.budget(len(request.slice))
        best: Alleviated[Config] | None = None
        before = self._before.get(menu.depth)
        starts = (before,) if before and behind else self._starts(request, menu, strategies)
        for start in starts:
            found = alleviate(space, start, budget)
            if best is None or found.cost < best.cost:
                best = found
        if best is None or best.cost[0] > 0:
            safe = self._that_fits(request, menu, held)
            if safe is None:
                return None
            best = alleviate(space, safe, budget)
        self._before[menu.depth] = best.best
        return space, best

    def _starts(self, request: Request, menu: Menu, strategies: Strategies) -> Iterator[Config]:
        """Starting configurations: stages of equal time under the widest TP, and under the widest DP."""
        cuts = balanced_cuts(menu.pricer, request.slice.start, request.slice.stop, menu.depth)
        layouts = menu.layouts
        widest = max(range(len(layouts)), key=lambda index: (layouts[index].tp, -layouts[index].zero_stage))
        spread = max(
            range(len(layouts)),
            key=lambda index: (layouts[index].dp, layouts[index].ep, -layouts[index].zero_stage),
        )
        for index in dict.fromkeys((widest, spread)):
            yield cuts, (strategies.pair(index),) * menu.depth

    def _strategies_of(self, menu: Menu) -> Strategies:
        if id(menu) not in self._strategies:
            self._strategies[id(menu)] = (menu, Strategies(menu))  # the menu is kept, so its id is its own
            if len(self._strategies) > _KEPT:
                self._strategies.popitem(last=False)
        return self._strategies[id(menu)][1]

    def _that_fits(self, request: Request, menu: Menu, held: list[int]) -> Config | None:
        """A configuration that fits memory, if any: each stage, front to back, takes all atoms it can. For
        each stage every pair of strategies is tried, so no feasible configuration is missed."""
        start, stop, depth = request.slice.start, request.slice.stop, menu.depth
        cuts, chosen = [start], list[Stage]()
        for place in range(depth):
            last = depth - 1 - place
            for high in range(stop - last, cuts[-1] if last else stop - 1, -1):
                stage = self._fitting(menu, cuts[-1], high, held[place], request.microbatches)
                if stage is not None:
                    cuts.append(high)
                    chosen.append(stage)
                    break
            else:
                return None
        return tuple(cuts), tuple(chosen)

    def _fitting(self, menu: Menu, low: int, high: int, held: int, microbatches: int) -> Stage | None:
        """Two strategies with which atoms [low, high) fit memory; None where no pair fits."""
        sides, room = menu.sides(low, high), menu.capacity_bytes * ROOM
        front = sides.front_static + held * sides.front_activation
        back = sides.back_static + held * sides.back_activation
        if float((front.min(axis=0) + back.min(axis=0)).min()) > room:
            return None
        alone = front[:, -1] + sides.front_transient[:, -1]
        lightest = int(alone.argmin())
        if alone[lightest] <= room:
            return lightest, lightest
        runs = self.choose(menu, low, high, held, microbatches)
        return (runs[0][2], runs[-1][2]) if runs else None

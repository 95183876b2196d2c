"""Repeats the sweep on fewer islands: those that the best pipeline uses.

A search over fewer islands is narrower and cannot find anything that all islands do not allow. But beams keep
only the labels of a state with the smallest bounds, and the possible use of an idle island lowers the bounds
of other labels. Schedules that delay weight gradients are composed with an estimate, which is too low across
slow networks, so such pipelines displace better ones. Prices are reused, so repeating the sweep costs a small
part of the search, and nothing where the best plan is proven optimal.
"""

from collections.abc import Sequence
from dataclasses import replace

from tangram_sim.clusters import Island
from tangram_sim.planners.api import Counts, Progress
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.search import Search
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.planners.tangram.tied import tied_s
from tangram_sim.planners.tangram.told_apart import node_units

# Not where the bound on pipelines is so much of the best step, by effort.
_NEAR = {"quick": 0.9, "normal": 0.95, "exhaustive": 1.0}


def look_again(search: Search, islands: Sequence[Island], progress: Progress | None) -> None:
    """Repeat the sweep on those of `islands` that the best pipeline uses, as long as they become fewer."""
    while search.played and not search.deadline.over():
        used = search.best_islands()
        kept = [island for island in islands if island.name in used]
        near = search.least_s() >= search.best_s * _NEAR[search.budget.effort]
        if near or not 0 < len(kept) < len(islands):
            return
        _within(search, kept, progress)
        islands = kept


def _within(search: Search, islands: Sequence[Island], progress: Progress | None) -> None:
    """Run one more sweep, on these islands alone."""
    units = node_units(islands, FLEETS[search.budget.effort].states)
    enumeration = _on(search.enumeration, islands, search)
    search.within(enumeration, units, progress)
    enumeration.counts.redundant = 0
    search.enumeration.counts.add(enumeration.counts)


def _on(known: Enumeration, islands: Sequence[Island], search: Search) -> Enumeration:
    """An enumeration of these islands that reuses the prices and partial plans of another one."""
    model, job = known.model, known.job
    bound = WorkBound(model, job, islands, known.hwdb, search.referee.cluster)
    return replace(
        known,
        islands=islands,
        bound=bound,
        counts=Counts(),
        tied_s=tied_s(model, job, islands),
        priced=0,
        _pruned={},
        _visited=set(),
        _tight={},
    )

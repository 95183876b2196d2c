"""The sweep once more on fewer islands: those that the best pipeline found stands on.

A search over fewer islands is narrower, and never finds what all of them do not hold. But beams keep a few
labels of a state, those with the least bound, and what an idle island might still do lowers the bounds of the
others; schedules that put off weight gradients are composed by an estimate, and pipelines over islands behind
slow networks, whose estimates are too low, take the places of better ones. What is priced stays known, so
looking again on fewer islands takes a small part of the search; where all is proven it takes nothing.
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
    """Sweep again over those of the `islands` that the best pipeline stands on, while these become fewer."""
    while search.played and not search.deadline.over():
        used = search.best_islands()
        kept = [island for island in islands if island.name in used]
        near = search.least_s() >= search.best_s * _NEAR[search.budget.effort]
        if near or not 0 < len(kept) < len(islands):
            return
        _within(search, kept, progress)
        islands = kept


def _within(search: Search, islands: Sequence[Island], progress: Progress | None) -> None:
    """One further sweep, on these islands alone."""
    units = node_units(islands, FLEETS[search.budget.effort].states)
    enumeration = _on(search.enumeration, islands, search)
    search.within(enumeration, units, progress)
    enumeration.counts.redundant = 0
    search.enumeration.counts.add(enumeration.counts)


def _on(known: Enumeration, islands: Sequence[Island], search: Search) -> Enumeration:
    """An enumeration of these islands that knows what the other one has priced and asked."""
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

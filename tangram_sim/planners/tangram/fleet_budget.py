"""Search limits for large clusters, by effort."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tangram_sim.planners.budget import CompositionBudget

# Of one shape: a first look at everything ends for most shapes on one kind of GPU; fewer complete patterns
# are played than pipelines of a search, and two are kept.
PATTERNS = CompositionBudget(composed=64, played_passes=1 << 20, kept=2)


@dataclass(frozen=True, slots=True)
class FleetBudget:
    """Limits for large clusters: the patterns searched, and the mixes of their copies tried."""

    # From so many combinations of node counts, or nodes, on: below, single nodes are told apart and the plan
    # is as good in as much time. Where patterns are not allowed nodes are taken in groups instead.
    states: int = 1500
    nodes: int = 24
    patience: int = 3  # shapes in a row, from the likeliest on, that are no better: the rest is left out
    # The best shapes once more with stages on parts of nodes, where that leaves most of the copies: it gained
    # 0.2 to 1.4 %. Above `few` nodes for three to five times the questions, so there none.
    finer: int = 3
    few: int = 64
    # Composition of one shape: counts of nodes in a copy that are all kept apart, with more kinds are used up
    # one by one; and counts so used up, which double with every island: tables of a dozen take a second each.
    apart: int = 300
    most_told_apart: int = 1 << 14
    # Of the limit: what a stage may add to the best pattern, for many fewer labels. What the first finds
    # limits the next; where it finds nothing, something little better than the limit may be lost. Every
    # stage may lose as much: where the last was too much work a mixture of 47 layers was 1.9 % slower
    # without the one in between, which took no more in all.
    tolerances: tuple[float, ...] = (0.01, 0.005, 0.002)
    # Comparisons of a look below what beams found: a fifth of a second, after which what they found is taken.
    work: int = 25_000_000
    beams: tuple[int, ...] = (2,)  # labels kept of a state: wider ones found under 0.5 % better pipelines
    composition: CompositionBudget = PATTERNS
    slack: float = 0.02  # of the best pattern of a kind: these, too, are kept
    # How often the master program of mixes is solved, corrected by what was played; equal copies played.
    rounds: int = 4
    alike: int = 12
    # Some islands once more, nodes told apart (`apart`): not where the bound on their pipelines is so near.
    apart_worth: float = 0.05

    def is_large(self, nodes: Sequence[int]) -> bool:
        """Whether islands with these nodes have too many node counts to be searched node by node."""
        return prod(count + 1 for count in nodes) > self.states or sum(nodes) > self.nodes


FLEETS = {
    "quick": FleetBudget(patience=2, finer=1, tolerances=(0.01,), work=10_000_000, rounds=2, alike=6),
    "normal": FleetBudget(),
    "exhaustive": FleetBudget(
        patience=6,
        finer=6,
        few=1 << 30,
        tolerances=(0.005, 0.0005),
        work=4_000_000_000,
        beams=(2, 16),
        rounds=8,
        alike=24,
    ),
}

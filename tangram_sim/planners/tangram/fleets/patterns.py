"""Patterns: pipelines on few nodes, of which many copies run side by side (docs/models/scale.md).

`copies` identical pipelines equal one pipeline with `copies` times the nodes per stage and the sequences per
microbatch: a pattern is priced as that pipeline, by the search for small clusters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.layers.atoms import Slice
from tangram_sim.models import Block, FeedForward, Model
from tangram_sim.parallelizers.api import Constraints, Parallelizer, Request
from tangram_sim.planners.api import Counts
from tangram_sim.planners.budget import SearchBudget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.composed import Composed
from tangram_sim.planners.tangram.composition.exact import fastest
from tangram_sim.planners.tangram.composition.labels import roads
from tangram_sim.planners.tangram.composition.search import hop_seconds
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.registry import parallelizer as parallelizer_named
from tangram_sim.training.job import Job
from tangram_sim.training.problem import TrainingProblem

WIDEST = 2  # nodes of the widest stage of a copy that has more: beyond, tensor parallelism crosses NICs
# Nodes of one copy; wider ones are stages of one pipeline that nothing is won by.
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SEQUENCES = (1, 2, 4, 8, 16)  # of one microbatch of one copy
MANY = 8  # microbatches from which on gathering or reducing weights in each (ZeRO 2, 3) is not tried
_HELD = 0.7  # share of a GPU's memory for weights and gradients from which widths are tried
_IDLE = 0.1  # of what other shapes use: shapes that leave more nodes idle are not searched
_PARTS = (8, 4, 2)  # copies that share a node in a stage
_EVEN = 0.97  # share of the copies that sharing nodes must leave
_TRUSTED = 0.97  # of a block's time alone: what a chain of blocks may hide
_FACTORS = (1.25, 1.5, 1.8, 2.2, 3.0, 8.0, float("inf"))  # limits over the bound where nothing is to beat
_MOST_STATES = 10_000_000  # counts of nodes of which one table of numbers can be kept at all

# Whether to leave the first number of sequences for others: no, if it gives any pattern, or anyway.
Climb: TypeAlias = Literal["no", "yes", "anyway"]


@dataclass(frozen=True, slots=True)
class PipelinePattern:
    """A pipeline on few nodes, priced as `copies` copies side by side; seconds as in the composition."""

    nodes: tuple[float, ...]  # of one copy, by island; whole for a granule of copies
    copies: int
    granule: int  # copies come in multiples of this: degrees of all layouts stay whole
    sequences: int  # of one microbatch of one copy
    first_s: float  # until a copy has done its first microbatch, tails included
    pace_s: float  # every further one
    composed: Composed

    def done(self, step_s: float) -> float:
        """Sequences that one copy completes within a step of `step_s`, parts of microbatches included."""
        return self.sequences * max(0.0, 1.0 + (step_s - self.first_s) / self.pace_s)


@dataclass(frozen=True)
class FleetProblem(TrainingProblem):
    """Input that all patterns of one request share; picklable for other processes."""

    islands: tuple[Island, ...]
    constraints: Constraints
    parallelizer: str
    budget: SearchBudget


def shares(bound: WorkBound) -> list[float]:
    """Share of the total work of every island when all islands work at their best speed."""
    return [float(value) for value in bound.gpus * bound.value]


@dataclass(frozen=True, slots=True)
class PatternLimits:
    """Limits of one search for patterns: at most `nodes` of every island in each of `copies` copies.

    A stage of a copy takes whole nodes, or multiples of 1 / `parts` of a node: `parts` copies share one node.
    """

    nodes: tuple[int, ...]
    copies: int
    parts: int = 1

    @property
    def states(self) -> float:
        """Number of states: counts of nodes (or parts of nodes) that a copy may have used."""
        return float(np.prod([count * self.parts + 1.0 for count in self.nodes]))

    @property
    def one_by_one(self) -> int:
        """Number of states with at most one island used in part; used where all states are too many."""
        used = [count * self.parts for count in self.nodes if count]
        return (1 << len(used)) + sum(count - 1 for count in used) * (1 << max(len(used) - 1, 0))

    def finer(self) -> "PatternLimits | None":
        """These limits with the smallest searchable parts of nodes; None where only whole nodes are possible.

        Copies that do not fill whole nodes in such parts are left out.
        """
        for parts in _PARTS:
            fewer = replace(self, copies=self.copies - self.copies % parts, parts=parts)
            if fewer.copies < _EVEN * self.copies:
                continue
            if parts > self.parts and fewer.states <= _MOST_STATES:
                return fewer
        return None


def shapes(ground: FleetProblem, kinds: Sequence[int]) -> list[PatternLimits]:
    """Limits for copies over some islands, likeliest first: those that just hold weights and gradients once.

    Copy counts divide one of the islands into copies of WIDTHS nodes; each gets its share of every island.
    """
    model, job, budget = ground.model, ground.job, FLEETS[ground.budget.effort]
    needed = model.parameters * (job.precision.weight_bytes + job.recipe.gradient_bytes) / _HELD
    found: dict[tuple[int, ...], int] = {}
    for copies in {_copies(model, ground.islands[kind].nodes // width) for kind in kinds for width in WIDTHS}:
        if not copies:
            continue
        nodes = [0] * len(ground.islands)
        for kind in kinds:
            nodes[kind] = ground.islands[kind].nodes // copies
        used = [count for count in nodes if count]
        several, limits = len(used) > 1, PatternLimits(tuple(nodes), copies)
        many = limits.states > _MOST_STATES or limits.one_by_one > budget.most_told_apart
        if sum(used) > WIDEST * (model.layers + 2) or (several and many):
            continue
        if len(kinds) == 1 or several:
            found[tuple(nodes)] = max(copies, found.get(tuple(nodes), 0))

    def room(nodes: tuple[int, ...]) -> float:
        pairs = zip(nodes, ground.islands, strict=True)
        return sum(count * island.gpus_per_node * island.gpu.memory_bytes for count, island in pairs) / needed

    def taken(nodes: tuple[int, ...]) -> float:
        pairs = zip(nodes, ground.islands, strict=True)
        return found[nodes] * sum(
            count * island.gpus_per_node * island.gpu.memory_bytes for count, island in pairs
        )

    most = max(map(taken, found), default=0.0)
    found = {nodes: copies for nodes, copies in found.items() if taken(nodes) >= (1 - _IDLE) * most}
    ordered = sorted(found, key=lambda nodes: (abs(np.log2(min(room(nodes), 2 * sum(nodes))) - 0.2), nodes))
    return [PatternLimits(nodes, found[nodes]) for nodes in ordered]


def patterns_of(
    ground: FleetProblem,
    shape: PatternLimits,
    start: int,
    climb: Climb,
    share: float,
    best_s: float,
    deadline: Deadline,
) -> tuple[list[PipelinePattern], float, int, Counts]:
    """Patterns of one shape that process `share` of the batch in less than `best_s` plus the budget's slack.

    Also returns the seconds of the best one (inf: none found), its sequences per microbatch, and counters.
    Microbatches of one copy have `start` sequences; then more, or else fewer, until the step gets longer, as
    `climb` allows. One piece of work for any process or machine; no request starts after the deadline.
    """
    counts, patterns, reached = Counts(), list[PipelinePattern](), (float("inf"), start)
    at = SEQUENCES.index(start)
    for sizes in [(start,)] if climb == "no" else [SEQUENCES[at:], SEQUENCES[:at][::-1]]:
        for sequences in sizes:
            if deadline.over():
                break
            found = _search(
                ground,
                shape,
                sequences,
                share,
                best_s=min(best_s, reached[0]),
                counts=counts,
                deadline=deadline,
            )
            patterns += [pattern for _, pattern in found]
            if found and found[0][0] < reached[0]:
                reached = found[0][0], sequences
            elif sequences != start or climb != "anyway":
                break
        if reached[1] != start or (reached[0] == float("inf") and climb != "anyway"):
            break
    return patterns, *reached, counts


def _copies(model: Model, most: int) -> int:
    """Number of copies up to `most`; with experts a multiple of 8 or a power of two, for divisors of ep."""
    dense = all(
        isinstance(block, Block) and isinstance(block.feed_forward, FeedForward) for block in model.blocks
    )
    if dense or most < 2:
        return most
    return most - most % 8 if most >= 16 else 1 << (most.bit_length() - 1)


@lru_cache(maxsize=4)  # looking through what is installed takes milliseconds, and every shape asks
def _parallelizer(name: str) -> type[Parallelizer]:
    found: type[Parallelizer] = parallelizer_named(name)
    return found


def _search(
    ground: FleetProblem,
    shape: PatternLimits,
    sequences: int,
    share: float,
    best_s: float,
    counts: Counts,
    deadline: Deadline,
) -> list[tuple[float, PipelinePattern]]:
    """(seconds for the share of the batch, pattern), best first, below `best_s` plus the budget's slack."""
    budget = FLEETS[ground.budget.effort]
    kinds, copies = [kind for kind, count in enumerate(shape.nodes) if count], shape.copies
    unit, counts_of = copies // shape.parts, [shape.nodes[kind] * shape.parts for kind in kinds]
    each = share * ground.job.global_batch / copies  # sequences of one copy
    microbatches = max(1, round(each / sequences))
    if sequences > 1 and each < sequences:
        return []
    job = replace(ground.job, global_batch=microbatches * copies * sequences)
    scale = microbatches * sequences / each  # the job of this search over the share's work
    islands = [ground.islands[kind].part(copies * shape.nodes[kind]) for kind in kinds]
    constraints = replace(ground.constraints, copies=copies)
    if microbatches > MANY and "zero_stage" not in dict(constraints.fixed):
        constraints = replace(constraints, zero_stages=(0, 1))
    # A fresh one for each search: its prices are of no use to the next, and take memory.
    parallelizer = _parallelizer(ground.parallelizer)()
    widest = min(WIDEST * shape.parts, max(counts_of))
    least, passage_s = _least(
        ground,
        job,
        islands,
        constraints,
        sequences,
        unit,
        widest=widest,
        parallelizer=parallelizer,
        counts=counts,
    )
    bound = WorkBound(ground.model, job, islands, ground.hwdb, least=least)
    enumeration = Enumeration(
        ground.model,
        job,
        islands,
        parallelizer,
        constraints,
        ground.hwdb,
        bound=bound,
        counts=counts,
        widest=widest,
        deadline=deadline,
        passage_s=passage_s,
    )
    microbatch, units = copies * sequences, [unit] * len(islands)
    size = job.boundary_bytes(ground.model, microbatch)
    hops = hop_seconds(islands, ground.cluster, ground.hwdb, size, ()) / copies
    ways = roads(islands, ground.cluster, ground.hwdb, size, hops)
    found: list[Composed] = []
    if not np.isfinite(bound.step_s()):  # no layout holds even one block
        return []
    known_s = (
        best_s * (1 + budget.slack) * scale
    )  # without a pattern to beat limits widen from the bound upward
    for limit_s in [known_s] if known_s < np.inf else [bound.step_s() * factor for factor in _FACTORS]:
        table = enumeration.table(microbatch, limit_s, units)
        asked = table, counts_of, ways, ground.model, job, limit_s, budget, deadline
        found = fastest(*asked, one_by_one=shape.states > budget.apart)
        if found or deadline.over():
            break
    enumeration.count_pruned()
    counts.composed += len(found)
    return [
        (composed.objective_s / scale, _pattern(composed, ground, kinds, shape, sequences, microbatches))
        for composed in found
    ]


def _least(
    ground: FleetProblem,
    job: Job,
    islands: Sequence[Island],
    constraints: Constraints,
    sequences: int,
    unit: int,
    widest: int,
    parallelizer: Parallelizer,
    counts: Counts,
) -> tuple[NDArray[np.float64], float]:
    """Lower bounds for every block: (kinds, atoms) GPU-seconds per sequence, and seconds of one microbatch
    through all. They hold for any layout of a stage and include communication and launches of the best layout
    for each block alone: a stage of many blocks is no faster. Zero for a single copy, whose stages may be
    parts of a node: smaller groups are cheaper and are not requested here."""
    least, copies = np.zeros((len(islands), ground.model.layers + 2)), constraints.copies
    if copies == 1:
        return least, 0.0
    blocks = ground.model.blocks
    microbatch = copies * sequences
    passage = np.full(least.shape, np.inf)
    passage[:, [0, -1]] = 0.0
    for kind, island in enumerate(islands):
        seconds, quickest = dict[Block, float](), dict[Block, float]()
        for atom, block in enumerate(blocks, start=1):
            if block not in seconds:
                seconds[block] = quickest[block] = float("inf")
                for nodes in range(unit, min(island.nodes, widest * unit) + 1, unit):
                    part = island.part(nodes).anonymous()
                    request = Request(
                        slice=Slice(ground.model, atom, atom + 1),
                        island=part,
                        job=job,
                        microbatch=microbatch,
                        microbatches=job.global_batch // microbatch,
                        hwdb=ground.hwdb,
                        constraints=constraints,
                    )
                    counts.asked += 1
                    for partial in parallelizer.parallelize(request).partials:
                        seconds[block] = min(seconds[block], partial.slowest_s * part.gpus / microbatch)
                        quickest[block] = min(quickest[block], partial.slowest_s)
            least[kind, atom] = seconds[block] * _TRUSTED
            passage[kind, atom] = quickest[block] * _TRUSTED
    return least, float(passage.min(axis=0).sum())


def _pattern(
    composed: Composed,
    ground: FleetProblem,
    kinds: Sequence[int],
    shape: PatternLimits,
    sequences: int,
    microbatches: int,
) -> PipelinePattern:
    nodes, copies = [0.0] * len(ground.islands), shape.copies
    places = tuple(replace(place, kind=kinds[place.kind]) for place in composed.places)
    for place in places:
        nodes[place.kind] += place.partial.nodes / copies
    pace_s = max(place.partial.slowest_s for place in places)
    return PipelinePattern(
        nodes=tuple(nodes),
        copies=copies,
        granule=_granule(composed, copies, shape.parts),
        sequences=sequences,
        first_s=composed.objective_s - (microbatches - 1) * pace_s,
        pace_s=pace_s,
        composed=replace(composed, places=places),
    )


def _granule(composed: Composed, copies: int, parts: int) -> int:
    """The smallest number of copies at which nodes, dp and ep of every stage are whole numbers."""
    layouts = [run.layout for place in composed.places for run in place.partial.runs] or []
    layouts += [place.partial.layout for place in composed.places]
    for granule in range(parts, copies, parts):
        if all(
            layout.dp * granule % copies == 0 and layout.dp * granule // copies * layout.cp % layout.ep == 0
            for layout in layouts
        ):
            return granule
    return copies

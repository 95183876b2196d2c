"""Fleets: copies of each pattern and their microbatches (docs/models/scale.md).

Master problem of a column generation: for a step of T seconds, x_q copies of pattern q that together process
the most sequences, within the nodes of every island. Bisection finds the least T at which that is the whole
batch; dual prices of nodes say how many sequences per node another pattern must process to help.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.layouts import Layout
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.finalists import pipeline_of, seats_of
from tangram_sim.planners.tangram.fleets.packing import Packing, PackingProgram
from tangram_sim.planners.tangram.fleets.patterns import PipelinePattern
from tangram_sim.training.plan import Pipeline

_STEPS = 24  # of a bisection: the step to 1e-5 of its range
_MOST_EXCESS = 200_000  # sequences that are handed back exactly; beyond, in whole granules


@dataclass(frozen=True, slots=True)
class Master:
    """Solution of the master program: least step, fractional copies of each pattern, dual prices of nodes."""

    step_s: float
    copies: NDArray[np.float64]
    prices: NDArray[np.float64]  # sequences per node, by island


@dataclass(frozen=True, slots=True)
class PipelineCopies:
    """Identical copies of a pattern side by side: one pipeline of the plan."""

    pattern: PipelinePattern
    copies: int
    microbatches: int


def master(patterns: Sequence[PipelinePattern], nodes: Sequence[int], batch: int) -> Master | None:
    """The least step in which a mix of patterns processes `batch` sequences; None without patterns."""
    if not patterns:
        return None
    used = np.array([pattern.nodes for pattern in patterns], dtype=np.float64).T
    program = PackingProgram(used, np.array(nodes, dtype=np.float64))
    low, high = 0.0, max(pattern.first_s + pattern.pace_s * batch for pattern in patterns)
    best = _most(program, patterns, high)
    for number in range(_STEPS):
        middle = (
            0.5 * (low + high)
            if number
            else min(high, 4 * min(pipeline_pattern.first_s for pipeline_pattern in patterns))
        )
        found = _most(program, patterns, middle)
        if found.worth >= batch:
            high, best = middle, found
        else:
            low = middle
        if high - low < 1e-5 * high:
            break
    return Master(high, best.taken, best.prices)


def _most(program: PackingProgram, patterns: Sequence[PipelinePattern], step_s: float) -> Packing:
    """The mix of copies that processes the most sequences in a step of `step_s` seconds."""
    return program.best(np.array([pattern.done(step_s) for pattern in patterns]))


def whole(
    patterns: Sequence[PipelinePattern], answer: Master, nodes: Sequence[int], least_share: float
) -> dict[PipelinePattern, int]:
    """Whole copies of patterns, in granules: the program's, rounded, then free nodes filled.

    A new pattern is added only if its copies take more than `least_share` of all nodes.
    """
    left = [float(count) for count in nodes]
    chosen: dict[PipelinePattern, int] = {}

    def take(pattern: PipelinePattern, copies: int) -> None:
        copies -= copies % pattern.granule
        if copies > 0:
            chosen[pattern] = chosen.get(pattern, 0) + copies
            for kind, width in enumerate(pattern.nodes):
                left[kind] -= width * copies

    for pattern, copies in sorted(
        zip(patterns, answer.copies, strict=True), key=lambda pair: -float(pair[1])
    ):
        room = int(min(left[kind] // width for kind, width in enumerate(pattern.nodes) if width))
        if copies * sum(pattern.nodes) > least_share * sum(nodes):
            take(pattern, min(round(float(copies)), room))
    if not chosen:  # small clusters of many patterns
        take(max(patterns, key=lambda pipeline_pattern: pipeline_pattern.done(answer.step_s)), 1)
    worth = sorted(
        patterns,
        key=lambda pipeline_pattern: -pipeline_pattern.done(answer.step_s) / sum(pipeline_pattern.nodes),
    )
    for pattern in [*chosen, *worth]:  # those in use first: fewer different pipelines
        if pattern.done(answer.step_s) >= pattern.sequences:
            room = int(min(left[kind] // width for kind, width in enumerate(pattern.nodes) if width))
            if pattern in chosen or room * sum(pattern.nodes) > least_share * sum(nodes):
                take(pattern, room)
    return chosen


def apportion(chosen: dict[PipelinePattern, int], batch: int) -> list[PipelineCopies] | None:
    """Microbatches of every copy such that the last ends as early as possible and the batch is exact.

    None where the patterns' microbatches cannot add up to the batch.
    """
    low, high = 0.0, max(pattern.first_s + pattern.pace_s * batch for pattern in chosen)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if _capacity(chosen, middle) >= batch else (middle, high)
    turns = {pattern: _microbatches(pattern, high) for pattern in chosen}
    turns = {pattern: count for pattern, count in turns.items() if count}
    excess = (
        sum(
            chosen[pipeline_pattern] * pipeline_pattern.sequences * count
            for pipeline_pattern, count in turns.items()
        )
        - batch
    )
    fewer = _hand_back({turn: chosen[turn] for turn in turns}, turns, excess)
    if fewer is None:
        return None
    groups = []
    for pattern, count in turns.items():
        rounds, extra = divmod(fewer[pattern], chosen[pattern] // pattern.granule)
        for copies, microbatches in (
            (chosen[pattern] - extra * pattern.granule, count - rounds),
            (extra * pattern.granule, count - rounds - 1),
        ):
            if copies and microbatches > 0:
                groups.append(PipelineCopies(pattern, copies, microbatches))
            elif copies and microbatches < 0:
                return None
    return groups


def _microbatches(pattern: PipelinePattern, step_s: float) -> int:
    return max(0, int(1 + (step_s - pattern.first_s) / pattern.pace_s + 1e-9))


def _capacity(chosen: dict[PipelinePattern, int], step_s: float) -> int:
    return sum(
        copies * pipeline_pattern.sequences * _microbatches(pipeline_pattern, step_s)
        for pipeline_pattern, copies in chosen.items()
    )


def _hand_back(
    chosen: dict[PipelinePattern, int], turns: dict[PipelinePattern, int], excess: int
) -> dict[PipelinePattern, int] | None:
    """Granules of every pattern that process one microbatch less, `excess` sequences in total, or None. The
    pattern that ends last is reduced first; a coin-change search assigns the remainder. None where no
    combination matches."""
    coins = {
        pipeline_pattern: pipeline_pattern.granule * pipeline_pattern.sequences for pipeline_pattern in chosen
    }
    most = {
        pipeline_pattern: turns[pipeline_pattern] * (chosen[pipeline_pattern] // pipeline_pattern.granule)
        for pipeline_pattern in chosen
    }
    fewer = dict.fromkeys(chosen, 0)
    last = {
        pipeline_pattern: pipeline_pattern.first_s + (turns[pipeline_pattern] - 1) * pipeline_pattern.pace_s
        for pipeline_pattern in chosen
    }
    reserve = 2 * max(coins.values())
    for pipeline_pattern in sorted(chosen, key=lambda pipeline_pattern: -last[pipeline_pattern]):
        if excess > reserve:
            fewer[pipeline_pattern] = min(
                most[pipeline_pattern],
                (excess - reserve) // coins[pipeline_pattern],
                chosen[pipeline_pattern] // pipeline_pattern.granule,
            )
            excess -= fewer[pipeline_pattern] * coins[pipeline_pattern]
    if excess > _MOST_EXCESS:
        return None
    # by[rest]: the coin that reaches it, and from where
    by: dict[int, tuple[PipelinePattern | None, int]] = {0: (None, 0)}
    frontier = [0]
    while frontier and excess not in by:
        following = []
        for reached in frontier:
            for pipeline_pattern, coin in coins.items():
                target = reached + coin
                if target <= excess and target not in by:
                    by[target] = (pipeline_pattern, reached)
                    following.append(target)
        frontier = following
    if excess not in by:
        return None
    while excess:
        coin_of, excess = by[excess]
        if coin_of is None or fewer[coin_of] == most[coin_of]:
            return None
        fewer[coin_of] += 1
    return fewer


def pipelines_of(
    groups: Sequence[PipelineCopies], islands: Sequence[Island], placement: Placement, layers: int
) -> tuple[Pipeline, ...]:
    """Pipelines of the groups with ranks: nodes of an island are assigned in order, group by group."""
    taken = [0] * len(islands)
    found = []
    for group in groups:
        pattern, copies = group.pattern, group.copies
        mine = [
            replace(island, node_indices=island.node_indices[taken[kind] :])
            for kind, island in enumerate(islands)
        ]
        places = tuple(_scaled(place, copies, pattern.copies) for place in pattern.composed.places)
        composed = Composed(0.0, places, copies * pattern.sequences, group.microbatches)
        seats = seats_of(composed, mine, placement)
        found.append(pipeline_of(seats, layers, composed.microbatch, group.microbatches))
        for kind, width in enumerate(pattern.nodes):
            taken[kind] += round(width * copies)
    return tuple(found)


def _scaled(place: Placed, copies: int, priced: int) -> Placed:
    """A stage of a pattern that was priced for `priced` copies, scaled to `copies` copies."""

    def layout(one: Layout) -> Layout:
        return replace(one, dp=one.dp * copies // priced)

    partial = place.partial
    runs = tuple(replace(run, layout=layout(run.layout)) for run in partial.runs)
    return replace(
        place,
        partial=replace(
            partial, nodes=partial.nodes * copies // priced, layout=layout(partial.layout), runs=runs
        ),
    )

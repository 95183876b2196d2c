"""Joint islands: whole nodes of several islands that hold one stage together, and divisions of its work.

The composition treats a joint island as a kind of its own; one unit of it takes nodes of each of its islands.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from tangram_sim.planners.tangram.second_look import SecondLook
from tangram_sim.training.shares import by_earliest_end

Nodes = tuple[int, ...]  # of every island


@dataclass(frozen=True, slots=True)
class JointBudget(SecondLook):
    """Limits on stages on several islands: slices, microbatch sizes near the best, simulations."""

    most: int = 240  # questions, whatever the search asked: each takes 20 ms and more
    refined: int = 4  # links shared, plans change places
    widths: tuple[int, ...] = (4,)  # labels kept of a state, where options are many


JOINT = {
    "quick": JointBudget(share=64, least=24, sizes=2, played=8, most=48, refined=1, widths=(2,)),
    "normal": JointBudget(share=16, least=60, sizes=4, played=24),
    "exhaustive": JointBudget(share=8, least=240, sizes=8, played=48, most=1 << 30, refined=8),
}


def steps_of(nodes: int) -> tuple[int, ...]:
    """Numbers of nodes of one island in a joint island: all up to 3 nodes, else one, two, half and all."""
    return tuple(range(1, nodes + 1)) if nodes <= 3 else tuple(sorted({1, 2, nodes // 2, nodes}))


def joint_islands(counts: Sequence[int]) -> tuple[Nodes, ...]:
    """Nodes by island of all joint islands: pairs of islands, and equal shares of three or more.

    Sorted by number of nodes: the largest leave the fewest nodes to other stages.
    """
    found: dict[Nodes, None] = {}
    kinds = range(len(counts))
    for pair in combinations(kinds, 2):
        for taken in product(*(steps_of(counts[kind]) for kind in pair)):
            found[tuple(dict(zip(pair, taken, strict=True)).get(kind, 0) for kind in kinds)] = None
    if len(counts) > 2:
        for share in range(1, min(counts) + 1):
            found[tuple(count // share for count in counts)] = None
    return tuple(sorted(found, key=lambda nodes: (sum(nodes), nodes)))


def shares(speeds: Sequence[float], microbatch: int, most: int, uneven: float) -> Iterator[tuple[int, ...]]:
    """Yields up to `most` ways to divide a microbatch by speed, in multiples of ..., 4, 2, 1 sequences.

    One multiple at a time goes to the part that would finish it first. Coarse multiples come first, since
    they suit data-parallel ranks; divisions in which a part takes more than `uneven` times its ideal time are
    skipped. No part is empty.
    """
    ideal_s = microbatch / sum(speeds)
    seen: set[tuple[int, ...]] = set()
    quantum = 1 << max(microbatch.bit_length() - 1, 0)
    while quantum and len(seen) < most and microbatch >= len(speeds):
        parts = _by_speed(speeds, microbatch, quantum)
        latest_s = max(part / speed for part, speed in zip(parts, speeds, strict=True))
        near = latest_s <= uneven * ideal_s or (quantum == 1 and not seen)
        if min(parts) and near and parts not in seen:
            seen.add(parts)
            yield parts
        quantum //= 2


def _by_speed(speeds: Sequence[float], microbatch: int, quantum: int) -> tuple[int, ...]:
    """Sequences of each part, assigned `quantum` at a time; with `quantum` 1 no part is empty."""
    return by_earliest_end(
        microbatch,
        lambda part, turns: turns * quantum / speeds[part],
        [quantum] * len(speeds),
        least=1 if quantum == 1 else 0,
    )

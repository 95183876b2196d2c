"""Shares of work by speed: how many microbatches each replica runs."""

import heapq
from collections.abc import Sequence

from tangram_sim.errors import BadInputError


def split_microbatches(seconds: Sequence[float], microbatches: int, least: int = 0) -> tuple[int, ...]:
    """How many microbatches each replica runs so that the last to end ends soonest.

    `seconds` is what a microbatch takes on each replica; every replica runs at least `least`. Greedy: the
    next microbatch goes where it would end first, which is optimal since every replica's time only grows
    (exchange argument). Raises `BadInputError` for times not above 0 or too few microbatches.
    """
    if not seconds or min(seconds) <= 0 or microbatches < least * len(seconds):
        raise BadInputError(
            f"{microbatches} microbatches cannot be shared over replicas that take {list(seconds)} s "
            f"each, at least "
            f"{least} each; give seconds above 0 and enough microbatches."
        )
    counts = [least] * len(seconds)
    ends = [((least + 1) * each, index) for index, each in enumerate(seconds)]
    heapq.heapify(ends)
    for _ in range(microbatches - least * len(seconds)):
        _, index = ends[0]
        counts[index] += 1
        heapq.heapreplace(ends, ((counts[index] + 1) * seconds[index], index))
    return tuple(counts)

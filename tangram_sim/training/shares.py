"""Division of work by speed: sequences over parts of a stage, microbatches over pipelines."""

import heapq
from collections.abc import Callable, Sequence


def by_earliest_end(
    total: int, end_s: Callable[[int, int], float], sizes: Sequence[int], least: int = 0
) -> tuple[int, ...]:
    """Units of each worker, `total` in all, such that the last worker finishes as early as possible.

    A worker takes `sizes[worker]` units a turn, fewer in the very last turn; `end_s(worker, turns)` is when
    it has finished so many turns, and increases with them. Each worker has `least` turns initially; each
    further turn goes to the worker that would finish it first, ties to the first worker. With single units
    this is optimal: moving the last unit of the worker that finishes last elsewhere would not finish earlier,
    since no other worker would have finished it before (exchange argument).
    """
    shares = [least * size for size in sizes]
    turns = [least] * len(sizes)
    ends = [(end_s(worker, least + 1), worker) for worker in range(len(sizes))]
    heapq.heapify(ends)
    left = total - sum(shares)
    while left > 0:
        _, worker = ends[0]
        given = min(sizes[worker], left)
        shares[worker] += given
        turns[worker] += 1
        left -= given
        heapq.heapreplace(ends, (end_s(worker, turns[worker] + 1), worker))
    return tuple(shares)

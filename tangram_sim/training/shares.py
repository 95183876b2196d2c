"""Work shared out by speed: sequences over parts of a stage, microbatches over pipelines."""

import heapq
from collections.abc import Callable, Sequence


def by_earliest_end(
    total: int, end_s: Callable[[int, int], float], sizes: Sequence[int], least: int = 0
) -> tuple[int, ...]:
    """Units of each worker, `total` in all, so that the last worker ends as early as it can.

    A worker takes `sizes[worker]` units a turn, the last turn of all may hold fewer; `end_s(worker, turns)`
    is when it is through with so many turns, and grows with them. Each has `least` turns to begin with, then
    the next turn goes where it would end first, ties to the first worker. With single units no other way
    ends earlier: whoever ends last here would not end earlier had its last unit gone elsewhere, since no
    other worker would be through with it before (exchange argument).
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

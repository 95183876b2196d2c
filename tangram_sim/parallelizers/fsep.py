"""Fully sharded experts: number of copies of each expert under a measured load, and when gathering is hidden.

LAER-MoE (arXiv:2602.11686). Every expert is sharded over all N ranks; before use, an all-to-all assembles the
C experts of the placement on each rank, so re-placing experts costs nothing. Prices of layouts with `fsep`
(tangram_sim.training.stage.state) assume balanced loads, as all prices here do.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace


def replicas(loads: Sequence[float], slots: int) -> tuple[int, ...]:
    """Copies of each expert, `slots` in total: one each, then repeatedly one more for the most loaded copy.

    Raises ValueError when there are fewer slots than experts.
    """
    if slots < len(loads):
        raise ValueError(f"{slots} slots cannot hold {len(loads)} experts")
    copies = [1] * len(loads)
    heap = [(-load, expert) for expert, load in enumerate(loads)]
    heapify(heap)
    for _ in range(slots - len(loads)):
        expert = heap[0][1]
        copies[expert] += 1
        heapreplace(heap, (-loads[expert] / copies[expert], expert))
    return tuple(copies)

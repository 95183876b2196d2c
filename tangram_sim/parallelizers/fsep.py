"""Fully sharded experts: how many copies each expert gets under a measured load, and when gathering hides.

LAER-MoE (arXiv:2602.11686). Every expert is cut over all N ranks; before use, an all-to-all puts the C
experts that the placement names together on each rank, so re-placing experts costs nothing.
Prices of layouts with `fsep` (tangram_sim.training.stage.state) assume balanced loads, as all prices here do.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace


def replicas(loads: Sequence[float], slots: int) -> tuple[int, ...]:
    """Copies of each expert, `slots` in all: one each, then always one more of the most loaded copy.

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

"""Unequal pipelines: sizes that cover every number of nodes, and the batch shared out among them.

Templates of Oobleck (Jang et al., SOSP 2023): pipelines of n0 .. 2 n0 - 1 nodes, prepared before any failure.
"""

import heapq
from collections.abc import Sequence
from fractions import Fraction


def cover(nodes: int, least: int, replicas: int = 1) -> tuple[int, ...]:
    """Sizes of at least `replicas` pipelines, each `least` to 2 x `least` - 1 nodes, that use all nodes.

    As many pipelines as fit, as equal as can be, the larger ones first. Raises ValueError where none fit.
    """
    pipelines = nodes // least
    if pipelines < max(1, replicas):
        raise ValueError(f"{nodes} nodes hold {pipelines} pipelines of {least}; {replicas} are wanted")
    small, larger = divmod(nodes, pipelines)
    return (small + 1,) * larger + (small,) * (pipelines - larger)


def covers_losses(nodes: int, least: int, losses: int) -> bool:
    """Whether any `losses` losses leave a full copy: losses + 1 pipelines of `least` nodes."""
    return nodes >= (losses + 1) * least


def split_batch(microbatches: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Microbatches for pipelines that take `seconds` each, so that the slowest total is least.

    Greedy: each next microbatch to the pipeline that would then be done first, ties to the first. For equal
    weights per microbatch this is optimal (tests compare it with brute force). Raises ValueError for none.
    """
    if not seconds or min(seconds) <= 0 or microbatches < 0:
        raise ValueError("pipelines with seconds above zero are needed")
    rate = [Fraction(1) / Fraction(s) for s in seconds]
    total = sum(rate)
    # Start below the answer, at each one's share rounded down, where greedy passes anyway.
    shares = [int(microbatches * r / total) for r in rate]
    shares = [max(0, share - 1) for share in shares]
    queue = [((share + 1) * s, index) for index, (share, s) in enumerate(zip(shares, seconds, strict=True))]
    heapq.heapify(queue)
    for _ in range(microbatches - sum(shares)):
        _, index = heapq.heappop(queue)
        shares[index] += 1
        heapq.heappush(queue, ((shares[index] + 1) * seconds[index], index))
    return tuple(shares)

"""Liveput: the expected speed of a layout after losing some nodes at random (Duan et al., arXiv:2403.14097).

D pipelines of P stages on N nodes lose v nodes, every set equally likely, and no node changes its stage. D'
pipelines are left: the fewest replicas left in any stage. Counting sets, P(D' >= d) = [x^v] (sum_{j <= D-d}
C(D, j) x^j)^P (1 + x)^(N - DP) / C(N, v). In integers, so probabilities are exact to rounding.
"""

from collections.abc import Callable
from functools import lru_cache
from math import comb


def _times(a: list[int], b: list[int], most: int) -> list[int]:
    """Product of two polynomials, truncated after the power `most`."""
    found = [0] * min(most + 1, len(a) + len(b) - 1)
    for i, x in enumerate(a):
        if x:
            for j, y in enumerate(b[: len(found) - i]):
                found[i + j] += x * y
    return found


@lru_cache(maxsize=65536)
def replicas_left(nodes: int, pipelines: int, stages: int, lost: int) -> tuple[float, ...]:
    """Probabilities of 0, 1, ... pipelines left after random losses. ValueError for impossible counts."""
    used = pipelines * stages
    if used > nodes or not 0 <= lost <= nodes:
        raise ValueError(f"{used} nodes used and {lost} lost of {nodes}")
    ways = comb(nodes, lost)
    idle = [comb(nodes - used, j) for j in range(min(lost, nodes - used) + 1)]
    at_least = []
    for left in range(pipelines + 1):
        stage = [comb(pipelines, j) for j in range(min(lost, pipelines - left) + 1)]
        product = idle
        for _ in range(stages):
            product = _times(product, stage, lost)
        at_least.append(product[lost] if lost < len(product) else 0)
    exactly = [a - b for a, b in zip(at_least, [*at_least[1:], 0], strict=True)]
    return tuple(count / ways for count in exactly)


def liveput(nodes: int, pipelines: int, stages: int, lost: int, speed: Callable[[int, int], float]) -> float:
    """Expected speed after losing `lost` nodes: mean of `speed(d, stages)` over pipelines d that are left."""
    chances = replicas_left(nodes, pipelines, stages, lost)
    return sum(chance * speed(left, stages) for left, chance in enumerate(chances) if left and chance)

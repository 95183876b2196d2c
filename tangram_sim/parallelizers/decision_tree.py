"""Galvatron's decision trees: how the GPUs of one pipeline stage are split among DP, SDP and TP.

Miao et al., "Galvatron", arXiv:2211.13878 (VLDB 2023), and Galvatron-BMW (arXiv:2307.02031), which doubles
the candidates by checkpointing (CKPT). A candidate is an ordered choice of paradigms, each with a degree > 1,
whose product is the stage's GPUs; pruned: DP and SDP never together, since SDP alone is better than both.
"""

from collections.abc import Iterator
from itertools import permutations

from tangram_sim.parallelizers.layouts import divisors

PARADIGMS = ("DP", "SDP", "TP")

# ((paradigm, degree), ...), innermost ranks last.
Candidate = tuple[tuple[str, int], ...]


def _splits(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations of `number` into `parts` factors above 1."""
    if parts == 0:
        if number == 1:
            yield ()
        return
    for factor in divisors(number)[1:]:
        for rest in _splits(number // factor, parts - 1):
            yield (factor, *rest)


def candidates(gpus: int, pruned: bool = True) -> tuple[Candidate, ...]:
    """The leaves of the tree of one stage of `gpus` GPUs. One GPU has one candidate, without any paradigm."""
    if gpus == 1:
        return ((),)
    found = []
    for parts in range(1, len(PARADIGMS) + 1):
        for paradigms in permutations(PARADIGMS, parts):
            if pruned and {"DP", "SDP"} <= set(paradigms):
                continue
            found += [tuple(zip(paradigms, degrees, strict=True)) for degrees in _splits(gpus, parts)]
    return tuple(found)


def count(gpus: int, pruned: bool = True, checkpointing: bool = False) -> int:
    """Candidates over all pipeline depths of a power of two that divide `gpus`; 22 pruned of 34 on 8 GPUs."""
    total = sum(
        len(candidates(gpus // depth, pruned)) for depth in divisors(gpus) if depth & (depth - 1) == 0
    )
    return total * (2 if checkpointing else 1)

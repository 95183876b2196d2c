"""Layouts that a model and a number of GPUs allow: every factorisation, not only powers of two."""

from collections.abc import Iterator
from functools import lru_cache

from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.models import Experts, Model


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Divisors of a positive number, ascending."""
    return tuple(candidate for candidate in range(1, number + 1) if number % candidate == 0)


def degrees(gpus: int, inner: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Every (pp, tp, cp, dp) whose product is `gpus`, with pp out of `inner`."""
    for pp in inner:
        if gpus % pp:
            continue
        for tp in divisors(gpus // pp):
            for cp in divisors(gpus // pp // tp):
                yield pp, tp, cp, gpus // pp // tp // cp


@lru_cache(maxsize=64)
def head_counts(model: Model) -> tuple[int, ...]:
    """Distinct numbers of attention heads in the blocks."""
    return tuple(dict.fromkeys(block.attention.heads for block in model.blocks))


@lru_cache(maxsize=64)
def expert_counts(model: Model) -> tuple[int, ...]:
    """Distinct numbers of experts in the blocks that have experts."""
    parts = (block.feed_forward for block in model.blocks)
    return tuple(dict.fromkeys(part.experts for part in parts if isinstance(part, Experts)))


def expert_degrees(model: Model, replicas: int) -> tuple[int, ...]:
    """Expert-parallel degrees: divisors of `replicas` (dp x cp) that also divide all numbers of experts."""
    experts = expert_counts(model)
    if not experts:
        return (1,)
    return tuple(degree for degree in divisors(replicas) if all(count % degree == 0 for count in experts))


def choices(layout_replicas: int, tp: int) -> Iterator[tuple[int, str, bool]]:
    """Every (ZeRO stage, recompute, sequence parallel); one replica has ZeRO 0 only, tp 1 no sharding."""
    for zero in range(4) if layout_replicas > 1 else (0,):
        for recompute in RECOMPUTE:
            for sequence_parallel in (False, True) if tp > 1 else (False,):
                yield zero, recompute, sequence_parallel


def layouts(model: Model, gpus: int, inner: tuple[int, ...], copies: int = 1) -> Iterator[Layout]:
    """Every layout of `gpus` GPUs: TP x DP x CP x EP x ZeRO x recompute x sequence parallelism x inner PP.

    `copies`, a divisor of `gpus`: only those whose dp is a multiple of it.
    """
    for pp, tp, cp, each in degrees(gpus // copies, inner):
        dp = each * copies
        for ep in expert_degrees(model, dp * cp):
            for zero, recompute, sequence_parallel in choices(dp * cp, tp):
                yield Layout(
                    tp, dp, cp, ep, pp, zero, recompute=recompute, sequence_parallel=sequence_parallel
                )

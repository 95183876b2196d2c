"""Microbatches of sequences of unequal length: pass time by lengths, and re-sorting of sequences.

A pass over packed sequences takes a x tokens + b x sum of squared lengths (matrix products, attention).
"""

import heapq
from collections.abc import Sequence

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray
from tangram_sim.reliability.stragglers.patterns import passes_s
from tangram_sim.reliability.traces.trace import StepTrace


def fitted(tokens: FloatArray, squares: FloatArray, seconds: FloatArray) -> tuple[float, float]:
    """(a, b) of seconds = a tokens + b squares by non-negative least squares."""
    from scipy.optimize import nnls

    (a, b), _ = nnls(np.stack((tokens, squares), axis=1), seconds)
    return float(a), float(b)


def resorted(sequences: Sequence[int], microbatches: int) -> tuple[tuple[int, ...], ...]:
    """Sequences in bins: longest first, to the bin with the least sum of squares. Raises `BadInputError`."""
    if microbatches < 1 or len(sequences) < microbatches or min(sequences) < 1:
        raise BadInputError(
            f"{len(sequences)} sequences in {microbatches} microbatches: give lengths of 1 or more, at "
            f"least one "
            "per microbatch"
        )
    bins: list[list[int]] = [[] for _ in range(microbatches)]
    loads = [(0, index) for index in range(microbatches)]
    for length in sorted(sequences, reverse=True):
        load, index = heapq.heappop(loads)
        bins[index].append(length)
        heapq.heappush(loads, (load + length * length, index))
    return tuple(tuple(held) for held in bins)


def resorted_factors(trace: StepTrace, sequences: Sequence[Sequence[int]]) -> dict[str, FloatArray]:
    """Factors on pass times after re-sorting sequences, [steps, n], under the keys `F` and `B`.

    With the sequence lengths of a step's microbatches, replica by replica, the fitted law gives the times
    before and after. Without them, every microbatch takes the mean of its stage.
    """
    found: dict[str, FloatArray] = {}
    for code in "FB":
        here = np.flatnonzero(trace.of_kind(code))
        order = here[np.lexsort((trace.seq[here], trace.rank_stage[here], trace.rank_dp[here]))]
        seconds = passes_s(trace, code)  # [steps, dp, stages, microbatches]
        if sequences:
            factor = _by_lengths(seconds, sequences)
        else:
            factor = seconds.mean(axis=(1, 3), keepdims=True) / seconds
        full = np.ones((len(trace.steps), len(trace)))
        full[:, order] = factor.reshape(len(trace.steps), -1)
        found[code] = full
    return found


def _by_lengths(seconds: FloatArray, sequences: Sequence[Sequence[int]]) -> FloatArray:
    _, dp, stages, microbatches = seconds.shape
    if len(sequences) != dp * microbatches or not all(held and min(held) > 0 for held in sequences):
        raise BadInputError(
            f"lengths of {len(sequences)} microbatches for {dp} replicas of {microbatches}: give one line "
            f"of lengths "
            f"above 0 per microbatch, {dp * microbatches} lines, replica by replica"
        )
    before = _measures(sequences)
    after = _measures(resorted([length for held in sequences for length in held], dp * microbatches))
    factor = np.empty((1, dp, stages, microbatches))
    for stage in range(stages):
        mean = seconds[:, :, stage, :].mean(axis=0).ravel()
        a, b = fitted(before[0], before[1], mean)
        old, new = (a * tokens + b * squares for tokens, squares in (before, after))
        factor[0, :, stage, :] = (new / old).reshape(dp, microbatches)
    return np.broadcast_to(factor, seconds.shape)


def _measures(microbatches: Sequence[Sequence[int]]) -> tuple[FloatArray, FloatArray]:
    """(tokens, sum of squared lengths) of each microbatch."""
    return (
        np.array([float(sum(held)) for held in microbatches]),
        np.array([float(sum(length * length for length in held)) for held in microbatches]),
    )

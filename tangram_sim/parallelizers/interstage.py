"""Mist's inter-stage problem: cuts and policies of equal stages whose closing work may overlap other stages.

    min  (m - 1) max_i t_i + sum_i t_i + max_i (d_i - sum_(j<i) t_j)

with t_i the seconds of a microbatch in stage i and d_i what its first forward and last backward take beyond
that (arXiv:2503.19050). The released code solves a MILP; here label-setting finds the same optimum: see
docs/models/mist.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tangram_sim.cost.kernels import Floats

# Policies of a stage that holds layers [low, high): seconds t and extra seconds d, of equal length.
Policies = Mapping[tuple[int, int], tuple[Floats, Floats]]


class StageCuts(NamedTuple):
    """Stages front to back as (low, high, policy), and seconds of a step."""

    stages: tuple[tuple[int, int, int], ...]
    seconds: float


def step_s(times: Sequence[float], extra: Sequence[float], microbatches: int) -> float:
    """Seconds of a step for given stages: the objective stated at the top of this module."""
    ahead = np.concatenate([[0.0], np.cumsum(times)[:-1]])
    hidden = float(np.max(np.asarray(extra) - ahead))
    return (microbatches - 1) * max(times) + sum(times) + hidden


def choose(stages: Sequence[Policies], start: int, stop: int, microbatches: int) -> StageCuts | None:
    """The best contiguous cover of layers [start, stop) by the stages, in order; None when there is none.

    From the back, a label of layers [low, stop) is (S, E, t): the sum of seconds, the largest d_i + the
    seconds of stages from i on, and the slowest. The objective is (m - 1) t + E and does not decrease in any
    of the three, so dropping labels dominated in all three is exact.
    """
    from tangram_sim.parallelizers.kernels import pareto

    labels: dict[int, Floats] = {stop: np.zeros((1, 3))}
    steps = []  # per stage from the back: {low: rows of (high, policy, label behind)}
    for policies in reversed(stages):
        rows: dict[int, list[Floats]] = {}
        origins: dict[int, list[Floats]] = {}
        for (low, high), (seconds, extra) in policies.items():
            ends = labels.get(high)
            if ends is None or not len(seconds):
                continue
            total = ends[None, :, 0] + seconds[:, None]
            closing = np.maximum(ends[None, :, 1], total + extra[:, None])
            slowest = np.maximum(ends[None, :, 2], seconds[:, None])
            rows.setdefault(low, []).append(np.stack([total, closing, slowest], axis=-1).reshape(-1, 3))
            policy, label = np.indices(total.shape)
            origins.setdefault(low, []).append(
                np.stack([np.full(policy.size, high), policy.ravel(), label.ravel()], axis=-1)
            )
        labels, step = {}, {}
        for low, found in rows.items():
            costs = np.concatenate(found)
            kept = pareto(costs, np.ones(len(costs), dtype=bool))
            labels[low], step[low] = costs[kept], np.concatenate(origins[low])[kept]
        steps.append(step)
    if start not in labels:
        return None
    totals = (microbatches - 1) * labels[start][:, 2] + labels[start][:, 1]
    place = int(np.argmin(totals))
    low = start
    best, path = float(totals[place]), list[tuple[int, int, int]]()
    for step in reversed(steps):
        high, policy, behind = step[low][place].tolist()
        path.append((low, high, policy))
        low, place = high, behind
    return StageCuts(tuple(path), best)

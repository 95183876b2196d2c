"""ZB-H1: the backward split in two, so that weight gradients fill the bubble.

Qi et al. 2023, arXiv:2401.10241. With forward, input-gradient and weight-gradient times f, b, w, the bubble
of p equal stages is (p - 1)(f + b - w).
"""

import numpy as np

from tangram_sim.opgraph import IntArray
from tangram_sim.training.schedules.base import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Schedule,
    ScheduleOrder,
    join_stages,
    one_chunk_only,
    passes,
)


class ZeroBubbleH1(Schedule):
    """1F1B with the weight gradients of stage s (counted from 0) delayed by s microbatches.

    Late stages thus send input gradients on at once while the pipeline fills, and catch up while it drains. A
    microbatch's activations count as held until W: the paper gives the peak of stage s as (p - s) M_B + s
    M_W, and M_W (the layers' inputs) is nearly all of M_B. So every stage holds what the first stage of 1F1B
    holds: the same peak over the pipeline, but late stages hold more than under 1F1B.
    """

    name = "zb-h1"
    splits_backward = True

    def order(self, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        """F and B as in 1F1B; from backward number s on, each B is followed by the oldest pending W."""
        one_chunk_only(self.name, stages, microbatches, chunks)
        rows = [_stage(stages - 1 - stage, stage, microbatches) for stage in range(stages)]
        return join_stages(stages, microbatches, chunks, True, rows)

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:  # noqa: ARG002 - interface
        """Stages behind, the stage itself, and one pending weight gradient per stage before: the depth."""
        return min(microbatches, depth)


def _stage(warmup: int, late: int, microbatches: int) -> IntArray:
    """Passes sorted by slot: slot k is B number k, with the F before it and the W after it."""
    every = np.arange(microbatches)
    rows = np.concatenate((passes(FORWARD, every), passes(BACKWARD, every), passes(WEIGHT, every)), axis=1)
    slot = np.concatenate((every - warmup, every, every + late))
    return rows[:, np.lexsort((rows[0], slot))]

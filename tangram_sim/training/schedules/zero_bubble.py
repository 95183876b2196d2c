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
    """1F1B where stage s (counted from 0) runs its weight gradients s microbatches late.

    Late stages thus pass input gradients on at once while the pipeline fills, and catch up while it drains.
    A microbatch's activations are counted as held until W: the paper gives the peak of stage s as
    (p - s) M_B + s M_W, and M_W (the layers' inputs) is nearly all of M_B. So every stage holds what the
    first stage of 1F1B holds: the same peak over the pipeline, without 1F1B's relief of late stages.
    """

    name = "zb-h1"
    splits_backward = True

    def order(self, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        """F and B as in 1F1B; from backward number s on, each B is followed by the oldest W that waits."""
        one_chunk_only(self.name, stages, microbatches, chunks)
        rows = [_stage(stages - 1 - stage, stage, microbatches) for stage in range(stages)]
        return join_stages(stages, microbatches, chunks, True, rows)

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:  # noqa: ARG002 - interface
        """The stages behind, its own, and one waiting weight gradient for each stage before: the depth."""
        return min(microbatches, depth)


def _stage(warmup: int, late: int, microbatches: int) -> IntArray:
    """Sort passes by slot: slot k is B number k, the F that goes before it and the W that follows it."""
    every = np.arange(microbatches)
    rows = np.concatenate((passes(FORWARD, every), passes(BACKWARD, every), passes(WEIGHT, every)), axis=1)
    slot = np.concatenate((every - warmup, every, every + late))
    return rows[:, np.lexsort((rows[0], slot))]

"""GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""

import numpy as np

from tangram_sim.training.schedules.base import (
    BACKWARD,
    FORWARD,
    Schedule,
    ScheduleOrder,
    join_stages,
    one_chunk_only,
    passes,
    warmup_then_alternate,
)


class GPipe(Schedule):
    """The simplest order: all microbatches are in flight at once; backwards run in the order of the forwards.

    On one stage there is no pipeline to fill: frameworks then accumulate gradients, one microbatch at a time.
    """

    name = "gpipe"

    def order(self, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        """All F, then all B, on every stage; F and B in turn where there is one stage."""
        one_chunk_only(self.name, stages, microbatches, chunks)
        every = np.arange(microbatches)
        warmup = microbatches if stages > 1 else 0
        row = warmup_then_alternate(passes(FORWARD, every), passes(BACKWARD, every), warmup)
        return join_stages(stages, microbatches, chunks, False, [row] * stages)

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:  # noqa: ARG002 - interface
        """All microbatches, which are held until the first backward; 1 where there is one stage."""
        return microbatches if depth > 1 else 1

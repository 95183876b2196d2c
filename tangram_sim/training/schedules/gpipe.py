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
)


class GPipe(Schedule):
    """Simplest order; every microbatch is in flight at once. Backwards run in the order of the forwards."""

    name = "gpipe"

    def order(self, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        """All F, then all B, on every stage."""
        one_chunk_only(self.name, stages, microbatches, chunks)
        every = np.arange(microbatches)
        row = np.concatenate((passes(FORWARD, every), passes(BACKWARD, every)), axis=1)
        return join_stages(stages, microbatches, chunks, False, [row] * stages)

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:  # noqa: ARG002 - interface
        """Every microbatch is held until the first backward."""
        return microbatches

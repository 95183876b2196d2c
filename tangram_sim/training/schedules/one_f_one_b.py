"""1F1B: a stage keeps the fewest possible microbatches in flight.

PipeDream-Flush of Narayanan et al. 2021, arXiv:2006.09503.
"""

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


class OneFOneB(Schedule):
    """Non-interleaved 1F1B with a flush, as in Megatron-LM."""

    name = "1f1b"

    def order(self, stages: int, microbatches: int, chunks: int = 1) -> ScheduleOrder:
        """Warm-up forwards (one per stage behind), then F and B alternating, then the remaining B."""
        one_chunk_only(self.name, stages, microbatches, chunks)
        every = np.arange(microbatches)
        forwards, backwards = passes(FORWARD, every), passes(BACKWARD, every)
        rows = [warmup_then_alternate(forwards, backwards, stages - 1 - stage) for stage in range(stages)]
        return join_stages(stages, microbatches, chunks, False, rows)

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:  # noqa: ARG002 - interface
        """One set for each stage behind, and one for the stage itself."""
        return min(microbatches, behind + 1)

"""Interleaved 1F1B: several chunks per stage shorten the bubble.

Narayanan et al. 2021, arXiv:2104.04473, section 2.2. The order, the warm-up count and the limits are those of
Megatron-LM's `forward_backward_pipelining_with_interleaving`.
"""

import numpy as np

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.opgraph import IntArray
from tangram_sim.training.schedules.base import (
    BACKWARD,
    FORWARD,
    Schedule,
    ScheduleOrder,
    join_stages,
    passes,
    positive_shape,
    warmup_then_alternate,
)


class Interleaved(Schedule):
    """Stage s holds the chunks at positions s, s + stages, ...; microbatches run in groups of `stages`."""

    name = "interleaved"
    chunks = (2, 32)  # published runs go to 20
    whole_rounds = True

    def order(self, stages: int, microbatches: int, chunks: int = 2) -> ScheduleOrder:
        """Raises `InfeasibleError` where microbatches are no multiple of stages."""
        positive_shape(self.name, stages, microbatches, chunks)
        if chunks < 2 or stages < 2:
            raise BadInputError(
                f"schedule 'interleaved' needs 2 stages and 2 chunks per stage or more, got {stages} stages "
                f"and {chunks} chunks; give 2 chunks or more, or use schedule '1f1b'."
            )
        if microbatches % stages:
            below = microbatches // stages * stages
            near = f"{below} or {below + stages}" if below else f"{stages}"
            raise InfeasibleError(
                "schedule 'interleaved' needs microbatches in multiples of the stages: "
                f"{microbatches} microbatches, {stages} stages. Use {near} microbatches, or schedule '1f1b'."
            )
        microbatch, chunk = _virtual_order(stages, microbatches, chunks)
        forwards, backwards = (
            passes(FORWARD, microbatch, chunk),
            passes(BACKWARD, microbatch, chunks - 1 - chunk),
        )
        rows = [
            warmup_then_alternate(forwards, backwards, _warmup(stages - 1 - stage, stages, chunks))
            for stage in range(stages)
        ]
        return join_stages(stages, microbatches, chunks, False, rows)

    def in_flight(self, behind: int, depth: int, chunks: int, microbatches: int) -> int:
        """Activation sets of one chunk: the warm-up forwards and the first forward of the steady phase."""
        return min(microbatches * chunks, _warmup(behind, depth, chunks) + 1)


def _warmup(behind: int, depth: int, chunks: int) -> int:
    return 2 * behind + (chunks - 1) * depth


def _virtual_order(stages: int, microbatches: int, chunks: int) -> tuple[IntArray, IntArray]:
    """(microbatch, chunk) of the k-th forward: each group of `stages` microbatches visits all chunks."""
    k = np.arange(microbatches * chunks, dtype=np.int32)
    group, place = np.divmod(k, stages * chunks)
    chunk, within = np.divmod(place, stages)
    return (group * stages + within).astype(np.int32), chunk.astype(np.int32)

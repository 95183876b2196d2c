"""ZB-V: no bubble at the memory of 1F1B, with two chunks per stage in a V.

Qi et al. 2023, arXiv:2401.10241, section 6: where a forward, an input gradient and a weight gradient take
equally long and there are twice as many microbatches as stages, no stage waits between its first pass and its
last; each holds as much as the first stage of 1F1B.
"""

from collections.abc import Iterator

from tangram_sim.training.schedules.base import BACKWARD, FORWARD, WEIGHT
from tangram_sim.training.schedules.v_shape import VShape


class ZeroBubbleV(VShape):
    """The hand-made order of the paper's figure: fill, come back up the V, steady rounds of six, drain."""

    name = "zb-v"

    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[tuple[int, int]]:
        """Weight gradients of the draining passes wait for the end, where nothing depends on them."""
        below = stages - stage
        yield from ((FORWARD, 0) for _ in range(2 * below - 1))
        for _ in range(stage):
            yield FORWARD, 1
            yield FORWARD, 0
        for _ in range(below):
            yield FORWARD, 1
            yield BACKWARD, 1
            yield WEIGHT, 1
        for _ in range(microbatches - stages):
            for chunk in (0, 1):
                yield FORWARD, chunk  # none is left of the first chunk in the last rounds
                yield BACKWARD, chunk
                yield WEIGHT, chunk
        for _ in range(stage):
            yield BACKWARD, 0
            yield BACKWARD, 1
        for _ in range(below):
            yield BACKWARD, 0
            yield WEIGHT, 0

"""ZB-V: no bubble with the memory of 1F1B, with two chunks per stage in a V.

Qi et al. 2023, arXiv:2401.10241, section 6: where forward, input gradient and weight gradient take equally
long and there are at least twice as many microbatches as stages, no stage idles between its first and its
last pass; each holds as much as the first stage of 1F1B.
"""

from collections.abc import Iterator

from tangram_sim.training.schedules.base import BACKWARD, FORWARD, WEIGHT
from tangram_sim.training.schedules.v_shape import VShape


class ZeroBubbleV(VShape):
    """The handcrafted order of the paper's figure: fill, return up the V, rounds of six passes, drain."""

    name = "zb-v"

    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[tuple[int, int]]:
        """(kind, chunk) of each pass; the drain's weight gradients come last: nothing depends on them."""
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

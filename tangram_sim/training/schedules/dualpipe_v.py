"""DualPipe-V: forwards and backwards of the two arms of a V run concurrently.

The schedule of DeepSeek-V3 (arXiv:2412.19437, section 3.2.1) cut in half, as its authors publish it: a stage
holds one chunk of each direction once instead of twice. With P positions on P / 2 stages the published bubble
is (P / 2 - 1) (F + B + B' - 3 W), with B the whole backward and F + B' a forward concurrent with a backward,
and P + 1 activation sets are held. Concurrent passes of the two arms are listed one after the other: how much
of their communication overlaps is part of a stage's price.
"""

from collections.abc import Iterator

from tangram_sim.training.schedules.base import BACKWARD, FORWARD, WEIGHT
from tangram_sim.training.schedules.v_shape import OLDEST, VShape


class DualPipeV(VShape):
    """Eight phases: fill the first arm, both arms, turn, steady pairs, and the same in reverse to drain."""

    name = "dualpipe-v"

    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[tuple[int, int]]:
        """(kind, chunk) of each pass; a whole backward is an input gradient, then its weight gradient."""
        behind = stages - 1 - stage
        yield from ((FORWARD, 0) for _ in range(2 * behind))
        for _ in range(stage + 1):
            yield FORWARD, 0
            yield FORWARD, 1
        for _ in range(behind):
            yield BACKWARD, 1
            yield OLDEST
            yield FORWARD, 1
        for _ in range(microbatches - 2 * stages + stage + 1):
            yield FORWARD, 0
            yield from _whole_backward(1)
            yield FORWARD, 1
            yield from _whole_backward(0)
        for _ in range(behind):
            yield from _whole_backward(1)
            yield FORWARD, 1
            yield from _whole_backward(0)
        for number in range(stage + 1):  # the later half leaves its weight gradients to the end
            for chunk in (1, 0):
                late = number >= (stage + 1) // 2
                yield from ((BACKWARD, chunk),) if late else _whole_backward(chunk)
        for _ in range(behind):
            yield OLDEST
            yield BACKWARD, 0


def _whole_backward(chunk: int) -> tuple[tuple[int, int], ...]:
    return (BACKWARD, chunk), (WEIGHT, chunk)

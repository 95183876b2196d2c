"""DualPipe-V: forwards and backwards of the two arms of a V run side by side.

The schedule of DeepSeek-V3 (arXiv:2412.19437, section 3.2.1) cut in half, as its authors publish it: a stage
holds one chunk of each direction once instead of twice. With P places on P / 2 stages the published bubble
is (P / 2 - 1) (F + B + B' - 3 W), B the whole backward and F + B' a forward beside a backward, and P + 1
activation sets are held. Passes of the two arms that would run side by side are listed one behind the other:
how much of their communication hides is the business of a stage's price.
"""

from collections.abc import Iterator

from tangram_sim.training.schedules.base import BACKWARD, FORWARD, WEIGHT
from tangram_sim.training.schedules.v_shape import OLDEST, VShape


class DualPipeV(VShape):
    """Eight steps: fill the near arm, both arms, turn round, steady pairs, and the same backwards."""

    name = "dualpipe-v"

    def passes(self, stage: int, stages: int, microbatches: int) -> Iterator[tuple[int, int]]:
        """A whole backward is an input gradient and at once its weight gradient."""
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

"""A measured pipeline as our own engine plays it: what a step takes with other shares of work, by speed.

Passes take their worker's mean, transfers the median of their kind; what comes before the first pass and
after the last (collectives, optimizer) stays as it was measured. 1F1B order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray
from tangram_sim.reliability.stragglers.patterns import passes_s
from tangram_sim.reliability.stragglers.replay import Replay
from tangram_sim.reliability.traces.kinds import CODES
from tangram_sim.training.schedules.step import StageTimes, step_template
from tangram_sim.training.shares import by_earliest_end


def split_microbatches(seconds: Sequence[float], microbatches: int, least: int = 0) -> tuple[int, ...]:
    """How many microbatches each replica runs so that the last to end ends soonest.

    `seconds` is what a microbatch takes on each replica; every replica runs at least `least`. Raises
    `BadInputError` for times not above 0 or too few microbatches.
    """
    if not seconds or min(seconds) <= 0 or microbatches < least * len(seconds):
        raise BadInputError(
            f"{microbatches} microbatches cannot be shared over replicas that take {list(seconds)} s "
            f"each, at least "
            f"{least} each; give seconds above 0 and enough microbatches."
        )
    return by_earliest_end(
        microbatches, lambda replica, count: count * seconds[replica], [1] * len(seconds), least
    )


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPipeline:
    """Seconds of a pass by worker, [dp, stages], and of a transfer between stages."""

    forward_s: FloatArray
    backward_s: FloatArray
    send_forward_s: float
    send_backward_s: float
    microbatches: int
    step_s: float  # the trace's replayed step

    @property
    def dp(self) -> int:
        """Number of data-parallel replicas."""
        return len(self.forward_s)

    @property
    def stages(self) -> int:
        """Number of pipeline stages of each replica."""
        return int(self.forward_s.shape[1])

    def pipelines_s(
        self, forward_s: FloatArray, backward_s: FloatArray, microbatches: Sequence[int]
    ) -> FloatArray:
        """Seconds [dp] of every replica's passes and transfers, for its own number of microbatches."""
        from tangram_sim.sim.fast import makespan

        return np.array(
            [
                makespan(
                    step_template("1f1b", self.stages, count).with_durations(self._times(forward, backward))
                )
                if count
                else 0.0
                for forward, backward, count in zip(forward_s, backward_s, microbatches, strict=True)
            ]
        )

    def _times(self, forward: FloatArray, backward: FloatArray) -> StageTimes:
        zero = np.zeros(self.stages)
        return StageTimes(
            forward_s=forward,
            backward_input_s=backward,
            backward_weight_s=zero,
            send_forward_s=np.full(self.stages, self.send_forward_s),
            send_backward_s=np.full(self.stages, self.send_backward_s),
            sync_s=zero,
            optimizer_s=zero,
        )

    def played_s(self) -> float:
        """Seconds of the slowest replica's passes and transfers as measured, without what surrounds them."""
        even = [self.microbatches] * self.dp
        return float(self.pipelines_s(self.forward_s, self.backward_s, even).max())

    def changed_step_s(
        self, forward_s: FloatArray, backward_s: FloatArray, microbatches: Sequence[int]
    ) -> float:
        """Step seconds if passes took these seconds [dp, stages] and replica r ran microbatches[r]."""
        played = float(self.pipelines_s(forward_s, backward_s, microbatches).max())
        return max(self.step_s + played - self.played_s(), played)


def split_by_speed(pipeline: MeasuredPipeline, forward_s: FloatArray, backward_s: FloatArray) -> list[int]:
    """Microbatches of each replica, at least one: greedy by its slowest stage's two passes [dp, stages]."""
    bottleneck = (forward_s + backward_s).max(axis=1).tolist()
    return list(split_microbatches(bottleneck, pipeline.dp * pipeline.microbatches, least=1))


def measured_pipeline(replay: Replay) -> MeasuredPipeline:
    """The pipeline of a replayed trace, with pass times averaged over steps and microbatches."""
    trace = replay.trace

    def median(code: str) -> float:
        here = trace.kind == CODES[code]
        return float(max(np.median(replay.work_s[:, here]), 0.0)) if here.any() else 0.0

    return MeasuredPipeline(
        forward_s=passes_s(trace, "F").mean(axis=(0, 3)),
        backward_s=passes_s(trace, "B").mean(axis=(0, 3)),
        send_forward_s=median("FS"),
        send_backward_s=median("BS"),
        microbatches=trace.microbatches,
        step_s=float(replay.steps_s(replay.work_s).mean()),
    )

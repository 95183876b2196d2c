"""What-if analysis of a step trace: the cost of slow ranks, and which ranks are slow.

S = T / T_ideal of arXiv 2505.05713 (equation 1): T replays every operation at its measured time, T_ideal
gives every operation the usual time of its kind. A group's S is the same with only the group at measured
times; the share of the loss that a group explains is the gain if only the group becomes ideal.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from tangram_sim.opgraph import FloatArray
from tangram_sim.reliability.stragglers.patterns import StragglerCause, passes_s, pattern_of
from tangram_sim.reliability.stragglers.replay import Replay, replay_of
from tangram_sim.reliability.traces.kinds import KINDS
from tangram_sim.reliability.traces.trace import StepTrace

Mask = npt.NDArray[np.bool_]

# The share of the workers that is asked how much of the loss it explains (arXiv 2505.05713, section 4).
SUSPECTS = 0.03


@dataclass(frozen=True, slots=True)
class Worker:
    """One cell of the (dp, stage) grid: its score, and how much longer than usual its own passes take."""

    dp: int
    stage: int
    slowdown: float  # the lesser of its replica's and its stage's S alone
    compute_ratio: float  # mean of its passes over the mean of all passes of the same direction


@dataclass(frozen=True, slots=True, eq=False)
class StragglerCost:
    """Cost of a trace's slow ranks. Times are means over steps, seconds."""

    trace: StepTrace
    measured_step_s: float
    replayed_step_s: float
    ideal_step_s: float
    step_slowdowns: FloatArray  # [steps]
    alone: dict[str, float]  # S of a kind of operation, a stage, a replica alone
    workers: tuple[Worker, ...]  # by (dp, stage)
    suspects: tuple[Worker, ...]
    worker_share: float  # M_W: how much of the loss goes when the suspects are ideal
    last_stage_share: float  # M_S: the same of the last stage
    pattern: StragglerCause

    @property
    def slowdown(self) -> float:
        """S: replayed step time over the step time with every operation at its ideal time."""
        return self.replayed_step_s / self.ideal_step_s

    @property
    def waste(self) -> float:
        """Share of the time lost to slow operations, 1 - 1 / S."""
        return 1 - 1 / self.slowdown

    @property
    def measured_over_replayed(self) -> float:
        """Measured over replayed step time; above 1 by gaps between operations that nothing explains."""
        return self.measured_step_s / self.replayed_step_s


def analyse(trace: StepTrace) -> StragglerCost:
    """The what-if analysis of a trace: about 2 x (stages + dp) replays."""
    replay = replay_of(trace)
    ideal = ideal_work_s(replay)
    asked = _Questions(replay, ideal)
    everything = np.ones(len(trace), dtype=np.bool_)
    steps_s = asked.measured_in(everything)
    t, t_ideal = float(steps_s.mean()), float(asked.measured_in(~everything).mean())

    def alone(mask: npt.ArrayLike) -> float:
        return float(asked.measured_in(np.asarray(mask, dtype=np.bool_)).mean()) / t_ideal

    names = dict.fromkeys(kind.name for kind in KINDS)
    by_kind = {name: alone(_named(trace, name)) for name in names if _named(trace, name).any()}
    by_stage = [alone(trace.rank_stage == stage) for stage in range(trace.stages)]
    by_dp = [alone(trace.rank_dp == dp) for dp in range(trace.dp)]
    ratios = compute_ratios(trace)
    workers = tuple(
        Worker(dp, stage, min(by_dp[dp], by_stage[stage]), float(ratios[dp, stage]))
        for dp in range(trace.dp)
        for stage in range(trace.stages)
    )
    suspects = _suspects(workers)

    def share(mask: npt.ArrayLike) -> float:
        lost = t - t_ideal
        return (
            (t - float(asked.measured_in(~np.asarray(mask, dtype=np.bool_)).mean())) / lost
            if abs(lost) > 1e-12 * t
            else 0.0
        )

    suspected = np.zeros(len(trace), dtype=np.bool_)
    for worker in suspects:
        suspected |= (trace.rank_dp == worker.dp) & (trace.rank_stage == worker.stage)
    worker_share = share(suspected)
    stage_shares = {
        stage: share(trace.rank_stage == stage) for stage in {_hottest(by_stage), trace.stages - 1}
    }
    return StragglerCost(
        trace=trace,
        measured_step_s=float(trace.measured_s.mean()),
        replayed_step_s=t,
        ideal_step_s=t_ideal,
        step_slowdowns=np.asarray(steps_s / t_ideal),
        alone={
            **by_kind,
            **{f"stage {stage}": value for stage, value in enumerate(by_stage)},
            **{f"dp {dp}": value for dp, value in enumerate(by_dp)},
        },
        workers=workers,
        suspects=suspects,
        worker_share=worker_share,
        last_stage_share=stage_shares[trace.stages - 1],
        pattern=pattern_of(
            trace,
            t / t_ideal,
            tuple((worker.dp, worker.stage) for worker in suspects),
            worker_share,
            _hottest(by_stage),
            stage_shares[_hottest(by_stage)],
        ),
    )


def ideal_work_s(replay: Replay) -> FloatArray:
    """Ideal seconds of every operation, [n]: of its kind the mean if it computes, the median if it
    communicates. Over all steps, ranks and microbatches."""
    ideal = np.zeros(len(replay.trace))
    for index, kind in enumerate(KINDS):
        here = replay.trace.kind == index
        if here.any():
            work = replay.work_s[:, here]
            ideal[here] = work.mean() if kind.computes else np.median(work)
    return ideal


def compute_ratios(trace: StepTrace) -> FloatArray:
    """Time of every worker's passes (forward plus backward) over the mean of all workers, [dp, stages]."""
    total = (passes_s(trace, "F") + passes_s(trace, "B")).mean(axis=(0, 3))
    return np.asarray(total / total.mean())


@dataclass(frozen=True, slots=True, eq=False)
class _Questions:
    """Replays of a trace with some operations at measured and the others at ideal times."""

    replay: Replay
    ideal_s: FloatArray

    def measured_in(self, mask: Mask) -> FloatArray:
        """Seconds of every step, [steps], with operations in `mask` [n] as measured and the others ideal."""
        return self.replay.steps_s(np.where(mask, self.replay.work_s, self.ideal_s))


def _named(trace: StepTrace, name: str) -> Mask:
    return np.isin(trace.kind, [index for index, kind in enumerate(KINDS) if kind.name == name])


def _suspects(workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
    """The workers with the highest scores, at least one; ties by stage, then by replica."""
    ranked = sorted(workers, key=lambda w: (-w.slowdown, w.stage, w.dp))
    return tuple(ranked[: ceil(round(SUSPECTS * len(workers), 9))])


def _hottest(by_stage: list[float]) -> int:
    return max(range(len(by_stage)), key=lambda stage: by_stage[stage])

"""The cause of a slow measured run: one worker, one stage, sequences of unequal length, or no single one."""

from dataclasses import dataclass

import numpy as np

from tangram_sim.opgraph import FloatArray
from tangram_sim.reliability.traces.trace import StepTrace

# A job straggles from here on (arXiv 2505.05713, section 4.1).
STRAGGLES = 1.1
# A cause is named when it explains at least this share of the loss (the same, sections 5.1 and 5.2).
EXPLAINS = 0.5
# Forward and backward passes of microbatches vary together: their lengths do (the same, section 5.3).
CORRELATION = 0.9
# Passes of one worker that vary by less than this (standard deviation over mean) are alike, correlated or
# not: sound traces show 1 to 3 %, unequal sequences 17 to 28 %.
VARIATION = 0.05


@dataclass(frozen=True, slots=True)
class StragglerCause:
    """The cause of a slow run: `none`, `worker`, `sequence lengths`, `stage` or `mixed`; why; where (-1:
    nowhere)."""

    name: str
    reason: str
    dp: int = -1
    stage: int = -1


def pattern_of(
    trace: StepTrace,
    slowdown: float,
    workers: tuple[tuple[int, int], ...],
    worker_share: float,
    stage: int,
    stage_share: float,
) -> StragglerCause:
    """The cause of the slowdown in a trace. `workers` are the (dp, stage) of the suspects. `stage` is the
    stage with the highest S alone."""
    if slowdown < STRAGGLES:
        return StragglerCause("none", f"S is below {STRAGGLES}: nothing to speak of is lost to slow ranks")
    if worker_share >= EXPLAINS:
        dp, at = workers[0]
        return StragglerCause(
            "worker",
            f"{_named(workers)} explain{'s' if len(workers) == 1 else ''} "
            f"{worker_share * 100:.0f} % of the loss",
            dp,
            at,
        )
    correlation, variation = microbatch_correlation(trace)
    if correlation >= CORRELATION and variation >= VARIATION:
        return StragglerCause(
            "sequence lengths",
            f"passes of every worker vary by {variation * 100:.0f} %, forward and backward together "
            f"(correlation "
            f"{correlation:.2f}): microbatches are unequal, not ranks",
        )
    if stage_share >= EXPLAINS:
        where = "the last stage" if stage == trace.stages - 1 else f"stage {stage}"
        return StragglerCause(
            "stage",
            f"{where} explains {stage_share * 100:.0f} % of the loss: layers are shared out unevenly",
            -1,
            stage,
        )
    return StragglerCause(
        "mixed", f"no worker, stage or sequence lengths explain {EXPLAINS * 100:.0f} % of the loss alone"
    )


def microbatch_correlation(trace: StepTrace) -> tuple[float, float]:
    """Correlation of a microbatch's forward with its backward time, and coefficient of variation of forward
    times. Medians over workers; 0 where a worker's passes do not vary."""
    forward, backward = passes_s(trace, "F"), passes_s(trace, "B")
    correlations, variations = [], []
    for cell in np.ndindex(trace.dp, trace.stages):
        f, b = forward[:, *cell].ravel(), backward[:, *cell].ravel()
        deviation = float(f.std())
        moves = deviation > 1e-9 * f.mean() and float(b.std()) > 1e-9 * b.mean()
        correlations.append(float(np.corrcoef(f, b)[0, 1]) if moves else 0.0)
        variations.append(deviation / float(f.mean()) if f.mean() > 0 else 0.0)
    return float(np.median(correlations)), float(np.median(variations))


def passes_s(trace: StepTrace, code: str) -> FloatArray:
    """Seconds of the passes `F` or `B`, [steps, dp, stages, microbatches]."""
    here = np.flatnonzero(trace.of_kind(code))
    order = here[np.lexsort((trace.seq[here], trace.rank_stage[here], trace.rank_dp[here]))]
    return trace.duration_s[:, order].reshape(len(trace.steps), trace.dp, trace.stages, -1)


def _named(workers: tuple[tuple[int, int], ...]) -> str:
    return (
        "worker" + ("s " if len(workers) > 1 else " ") + ", ".join(f"(dp {d}, stage {s})" for d, s in workers)
    )

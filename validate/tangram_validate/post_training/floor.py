"""The floor that predictions must beat: a closed form of three constants, without layouts or played requests.

T = c1 x train + c2 x decode + c3 where pools are one, max(c1 x train, c2 x decode) + c3 where they are split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from tangram_sim.post_training.plan import COLOCATED
from tangram_validate.post_training.reading import RlRun

_PEAK = {
    "H100": 989e12,
    "H800": 989e12,
    "GB200": 2450e12,
    "MI300X": 1307e12,
    "A100": 312e12,
    "A800": 312e12,
    "H20": 148e12,
}
_BYTES_PER_S = {
    "H100": 3.35e12,
    "H800": 3.35e12,
    "GB200": 8e12,
    "MI300X": 5.3e12,
    "A100": 2.04e12,
    "A800": 2.04e12,
    "H20": 4e12,
}


@dataclass(frozen=True)
class Floor:
    """The three constants: factors on training and decoding, and seconds a step."""

    train: float
    decode: float
    seconds: float

    def step_s(self, run: RlRun) -> float:
        """Seconds of a run's step; decoding takes as long as the mean response."""
        train, decode = self.train * train_s(run), self.decode * decode_s(run)
        both = train + decode if run.plan.placement == COLOCATED else max(train, decode)
        return both + self.seconds


def _of(table: dict[str, float], gpu: str) -> float:
    return next((value for name, value in table.items() if gpu.startswith(name)), table["A100"])


def train_s(run: RlRun) -> float:
    """Seconds of training and scoring at peak rates."""
    work = run.work
    factor = 6 + 2 * work.old_logprobs + 2 * work.reference + 8 * (work.critic is not None)
    flop = factor * work.model.active_parameters * run.stand_in * work.trained_tokens
    return flop / (run.plan.training.gpus * _of(_PEAK, run.gpu))


def decode_s(run: RlRun) -> float:
    """Seconds to read the touched weights once for each token of a mean response."""
    work, replicas = run.work, run.plan.rollout[0]
    each = work.sequences / max(run.plan.rollout_gpus / (replicas.tp * replicas.pp), 1.0)
    touched = min(work.model.parameters, work.model.active_parameters * max(each, 1.0)) * run.stand_in
    return work.lengths.mean * 2 * touched / (replicas.tp * _of(_BYTES_PER_S, replicas.gpu))


def fit_floor(runs: Sequence[RlRun]) -> Floor:
    """The constants with the least squares of relative errors; ones where there is nothing to fit."""
    if len(runs) < 3:
        return Floor(2.0, 2.0, 30.0)

    def residuals(logs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
        floor = Floor(*np.exp(logs).tolist())
        return [floor.step_s(run) / (run.step_s or 1.0) - 1 for run in runs]

    return Floor(*np.exp(least_squares(residuals, np.log([2.0, 2.0, 30.0])).x).tolist())

"""A log of one run, step by step: its first steps fitted, later ones predicted from their lengths.

A phase follows the tokens of its step, or stands still (padded sequences): which of the two is found on the
fitted steps themselves, by predicting their later part from the earlier one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from tangram_sim.datafiles import csv_cells
from tangram_sim.errors import BadInputError
from tangram_validate.published.cells import CellError, Cells

Floats = NDArray[np.float64]
LOG_PHASES = (
    *("gen_s", "old_logprob_s", "ref_s", "values_s", "reward_s", "adv_s"),
    *("update_critic_s", "update_actor_s", "reshard_s"),
)
NOT_OF_A_STEP = ("testing_s", "save_checkpoint_s")  # validation and saving are no part of a plain step
LENGTHS = ("mean_prompt", "mean_response", "max_response_seen", "capped_share")
FITTED = 50
_WARM = 1  # steps at the start of a log that may contain compilation
_LEAST = 0.1  # of the middle: errors of seconds below it (0.0 s) are relative to the middle


@dataclass(frozen=True)
class RunLog:
    """One run's steps as columns of floats; NaN where a cell is blank."""

    run_id: str
    columns: dict[str, Floats]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def column(self, name: str) -> Floats:
        """A column; NaN throughout where the log has none."""
        return self.columns.get(name, np.full(len(self), np.nan))

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases that the log times."""
        return tuple(name for name in LOG_PHASES if np.isfinite(self.column(name)).any())

    @property
    def step_s(self) -> Floats:
        """Seconds of each step without validation and saving; the sum of its phases where none is logged."""
        parts = np.nansum([self.column(name) for name in self.phases], axis=0)
        step = self.column("step_s") - np.nansum([self.column(name) for name in NOT_OF_A_STEP], axis=0)
        return np.where(np.isfinite(step), step, parts)


@dataclass(frozen=True)
class PhaseLaw:
    """Seconds of a phase as a + b x mean tokens + c x longest response; `padded` where it stands still."""

    constant: float
    of_mean: float
    of_longest: float
    padded: bool

    def seconds(self, mean: Floats, longest: Floats) -> Floats:
        """Seconds at these lengths."""
        return self.constant + self.of_mean * mean + self.of_longest * longest


def read_logs(path: Path) -> list[RunLog]:
    """Logs of runs in a CSV file with a `step` column, one run for each `run_id` (one in all without it).

    Raises BadInputError for a file that is none, and for text where a number is wanted.
    """
    names, lines = csv_cells(path)
    known = [name for name in (*LOG_PHASES, "step_s") if name in names]
    if not known:
        raise BadInputError(
            f"{path}: not a log of steps: its header has none of step_s, {', '.join(LOG_PHASES)}; give one "
            "line a step with the seconds of its phases, mean_response and max_response_seen"
        )
    columns = [name for name in (*LOG_PHASES, *NOT_OF_A_STEP, *LENGTHS, "step_s") if name in names]
    rows: dict[str, list[list[float]]] = {}
    for line, texts in lines:
        cells = Cells(dict(zip(names, texts, strict=True)))
        try:
            numbers = [_number(cells, name) for name in columns]
        except CellError as error:
            raise BadInputError(f"{path}, line {line}: {error}") from None
        rows.setdefault(cells.text("run_id") or path.stem, []).append(numbers)
    if not rows:
        raise BadInputError(f"{path}: a header and no rows: give one line for each step")
    return [RunLog(run, dict(zip(columns, np.array(steps).T, strict=True))) for run, steps in rows.items()]


def _number(cells: Cells, name: str) -> float:
    """The cell's number; NaN where it is blank or says so."""
    number = None if cells.text(name).lower() == "nan" else cells.number(name)
    return float("nan") if number is None else number


def fit_log(log: RunLog, fitted: int = FITTED) -> dict[str, PhaseLaw]:
    """A law for each phase that the first steps time, and for what phases leave of a step."""
    use = slice(_WARM if fitted > 4 * _WARM else 0, min(fitted, len(log)))
    mean, longest = _lengths(log)
    timed = [name for name in log.phases if np.isfinite(log.column(name)[use]).any()]
    laws = {name: _law(log.column(name)[use], mean[use], longest[use]) for name in timed}
    rest = log.step_s - np.nansum([log.column(name) for name in log.phases], axis=0)
    laws["other_s"] = PhaseLaw(float(np.nanmedian(rest[use])), 0.0, 0.0, True)
    return laws


def _lengths(log: RunLog) -> tuple[Floats, Floats]:
    """(mean tokens of a sequence, longest response) by step; zeros where the log does not tell."""
    mean = np.nan_to_num(log.column("mean_response")) + np.nan_to_num(log.column("mean_prompt"))
    return mean, np.nan_to_num(log.column("max_response_seen"))


def _law(seconds: Floats, mean: Floats, longest: Floats) -> PhaseLaw:
    """The law that predicts each half of these steps best from the other one, fitted to all of them."""
    known = np.isfinite(seconds)
    seconds, mean, longest = seconds[known], mean[known], longest[known]
    half = len(seconds) // 2
    makers: list[Callable[[Floats, Floats, Floats], PhaseLaw]] = [_constant, _linear, _tailed]
    if half < 5 or np.ptp(mean) <= 0:
        return _constant(seconds, mean, longest)
    least = _floored(seconds)

    def missed(make: Callable[[Floats, Floats, Floats], PhaseLaw]) -> float:
        found = []
        for first, then in ((slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))):
            law = make(seconds[first], mean[first], longest[first])
            found.append(np.abs(law.seconds(mean[then], longest[then]) - seconds[then]) / least[then])
        return float(np.median(np.concatenate(found)))

    return min(makers, key=missed)(seconds, mean, longest)


def _floored(seconds: Floats) -> Floats:
    """What errors of these seconds are relative to: themselves; their middle where they are next to none."""
    middle = max(float(np.median(seconds)) or float(np.mean(seconds)), 1e-9)
    return np.where(seconds >= _LEAST * middle, seconds, middle)


def _constant(seconds: Floats, mean: Floats, longest: Floats) -> PhaseLaw:  # noqa: ARG001
    return PhaseLaw(float(np.median(seconds)), 0.0, 0.0, True)


def _linear(seconds: Floats, mean: Floats, longest: Floats) -> PhaseLaw:  # noqa: ARG001
    constant, slope = _nonnegative([np.ones_like(mean), mean], seconds)
    return PhaseLaw(constant, slope, 0.0, False)


def _tailed(seconds: Floats, mean: Floats, longest: Floats) -> PhaseLaw:
    constant, slope, tail = _nonnegative([np.ones_like(mean), mean, longest], seconds)
    return PhaseLaw(constant, slope, tail, False)


def _nonnegative(features: Sequence[Floats], seconds: Floats) -> list[float]:
    """Weights, none negative, with the least squares of relative errors; steps far off count less."""
    scales = [float(np.max(np.abs(feature))) or 1.0 for feature in features]
    matrix = np.stack([feature / scale for feature, scale in zip(features, scales, strict=True)], axis=1)
    least = _floored(seconds)
    weight = 1.0 / least
    for _ in range(5):
        found, _residual = nnls(matrix * weight[:, None], seconds * weight)
        off = np.abs(matrix @ found - seconds) / least
        weight = 1.0 / least / np.sqrt(np.maximum(off / max(float(np.median(off)), 1e-6), 1.0))
    return [float(value / scale) for value, scale in zip(found, scales, strict=True)]


def predicted(log: RunLog, laws: dict[str, PhaseLaw]) -> dict[str, Floats]:
    """Seconds of each phase of every step by its law, and their sum as `step_s`."""
    mean, longest = _lengths(log)
    found = {name: law.seconds(mean, longest) for name, law in laws.items()}
    found["step_s"] = np.sum(list(found.values()), axis=0)
    return found

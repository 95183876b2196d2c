"""Predictions of measured post-training runs, played under the overheads of the database or of a fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.post_training.overheads import Overheads, load_overheads
from tangram_sim.post_training.step import StepOutcome, interval, play_step
from tangram_validate.post_training.components import Components, components_of
from tangram_validate.post_training.fitting import left_out
from tangram_validate.post_training.floor import Floor, fit_floor
from tangram_validate.post_training.reading import (
    PHASE_COLUMNS,
    RlRun,
    Unpredicted,
    fitting_rollout,
    read_run,
    wider,
)

LEAVE_OUT = ("", "source", "model")


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one run: its step with a 90 % interval, its phases, and the floor's figure."""

    run: RlRun
    step_s: float
    low_s: float
    high_s: float
    phases_s: dict[str, float]
    floor_s: float = 0.0

    @property
    def error(self) -> float | None:
        """Signed relative error of the step; None where none was measured."""
        return self.step_s / self.run.step_s - 1 if self.run.step_s else None

    @property
    def inside(self) -> bool:
        """Whether the measured step is inside the interval."""
        return bool(self.run.step_s) and self.low_s <= (self.run.step_s or 0.0) <= self.high_s

    def phase_error(self, column: str) -> float:
        """Signed relative error of a phase, by its column in the table."""
        predicted = sum(self.phases_s[name] for name in PHASE_COLUMNS[column])
        return predicted / self.run.phases_s[column] - 1


def predict_run(run: RlRun, hwdb: Hwdb, overheads: Overheads | None = None) -> Prediction:
    """One run, played. Raises TangramError where its layouts break a law or nothing fits."""
    extra = overheads or load_overheads(hwdb)
    outcome = _played(run, hwdb, extra)
    step_s = outcome.step_s * run.stand_in
    low, high = interval(step_s, wider(run, extra.sigma, extra.unstated_sigma))
    return Prediction(
        run, step_s, low, high, {name: s * run.stand_in for name, s in outcome.phases_s.items()}
    )


def _played(run: RlRun, hwdb: Hwdb, extra: Overheads) -> StepOutcome:
    failed: InfeasibleError | None = None
    for replicas in fitting_rollout(run):
        try:
            plan = replace(run.plan, rollout=(replicas,))
            return play_step(run.work, plan, hwdb, overheads=extra, must_fit=False)
        except InfeasibleError as error:
            failed = failed or error
    raise failed or InfeasibleError("rollout: no replicas")


def predict_rows(
    rows: Sequence[Mapping[str, str]], hwdb: Hwdb, leave_out: str = ""
) -> list[Prediction | Unpredicted]:
    """A prediction, or the reason why there is none, for every row; order kept.

    `leave_out` "source" or "model": each run under overheads fitted to the runs of the other ones of the
    table. The floor is always fitted in the same way.
    """
    read = [read_run(row, number, hwdb) for number, row in enumerate(rows, 1)]
    parts: dict[int, Components] = {}
    if leave_out:
        for number, run in enumerate(read):
            if isinstance(run, RlRun) and (run.scored or run.phases_s):
                try:
                    parts[number] = components_of(run, hwdb)
                except TangramError:
                    continue
    folds = (
        left_out(list(parts.values()), lambda components: _group(components.run, leave_out), hwdb)
        if leave_out
        else {}
    )
    found: list[Prediction | Unpredicted] = []
    for run in read:
        if isinstance(run, Unpredicted):
            found.append(run)
            continue
        try:
            found.append(predict_run(run, hwdb, folds.get(_group(run, leave_out))))
        except TangramError as error:
            found.append(Unpredicted(run.id, run.source, str(error)))
    return with_floor(found, leave_out)


def _group(run: RlRun, leave_out: str) -> str:
    return run.source if leave_out == "source" else run.work.model.name


def with_floor(found: Sequence[Prediction | Unpredicted], leave_out: str) -> list[Prediction | Unpredicted]:
    """Predictions with the floor's beside them, fitted to the other groups; to all where none is out."""
    runs = [item.run for item in found if isinstance(item, Prediction) and item.run.scored]
    fits: dict[str, Floor] = {}
    answers: list[Prediction | Unpredicted] = []
    for item in found:
        if isinstance(item, Prediction):
            group = _group(item.run, leave_out) if leave_out else ""
            if group not in fits:
                fits[group] = fit_floor(
                    [run for run in runs if not (group and _group(run, leave_out) == group)]
                )
            item = replace(item, floor_s=fits[group].step_s(item.run))
        answers.append(item)
    return answers


def scored(found: Sequence[Prediction | Unpredicted]) -> list[Prediction]:
    """Predictions whose measured step counts."""
    return [item for item in found if isinstance(item, Prediction) and item.run.scored and item.run.step_s]


def errors_of(found: Sequence[Prediction]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Signed relative errors of steps."""
    return np.array(
        [prediction.error for prediction in found if prediction.error is not None], dtype=np.float64
    )

"""Overheads of one user's own runs: phases measured over phases priced, and what a log's first steps tell."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.post_training.overheads import load_overheads
from tangram_sim.post_training.plan import COLOCATED
from tangram_sim.training.step.intervals import Z90
from tangram_validate.post_training.documents import (
    RlCalibrateDocument,
    RlLogScoreDocument,
    RlOverheadDocument,
)
from tangram_validate.post_training.logs import FITTED, LENGTHS, Floats, RunLog, fit_log, predicted
from tangram_validate.post_training.predict import predict_run
from tangram_validate.post_training.reading import PHASE_COLUMNS, RlRun, Unpredicted, read_run

# Overheads by the phase of a log whose seconds set them.
_SCALES = {"gen_s": "rollout_scale", "update_actor_s": "update_scale", "old_logprob_s": "forward_scale"}
LEAST_SIGMA = 0.02  # of a step: NeMo-RL's recipes, run again a day later, differ by 1.9 % in the median


@dataclass(frozen=True)
class Calibration:
    """A calibrated log: the document, and the overlay's rows."""

    document: RlCalibrateDocument

    def overlay(self, source: str) -> str:
        """Rows for `post_training/overheads.csv` of an overlay folder."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("parameter", "value", "n", "date", "source"))
        for row in self.document.rows:
            writer.writerow((row.parameter, f"{row.value:.6g}", self.document.fitted_steps, "", source))
        return out.getvalue()


def calibrate(log: RunLog, setup: Mapping[str, str] | None, hwdb: Hwdb, fitted: int = FITTED) -> Calibration:
    """Fit the first `fitted` steps of a log; with the run's `setup` (a row of runs), overheads as well.

    Raises BadInputError for a log of fewer than three steps, or a setup that cannot be priced.
    """
    if len(log) < 3:
        raise BadInputError(f"log {log.run_id}: {len(log)} steps; give three or more")
    fitted = min(fitted, len(log))
    laws = fit_log(log, fitted)
    seconds = predicted(log, laws)
    later = slice(fitted, None)
    scores = {
        name: found
        for name in (*log.phases, "step_s")
        if name in seconds
        and (found := _score(seconds[name][later], _measured(log, name)[later])) is not None
    }
    step = log.step_s
    repeated = _score(np.full(len(log) - fitted, np.nanmedian(step[1:fitted])), step[later])
    factors, rows = dict[str, float](), list[RlOverheadDocument]()
    if setup is not None:
        factors, rows = _overheads(log, setup, hwdb, fitted)
        if rows and "step_s" in scores:
            sigma = max(scores["step_s"].p90_ape / Z90, LEAST_SIGMA)
            rows.append(RlOverheadDocument(parameter="sigma", value=sigma))
    return Calibration(
        RlCalibrateDocument(
            run_id=log.run_id,
            steps=len(log),
            fitted_steps=fitted,
            factors=factors,
            padded={name: law.padded for name, law in laws.items() if name in log.phases},
            later=scores,
            repeated=repeated,
            lengths=_lengths(log, fitted),
            rows=rows,
        )
    )


def _measured(log: RunLog, name: str) -> Floats:
    return log.step_s if name == "step_s" else log.column(name)


def _score(predicted_s: Floats, measured_s: Floats) -> RlLogScoreDocument | None:
    known = np.isfinite(measured_s) & (measured_s > 0)
    if not known.any():
        return None
    errors = predicted_s[known] / measured_s[known] - 1
    return RlLogScoreDocument(
        median_ape=float(np.median(np.abs(errors))),
        p90_ape=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        n=len(errors),
    )


def _lengths(log: RunLog, fitted: int) -> dict[str, float]:
    """Means over the fitted steps of what the log says of lengths."""
    found = {name: log.column(name)[:fitted] for name in LENGTHS}
    return {name: float(np.nanmean(values)) for name, values in found.items() if np.isfinite(values).any()}


def _overheads(
    log: RunLog, setup: Mapping[str, str], hwdb: Hwdb, fitted: int
) -> tuple[dict[str, float], list[RlOverheadDocument]]:
    """(measured over predicted by phase, overlay rows) of the fitted steps, on the run's own set-up."""
    lengths = _lengths(log, fitted)
    row: dict[str, str] = {
        **setup,
        **{name: str(lengths[name]) for name in ("mean_prompt", "mean_response") if name in lengths},
    }
    run = read_run(row, 1, hwdb)
    if isinstance(run, Unpredicted):
        raise BadInputError(f"run {run.id}: {run.reason}")
    return overheads_of(run, {name: _middle(log.column(name)[1:fitted]) for name in log.phases}, hwdb)


def _middle(seconds: Floats) -> float:
    return float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else 0.0


def overheads_of(
    run: RlRun, phases_s: Mapping[str, float], hwdb: Hwdb
) -> tuple[dict[str, float], list[RlOverheadDocument]]:
    """(measured over predicted by phase, overlay rows that make them equal) for measured phases of a run.

    In split runs `gen_s` is what the trainer waits for, not generation: it is left out.
    """
    found = predict_run(run, hwdb)
    shipped = load_overheads(hwdb)
    factors = dict[str, float]()
    for column, measured in phases_s.items():
        if column == "gen_s" and run.plan.placement != COLOCATED:
            continue
        names = PHASE_COLUMNS.get(column, ())
        seconds = sum(found.phases_s[name] for name in names)
        if seconds > 0 and measured > 0:
            factors[column] = measured / seconds
    rows = [
        RlOverheadDocument(parameter=parameter, value=getattr(shipped, parameter) * factors[column])
        for column, parameter in _SCALES.items()
        if column in factors
    ]
    if "gen_s" in factors:
        iteration_s = shipped.rollout_iteration_s * factors["gen_s"]
        rows.append(RlOverheadDocument(parameter="rollout_iteration_s", value=iteration_s))
    return factors, rows

"""Rows fitted to all but a part of a table, part by part, and how much wider errors are on what is new."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_validate.serving.fitting import FittedRow
from tangram_validate.serving.observations import is_telling
from tangram_validate.serving.predict import PredictedRun, residual_name
from tangram_validate.serving.runs import APART, ServedRun, publisher
from tangram_validate.serving.tables import LEAST_RUNS, calibrate, nine_tenths

FOLDS: dict[str, Callable[[ServedRun], str]] = {
    "gpu": lambda run: run.gpu,
    "model": lambda run: run.model.name,
    "source": publisher,
}
# How their rows of calibration are called.
NOVELTIES = {"gpu": "unseen", "model": "new_model", "source": "new_source"}
NOVEL = ("tpot", "ttft", "e2e", "output_tok_s")  # metrics that kernels decide
LEAST_TRAINING = 30  # runs: fewer fit nothing
LEAST_OF_FOLD = LEAST_TRAINING  # errors: fewer tell nothing of how far off what is new may be
Fold = tuple[list[ServedRun], list[ServedRun], list[FittedRow]]


def left_out(
    runs: Sequence[ServedRun], hwdb: Hwdb, leave_out: str, but: Collection[str] = ()
) -> Iterator[Fold]:
    """For each GPU, model or source (`leave_out`): its runs, the others, and the rows fitted to the others.

    Those named in `but` are passed over.
    Raises UnknownNameError for another word in `leave_out`, BadInputError where too few runs are left.
    """
    if leave_out not in FOLDS:
        raise unknown_name("`leave_out=`", leave_out, FOLDS)
    key = FOLDS[leave_out]
    runs = [run for run in runs if run.placed is None]  # of these nothing is fitted
    for fold in sorted({key(run) for run in runs} - set(but)):
        rest = [run for run in runs if key(run) != fold]
        telling = sum(map(is_telling, rest))
        if telling < LEAST_TRAINING:
            raise BadInputError(
                f"`leave_out={leave_out}`: without {fold} {telling} runs are left that say what ran and how "
                f"long a token took, too few to fit ({LEAST_TRAINING} are wanted); give a larger table or "
                "leave the option out"
            )
        yield [run for run in runs if key(run) == fold], rest, calibrate(rest, hwdb)


@dataclass(frozen=True)
class NovelErrors:
    """Errors on what was left out, in widths of intervals of what is known: by metric, engine and fold."""

    widths: Mapping[str, Mapping[tuple[str, str], Sequence[float]]]

    def factor(self, metric: str, without: str = "") -> float | None:
        """How many times wider intervals must be to hold nine of ten values on what is new.

        What is new is as far from what is known as the folds are from each other, so each fold of each engine
        weighs the same however many runs it has; `without` is left aside (cross-conformal prediction: Vovk,
        2015). One factor for all engines: of one engine there are two or three folds, which tell little of
        the next. At least 1; None where no fold is left.
        """
        cells = [
            errors
            for (_, fold), errors in self.widths.get(metric, {}).items()
            if fold != without and len(errors) >= LEAST_OF_FOLD
        ]
        return max(1.0, nine_tenths(cells)) if cells else None


def novel_errors(found: Mapping[str, Sequence[PredictedRun]]) -> NovelErrors:
    """The errors of folds' predictions, each fold predicted from the others."""
    widths = defaultdict[str, dict[tuple[str, str], list[float]]](dict)
    for fold, predicted in found.items():
        for predicted_run in predicted:
            run = predicted_run.run
            if run.load == APART or run.doubt or predicted_run.metric not in NOVEL:
                continue
            error = float(
                abs(np.log(predicted_run.predicted / predicted_run.measured))
                / np.log(predicted_run.high / predicted_run.predicted)
            )
            name = residual_name(run.load, predicted_run.metric)
            widths[name].setdefault((run.engine, fold), []).append(error)
    return NovelErrors(widths)


def widened(predicted_run: PredictedRun, errors: NovelErrors, fold: str) -> PredictedRun:
    """A prediction of a fold with the interval that the other folds' errors ask for.

    Prompts and outputs apart are no part of those errors and keep their intervals.
    """
    factor = errors.factor(residual_name(predicted_run.run.load, predicted_run.metric), fold)
    if factor is None:
        return predicted_run
    low, high = (
        predicted_run.predicted * (end / predicted_run.predicted) ** factor
        for end in (predicted_run.low, predicted_run.high)
    )
    return replace(predicted_run, low=low, high=high)


def novel_rows(found: Mapping[str, Sequence[PredictedRun]], leave_out: str) -> list[FittedRow]:
    """Rows of how much wider intervals are on what was left out (FOLDS), one for each metric.

    Of folds' predictions, each fold predicted from the others.
    """
    errors = novel_errors(found)
    rows = []
    for metric in NOVEL:
        cells = errors.widths.get(residual_name("", metric), {})
        factor = errors.factor(residual_name("", metric))
        telling = {fold for (_, fold), widths in cells.items() if len(widths) >= LEAST_OF_FOLD}
        count = sum(map(len, cells.values()))
        if factor is not None and count >= LEAST_RUNS and len(telling) > 1:
            rows.append(FittedRow("*", "*", f"{NOVELTIES[leave_out]}_{metric}", factor, 0.0, count))
    return rows

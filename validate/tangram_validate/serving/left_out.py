"""Rows fitted to all but a part of a table, part by part, and how much wider errors are on what is new."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_validate.serving.fitting import FittedRow
from tangram_validate.serving.observations import is_telling
from tangram_validate.serving.predict import PredictedRun, predict
from tangram_validate.serving.runs import APART, BURST, ServedRun
from tangram_validate.serving.tables import LEAST_RUNS, calibrate, table_of

FOLDS: dict[str, Callable[[ServedRun], str]] = {
    "gpu": lambda run: run.gpu,
    "model": lambda run: run.model.name,
    "source": lambda run: run.source,
}
NOVELTIES = {"gpu": "unseen", "model": "new_model"}  # how their rows of calibration are called
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
    """Errors on what was left out, in widths of intervals of what is known: by engine, metric and fold."""

    widths: Mapping[tuple[str, str], Mapping[str, Sequence[float]]]

    def factor(self, engine: str, metric: str, without: str = "") -> float | None:
        """How many times wider intervals must be to hold nine of ten values on what is new.

        What is new is as far from what is known as the folds are from each other, so each fold weighs the
        same however many runs it has; `without` is left aside (cross-conformal prediction: Vovk, 2015). Of an
        engine with a single fold that of all engines; None where there is none either. At least 1.
        """
        for name in (engine, "*"):
            folds = {
                fold: errors
                for fold, errors in self.widths.get((name, metric), {}).items()
                if fold != without and len(errors) >= LEAST_OF_FOLD
            }
            if len(folds) > (name != "*"):
                return max(1.0, _quantile(list(folds.values())))
        return None


def _quantile(folds: Sequence[Sequence[float]]) -> float:
    """The value that nine tenths of the weight are below, each fold weighing the same."""
    values = np.concatenate([np.asarray(errors) for errors in folds])
    weights = np.concatenate([np.full(len(errors), 1.0 / len(errors)) for errors in folds])
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / len(folds)
    return float(values[order][min(int(np.searchsorted(reached, 0.9)), len(values) - 1)])


def novel_errors(found: Mapping[str, Sequence[PredictedRun]]) -> NovelErrors:
    """The errors of folds' predictions, each fold predicted from the others."""
    widths = defaultdict[tuple[str, str], dict[str, list[float]]](dict)
    for fold, predicted in found.items():
        for predicted_run in predicted:
            if (
                predicted_run.run.load in (BURST, APART)
                or predicted_run.run.doubt
                or predicted_run.metric not in NOVEL
            ):
                continue
            error = float(
                abs(np.log(predicted_run.predicted / predicted_run.measured))
                / np.log(predicted_run.high / predicted_run.predicted)
            )
            for engine in ("*", predicted_run.run.engine):
                widths[engine, predicted_run.metric].setdefault(fold, []).append(error)
    return NovelErrors(widths)


def widened(predicted_run: PredictedRun, errors: NovelErrors, fold: str) -> PredictedRun:
    """A prediction of a fold with the interval that the other folds' errors ask for.

    Bursts, and prompts and outputs apart, are no part of those errors and keep their intervals.
    """
    if predicted_run.run.load in (BURST, APART):
        return predicted_run
    factor = errors.factor(predicted_run.run.engine, predicted_run.metric.removesuffix("_p99"), fold)
    if factor is None:
        return predicted_run
    reach = (predicted_run.high / predicted_run.predicted) ** factor
    return replace(predicted_run, low=predicted_run.predicted / reach, high=predicted_run.predicted * reach)


def novel(runs: Sequence[ServedRun], hwdb: Hwdb, leave_out: str) -> list[FittedRow]:
    """Rows of how much wider intervals are on kinds of GPU (`gpu`), or of models (`model`), never run.

    Each is left out in turn. One factor for each engine and metric, and one for all engines together.
    """
    clear = [run for run in runs if not run.doubt and run.load not in (BURST, APART)]
    found = {
        FOLDS[leave_out](own[0]): predict(own, hwdb, table_of(rows, hwdb))[0]
        for own, _, rows in left_out(clear, hwdb, leave_out)
    }
    return novel_rows(found, leave_out)


def novel_rows(found: Mapping[str, Sequence[PredictedRun]], leave_out: str) -> list[FittedRow]:
    """The same of folds' predictions, each fold predicted from the others."""
    errors = novel_errors(found)
    rows = []
    for (engine, metric), folds in sorted(errors.widths.items()):
        factor = errors.factor(engine, metric)
        count = sum(map(len, folds.values()))
        telling = [width for width in errors.widths["*", metric].values() if len(width) >= LEAST_OF_FOLD]
        if factor is not None and count >= LEAST_RUNS and len(telling) > 1:
            name = f"{NOVELTIES[leave_out]}_{metric}"
            rows.append(FittedRow(engine, "*", name, factor, 0.0, count))
    return rows

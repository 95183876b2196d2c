"""Rows fitted to all but a part of a table, part by part, and how much wider errors are on a GPU left out."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import UNSEEN
from tangram_sim.validation.serving.fitting import FittedRow
from tangram_sim.validation.serving.predict import predict
from tangram_sim.validation.serving.runs import ServedRun
from tangram_sim.validation.serving.tables import LEAST_RUNS, calibrate, table_of

FOLDS: dict[str, Callable[[ServedRun], str]] = {
    "gpu": lambda run: run.gpu,
    "model": lambda run: run.model.name,
    "source": lambda run: run.source,
}
LEAST_TRAINING = 30  # runs: fewer fit nothing
Fold = tuple[list[ServedRun], list[ServedRun], list[FittedRow]]


def left_out(runs: Sequence[ServedRun], hwdb: Hwdb, leave_out: str) -> Iterator[Fold]:
    """For each GPU, model or source (`leave_out`): its runs, the others, and the rows fitted to the others.

    Raises UnknownNameError for another word in `leave_out`, BadInputError where too few runs are left.
    """
    if leave_out not in FOLDS:
        raise unknown_name("`leave_out=`", leave_out, FOLDS)
    key = FOLDS[leave_out]
    runs = [run for run in runs if run.placed is None]  # of these nothing is fitted
    for fold in sorted({key(run) for run in runs}):
        rest = [run for run in runs if key(run) != fold]
        if len(rest) < LEAST_TRAINING:
            raise BadInputError(
                f"`leave_out={leave_out}`: without {fold} {len(rest)} runs are left, too few to fit "
                f"({LEAST_TRAINING} are wanted); give a larger table or leave the option out"
            )
        yield [run for run in runs if key(run) == fold], rest, calibrate(rest, hwdb)


def unseen(runs: Sequence[ServedRun], hwdb: Hwdb) -> list[FittedRow]:
    """How many times wider intervals must be to hold nine of ten values on kinds of GPU never run on.

    Each kind is left out in turn. One factor for each engine and metric, and one for all engines together;
    every run weighs the same. At least 1: what a fit has seen it predicts no worse.
    """
    outside = defaultdict[tuple[str, str], list[float]](list)  # log errors in widths of the fold's interval
    for own, _, rows in left_out(runs, hwdb, "gpu"):
        spreads = {row.parameter for row in rows}  # a metric measured on the kind left out alone has none
        for one in predict(own, hwdb, table_of(rows))[0]:
            if f"residual_{one.metric}" not in spreads:
                continue
            error = float(abs(np.log(one.predicted / one.measured)) / np.log(one.high / one.predicted))
            for engine in ("*", one.run.engine):
                outside[engine, f"unseen_{one.metric}"].append(error)
    return [
        FittedRow(engine, "*", name, max(1.0, float(np.quantile(errors, 0.9))), 0.0, len(errors))
        for (engine, name), errors in sorted(outside.items())
        if name in UNSEEN and len(errors) >= LEAST_RUNS
    ]

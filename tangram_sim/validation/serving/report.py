"""`tangram serve validate`: a table predicted and scored beside the null model, in sample or left out."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.validation.serving.fitting import by_version
from tangram_sim.validation.serving.null import with_null
from tangram_sim.validation.serving.predict import PredictedRun, predict
from tangram_sim.validation.serving.request_logs import weight
from tangram_sim.validation.serving.runs import RefusedRun, ServedRun
from tangram_sim.validation.serving.scoring import metrics, worst
from tangram_sim.validation.serving.tables import calibrate, table_of

SCHEMA_VERSION = 1
FOLDS: dict[str, Callable[[ServedRun], str]] = {
    "gpu": lambda run: run.gpu,
    "model": lambda run: run.model.name,
    "source": lambda run: run.source,
}
LEAST_TRAINING = 30  # runs: fewer fit nothing
SHOWN = ("rows", "median", "90 %", "bias", "coverage", "null")


def predictions(
    read: Sequence[ServedRun | RefusedRun], hwdb: Hwdb, leave_out: str = ""
) -> tuple[list[PredictedRun], list[RefusedRun]]:
    """Predictions with the shipped rows, or each fold's with rows fitted to the other folds of the table.

    Left out, factors of models and precisions stay out too: they were learnt on the kinds they were seen on.
    Raises UnknownNameError for a fold nobody knows, BadInputError where too few runs are left to fit.
    """
    runs = [one for one in read if isinstance(one, ServedRun)]
    if not leave_out:
        found, refused = predict(runs, hwdb, CalibrationTable.load(hwdb))
        return with_null(found, found, hwdb), refused
    if leave_out not in FOLDS:
        raise unknown_name("`leave_out=`", leave_out, FOLDS)
    key = FOLDS[leave_out]
    all_found: list[PredictedRun] = []
    all_refused: list[RefusedRun] = []
    for fold in sorted({key(run) for run in runs}):
        rest = [run for run in runs if key(run) != fold]
        if len(rest) < LEAST_TRAINING:
            raise BadInputError(
                f"`leave_out={leave_out}`: without {fold} {len(rest)} runs are left, too few to fit "
                f"({LEAST_TRAINING} are wanted); give a larger table or leave the option out"
            )
        table = table_of(calibrate(rest, hwdb, by_version))
        found, refused = predict([run for run in runs if key(run) == fold], hwdb, table)
        training, _ = predict(rest, hwdb, table)
        all_found += with_null(training, found, hwdb)
        all_refused += refused
    return sorted(all_found, key=lambda one: one.run.line), all_refused


def document(
    read: Sequence[ServedRun | RefusedRun],
    found: Sequence[PredictedRun],
    refused: Sequence[RefusedRun],
    leave_out: str = "",
) -> dict[str, Any]:
    """The JSON answer."""
    unread = [one for one in read if isinstance(one, RefusedRun)]
    reasons = Counter(one.reason for one in (*unread, *refused))
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": sum(weight(one) if isinstance(one, ServedRun) else 1 for one in read),
        "rows_used": sum(weight(one) for one in {one.run.line: one.run for one in found}.values()),
        "left_out": leave_out or None,
        "refused": [{"reason": reason, "count": count} for reason, count in reasons.most_common()],
        "metrics": metrics(found),
        "null": metrics(found, null=True),
        "worst": worst(found),
    }


def table_rows(answer: dict[str, Any]) -> list[tuple[str, ...]]:
    """One line for each metric, then its groups."""
    lines = []
    for metric, scores in answer["metrics"].items():
        null = answer["null"].get(metric, {})
        lines.append(_line(metric, scores, null))
        for part in ("by_engine", "by_gpu", "by_model"):
            for name, group in scores[part].items():
                lines.append(_line(f"  {name}", group, null.get(part, {}).get(name, {})))
    return lines


def _line(title: str, scores: dict[str, Any], null: dict[str, Any]) -> tuple[str, ...]:
    return (
        title,
        f"{scores['rows']:,.0f}",
        f"{scores['median_ape']:.1%}",
        f"{scores['p90_ape']:.0%}",
        f"{scores['bias']:+.1%}",
        f"{scores['interval_coverage']:.0%}",
        f"{null['median_ape']:.1%}" if null else "-",
    )


def predictions_csv(found: Sequence[PredictedRun]) -> str:
    """Every prediction, one row each."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = (
        "line",
        "gpu",
        "engine",
        "version",
        "model",
        "precision",
        "tp",
        "pp",
        "attention_dp",
        "ep",
        "load",
    )
    writer.writerow([*columns, "isl", "osl", "metric", "measured", "predicted", "low", "high", "null"])
    for one in found:
        run = one.run
        names = (run.line, run.gpu, run.engine, run.version, run.model.name, run.precision.name)
        degrees = (run.tp, run.pp, run.attention_dp, run.ep, run.load, f"{run.isl:g}", f"{run.osl:g}")
        values = (one.measured, one.predicted, one.low, one.high, one.null)
        writer.writerow([*names, *degrees, one.metric, *(f"{value:.6g}" for value in values)])
    return stream.getvalue()

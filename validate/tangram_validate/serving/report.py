"""`tangram serve validate`: a table predicted and scored beside the null model, in sample or left out."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.units import percent
from tangram_validate.serving.left_out import FOLDS, left_out, novel_errors, widened
from tangram_validate.serving.null import with_null
from tangram_validate.serving.predict import PredictedRun, Progress, predict
from tangram_validate.serving.request_logs import weight
from tangram_validate.serving.runs import RefusedRun, ServedRun
from tangram_validate.serving.scoring import metrics, orders, worst
from tangram_validate.serving.tables import table_of

SCHEMA_VERSION = 1
SHOWN = ("rows", "median", "90 %", "bias", "coverage", "null")


def predictions(
    read: Sequence[ServedRun | RefusedRun],
    hwdb: Hwdb,
    leave_out: str = "",
    progress: Progress | None = None,
) -> tuple[list[PredictedRun], list[RefusedRun]]:
    """Predictions with the shipped rows, or each fold's with rows fitted to the other folds of the table.

    How much wider intervals are on a kind of GPU, or of a model, that was left out is told by the errors on
    the other kinds or models, each left out in turn. Raises what `left_out` raises.
    """
    runs = [item for item in read if isinstance(item, ServedRun)]
    if not leave_out:
        found, refused = predict(runs, hwdb, CalibrationTable.load(hwdb), progress)
        return with_null(found, found, hwdb), refused
    folds: dict[str, list[PredictedRun]] = {}
    all_refused: list[RefusedRun] = []
    for own, rest, rows in left_out(runs, hwdb, leave_out):
        table = table_of(rows, hwdb)
        found, refused = predict(own, hwdb, table, progress)
        training, _ = predict(rest, hwdb, table, progress)
        folds[FOLDS[leave_out](own[0])] = with_null(training, found, hwdb)
        all_refused += refused
    errors = novel_errors(folds)
    all_found = [
        widened(predicted_run, errors, fold) for fold, found in folds.items() for predicted_run in found
    ]
    all_found.sort(key=lambda predicted_run: (predicted_run.run.table, predicted_run.run.line))
    return all_found, all_refused


def document(
    read: Sequence[ServedRun | RefusedRun],
    found: Sequence[PredictedRun],
    refused: Sequence[RefusedRun],
    leave_out: str = "",
) -> dict[str, Any]:
    """The JSON answer."""
    clear = [predicted_run for predicted_run in found if not predicted_run.run.doubt]
    doubtful = [predicted_run for predicted_run in found if predicted_run.run.doubt]
    unread = [item for item in read if isinstance(item, RefusedRun)]
    reasons = Counter(refused_run.reason for refused_run in (*unread, *refused))
    return {
        "schema_version": SCHEMA_VERSION,
        "rows": sum(weight(item) if isinstance(item, ServedRun) else 1 for item in read),
        "rows_used": sum(
            weight(served_run)
            for served_run in {_key(predicted_run.run): predicted_run.run for predicted_run in found}.values()
        ),
        "left_out": leave_out or None,
        "refused": [{"reason": reason, "count": count} for reason, count in reasons.most_common()],
        "metrics": metrics(clear),
        "null": metrics(clear, null=True),
        "doubtful": metrics(doubtful),
        "doubts": [
            {"reason": reason, "count": count}
            for reason, count in Counter(
                run.doubt
                for run in {_key(predicted_run.run): predicted_run.run for predicted_run in doubtful}.values()
            ).most_common()
        ],
        "dropped": [
            {"reason": reason, "count": count}
            for reason, count in Counter(
                reason for item in read if isinstance(item, ServedRun) for reason in item.dropped
            ).most_common()
        ],
        "worst": worst(clear),
        "orders": orders(found),
    }


def _key(run: ServedRun) -> tuple[str, int]:
    return run.table, run.line


def table_rows(answer: dict[str, Any]) -> list[tuple[str, ...]]:
    """One line for each metric, then its groups."""
    lines = []
    for metric, scores in answer["doubtful"].items():
        lines.append(_line(f"({metric}, doubtful)", scores, {}))
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
        percent(scores["median_ape"], 1),
        percent(scores["p90_ape"]),
        percent(scores["bias"], 1, signed=True),
        percent(scores["interval_coverage"]),
        percent(null["median_ape"], 1) if null else "-",
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
    scored = ("isl", "osl", "metric", "measured", "predicted", "low", "high", "null", "table")
    writer.writerow([*columns, *scored])
    for predicted_run in found:
        run = predicted_run.run
        names = (run.line, run.gpu, run.engine, run.version, run.model.name, run.precision.name)
        degrees = (run.tp, run.pp, run.attention_dp, run.ep, run.load, f"{run.isl:g}", f"{run.osl:g}")
        values = (
            predicted_run.measured,
            predicted_run.predicted,
            predicted_run.low,
            predicted_run.high,
            predicted_run.null,
        )
        writer.writerow(
            [*names, *degrees, predicted_run.metric, *(f"{value:.6g}" for value in values), run.table]
        )
    return stream.getvalue()

"""Scores of predicted collectives: one JSON object, tables for people, a CSV of every prediction."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tangram_sim.units import GIGA, MEGA, MIB, percent
from tangram_validate.collectives.points import APART, Point, RefusedRow
from tangram_validate.collectives.predict import CollectivePrediction, busbw_factor

ASYMPTOTIC_BYTES = 256 * MIB  # the largest measured size at or above this stands for the asymptote
COLUMNS = ("n", "median", "p90", "bias", "in interval")
HEADER = (
    *("line", "gpu", "intra", "network", "nodes", "ranks", "op", "dtype", "size_bytes", "measured_us"),
    *("predicted_us", "low_us", "high_us", "error", "set_apart", "notes"),
)


def document(results: Sequence[CollectivePrediction | RefusedRow]) -> dict[str, Any]:
    """All scores; errors are fractions of what was measured."""
    predicted = [result for result in results if isinstance(result, CollectivePrediction)]
    scored = [
        prediction for prediction in predicted if not prediction.point.apart and prediction.error is not None
    ]
    crossing = [prediction for prediction in scored if prediction.point.fabric.nic is not None]
    apart = {
        name: {"why": why, **score(prediction for prediction in predicted if prediction.point.apart == name)}
        for name, why in APART.items()
    }
    notes = sorted({note for prediction in scored for note in prediction.notes})
    return {
        "overall": score(scored),
        "by_link": by(scored, lambda point: "network" if point.fabric.nic else point.fabric.intra.kind),
        "by_gpu": by(scored, lambda point: point.label),
        "by_op": by(scored, lambda point: point.op),
        "by_ranks": by(scored, lambda point: str(point.ranks)),
        "by_nodes": by(scored, lambda point: str(point.nodes)),
        "multi_node": {
            name: {**score(members), **asymptote(members)}
            for name, members in _grouped(crossing, _curve_name).items()
        },
        "set_apart": {name: figures for name, figures in apart.items() if figures["n"]},
        "rows": len(results),
        "predicted": len(predicted),
        "without_measured_time": sum(prediction.error is None for prediction in predicted),
        "notes": [
            {"note": note, "rows": sum(note in prediction.notes for prediction in scored)} for note in notes
        ],
        "unpredicted": [
            {"row": result.line, "reason": result.reason}
            for result in results
            if isinstance(result, RefusedRow)
        ],
    }


def line_of(result: CollectivePrediction | RefusedRow) -> int:
    """The line of the file a result answers."""
    return result.line if isinstance(result, RefusedRow) else result.point.line


def score(predictions: Iterable[CollectivePrediction]) -> dict[str, Any]:
    """Figures of some predictions; None where nothing was measured."""
    known = [(prediction, prediction.error) for prediction in predictions if prediction.error is not None]
    errors = np.array([error for _, error in known])
    if not len(errors):
        return {"n": 0, "median_ape": None, "p90_ape": None, "bias": None, "interval_coverage": None}
    inside = [prediction.low_s <= prediction.point.seconds <= prediction.high_s for prediction, _ in known]
    return {
        "n": len(errors),
        "median_ape": float(np.median(np.abs(errors))),
        "p90_ape": float(np.percentile(np.abs(errors), 90)),
        "bias": float(np.median(errors)),
        "interval_coverage": float(np.mean(inside)),
    }


def by(predictions: Iterable[CollectivePrediction], key: Callable[[Point], str]) -> dict[str, dict[str, Any]]:
    """A score per value of `key`, in alphabetical order."""
    return {name: score(members) for name, members in _grouped(predictions, key).items()}


def _grouped(
    predictions: Iterable[CollectivePrediction], key: Callable[[Point], str]
) -> dict[str, list[CollectivePrediction]]:
    groups: dict[str, list[CollectivePrediction]] = {}
    for prediction in predictions:
        groups.setdefault(key(prediction.point), []).append(prediction)
    return {name: groups[name] for name in sorted(groups)}


def _curve_name(point: Point) -> str:
    return f"{point.nodes}x{point.per_node} {point.label}, {point.where}, {point.op}"


def asymptote(predictions: Sequence[CollectivePrediction]) -> dict[str, float | None]:
    """Bus bandwidth at the largest measured size: measured, predicted, relative error; None below 256 MiB."""
    large = [prediction for prediction in predictions if prediction.point.size_bytes >= ASYMPTOTIC_BYTES]
    if not large:
        return {"busbw_bytes_per_s": None, "predicted_busbw_bytes_per_s": None, "busbw_error": None}
    size = max(prediction.point.size_bytes for prediction in large)
    last = [prediction for prediction in large if prediction.point.size_bytes == size]
    point = last[0].point
    factor = busbw_factor(point.op, point.ranks) * size
    measured = factor / float(np.median([prediction.point.seconds for prediction in last]))
    predicted = factor / last[0].seconds
    return {
        "busbw_bytes_per_s": measured,
        "predicted_busbw_bytes_per_s": predicted,
        "busbw_error": predicted / measured - 1.0,
    }


def table_rows(scores: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """Scores as text, fractions in percent."""
    return [(name, *_cells(figures)) for name, figures in scores.items()]


def fabric_rows(scores: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """Multi-node curves as text, bus bandwidth in GB/s."""
    rows = []
    for name, figures in scores.items():
        bandwidth = ("-", "-", "-")
        if figures["busbw_error"] is not None:
            bandwidth = (
                f"{figures['busbw_bytes_per_s'] / GIGA:.1f}",
                f"{figures['predicted_busbw_bytes_per_s'] / GIGA:.1f}",
                percent(figures["busbw_error"], 1, signed=True),
            )
        rows.append((name, *_cells(figures)[:3], *bandwidth))
    return rows


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    def cell(name: str, *, signed: bool = False) -> str:
        value = figures[name]
        return "-" if value is None else percent(value, 1, signed=signed)

    return (
        str(figures["n"]),
        cell("median_ape"),
        cell("p90_ape"),
        cell("bias", signed=True),
        cell("interval_coverage"),
    )


def reasons(document_: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(rows, first row, reason) of everything that was not predicted, most frequent first."""
    found: dict[str, list[int]] = {}
    for one in document_["unpredicted"]:
        found.setdefault(one["reason"], []).append(one["row"])
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), item[1][0]))
    return [(str(len(lines)), str(lines[0]), reason) for reason, lines in ranked]


def predictions_csv(results: Sequence[CollectivePrediction | RefusedRow]) -> str:
    """Every row of the input in its order: its prediction, or the reason why there is none in `notes`."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(HEADER)
    for result in results:
        if isinstance(result, RefusedRow):
            blanks = [""] * (len(HEADER) - 2)
            writer.writerow([result.line, *blanks, f"not predicted: {result.reason}"])
            continue
        point, error = result.point, result.error
        link = point.fabric.intra.name
        writer.writerow(
            [
                *(result.point.line, point.label, link, point.where, point.nodes, point.ranks, point.op),
                *(point.dtype, f"{point.size_bytes:.0f}", _microseconds(point.seconds)),
                *(_microseconds(result.seconds), _microseconds(result.low_s), _microseconds(result.high_s)),
                *("" if error is None else f"{error:.4f}", point.apart, "; ".join(result.notes)),
            ]
        )
    return stream.getvalue()


def _microseconds(seconds: float) -> str:
    return f"{seconds * MEGA:.6g}" if seconds > 0 else ""

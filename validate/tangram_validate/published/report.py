"""The report of a validation: one JSON object, a table for people, a CSV of every prediction."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from tangram_sim.models import has_experts
from tangram_sim.units import GIGA
from tangram_validate.published.memory import memory_scores
from tangram_validate.published.predict import Prediction
from tangram_validate.published.score import Score, by, macro, score
from tangram_validate.published.stacks import software_notes
from tangram_validate.published.table import Problem

COLUMNS = (
    "n",
    "median",
    "mean",
    "p90",
    "worst",
    "bias",
    "rank",
    "memory n",
    "memory",
    "in interval",
)


def document(results: Sequence[Prediction | Problem]) -> dict[str, Any]:
    """All scores; `overall` gives every source the same weight, `pooled` every row."""
    predicted = [result for result in results if isinstance(result, Prediction)]
    problems = [result for result in results if isinstance(result, Problem)]
    by_source = by(predicted, lambda prediction: prediction.run.source_id)
    return {
        "overall": asdict(_overall(predicted, list(by_source.values()))),
        "by_gpu": _figures(by(predicted, lambda prediction: prediction.run.gpu)),
        "by_source": _figures(by_source),
        "by_tier": _figures(by(predicted, lambda prediction: prediction.run.tier or "none")),
        "pooled": asdict(score(predicted)),
        "memory": {kind: asdict(memory_score) for kind, memory_score in memory_scores(predicted).items()},
        "rows": len(results),
        "predicted": len(predicted),
        "without_measured_step": sum(prediction.error is None for prediction in predicted),
        "unpredicted": [{"id": problem.id, "reason": problem.reason} for problem in problems],
        "notes": software_notes(prediction.run.software for prediction in predicted),
    }


def _overall(predicted: Sequence[Prediction], sources: Sequence[Score]) -> Score:
    """Means over sources, but rank correlation over all sweeps: it is an average of groups already."""
    return replace(macro(sources), rank_correlation=score(predicted).rank_correlation)


def _figures(scores: dict[str, Score]) -> dict[str, dict[str, Any]]:
    return {name: asdict(found) for name, found in scores.items()}


def table_rows(data: dict[str, Any], part: str) -> list[tuple[str, ...]]:
    """Rows of one part of the document, or of `overall`, as text: fractions in percent."""
    scores = data[part] if part.startswith("by_") else {part: data[part]}
    return [(name, *_cells(figures)) for name, figures in scores.items()]


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    def percent(name: str) -> str:
        return "-" if figures[name] is None else f"{100 * figures[name]:.1f}"

    rank = figures["rank_correlation"]
    return (
        str(figures["n"]),
        *(percent(name) for name in ("median_ape", "mean_ape", "p90_ape", "worst_ape", "bias")),
        "-" if rank is None else f"{rank:.2f}",
        str(figures["memory_n"]),
        percent("memory_median_ape"),
        percent("interval_coverage"),
    )


def reasons(data: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Reasons for rows not predicted: how many, one of them, why."""
    found: dict[str, list[str]] = {}
    for row in data["unpredicted"]:
        found.setdefault(row["reason"], []).append(row["id"])
    return [(str(len(ids)), ids[0], reason) for reason, ids in found.items()]


def predictions_csv(results: Sequence[Prediction | Problem]) -> str:
    """One line per predicted row: seconds, errors, memory, what was assumed, and where the seconds go."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    predicted = [result for result in results if isinstance(result, Prediction)]
    parts = list(asdict(predicted[0].parts)) if predicted else []
    writer.writerow(
        (
            *("id", "source_id", "gpu", "predicted_s", "measured_s", "error"),
            *("predicted_allocated_gb", "predicted_reserved_gb", "measured_peak_gb", "fits", "recompute"),
            *("step_s_low", "step_s_high", "measured_gpu", "assumed", *parts),
            *("predicted_device_gb", "mem_kind", "memory_error"),
            *("stack", "stack_known", "sigma", "factors_sigma", "peak_factor_high", "mixture"),
        )
    )
    for prediction in predicted:
        run, measured = prediction.run, prediction.run.measured
        writer.writerow(
            (
                *(run.id, run.source_id, run.gpu, _number(prediction.step_s), _number(measured.step_s)),
                "" if prediction.error is None else f"{prediction.error:.6f}",
                *(_number(size / GIGA) for size in (prediction.allocated_bytes, prediction.reserved_bytes)),
                _number(measured.peak_bytes / GIGA),
                *("yes" if prediction.fits else "no", prediction.recompute),
                *(_number(prediction.step_s_low), _number(prediction.step_s_high)),
                *("yes" if prediction.measured else "no", "; ".join(run.assumed)),
                *(f"{value:.6g}" for value in asdict(prediction.parts).values()),
                *(_number(prediction.device_bytes / GIGA), measured.memory if measured.peak_bytes else ""),
                "" if prediction.memory_error is None else f"{prediction.memory_error:.6f}",
                *(run.job.stack, "yes" if prediction.stack_known else "no"),
                *(
                    f"{value:.6g}"
                    for value in (prediction.sigma, prediction.factors_sigma, prediction.peak_factor_high)
                ),
                "yes" if has_experts(run.model) else "no",
            )
        )
    return text.getvalue()


def _number(value: float) -> str:
    """Six digits; blank for 0, which stands for "not known" in these columns."""
    return f"{value:.6g}" if value else ""

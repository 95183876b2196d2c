"""Scores of mixed runs: median error, Kendall's tau, top-1 regret, beside the source's own predictions."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tangram_validate.mixed_runs.predict import MixedPrediction
from tangram_validate.published.table import Problem

COLUMNS = ("n", "median", "bias", "tau", "regret", "source's median", "source's tau", "source's regret")


@dataclass(frozen=True, slots=True)
class MixedRunFigures:
    """Figures of some runs; None where nothing can be said. Errors are fractions of what was measured."""

    n: int  # runs with a measured step
    median_ape: float | None
    kendall_tau: float | None
    top1_regret: float | None
    source_median_ape: float | None
    bias: float | None = None  # median signed error
    source_kendall_tau: float | None = None
    source_top1_regret: float | None = None


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Tau-b (Kendall 1945): pairs in the same order less pairs in the other, ties left out of the norm."""
    concordant = discordant = left = right = 0
    for first in range(len(measured)):
        for second in range(first):
            a, b = predicted[first] - predicted[second], measured[first] - measured[second]
            concordant += a * b > 0
            discordant += a * b < 0
            left, right = left + (a != 0), right + (b != 0)
    return (concordant - discordant) / math.sqrt(left * right) if left and right else None


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """How much slower the run is that looked best than the one that was; None for fewer than two."""
    if len(measured) < 2:
        return None
    return measured[predicted.index(min(predicted))] / min(measured) - 1


def figures(results: Sequence[MixedPrediction]) -> MixedRunFigures:
    """Errors over all runs; ranks inside each workload (of one cluster, for regret), then averaged.

    A workload weighs as much in tau as it has pairs of runs; clusters weigh alike in regret.
    """
    scored = [result for result in results if result.error is not None]
    stated = [mixed_prediction for mixed_prediction in scored if mixed_prediction.source_error is not None]

    def ours(mixed_prediction: MixedPrediction) -> float:
        return mixed_prediction.step_s

    def theirs(mixed_prediction: MixedPrediction) -> float:
        return mixed_prediction.run.source_s

    return MixedRunFigures(
        n=len(scored),
        median_ape=_median([abs(mixed_prediction.error or 0.0) for mixed_prediction in scored]),
        kendall_tau=_tau(scored, ours),
        top1_regret=_regret(scored, ours),
        source_median_ape=_median([abs(mixed_prediction.source_error or 0.0) for mixed_prediction in stated]),
        bias=_median([mixed_prediction.error or 0.0 for mixed_prediction in scored]),
        source_kendall_tau=_tau(stated, theirs),
        source_top1_regret=_regret(stated, theirs),
    )


def _median(values: Sequence[float]) -> float | None:
    return float(median(values)) if values else None


Key = Callable[[MixedPrediction], Any]


def _groups(results: Sequence[MixedPrediction], key: Key) -> list[list[MixedPrediction]]:
    found: dict[Any, list[MixedPrediction]] = {}
    for result in results:
        found.setdefault(key(result), []).append(result)
    return list(found.values())


def _tau(results: Sequence[MixedPrediction], seconds: Callable[[MixedPrediction], float]) -> float | None:
    weight = total = 0.0
    for group in _groups(results, lambda mixed_prediction: mixed_prediction.run.workload):
        tau = kendall_tau(
            [seconds(mixed_prediction) for mixed_prediction in group],
            [mixed_prediction.run.measured_s for mixed_prediction in group],
        )
        pairs = len(group) * (len(group) - 1) / 2
        if tau is not None:
            weight, total = weight + pairs, total + pairs * tau
    return total / weight if weight else None


def _regret(results: Sequence[MixedPrediction], seconds: Callable[[MixedPrediction], float]) -> float | None:
    found = [
        regret(
            [seconds(mixed_prediction) for mixed_prediction in group],
            [mixed_prediction.run.measured_s for mixed_prediction in group],
        )
        for group in _groups(
            results, lambda mixed_prediction: (mixed_prediction.run.workload, mixed_prediction.run.cluster)
        )
    ]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def document(results: Sequence[MixedPrediction | Problem]) -> dict[str, Any]:
    """All figures as one JSON object."""
    predicted = [result for result in results if isinstance(result, MixedPrediction)]
    problems = [result for result in results if isinstance(result, Problem)]
    sources = sorted({mixed_prediction.run.source_id for mixed_prediction in predicted})
    return {
        "overall": asdict(figures(predicted)),
        "by_source": {
            source: asdict(
                figures(
                    [
                        mixed_prediction
                        for mixed_prediction in predicted
                        if mixed_prediction.run.source_id == source
                    ]
                )
            )
            for source in sources
        },
        "rows": len(results),
        "predicted": len(predicted),
        "without_measured_step": sum(mixed_prediction.error is None for mixed_prediction in predicted),
        "unpredicted": [{"id": problem.id, "reason": problem.reason} for problem in problems],
    }


def cells_of(data: dict[str, Any]) -> tuple[str, ...]:
    """Figures as text, fractions in percent."""

    def percent(name: str) -> str:
        return "-" if data[name] is None else f"{100 * data[name]:.1f}"

    def number(name: str) -> str:
        return "-" if data[name] is None else f"{data[name]:.2f}"

    return (
        str(data["n"]),
        percent("median_ape"),
        percent("bias"),
        number("kendall_tau"),
        percent("top1_regret"),
        percent("source_median_ape"),
        number("source_kendall_tau"),
        percent("source_top1_regret"),
    )


def run_rows(results: Sequence[MixedPrediction | Problem]) -> list[tuple[str, ...]]:
    """One line per predicted run for people."""
    return [
        (
            result.run.id,
            f"{result.step_s:.2f}",
            f"{result.run.measured_s:.2f}" if result.run.measured_s else "-",
            "-" if result.error is None else f"{100 * result.error:+.0f}",
            "-" if result.source_error is None else f"{100 * result.source_error:+.0f}",
            "yes" if result.fits else "no",
        )
        for result in results
        if isinstance(result, MixedPrediction)
    ]


def predictions_csv(results: Sequence[MixedPrediction | Problem]) -> str:
    """One line per predicted row: seconds, errors, memory, what was assumed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("predicted_s", "measured_s", "error", "predicted_by_source_s", "source_error")
    writer.writerow(("id", "source_id", *names, "fits", "memory_used", "assumed"))
    for result in results:
        if not isinstance(result, MixedPrediction):
            continue
        run, signed, theirs = result.run, result.error, result.source_error
        writer.writerow(
            (
                *(run.id, run.source_id, f"{result.step_s:.6g}"),
                f"{run.measured_s:.6g}" if run.measured_s else "",
                "" if signed is None else f"{signed:.6f}",
                f"{run.source_s:.6g}" if run.source_s else "",
                "" if theirs is None else f"{theirs:.6f}",
                *("yes" if result.fits else "no", f"{result.fullness:.3f}", "; ".join(run.assumed)),
            )
        )
    return text.getvalue()

"""Scores of predicted post-training runs: overall, by source and by phase, with what was not predicted."""

from collections.abc import Callable, Sequence

import numpy as np

from tangram_validate.post_training.documents import (
    RlPredictionDocument,
    RlScoreDocument,
    RlUnpredictedDocument,
    RlValidateDocument,
)
from tangram_validate.post_training.predict import Prediction, errors_of, scored
from tangram_validate.post_training.ratios import ratio_score, ratios_of
from tangram_validate.post_training.reading import PHASE_COLUMNS, Unpredicted


def document(found: Sequence[Prediction | Unpredicted], leave_out: str) -> RlValidateDocument:
    """The answer of `rl validate`: every figure a fraction of what was measured."""
    steps = scored(found)
    predicted = [item for item in found if isinstance(item, Prediction)]
    sources = dict.fromkeys(step.run.source for step in steps)
    ratios = ratios_of(predicted)
    return RlValidateDocument(
        rows=len(found),
        leave_out=leave_out,
        overall=score(steps),
        by_source={name: score([step for step in steps if step.run.source == name]) for name in sources},
        by_phase={
            column: _phase_score(column, measured)
            for column in PHASE_COLUMNS
            if (measured := [prediction for prediction in predicted if _counts(prediction, column)])
        },
        floor=score(steps, lambda prediction: prediction.floor_s),
        orders=ratio_score(ratios),
        ratios=ratios,
        unpredicted=[
            RlUnpredictedDocument(run_id=item.id, source=item.source, reason=item.reason)
            for item in found
            if isinstance(item, Unpredicted)
        ],
        predictions=[
            RlPredictionDocument(
                run_id=prediction.run.id,
                source=prediction.run.source,
                scored=prediction.run.scored,
                measured_s=prediction.run.step_s,
                step_s=prediction.step_s,
                low_s=prediction.low_s,
                high_s=prediction.high_s,
                floor_s=prediction.floor_s,
                phases_s=prediction.phases_s,
                assumed=list(prediction.run.assumed),
            )
            for prediction in predicted
        ],
    )


def _counts(prediction: Prediction, column: str) -> bool:
    """Whether a phase is compared: it is measured, and the lengths that it depends on are stated."""
    return column in prediction.run.phases_s and not any(
        what.startswith("mean_response") for what in prediction.run.assumed
    )


def score(
    found: Sequence[Prediction], predicted: Callable[[Prediction], float] | None = None
) -> RlScoreDocument:
    """Errors of steps; of another prediction than the step's own where one is given."""
    if not found:
        return RlScoreDocument(n=0)
    if predicted is None:
        errors = errors_of(found)
        coverage = float(np.mean([prediction.inside for prediction in found]))
        return _score(errors, coverage)
    errors = np.array([predicted(prediction) / (prediction.run.step_s or 1.0) - 1 for prediction in found])
    return _score(errors, None)


def _phase_score(column: str, found: Sequence[Prediction]) -> RlScoreDocument:
    return _score(np.array([prediction.phase_error(column) for prediction in found]), None)


def _score(errors: "np.ndarray[tuple[int], np.dtype[np.float64]]", coverage: float | None) -> RlScoreDocument:
    return RlScoreDocument(
        median_ape=float(np.median(np.abs(errors))),
        p90_ape=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        interval_coverage=coverage,
        n=len(errors),
    )

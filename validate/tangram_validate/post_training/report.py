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
    predicted = [one for one in found if isinstance(one, Prediction)]
    sources = dict.fromkeys(one.run.source for one in steps)
    ratios = ratios_of(predicted)
    return RlValidateDocument(
        rows=len(found),
        leave_out=leave_out,
        overall=score(steps),
        by_source={name: score([one for one in steps if one.run.source == name]) for name in sources},
        by_phase={
            column: _phase_score(column, measured)
            for column in PHASE_COLUMNS
            if (measured := [one for one in predicted if _counts(one, column)])
        },
        floor=score(steps, lambda one: one.floor_s),
        orders=ratio_score(ratios),
        ratios=ratios,
        unpredicted=[
            RlUnpredictedDocument(run_id=one.id, source=one.source, reason=one.reason)
            for one in found
            if isinstance(one, Unpredicted)
        ],
        predictions=[
            RlPredictionDocument(
                run_id=one.run.id,
                source=one.run.source,
                scored=one.run.scored,
                measured_s=one.run.step_s,
                step_s=one.step_s,
                low_s=one.low_s,
                high_s=one.high_s,
                floor_s=one.floor_s,
                phases_s=one.phases_s,
                assumed=list(one.run.assumed),
            )
            for one in predicted
        ],
    )


def _counts(one: Prediction, column: str) -> bool:
    """Whether a phase is compared: it is measured, and the lengths that it depends on are stated."""
    return column in one.run.phases_s and not any(
        what.startswith("mean_response") for what in one.run.assumed
    )


def score(
    found: Sequence[Prediction], predicted: Callable[[Prediction], float] | None = None
) -> RlScoreDocument:
    """Errors of steps; of another prediction than the step's own where one is given."""
    if not found:
        return RlScoreDocument(n=0)
    if predicted is None:
        errors = errors_of(found)
        coverage = float(np.mean([one.inside for one in found]))
        return _score(errors, coverage)
    errors = np.array([predicted(one) / (one.run.step_s or 1.0) - 1 for one in found])
    return _score(errors, None)


def _phase_score(column: str, found: Sequence[Prediction]) -> RlScoreDocument:
    return _score(np.array([one.phase_error(column) for one in found]), None)


def _score(errors: "np.ndarray[tuple[int], np.dtype[np.float64]]", coverage: float | None) -> RlScoreDocument:
    return RlScoreDocument(
        median_ape=float(np.median(np.abs(errors))),
        p90_ape=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
        interval_coverage=coverage,
        n=len(errors),
    )

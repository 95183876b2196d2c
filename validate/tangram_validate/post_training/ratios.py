"""Orders and ratios: how much faster one mode or split is than another on the same GPUs.

Runs are compared where source, model, GPUs, precision and sequences a step agree and mode, staleness or
split differ. Means over long runs mix lengths, so a ratio is that of the hours of the first 100 steps where
both runs state them, else that of their steps.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tangram_validate.post_training.documents import RlRatioDocument, RlRatioScoreDocument
from tangram_validate.post_training.predict import Prediction
from tangram_validate.post_training.reading import RlRun

_CLOSE = 0.2  # a ratio is met within this
_NOISE = 0.03  # runs of one recipe differ by about this: no order to find below it


def ratios_of(found: Sequence[Prediction]) -> list[RlRatioDocument]:
    """Measured and predicted ratios of the steps of every pair of runs that can be compared."""
    pairs = []
    for first, second in combinations([prediction for prediction in found if _seconds(prediction.run)], 2):
        if _alike(first.run) != _alike(second.run) or _decided(first.run) == _decided(second.run):
            continue
        whole = [prediction.run.first_100_h for prediction in (first, second)]
        measured = whole if all(whole) else [prediction.run.step_s or 0.0 for prediction in (first, second)]
        if not all(measured):
            continue
        pairs.append(
            RlRatioDocument(
                run_id=first.run.id,
                other=second.run.id,
                source=first.run.source,
                measured=float(measured[0] or 0.0) / float(measured[1] or 1.0),
                predicted=first.step_s / second.step_s,
            )
        )
    return pairs


def ratio_score(pairs: Sequence[RlRatioDocument]) -> RlRatioScoreDocument:
    """Share of pairs in the right order (ties of measurement left out), and of ratios within a fifth."""
    if not pairs:
        return RlRatioScoreDocument(n=0)
    measured, predicted = (
        np.array([getattr(pair, name) for pair in pairs]) for name in ("measured", "predicted")
    )
    errors = np.abs(predicted / measured - 1.0)
    told = np.abs(np.log(measured)) > _NOISE
    right = np.sign(np.log(measured)) == np.sign(np.log(predicted))
    return RlRatioScoreDocument(
        n=len(pairs),
        right_order=float(right[told].mean()) if told.any() else None,
        within_fifth=float((errors <= _CLOSE).mean()),
        median_ape=float(np.median(errors)),
    )


def _seconds(run: RlRun) -> float | None:
    return run.first_100_h or run.step_s


def _alike(run: RlRun) -> tuple[object, ...]:
    precision = run.work.rollout_precision, run.work.dtype
    return run.source, run.model_name, run.gpu, run.gpus, run.sequences, run.version, precision


def _decided(run: RlRun) -> tuple[object, ...]:
    plan = run.plan
    return plan.placement, plan.mode, plan.training.gpus, plan.rollout_gpus

"""Which measured rows look mistyped: far from where their stack most probably lies."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram_sim.errors import unknown_name
from tangram_sim.opgraph import FloatArray
from tangram_sim.units import show_seconds
from tangram_validate.calibration.shifts import LIMIT, Doubt, most_probable
from tangram_validate.published.predict import Prediction
from tangram_validate.published.table import Problem

SIGMAS, LEAST = 4.0, math.log(2.0)  # a row is odd when further off than both, in logarithms
ALL = "all"


def implausible(
    groups: Sequence[Sequence[Prediction]], doubts: Sequence[Doubt], keep: Sequence[str] = ()
) -> list[tuple[Prediction, Problem]]:
    """Rows of each group (one stack, GPU kind and dtype) whose step is far outside, and how to keep them.

    Far outside: more than a factor of 2 and 4 sigma from where the group most probably lies, which is near
    the prediction unless rows agree on another place; always more than a factor of 8 from the prediction.
    `doubts` are the groups'. `keep` names rows that are right all the same, or `all`. Raises
    UnknownNameError for a name that no row has.
    """
    names = {prediction.run.id for group in groups for prediction in group}
    for name in keep:
        if name != ALL and name not in names:
            raise unknown_name("row", name, names, f"`keep=` takes ids of measured rows, or {ALL}.")
    return [
        (prediction, Problem(prediction.run.id, prediction.run.source_id, _reason(prediction)))
        for group, doubt in zip(groups, doubts, strict=True)
        for prediction, off in zip(group, _offsets(group, doubt), strict=True)
        if off and ALL not in keep and prediction.run.id not in keep
    ]


def _offsets(group: Sequence[Prediction], doubt: Doubt) -> list[bool]:
    """Whether each row of one key is far outside."""
    logs = np.array([math.log(prediction.run.measured.step_s / prediction.step_s) for prediction in group])
    return far_outside(logs, [prediction.sigma for prediction in group], doubt)


def far_outside(logs: FloatArray, sigmas: Sequence[float], doubt: Doubt) -> list[bool]:
    """Whether each log(measured / predicted) [N], of rows with a common prior `doubt`, is implausible."""
    found = most_probable(lambda at: np.full(len(logs), at[0]), logs, replace(doubt, host=0.0), 0.0)
    reach = np.maximum(SIGMAS * np.array(sigmas), LEAST)
    odd = (np.abs(logs) > LIMIT) | (np.abs(logs - found.log_scale) > reach)
    return [bool(item) for item in odd]


def _reason(prediction: Prediction) -> str:
    said = implausible_words(prediction.run.measured.step_s, prediction.step_s)
    return f"{said}; mend the row, or keep it with `keep={prediction.run.id}`"


def implausible_words(measured_s: float, predicted_s: float) -> str:
    """The reason given to the user for leaving out a row, with both times in seconds and their ratio."""
    times = max(measured_s / predicted_s, predicted_s / measured_s)
    return (
        f"implausible: measured {show_seconds(measured_s)}, {times:.3g} times "
        f"{'slower' if measured_s > predicted_s else 'faster'} than the predicted {show_seconds(predicted_s)}"
    )

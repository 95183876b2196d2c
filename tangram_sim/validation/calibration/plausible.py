"""Which measured rows look mistyped: far from their prediction and from the rows beside them."""

import math
from collections.abc import Sequence

import numpy as np

from tangram_sim.errors import unknown_name
from tangram_sim.units import show_seconds
from tangram_sim.validation.published.predict import Prediction
from tangram_sim.validation.published.table import Problem

SIGMAS, LEAST = 4.0, math.log(2.0)  # a row is odd when further off than both, in logarithms
LIMIT = math.log(8.0)  # no stack is further off than this
COMPANY = 3  # rows of one key that show together where the stack lies
ALL = "all"


def implausible(
    groups: Sequence[Sequence[Prediction]], keep: Sequence[str] = ()
) -> list[tuple[Prediction, Problem]]:
    """Rows of each group (one stack, GPU kind and dtype) whose step is far outside, and how to keep them.

    Far outside: more than 4 sigma of the prediction and a factor of 2 from it, or from the median of three
    rows and more (a stack may be slower as a whole); always more than a factor of 8. `keep` names rows that
    are right all the same, or `all`. Raises UnknownNameError for a name that no row has.
    """
    names = {one.run.id for group in groups for one in group}
    for name in keep:
        if name != ALL and name not in names:
            raise unknown_name("row", name, names, f"--keep takes ids of measured rows, or {ALL}.")
    return [
        (one, Problem(one.run.id, one.run.source_id, _reason(one)))
        for group in groups
        for one, off in zip(group, _offsets(group), strict=True)
        if off and ALL not in keep and one.run.id not in keep
    ]


def _offsets(group: Sequence[Prediction]) -> list[bool]:
    """Whether each row of one key is far outside."""
    logs = np.array([math.log(one.run.measured.step_s / one.step_s) for one in group])
    centre = float(np.median(logs)) if len(group) >= COMPANY else 0.0
    return [
        abs(log) > LIMIT or abs(log - centre) > max(SIGMAS * one.sigma, LEAST)
        for log, one in zip(logs.tolist(), group, strict=True)
    ]


def _reason(one: Prediction) -> str:
    measured = one.run.measured.step_s
    times = max(measured / one.step_s, one.step_s / measured)
    return (
        f"implausible: measured {show_seconds(measured)}, {times:.3g} times "
        f"{'slower' if measured > one.step_s else 'faster'} than the predicted {show_seconds(one.step_s)}; "
        f"mend the row, or keep it with --keep {one.run.id}"
    )

"""What a user's first measured rows are worth: a source left out, calibrated to some of its rows, scored.

Draws are random but the same on every call. The shift is found as `calibrate run` finds it, on surfaces in
place of played steps.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.opgraph import FloatArray
from tangram_validate.calibration.judge import Facts, LeftOutPredictions, markdown
from tangram_validate.calibration.ownruns import (
    HOST_SIGMA,
    OTHER_DTYPE,
    OTHER_GENERATION,
    OTHER_KIND,
)
from tangram_validate.calibration.shifts import Doubt, most_probable
from tangram_validate.calibration.stackfit import Fit, MeasuredRuns
from tangram_validate.calibration.widths import Errors, Widths, calibrate
from tangram_validate.published.stacks import GENERIC

ROWS, DRAWS = 3, 20


@dataclass(frozen=True, slots=True)
class OwnRowErrors:
    """Median errors of one source's rows that were not calibrated to, as fractions."""

    rows: int
    before: float
    after: float  # mean over draws
    worse: float  # share of draws in which the median rose
    spoiled: float  # as `after`, with one of the rows twice as slow as measured


def worth(
    cases: MeasuredRuns, known: Facts, left: LeftOutPredictions, errors: Errors
) -> dict[str, OwnRowErrors]:
    """Errors by source once a few of its rows were calibrated to; sources with over twice as many rows."""
    found = {}
    for source in np.unique(cases.source).tolist():
        rows = np.flatnonzero(cases.source == source)
        if len(rows) <= 2 * ROWS:
            continue
        fits, widths = left.fits[source], calibrate(errors.without(source))
        random = np.random.default_rng(len(rows))
        outcomes = []
        for _ in range(DRAWS):
            picked = random.choice(rows, ROWS, replace=False)
            rest = np.setdiff1d(rows, picked)
            spoil = np.where(np.arange(ROWS) == 0, 2.0, 1.0)
            before = _median(left.ours[rest], cases.measured[rest])
            after, spoiled = (
                _median(
                    _shifted(cases, known, left, fits, widths, picked, cases.measured[picked] * factor, rest),
                    cases.measured[rest],
                )
                for factor in (np.ones(ROWS), spoil)
            )
            outcomes.append((before, after, float(after > before), spoiled))
        found[source] = OwnRowErrors(len(rows), *np.mean(outcomes, axis=0).tolist())
    return found


def _median(seconds: FloatArray, measured: FloatArray) -> float:
    return float(np.median(np.abs(seconds / measured - 1)))


def _shifted(
    cases: MeasuredRuns,
    known: Facts,
    left: LeftOutPredictions,
    fits: Mapping[str, Fit],
    widths: Widths,
    picked: NDArray[np.int64],
    measured: FloatArray,
    rest: NDArray[np.int64],
) -> FloatArray:
    """Seconds of the runs `rest` once stacks were calibrated to the runs `picked`, which took `measured`."""
    seconds, best = left.ours[rest].copy(), np.zeros(len(rest))
    for stack, kind in sorted({(str(cases.stack[row]), str(known.kind[row])) for row in picked}):
        chosen = (cases.stack[picked] == stack) & (known.kind[picked] == kind)
        own, fit = picked[chosen], fits.get(stack, fits[GENERIC])
        mine = cases.take(own)

        def logs(at: FloatArray, fit: Fit = fit, mine: MeasuredRuns = mine) -> FloatArray:
            return np.log(fit.moved(float(at[0]), float(at[1])).seconds(mine))

        shift = most_probable(logs, np.log(measured[chosen]), _doubt(fit, widths, left, known, own), 1.0)
        shares = np.where(
            cases.stack[rest] != stack,
            0.0,
            np.where(
                known.kind[rest] == kind,
                1.0,
                np.where(
                    known.gpu[rest] == known.gpu[own[0]],
                    OTHER_DTYPE,
                    np.where(
                        cases.generation[rest] == cases.generation[own[0]], OTHER_KIND, OTHER_GENERATION
                    ),
                ),
            ),
        )
        for share in np.unique(shares[shares > best]).tolist():
            use = (shares == share) & (share > best)
            moved = fit.moved(share * shift.log_scale, share * shift.log_host)
            seconds[use], best[use] = moved.seconds(cases.take(rest[use])), share
    return seconds


def _doubt(fit: Fit, widths: Widths, left: LeftOutPredictions, known: Facts, own: NDArray[np.int64]) -> Doubt:
    """Prior standard deviations for the rows `own`, which share a stack, a GPU kind and a dtype."""
    novelty = int(left.novelty[own[0]])
    common = widths.source[novelty]
    added = (
        widths.unmeasured * (not known.measured[own[0]]),
        widths.mixture[novelty] * bool(known.mixture[own].all()),
    )
    total = max(float(np.sqrt(common**2 + added[0] ** 2 + added[1] ** 2)), 0.02)
    return Doubt(total, math.hypot(fit.sigma.dispatch_s, HOST_SIGMA), max(widths.plan, 0.01))


def worth_table(found: Mapping[str, OwnRowErrors]) -> str:
    """The worth of a few rows by source, as Markdown; nothing where no source has enough."""
    if not found:
        return ""
    figures = [
        (
            source,
            str(own_row_errors.rows),
            own_row_errors.before,
            own_row_errors.after,
            own_row_errors.worse,
            own_row_errors.spoiled,
        )
        for source, own_row_errors in found.items()
    ]
    means = np.mean([figure[2:] for figure in figures], axis=0).tolist()
    figures.append(("every source the same weight", "", *means))
    rows = [[name, rows, *(f"{100 * value:.1f}" for value in of)] for name, rows, *of in figures]
    head = ("source left out", "rows", "median error before, %", f"after {ROWS} rows")
    return markdown((*head, "draws in which it rose, %", "with one bad row"), rows)

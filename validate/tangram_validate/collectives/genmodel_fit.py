"""Fits GenModel's parameters to measured times of known plans."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.genmodel import GenModelParameters, GenModelTerms
from tangram_sim.errors import BadInputError


@dataclass(frozen=True, slots=True)
class GenModelFit:
    """Parameters, how far they are off (median and 90th percentile of |error|/measured), points used.

    `unidentified` names parameters that the points cannot tell apart from others or from zero.
    """

    parameters: GenModelParameters
    median_error: float
    p90_error: float
    points: int
    unidentified: tuple[str, ...]


_NAMES = ("alpha_s", "beta_s_per_byte", "gamma_s_per_byte", "delta_s_per_byte", "epsilon_s_per_byte")


def fit_genmodel(terms: Sequence[GenModelTerms], seconds: Sequence[float], source: str = "") -> GenModelFit:
    """Non-negative least squares of relative errors, for every threshold w_t up to the largest fan-in.

    The plans must differ in more than size: co-located servers over growing fan-ins show delta, epsilon and
    the knee w_t, a ring at the same bytes sent tells delta from beta. Raises BadInputError for fewer than
    three points, and for times that are not positive.
    """
    if len(terms) != len(seconds):
        raise BadInputError(
            f"fit_genmodel: {len(terms)} plans and {len(seconds)} times; give one time per plan"
        )
    if len(terms) < 3:
        raise BadInputError(f"fit_genmodel: {len(terms)} points; give three or more")
    measured = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise BadInputError("fit_genmodel: every time must be a finite number of seconds above zero")
    plain = np.array(
        [[t.rounds, t.sent_bytes, t.reduced_bytes, t.memory_bytes] for t in terms], dtype=np.float64
    )
    senders = np.array([t.senders for t in terms], dtype=np.float64)
    fits: list[tuple[float, float, NDArray[np.float64], NDArray[np.float64]]] = []
    for threshold in np.arange(1.0, max(senders.max(), 2.0)):
        excess = np.maximum(senders - threshold, 0.0) * plain[:, 1]
        rows = np.column_stack((plain, excess)) / measured[:, None]
        scale = np.where(rows.any(axis=0), np.abs(rows).max(axis=0), 1.0)
        found = _nonnegative(rows / scale) / scale
        off = rows @ found - 1.0
        loss = float(off @ off)
        if not fits or loss < fits[-1][0] * (1 - 1e-9):
            fits.append((loss, float(threshold), found, rows / scale))

    _, threshold, found, rows = fits[-1]
    error = np.abs(
        np.column_stack((plain, np.maximum(senders - threshold, 0.0) * plain[:, 1])) @ found / measured - 1
    )
    full = np.linalg.matrix_rank(rows, tol=1e-8)
    blind = tuple(
        name
        for column, name in enumerate(_NAMES)
        if np.linalg.matrix_rank(np.delete(rows, column, axis=1), tol=1e-8) == full
    )
    alpha, beta, gamma, delta, epsilon = (float(value) for value in found)
    parameters = GenModelParameters(alpha, beta, gamma, delta, epsilon, threshold, source=source)
    return GenModelFit(parameters, float(np.median(error)), float(np.quantile(error, 0.9)), len(terms), blind)


def _nonnegative(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares of rows x = 1 with x >= 0: the best of all choices of columns (five, so 31)."""
    ones = np.ones(len(rows))
    best, least = np.zeros(rows.shape[1]), float(ones @ ones)
    for mask in range(1, 1 << rows.shape[1]):
        columns = [column for column in range(rows.shape[1]) if mask >> column & 1]
        answer, *_ = np.linalg.lstsq(rows[:, columns], ones, rcond=None)
        if (answer >= 0).all():
            off = rows[:, columns] @ answer - ones
            if float(off @ off) < least * (1 - 1e-12):
                least, best = float(off @ off), np.zeros(rows.shape[1])
                best[columns] = answer
    return best

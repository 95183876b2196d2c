"""Robust fits of positive times: relative errors, a loss that forgives outliers, parameters above zero."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
# Parameters (P) -> predicted seconds (N) and their slopes in the logarithm of each parameter (N, P).
Curve: TypeAlias = Callable[[Floats], tuple[Floats, Floats]]

SOFTENING = 0.02  # relative errors well above this count by size, not by square


def fit(curve: Curve, start: Sequence[float], measured: Floats, weights: Floats) -> Floats:
    """Positive parameters that minimise the weighted mean of sqrt(log(predicted / measured)^2 + SOFTENING^2).

    Levenberg-Marquardt on the logarithms of the parameters, with the loss as weights (iteratively
    reweighted least squares): smooth, so the answer does not depend on the simplex of an optimiser, and
    without a random seed. `measured` and `weights` are arrays of N.
    """
    logs = np.log(np.asarray(start, dtype=np.float64))
    weights = weights / weights.sum()

    def losses(at: Floats) -> tuple[Floats, Floats, Floats, float]:
        predicted, slopes = curve(np.exp(at))
        errors = np.log(predicted / measured)
        softened = np.sqrt(errors**2 + SOFTENING**2)
        return errors, slopes / predicted[:, None], softened, float(weights @ softened)

    errors, slopes, softened, loss = losses(logs)
    damping = 1e-3
    while damping < 1e9:
        importance = weights / softened
        hessian = slopes.T @ (slopes * importance[:, None])
        gradient = slopes.T @ (errors * importance)
        scale = np.diag(hessian) + 1e-12
        step = np.linalg.solve(hessian + damping * np.diag(scale), -gradient)
        trial = losses(logs + np.clip(step, -1.0, 1.0))
        if trial[3] < loss:
            logs = logs + np.clip(step, -1.0, 1.0)
            errors, slopes, softened, loss = trial
            damping = max(damping / 5.0, 1e-9)
            if np.abs(step).max() < 1e-10:
                break
        else:
            damping *= 5.0
    return np.exp(logs)


def median_error(predicted: Floats, measured: Floats) -> float:
    """Median of |predicted / measured - 1|, as a fraction; nan of no measurements."""
    return float(np.median(np.abs(predicted / measured - 1.0))) if len(measured) else float("nan")


def spread(predicted: Floats, measured: Floats) -> float:
    """Half the distance between the 16th and 84th percentile of log(predicted / measured).

    One standard deviation where errors are normal; nan of no measurements.
    """
    if not len(measured):
        return float("nan")
    low, high = np.percentile(np.log(predicted / measured), (16, 84))
    return float(high - low) / 2.0


def held_out(*keys: Floats) -> NDArray[np.bool_]:
    """Half of the shapes, chosen by a hash of their sizes: a shape that several tables hold is on one side.

    `keys` are arrays of N whole numbers; the answer is the same on every machine.
    """
    mixed = np.zeros(len(keys[0]), dtype=np.uint64)
    for key in keys:
        mixed = (mixed ^ key.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.asarray((mixed >> np.uint64(17)) % np.uint64(2), dtype=np.bool_)

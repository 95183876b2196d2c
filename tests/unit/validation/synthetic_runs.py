"""Measured runs made up from known parameters of stacks."""

import numpy as np
from tangram_validate.calibration.stackfit import MeasuredRuns
from tangram_validate.calibration.surfaces import DISPATCH, EXPOSED, KNOTS, Mixtures, Surface

from tangram_sim.opgraph import FloatArray


def synthetic(n: int, seed: int) -> Surface:
    """Runs whose step is max(kernels, host) + attention + tensor- + data-parallel seconds, as a surface."""
    draw = np.random.default_rng(seed)
    kernels, attention, tensor, data = draw.uniform(0.5, 2.0, (4, n)) * np.array([[1.0], [0.3], [0.3], [0.3]])
    launches = draw.uniform(2e3, 6e4, n)
    base = np.maximum(kernels[:, None], launches[:, None] * DISPATCH) + (attention + tensor + data)[:, None]

    def change(of: FloatArray) -> FloatArray:
        return np.repeat((of[:, None] * (EXPOSED - 1.0))[:, None, :], len(KNOTS), axis=1)

    nothing = np.zeros_like(change(data))
    return Surface(base, change(attention), change(tensor), change(data), nothing)


def cases(surface: Surface, measured: FloatArray, source: list[str], stack: list[str]) -> MeasuredRuns:
    n = len(measured)
    generation = np.array(["Ampere"] * n, dtype="U16")
    mixed = Mixtures.single(surface)
    return MeasuredRuns(measured, np.array(source), np.array(stack), generation, np.arange(n) % 5, mixed)

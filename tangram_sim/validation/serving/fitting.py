"""Fitting engines' parameters to measured seconds a token: few numbers, held to what is known before.

One value of each factor for all engines; engines differ from it a little, and versions, models and
precisions by a factor on the whole iteration (random effects: the fewer runs, the nearer to one). Logarithms
of times are compared, and rows far off count less (Huber). Gauss-Newton with exact derivatives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats
from tangram_sim.validation.serving.observations import FEATURES, Observations
from tangram_sim.validation.serving.runs import ServedRun

# Parameter -> (what is expected before any run is seen, standard deviation of its logarithm).
PRIORS: Mapping[str, tuple[float, float]] = {
    "gemm": (1.0, 0.2),
    "experts": (1.0, 0.4),
    "cache": (1.0, 0.4),
    "attention": (1.0, 0.4),
    "memory": (1.0, 0.5),
    "reduce": (1.0, 0.5),
    "exchange": (1.0, 0.5),
    "kernel_s": (2.5e-6, 0.5),
    "handshake_s": (5e-6, 0.5),
    "host_s": (3e-4, 0.7),
    "request_s": (1e-5, 0.7),
    "prefill": (1.0, 0.3),
}
EFFECT_SPREAD = 0.08  # of the logarithm of such a factor
ENGINE_SPREAD = 0.2  # of an engine's parameter about that of all engines
FAR_OFF = 0.15  # log error from which on a row counts less
WEIGHT = 0.12  # log error of a row that fits as well as rows do: the scale against which priors are held
ROUNDS = 40
_ORDER = {"kernel_s": "kernels", "handshake_s": "reductions"}  # parameter -> its feature


@dataclass(frozen=True)
class Effect:
    """A factor on the whole iteration for all runs that share a name."""

    engine: str  # or *
    subject: str  # kind:name
    spread: float


def by_version(run: ServedRun) -> tuple[Effect, ...]:
    """Versions alone: what carries over to GPU kinds, models and precisions that nobody measured."""
    return (Effect(run.engine, f"version:{run.version}", EFFECT_SPREAD),) if run.version else ()


def by_kernels(run: ServedRun) -> tuple[Effect, ...]:
    """Versions, and how good an engine's kernels for a model and a precision are beside its others."""
    names = (f"model:{run.model.name}", f"precision:{run.precision.name}")
    found = (Effect(engine, name, EFFECT_SPREAD) for engine in ("*", run.engine) for name in names)
    return (*found, *by_version(run))


Effects: TypeAlias = Callable[[ServedRun], tuple[Effect, ...]]


@dataclass(frozen=True)
class FittedRow:
    """One row of calibration: `value` as `serving/calibration.csv` has it, `sigma` of its logarithm."""

    engine: str
    subject: str
    parameter: str
    value: float
    sigma: float
    runs: int


def fit(seen: Observations, effects: Effects = by_kernels) -> list[FittedRow]:
    """Rows of calibration that agree best with `seen`."""
    names, engines = list(PRIORS), sorted({run.engine for run in seen.runs})
    width = len(names)
    kinds = sorted(
        {effect for run in seen.runs for effect in effects(run)}, key=lambda one: (one.engine, one.subject)
    )
    places = {effect: width * (1 + len(engines)) + index for index, effect in enumerate(kinds)}
    spread = np.concatenate(
        [
            [PRIORS[name][1] for name in names],
            np.full(width * len(engines), ENGINE_SPREAD),
            [effect.spread for effect in kinds],
        ]
    )
    start = np.zeros(len(spread))
    start[:width] = np.log([PRIORS[name][0] for name in names])
    rows = {engine: np.flatnonzero([run.engine == engine for run in seen.runs]) for engine in engines}
    flags = np.zeros((len(seen.runs), len(kinds)))
    for row, run in enumerate(seen.runs):
        for effect in effects(run):
            flags[row, places[effect] - width * (1 + len(engines))] = 1.0
    at, target = start.copy(), np.log(seen.tpot_s)
    hessian = np.eye(len(at))
    for _ in range(ROUNDS):
        logs, slopes = np.zeros(len(target)), np.zeros((len(target), len(at)))
        slopes[:, width * (1 + len(engines)) :] = flags
        for index, engine in enumerate(engines):
            own = slice(width * (1 + index), width * (2 + index))
            here = rows[engine]
            seconds, slope = _tpot(dict(zip(names, np.exp(at[:width] + at[own]), strict=True)), seen, here)
            logs[here] = np.log(seconds)
            slopes[here, :width] = slope
            slopes[here, own] = slope
        logs += flags @ at[width * (1 + len(engines)) :]
        error = target - logs
        weight = np.minimum(1.0, FAR_OFF / np.maximum(np.abs(error), 1e-12)) / WEIGHT**2
        weighted = slopes * weight[:, None]
        hessian = slopes.T @ weighted + np.diag(spread**-2)
        step = np.linalg.solve(hessian, weighted.T @ error - (at - start) / spread**2)
        at = at + np.clip(step, -0.5, 0.5)
        if np.max(np.abs(step)) < 1e-4:
            break
    sigma = np.sqrt(np.diag(np.linalg.inv(hessian)))
    return _rows(
        names, engines, kinds, at, sigma, {engine: len(here) for engine, here in rows.items()}, flags
    )


def _tpot(values: Mapping[str, float], seen: Observations, here: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """(seconds a token, derivatives of its logarithm by those of PRIORS), in the order of PRIORS."""
    decode, prompt, share = seen.decode[here], seen.prompt[here], seen.share[here]
    known = [_ORDER.get(name, name) for name in PRIORS]
    scale = np.zeros(len(FEATURES))
    for name, feature in zip(PRIORS, known, strict=True):
        if feature in FEATURES:
            scale[FEATURES.index(feature)] = values[name]
    added = prompt @ scale
    per_request = seen.requests[here]
    seconds = decode @ scale + values["host_s"] + values["request_s"] * per_request
    seconds = seconds + share * values["prefill"] * added
    both = decode + (share * values["prefill"])[:, None] * prompt
    slopes = np.zeros((len(here), len(PRIORS)))
    for index, (name, feature) in enumerate(zip(PRIORS, known, strict=True)):
        if feature in FEATURES:
            slopes[:, index] = both[:, FEATURES.index(feature)] * values[name]
    order = list(PRIORS)
    slopes[:, order.index("host_s")] = values["host_s"]
    slopes[:, order.index("request_s")] = values["request_s"] * per_request
    slopes[:, order.index("prefill")] = share * values["prefill"] * added
    return seconds, slopes / seconds[:, None]


def _rows(
    names: list[str],
    engines: list[str],
    kinds: list[Effect],
    at: Floats,
    sigma: Floats,
    counts: Mapping[str, int],
    flags: Floats,
) -> list[FittedRow]:
    width = len(names)
    found = []
    for column, name in enumerate(names):
        found.append(
            FittedRow("*", "*", name, float(np.exp(at[column])), float(sigma[column]), sum(counts.values()))
        )
        for index, engine in enumerate(engines):
            own = width * (1 + index) + column
            value = float(np.exp(at[column] + at[own]))
            found.append(FittedRow(engine, "*", name, value, float(sigma[own]), counts[engine]))
    for index, effect in enumerate(kinds):
        place = width * (1 + len(engines)) + index
        value, runs = float(np.exp(at[place])), int(flags[:, index].sum())
        found.append(FittedRow(effect.engine, effect.subject, "time_scale", value, float(sigma[place]), runs))
    return found

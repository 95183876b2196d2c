"""Fitting engines' parameters to measured seconds a token: few numbers, held to what is known before.

One value of each factor for all engines; engines differ from it a little, and versions by a factor on the
whole iteration (random effects: the fewer runs, the nearer to one). What is left of a model on a kind of GPU
comes after, and stays with it: fitted together, factors of models take what kernels and links should explain,
and predictions of other kinds are the worse for it. Logarithms of times are compared, and rows far off count
less (Huber). Gauss-Newton with exact derivatives.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats
from tangram_sim.serving.calibration import served
from tangram_validate.serving.observations import FEATURES, Observations
from tangram_validate.serving.runs import ServedRun

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
ENGINE_SPREAD = 0.2  # of an engine's parameter about that of all engines
# Of the logarithms of factors on whole iterations, as medians of what is left of errors scatter without them:
# those of 26 versions by 0.20, then those of 52 models as served on a kind of GPU in a precision by 0.14.
VERSION_SPREAD, SERVED_SPREAD = 0.2, 0.14
FAR_OFF = 0.15  # log error from which on a row counts less
WEIGHT = 0.12  # log error of a row that fits as well as rows do: the scale against which priors are held
ROUNDS = 40
LEAST_OF_VERSION = 20  # runs: factors of fewer did not carry to other tables
LEAST_SERVED = 5  # runs of a model as served: its factor speaks for these alone
_ORDER = {"kernel_s": "kernels", "handshake_s": "reductions"}  # parameter -> its feature


@dataclass(frozen=True)
class FittedRow:
    """One row of calibration: `value` as `serving/calibration.csv` has it, `sigma` of its logarithm."""

    engine: str
    subject: str
    parameter: str
    value: float
    sigma: float
    runs: int


def fit(seen: Observations) -> list[FittedRow]:
    """Rows of calibration that agree best with `seen`.

    Parameters and versions are fitted together, so that they carry to models and kinds of GPU nobody ran;
    what then is left of a model on a kind of GPU in a precision is a factor for exactly these.
    """
    names, engines = list(PRIORS), sorted({run.engine for run in seen.runs})
    width = len(names)
    runs_of = Counter((run.engine, run.version) for run in seen.runs if run.version)
    versions = sorted(key for key, count in runs_of.items() if count >= LEAST_OF_VERSION)
    first = width * (1 + len(engines))
    spread = np.concatenate(
        [
            [PRIORS[name][1] for name in names],
            np.full(width * len(engines), ENGINE_SPREAD),
            np.full(len(versions), VERSION_SPREAD),
        ]
    )
    start = np.zeros(len(spread))
    start[:width] = np.log([PRIORS[name][0] for name in names])
    rows = {engine: np.flatnonzero([run.engine == engine for run in seen.runs]) for engine in engines}
    flags = np.array([[key == (run.engine, run.version) for key in versions] for run in seen.runs], float)
    flags = flags.reshape(len(seen.runs), len(versions))
    at, target = start.copy(), np.log(seen.tpot_s)
    hessian, error = np.eye(len(at)), np.zeros(len(target))
    for _ in range(ROUNDS):
        logs, slopes = np.zeros(len(target)), np.zeros((len(target), len(at)))
        slopes[:, first:] = flags
        for index, engine in enumerate(engines):
            own = slice(width * (1 + index), width * (2 + index))
            here = rows[engine]
            seconds, slope = _tpot(dict(zip(names, np.exp(at[:width] + at[own]), strict=True)), seen, here)
            logs[here] = np.log(seconds)
            slopes[here, :width] = slope
            slopes[here, own] = slope
        error = target - logs - flags @ at[first:]
        weight = _weight(error)
        weighted = slopes * weight[:, None]
        hessian = slopes.T @ weighted + np.diag(spread**-2)
        step = np.linalg.solve(hessian, weighted.T @ error - (at - start) / spread**2)
        if np.max(np.abs(step)) < 1e-4:
            break
        at = at + np.clip(step, -0.5, 0.5)
    sigma = np.sqrt(np.diag(np.linalg.inv(hessian)))
    counts = {engine: len(here) for engine, here in rows.items()}
    found = _rows(names, engines, at, sigma, counts)
    for place, (engine, version) in enumerate(versions, start=first):
        count = int(flags[:, place - first].sum())
        value = float(np.exp(at[place]))
        found.append(FittedRow(engine, f"version:{version}", "time_scale", value, float(sigma[place]), count))
    return found + _served(seen.runs, error)


def _served(runs: Sequence[ServedRun], errors: Floats) -> list[FittedRow]:
    """Factors of models as served on a kind of GPU in a precision: what is left of log errors."""
    pairs = [(run.engine, served(run.gpu, run.model.name, run.precision.name)) for run in runs]
    found = []
    for engine, subject in sorted(set(pairs)):
        own = errors[[pair == (engine, subject) for pair in pairs]]
        if len(own) < LEAST_SERVED:
            continue
        value, held = 0.0, 1.0
        for _ in range(ROUNDS):
            weight = _weight(own - value)
            held = float(weight.sum()) + SERVED_SPREAD**-2
            value, before = float(weight @ own) / held, value
            if abs(value - before) < 1e-4:
                break
        found.append(
            FittedRow(engine, subject, "time_scale", float(np.exp(value)), float(held**-0.5), len(own))
        )
    return found


def _weight(errors: Floats) -> Floats:
    """What each row's log error counts: less, the farther off (Huber)."""
    return np.asarray(np.minimum(1.0, FAR_OFF / np.maximum(np.abs(errors), 1e-12)) / WEIGHT**2)


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
    names: list[str], engines: list[str], at: Floats, sigma: Floats, counts: Mapping[str, int]
) -> list[FittedRow]:
    """Calibration rows of each parameter: one for all engines (`*`), then one for each engine."""
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
    return found

"""Overheads fitted to measured runs: least squares of relative errors, held near what is usual."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import least_squares

from tangram_sim.hwdb import Hwdb
from tangram_sim.post_training.lengths import Floats
from tangram_sim.post_training.overheads import Overheads, load_overheads
from tangram_validate.post_training.components import Components, phases_under, step_under
from tangram_validate.post_training.reading import PHASE_COLUMNS

# What a parameter usually is, and how far (log standard deviation) it may be from that without evidence.
PRIORS: dict[str, tuple[float, float]] = {
    "rollout_scale": (1.3, 0.3),
    "rollout_iteration_s": (1e-3, 1.0),
    "update_scale": (1.15, 0.2),
    "sparse_update_scale": (1.4, 0.3),
    "forward_scale": (1.15, 0.2),
    "step_s": (3.0, 0.7),
    "switch_s": (5.0, 0.7),
    "host_bytes_per_s": (25e9, 0.5),
    "gather_bytes_per_s": (35e9, 0.4),
    "broadcast_bytes_per_s": (5e9, 0.7),
    "tensor_s": (4e-4, 0.4),
    "sync_s": (4.0, 0.4),
}
_FAR = 0.25  # relative errors beyond this count less and less
_PHASE_WEIGHT = 0.5


def weights_of(parts: Sequence[Components]) -> Floats:
    """Weights of runs: those alike (source, model, mode, GPU) share the weight of two."""
    keys = [(part.run.source, part.run.work.model.name, part.run.mode, part.run.gpu) for part in parts]
    return np.array([min(1.0, 2.0 / keys.count(key)) for key in keys])


def fit_overheads(parts: Sequence[Components], hwdb: Hwdb) -> Overheads:
    """Overheads that explain the scored steps and the phases of these runs."""
    names = list(PRIORS)
    usual = np.array([np.log(PRIORS[name][0]) for name in names])
    widths = np.array([PRIORS[name][1] for name in names])
    weight = weights_of(parts)

    shipped = load_overheads(hwdb)
    spread = {"sigma": shipped.sigma, "unstated_sigma": shipped.unstated_sigma}

    def overheads(x: Floats) -> Overheads:
        return Overheads().with_values({**dict(zip(names, np.exp(x).tolist(), strict=True)), **spread})

    def residuals(x: Floats) -> Floats:
        extra = overheads(x)
        found: list[float] = []
        for part, share in zip(parts, weight, strict=True):
            found += [error * share for error in _errors(part, extra, hwdb)]
        return np.array([*found, *(0.15 * (x - usual) / widths)])

    best = least_squares(residuals, usual, loss="soft_l1", f_scale=_FAR, max_nfev=60)
    return overheads(best.x)


def _errors(parts: Components, extra: Overheads, hwdb: Hwdb) -> list[float]:
    """Log errors of a run: of its step where it is scored, of the phases that it states."""
    run = parts.run
    found = []
    if run.scored and run.step_s:
        found.append(float(np.log(step_under(parts, extra, hwdb) / run.step_s)))
    phases = phases_under(parts, extra, hwdb)
    for column, measured in run.phases_s.items():
        predicted = sum(phases[name] for name in PHASE_COLUMNS[column])
        if predicted > 0 and not _lengths_assumed(parts):
            found.append(_PHASE_WEIGHT * float(np.log(predicted / measured)))
    return found


def _lengths_assumed(parts: Components) -> bool:
    return any(item.startswith("mean_response") for item in parts.run.assumed)


def left_out(
    parts: Sequence[Components], key: Callable[[Components], str], hwdb: Hwdb
) -> dict[str, Overheads]:
    """Overheads fitted without each group of runs, by the group's key."""
    found = {}
    for name in dict.fromkeys(key(part) for part in parts):
        rest = [part for part in parts if key(part) != name]
        found[name] = fit_overheads(rest, hwdb) if rest else Overheads()
    return found

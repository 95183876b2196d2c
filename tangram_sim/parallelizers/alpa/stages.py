"""Alpa's inter-operator pass: layers cut into stages by dynamic programming, once per bound on the slowest.

    f[s, i, d] = min over j > i and o with c <= t_max, limit >= held[s]:  c[i, j, o] + f[s-1, j, d - n_o]
    T = f[s, 0, D] + (m - 1) x slowest stage on that path

f[s, i, d] is the least sum of stage seconds of layers i.. in s stages on d devices. A stage with s - 1 stages
behind it holds held[s] microbatches. arXiv:2201.12023, section 5, algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats


@dataclass(frozen=True, slots=True)
class AlpaStages:
    """Stages front to back as (first layer, one past the last, option), and seconds of the step."""

    stages: tuple[tuple[int, int, int], ...]
    seconds: float
    tried: int  # bounds on the slowest stage that were tried


def split(
    seconds: Floats,
    limit: NDArray[np.int64],
    devices: Sequence[int],
    total_devices: int,
    microbatches: int,
    held: Sequence[int] | None = None,
    gap_s: float = 1e-6,
) -> AlpaStages | None:
    """The fastest stages that use all devices and fit memory; None where nothing fits.

    `seconds[i, j, o]` is one microbatch through layers [i, j) under option o, which takes `devices[o]`
    devices and holds at most `limit[i, j, o]` microbatches; both (layers + 1, layers + 1, options), inf where
    an option does not exist. `held[s]` microbatches are in flight in the s-th stage from the back, s from 1
    (index 0 is not read; by default s, as in 1F1B). Bounds closer than `gap_s` to the last one are skipped,
    which loses at most (m - 1) gap_s.
    """
    from tangram_sim.parallelizers.alpa.kernels import stages_under

    layers = seconds.shape[0] - 1
    most = min(layers, total_devices // min(devices))
    flying = np.array(range(most + 1) if held is None else held[: most + 1], dtype=np.int64)
    if len(flying) <= most:
        most = len(flying) - 1
    sizes = np.array(devices, dtype=np.int64)
    able = np.isfinite(seconds) & (limit >= flying[1:].min())
    costs = np.where(able, seconds, np.inf)
    best: AlpaStages | None = None
    last, tried = 0.0, 0
    for bound in np.unique(costs[able]):
        if best is not None and bound * microbatches >= best.seconds:
            break
        if bound - last < gap_s:
            continue
        last, tried = bound, tried + 1
        count, path = stages_under(
            costs, limit, sizes, total_devices, flying, most, bound=float(bound), microbatches=microbatches
        )
        if not count:
            continue
        rows = tuple((int(i), int(j), int(o)) for i, j, o in path[:count])
        times = [float(seconds[row]) for row in rows]
        step = sum(times) + (microbatches - 1) * max(times)
        if best is None or step < best.seconds:
            best = AlpaStages(rows, step, tried)
    return None if best is None else AlpaStages(best.stages, best.seconds, tried)

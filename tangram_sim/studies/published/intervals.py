"""90 % intervals of predicted steps, from runs whose whole source was left out of the calibration.

The factors are printed by `python -m tangram_sim.studies.calibration.stacks RUNS.csv OUT.csv`: quantiles of
measured / predicted with every source the same weight, by what the prediction rests on.
"""

from tangram_sim.clusters import Gpu
from tangram_sim.hwdb import Hwdb

# (stack calibrated, kernel times of the GPU kind measured) -> measured / predicted at 5 % and 95 %.
FACTORS = {
    (True, True): (0.74, 1.23),
    (True, False): (0.74, 2.24),
    (False, True): (0.74, 1.43),
    (False, False): (0.74, 2.67),
}


def known_stack(hwdb: Hwdb, gpu: Gpu, dtype: str, stack: str) -> bool:
    """Whether the database tells `stack` from generic software; `dtype` is a peak column of gpus.csv."""
    return hwdb.efficiency(gpu, dtype, stack) != hwdb.efficiency(gpu, dtype)


def interval(step_s: float, known: bool, measured: bool) -> tuple[float, float]:
    """(low, high) in seconds around a predicted step."""
    low, high = FACTORS[known, measured]
    return step_s * low, step_s * high

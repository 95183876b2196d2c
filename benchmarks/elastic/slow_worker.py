"""The slowdown of a step by one slow worker, against what the step was measured to lose.

How slow the worker was made is not published; the rows give the authors' what-if estimate of each level.
The factor of the worker is the one with which our engine's step loses as much as that estimate says, so the
answer comes out at the estimate: what is held against the measurement is that a what-if estimate, which our
replay reproduces (group `what-if`), tells what one slow worker costs.
"""

import re

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.sim.fast import makespan
from tangram_sim.training.schedules.step import StageTimes, step_template

_DEPTH = re.compile(r"\bpp (\d+)")
_ESTIMATE = re.compile(r"their estimate (\d+(?:\.\d+)?)")
# Of the trace published with the experiment (trace AR).
_MICROBATCHES = 32
_FORWARD_S, _BACKWARD_S = 1.0, 2.0
_HALVINGS = 40


def compute(figure: Figure, data: Data) -> Answer:
    """Step with the slow worker over step without."""
    depth, estimate = _DEPTH.search(figure.setting), _ESTIMATE.search(figure.metric)
    if depth is None or estimate is None:
        raise RefusedError("neither how slow the worker was made nor what the authors estimate is given")
    stages = int(depth[1])
    healthy = _step_s(stages, 1.0)
    low, high = 1.0, 2.0 * float(estimate[1]) + 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _step_s(stages, middle) < float(estimate[1]) * healthy:
            low = middle
        else:
            high = middle
    return Answer(_step_s(stages, high) / healthy)


def _step_s(stages: int, factor: float) -> float:
    """A step of the replica whose first stage is `factor` times slower; the others wait for it."""
    times = StageTimes.equal(
        stages, forward_s=_FORWARD_S, backward_input_s=_BACKWARD_S, backward_weight_s=0.0
    )
    times.forward_s[0] *= factor
    times.backward_input_s[0] *= factor
    return makespan(step_template("1f1b", stages, _MICROBATCHES).with_durations(times))

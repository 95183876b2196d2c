"""The slowdown of a step by one slow worker, against what the step was measured to lose.

How slow the worker was made is not published; the rows give the authors' what-if estimate of each level. Of
the level whose trace is published the answer is measured: that trace's steps over the same with every
operation as usual. Of the others it is what our engine's step loses to a worker as slow as the estimate says,
which comes out at the estimate: such rows carry a note that they are not independent of it.
"""

import re

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from benchmarks.elastic.what_if import analysed
from tangram_sim.reliability.stragglers.whatif import StragglerCost
from tangram_sim.sim.fast import makespan
from tangram_sim.training.schedules.step import StageTimes, step_template

_DEPTH = re.compile(r"\bpp (\d+)")
_ESTIMATE = re.compile(r"their estimate (\d+(?:\.\d+)?)")
_TRACE = "traces/straggler_trace_AR.csv.gz"  # of one level of the experiment
_SAME = 0.01  # relative: a trace's S and an estimate printed with two decimals
_MICROBATCHES = 32
_FORWARD_S, _BACKWARD_S = 1.0, 2.0
_HALVINGS = 40


def compute(figure: Figure, data: Data) -> Answer:
    """Step with the slow worker over step without."""
    depth, estimate = _DEPTH.search(figure.setting), _ESTIMATE.search(figure.metric)
    if depth is None or estimate is None:
        raise RefusedError("neither how slow the worker was made nor what the authors estimate is given")
    told = _traced(data)
    if told is not None and abs(told.slowdown / float(estimate[1]) - 1) < _SAME:
        measured = told.measured_step_s / told.ideal_step_s
        return Answer(measured, note="measured: this level's trace over the same steps with all as usual")
    return Answer(
        _played(int(depth[1]), float(estimate[1])),
        note="not independent: the worker is as slow as the row's own estimate says",
    )


def _traced(data: Data) -> StragglerCost | None:
    try:
        return analysed(data.path(_TRACE))
    except RefusedError:
        return None


def _played(stages: int, estimate: float) -> float:
    """The slowdown of our engine's step by a worker with which it loses what the estimate says."""
    healthy = _step_s(stages, 1.0)
    low, high = 1.0, 2.0 * estimate + 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _step_s(stages, middle) < estimate * healthy:
            low = middle
        else:
            high = middle
    return _step_s(stages, high) / healthy


def _step_s(stages: int, factor: float) -> float:
    """A step of the replica whose first stage is `factor` times slower; the others wait for it."""
    times = StageTimes.equal(
        stages, forward_s=_FORWARD_S, backward_input_s=_BACKWARD_S, backward_weight_s=0.0
    )
    times.forward_s[0] *= factor
    times.backward_input_s[0] *= factor
    return makespan(step_template("1f1b", stages, _MICROBATCHES).with_durations(times))

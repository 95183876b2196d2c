"""What speeds of resources cost where every speed is 1: `python -m benchmarks.speeds`.

The engine's loop against the same loop without speeds, compiled here, on one step of 16 stages and 256
microbatches; best of many turns, taken in alternation since other work on the machine disturbs both.
"""

import time
from collections.abc import Callable

import numpy as np
from numba import njit

from tangram_sim.opgraph import FloatArray, IntArray, OpGraph
from tangram_sim.sim import fast
from tangram_sim.sim.timeline import Timeline
from tangram_sim.training.schedules import StageTimes, step_template

STAGES, MICROBATCHES, TURNS, PLAYS = 16, 256, 200, 20


@njit(cache=True)
def _without_speeds(
    pred_ptr: IntArray,
    pred: IntArray,
    previous: IntArray,
    duration: FloatArray,
    start: FloatArray,
    end: FloatArray,
) -> None:
    for i in range(duration.shape[0]):
        time = 0.0
        before = previous[i]
        if before >= 0:
            time = end[before]
        for k in range(pred_ptr[i], pred_ptr[i + 1]):
            time = max(time, end[pred[k]])
        start[i] = time
        end[i] = time + duration[i]


def plain(graph: OpGraph) -> Timeline:
    """The step played by the loop without speeds."""
    start, end = np.empty(len(graph)), np.empty(len(graph))
    _without_speeds(graph.pred_ptr, graph.pred, graph.resource_previous, graph.duration_s, start, end)
    return Timeline(graph, start, end)


def overhead() -> float:
    """Share of CPU time that playing costs more than the loop without speeds; below 0: less."""
    times = StageTimes.equal(
        STAGES, forward_s=1e-2, backward_input_s=1e-2, backward_weight_s=1e-2, send_s=1e-3, sync_s=1e-2
    )
    graph = step_template("1f1b", STAGES, MICROBATCHES).with_durations(times)
    if not np.array_equal(plain(graph).end_s, fast.play(graph).end_s):
        raise AssertionError("speeds of 1 change figures")
    best = [float("inf"), float("inf")]
    for _ in range(TURNS):
        for index, play in enumerate((plain, fast.play)):
            best[index] = min(best[index], _cpu_s(play, graph))
    return best[1] / best[0] - 1


def _cpu_s(play: Callable[[OpGraph], Timeline], graph: OpGraph) -> float:
    begin = time.thread_time()
    for _ in range(PLAYS):
        play(graph)
    return time.thread_time() - begin


if __name__ == "__main__":
    print(f"play with all speeds 1 costs {overhead() * 100:+.1f} % CPU time (2 % are allowed)")

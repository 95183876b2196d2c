"""Ops per second of the engines on one pipeline step."""

import time
from collections.abc import Callable

import numpy as np

from tangram_sim.schedules import StageTimes, step_template
from tangram_sim.sim import fast, reference

STAGES, MICROBATCHES, STEPS = 16, 256, 200


def speeds() -> dict[str, float]:
    """Ops per CPU second: one step with its timeline on each engine, and many steps of one template."""
    template = step_template("1f1b", STAGES, MICROBATCHES)
    times = StageTimes.equal(
        STAGES, forward_s=1e-2, backward_input_s=1e-2, backward_weight_s=1e-2, send_s=1e-3, sync_s=1e-2
    )
    graph = template.with_durations(times)
    rows = np.tile(template.durations(times), (STEPS, 1))
    fast.play(graph)
    fast.play_steps(template, rows[:1])
    ops = len(graph)
    return {
        f"reference, {ops:,} ops with timeline": ops / cpu_s(lambda: reference.play(graph)),
        f"fast, {ops:,} ops with timeline": ops / min(cpu_s(lambda: fast.play(graph)) for _ in range(20)),
        f"fast, {STEPS} steps of {ops:,} ops": STEPS * ops / cpu_s(lambda: fast.play_steps(template, rows)),
    }


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin

"""Ops per second of the engines on one pipeline step, alone and where its transfers share links."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tangram_sim.opgraph import OpGraph, SharedLink, column
from tangram_sim.sim import contention, fast, reference, shared
from tangram_sim.training.schedules import StageTimes, step_template
from tangram_sim.training.schedules.step import play_steps

STAGES, MICROBATCHES, STEPS = 16, 256, 200


def speeds() -> dict[str, float]:
    """Ops per CPU second: one step with its timeline on each engine, and many steps of one template."""
    template = step_template("1f1b", STAGES, MICROBATCHES)
    times = StageTimes.equal(
        STAGES, forward_s=1e-2, backward_input_s=1e-2, backward_weight_s=1e-2, send_s=1e-3, sync_s=1e-2
    )
    graph = template.with_durations(times)
    rows = np.tile(template.durations(times), (STEPS, 1))
    crowded = crossing_one_uplink(graph, template.stage)
    fast.play(graph)
    play_steps(template, rows[:1])
    shared.play(crowded)
    contention.play(crowded)
    ops = len(graph)
    return {
        f"reference, {ops:,} ops with timeline": ops / cpu_s(lambda: reference.play(graph)),
        f"fast, {ops:,} ops with timeline": ops / min(cpu_s(lambda: fast.play(graph)) for _ in range(20)),
        f"fast, {STEPS} steps of {ops:,} ops": STEPS * ops / cpu_s(lambda: play_steps(template, rows)),
        f"reference, {ops:,} ops, sends share an uplink": ops / cpu_s(lambda: reference.play(crowded)),
        f"fast, {ops:,} ops, sends share an uplink": ops
        / min(cpu_s(lambda: contention.play(crowded)) for _ in range(5)),
    }


def crossing_one_uplink(graph: OpGraph, stage: np.ndarray[tuple[int], np.dtype[np.int32]]) -> OpGraph:
    """The step with sends and syncs on their stage's NIC, all of them also on one uplink for four sends."""
    names = np.array(graph.kinds)[graph.kind]
    moving = np.isin(names, ("SEND_F", "SEND_B", "SYNC")) & (graph.duration_s > 0)
    rate = 1e9
    links = (*(SharedLink(f"nic {i}", rate) for i in range(STAGES)), SharedLink("uplink", 4 * rate))
    crossed = np.stack([stage[moving], np.full(moving.sum(), STAGES)], axis=1).ravel()
    return replace(
        graph,
        bytes=column(np.where(moving, graph.duration_s * rate, 0.0), np.float64),
        link_ptr=column(np.concatenate(([0], np.cumsum(2 * moving))), np.int32),
        link=column(crossed, np.int32),
        link_weight=column(np.ones(len(crossed)), np.float64),
        links=links,
    )


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin

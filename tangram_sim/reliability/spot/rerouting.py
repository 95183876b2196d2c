"""Rerouting the microbatches of dead workers to their peers (ReCycle, Gandhi et al., SOSP 2024).

There are D pipelines of P stages. In stage s, k_s workers are dead and the live ones run the microbatches of
all D. The step is scheduled worker by worker (backward passes before forward passes); an engine can simulate
the schedule as any other op graph. Where workers are dead, live ones may hold P microbatches more in flight
than under 1F1B, because 1F1B's limit would make them starve each other. Memory for these microbatches is
assumed to be available.
"""

import heapq
from collections.abc import Sequence
from functools import lru_cache

Worker = tuple[int, int]  # (pipeline, stage)
_FORWARD, _BACKWARD = 0, 1
Pass = tuple[int, int, int, int]  # (direction, microbatch, pipeline it came from, stage)


def busiest(pipelines: int, microbatches: int, dead: Sequence[int]) -> list[int]:
    """Microbatches of the busiest live worker of every stage; empty where some stage has no live worker."""
    if any(count >= pipelines for count in dead):
        return []
    return [-(-microbatches * pipelines // (pipelines - count)) for count in dead]


def rerouted_step_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    pipelines: int,
    microbatches: int,
    dead: Sequence[int],
) -> float:
    """Seconds of the passes of one simulated step with dead workers; 0 where a stage has no live worker.

    `forward_s` and `backward_s` are per stage [P]; `dead`: dead workers of the first stages (others: none).
    """
    missing = tuple(dead) + (0,) * (len(forward_s) - len(dead))
    if not busiest(pipelines, microbatches, missing):
        return 0.0
    return _played_s(tuple(forward_s), tuple(backward_s), pipelines, microbatches, missing)


@lru_cache(maxsize=4096)
def _played_s(
    forward_s: tuple[float, ...],
    backward_s: tuple[float, ...],
    pipelines: int,
    microbatches: int,
    dead: tuple[int, ...],
) -> float:
    # The scheduler's own clock: both engines, which tests hold to it, say the same of the graph.
    return _scheduled(forward_s, backward_s, pipelines, microbatches, dead)[1]


class _Routes:
    """Worker that runs a microbatch at a stage: its pipeline's, or where that is dead, live ones in turn."""

    def __init__(self, pipelines: int, dead: Sequence[int]) -> None:
        self.dead, self.live = dead, [pipelines - count for count in dead]

    def worker_of(self, one: Pass) -> Worker:
        """The worker (pipeline, stage) of a pass, same for F and B; the first pipelines' workers are dead."""
        _, number, pipeline, stage = one
        gone = self.dead[stage]
        if pipeline >= gone:
            return pipeline, stage
        return gone + (number * gone + pipeline) % self.live[stage], stage


def _scheduled(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    pipelines: int,
    microbatches: int,
    dead: Sequence[int],
) -> tuple[list[Pass], float]:
    """(passes in the order of their start, seconds until the last one ends).

    Each worker runs any pass that is ready, backward passes first.
    """
    last = len(forward_s) - 1
    worker_of = _Routes(pipelines, dead).worker_of
    most = (last + 1) * (2 if any(dead) else 1)  # in flight on the first stage; one less on each one after
    ready: dict[Worker, tuple[list[Pass], list[Pass]]] = {
        (pipeline, stage): ([], []) for stage in range(last + 1) for pipeline in range(dead[stage], pipelines)
    }
    flying, busy = dict.fromkeys(ready, 0), dict.fromkeys(ready, False)
    for number in range(microbatches):
        for pipeline in range(pipelines):
            item = (_FORWARD, number, pipeline, 0)
            heapq.heappush(ready[worker_of(item)][_FORWARD], item)
    ends: list[tuple[float, int, Pass]] = []
    order: list[Pass] = []

    def start(worker: Worker, now_s: float) -> None:
        forward, backward = ready[worker]
        if busy[worker] or not (backward or (forward and flying[worker] < most - worker[1])):
            return
        item = heapq.heappop(backward or forward)
        flying[worker] += 1 if item[0] == _FORWARD else -1
        busy[worker] = True
        seconds = (forward_s, backward_s)[item[0]][worker[1]]
        heapq.heappush(ends, (now_s + seconds, len(order), item))
        order.append(item)

    now_s = 0.0
    for worker in ready:
        start(worker, now_s)
    while ends:
        now_s, _, item = heapq.heappop(ends)
        done = [item]
        while ends and ends[0][0] == now_s:
            done.append(heapq.heappop(ends)[2])
        touched: dict[Worker, None] = {}
        for item in done:
            busy[worker_of(item)] = False
            touched[worker_of(item)] = None
            for after in _after(item, last):
                heapq.heappush(ready[worker_of(after)][after[0]], after)
                touched[worker_of(after)] = None
        for worker in touched:
            start(worker, now_s)
    return order, now_s


def _after(one: Pass, last: int) -> list[Pass]:
    """The pass that becomes ready when `one` ends; none after the last."""
    direction, number, pipeline, stage = one
    if direction == _FORWARD:
        return [
            (_FORWARD, number, pipeline, stage + 1) if stage < last else (_BACKWARD, number, pipeline, stage)
        ]
    return [(_BACKWARD, number, pipeline, stage - 1)] if stage else []

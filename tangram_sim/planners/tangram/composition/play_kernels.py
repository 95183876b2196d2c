"""Compiled simulation of composed pipelines, and the columns of the arrays that describe them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Columns of the options: seconds of one microbatch and of the whole step, bytes/s at the stage's ends, and
# bytes/s of each copy of the model's end that it holds, all of them sending.
LATENCY, FORWARD, OWN, REPEATS, LOSS, TAIL, INNER_HOP, RATE, LONGER, TIED = range(10)
KIND, MOVE, STAGES, MOST = 0, 1, 2, 3
# Columns of the labels.
L, A, E = 0, 1, 2
DEPTH, PARENT, OPTION, BACK, DEEPEST, SHADOW, NESTED, ENDS = range(8)
# Arguments of compiled loops. As Python's own, each would be a type of its own for numba, and the loop that
# gets it compiled once more.
FRONT: Any = np.int64(0)  # places in a pipeline
SECOND: Any = np.int64(1)
ALTERNATING: Any = np.bool_(False)  # not every forward comes first


@njit(cache=True)
def play_all(
    complete: Ints,
    facts: NDArray[np.int32],
    floats: Floats,
    ints: Ints,
    stage_ptr: Ints,
    times: Floats,
    between: Floats,
    size: float,
    tied_bytes: float,
    microbatches: int,
    every_forward_first: bool,
) -> Floats:
    """Simulated seconds of the step of every complete pipeline, without shared links."""
    steps = np.empty(len(complete), np.float64)
    for position in range(len(complete)):
        label = complete[position]
        depth = facts[label, DEPTH]
        stages, hops = np.empty((depth, 4), np.float64), np.zeros(depth)
        gather(
            label,
            place=FRONT,
            facts=facts,
            floats=floats,
            ints=ints,
            stage_ptr=stage_ptr,
            times=times,
            between=between,
            size=size,
            stages=stages,
            hops=hops,
        )
        ended, longest = play(stages, hops, microbatches, every_forward_first)
        front, back = facts[label, OPTION], facts[label, BACK]
        # Both ends inside one node reduce the tied matrix over its own links: in no time, here.
        if tied_bytes > 0 and depth > stage_ptr[front + 1] - stage_ptr[front]:
            a, b = ints[front, KIND], ints[back, KIND]
            rate = min(floats[front, RATE], floats[back, RATE], between[1, a, b])
            both = max(ended[0] + stages[0, 2], ended[depth - 1] + stages[depth - 1, 2])
            copies = max(floats[front, RATE] / floats[front, TIED], floats[back, RATE] / floats[back, TIED])
            both += 2 * between[0, a, b] + copies * tied_bytes / rate
            longest = max(longest, both + max(stages[0, 3], stages[depth - 1, 3]))
        steps[position] = longest
    return steps


@njit(cache=True)
def gather(
    label: int,
    place: int,
    facts: NDArray[np.int32],
    floats: Floats,
    ints: Ints,
    stage_ptr: Ints,
    times: Floats,
    between: Floats,
    size: float,
    stages: Floats,
    hops: Floats,
) -> None:
    """Fill `stages` and `hops` (seconds to the next stage) from `place` on with the stages of a label."""
    while facts[label, OPTION] >= 0:
        option = facts[label, OPTION]
        for stage in range(stage_ptr[option], stage_ptr[option + 1]):
            for column in range(times.shape[1]):
                stages[place, column] = times[stage, column]
            hops[place] = floats[option, INNER_HOP]
            place += 1
        label = facts[label, PARENT]
        after = facts[label, OPTION]
        if after >= 0:
            a, b = ints[option, KIND], ints[after, KIND]
            rate = min(floats[option, RATE], floats[after, RATE], between[1, a, b])
            hops[place - 1] = between[0, a, b] + size / rate


@njit(cache=True)
def play(times: Floats, hop_s: Floats, microbatches: int, every_forward_first: bool) -> Any:
    """(end of the last backward by stage, end of the step) in seconds of 1F1B or GPipe, by longest paths.

    `times` (stages, 4) are seconds of a forward, of a backward, of synchronisation and of the optimizer.
    """
    stages = len(times)
    # Per way and stage: arrivals that are known, which pass is next, when the stream of transfers is free.
    arrived = np.empty((2, stages, microbatches), np.float64)
    known = np.zeros((2, stages), np.int64)
    arrived[0, 0] = 0.0
    known[0, 0] = microbatches
    sent = np.zeros((2, stages))
    clock = np.zeros(stages)
    done = np.zeros((2, stages), np.int64)
    left = 2 * microbatches * stages
    while left > 0:
        for stage in range(stages):
            held = microbatches if every_forward_first else min(stages - stage, microbatches)
            while done[1, stage] < microbatches:
                way = 0
                if done[0, stage] == microbatches or done[0, stage] - done[1, stage] >= held:
                    way = 1
                number = done[way, stage]
                if number >= known[way, stage]:
                    break
                clock[stage] = max(clock[stage], arrived[way, stage, number]) + times[stage, way]
                done[way, stage] += 1
                left -= 1
                target = stage - 1 if way else stage + 1
                if target == stages:
                    arrived[1, stage, number] = clock[stage]
                    known[1, stage] = number + 1
                elif target >= 0:
                    hop = hop_s[target] if way else hop_s[stage]
                    sent[way, stage] = max(sent[way, stage], clock[stage]) + hop
                    arrived[way, target, number] = sent[way, stage]
                    known[way, target] = number + 1
    longest = 0.0
    for stage in range(stages):
        longest = max(longest, clock[stage] + times[stage, 2] + times[stage, 3])
    return clock, longest


@njit(cache=True)
def passes_played(depth: int, microbatches: int) -> int:
    """Number of microbatches that `play_ahead` simulates."""
    return int(min(microbatches, 5 * depth + 4))


@njit(cache=True)
def play_ahead(times: Floats, hop_s: Floats, microbatches: int) -> Any:
    """Estimate of `play` for 1F1B, in a time that does not grow with the number of microbatches.

    A pipeline in its steady state takes equally long for every further microbatch: it is simulated for about
    two and three times its depth, and the time of the last `depth` microbatches is extrapolated.
    """
    depth = len(times)
    if passes_played(depth, microbatches) == microbatches:
        return play(times, hop_s, microbatches, ALTERNATING)
    few, many = 2 * depth + 2, 3 * depth + 2
    ended, longest = play(times, hop_s, few, ALTERNATING)
    later, end = play(times, hop_s, many, ALTERNATING)
    periods = (microbatches - many) / depth
    return later + (later - ended) * periods, end + (end - longest) * periods

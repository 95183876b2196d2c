"""Compiled loops for chains: how stages of one width on several node groups cover a model, front to back.

Callers always pass contiguous float64 and int32 arrays, so that each function is compiled once; this module
imports numba, so import it inside functions only.
"""

import numpy as np

from tangram_sim.compiling import njit
from tangram_sim.cost.kernels import Floats
from tangram_sim.opgraph import IntArray
from tangram_sim.planners.tangram.composition.play_kernels import play, play_ahead
from tangram_sim.studies.chain_prices import PASSED, ChainPrices, StageRoom


@njit(cache=True)
def uneven(start: int, stop: int, atoms: int, chunks: int) -> float:
    """Ratio of the blocks in the largest chunk to the mean, for a stage that holds atoms [start, stop)."""
    blocks = min(stop, atoms - 1) - max(start, 1)
    return 1.0 if chunks == 1 or blocks < 1 else -(-blocks // chunks) * chunks / blocks


@njit(cache=True)
def lacks_room(
    below_s: float, passes: int, depth: int, chunks: int, slots: IntArray, stages: StageRoom
) -> bool:
    """Whether `depth` stages cannot hold all blocks of the model in any step shorter than `below_s`."""
    whole_s = np.inf
    for group in range(slots.shape[0]):
        if slots[group] > 0:
            whole_s = min(whole_s, stages.sums[0, group, -1])
    limit_s = (below_s - PASSED / chunks * whole_s) / (passes - PASSED)
    return lacks_blocks(limit_s, passes, depth, slots, stages)


@njit(cache=True)
def lacks_blocks(limit_s: float, passes: int, depth: int, slots: IntArray, stages: StageRoom) -> bool:
    """Whether `depth` stages surely cannot hold all blocks at one microbatch per `limit_s` seconds.

    A stage holds at most the longest run of blocks that the limit and its memory allow with the best number
    of stages behind it. The model's ends, transfers and the order of stages are ignored.
    """
    sums, fixed, held = stages
    last, filled = sums.shape[2] - 2, 0
    counts = np.empty(slots.sum(), np.int64)
    for group in range(slots.shape[0]):
        room = 1.000001 * (fixed[0, group] - fixed[1, group])  # sums may differ in their last digits
        for behind in range(min(slots[group], depth)):
            kept, start, most = held[behind:depth].min(), 1, 0
            for stop in range(2, last + 1):
                while start < stop:
                    own_s = fixed[4, group] + sums[0, group, stop] - sums[0, group, start]
                    tail_s = fixed[5, group] + sums[2, group, stop] - sums[2, group, start]
                    taken = kept * (sums[3, group, stop] - sums[3, group, start])
                    taken += sums[4, group, stop] - sums[4, group, start]
                    if own_s + tail_s / passes <= 1.000001 * limit_s and taken <= room:
                        break
                    start += 1
                most = max(most, stop - start)
            counts[filled] = most
            filled += 1
    counts = counts[:filled]
    counts.sort()
    return bool(counts[max(filled - depth, 0) :].sum() < last - 1)


@njit(cache=True)
def cover(
    limit_s: float,
    passes: int,
    depth: int,
    eager: bool,
    chunks: int,
    ordered: bool,
    slots: IntArray,
    prices: ChainPrices,
    back: int,
    excess: Floats,
    latency: Floats,
    taken: IntArray,
) -> int:
    """Row of the least-latency chain over all atoms at one microbatch per `limit_s` seconds; -1: none.

    The last stage stands on the group `back`, or on any if that is -1; `tied` prices count as latency between
    the first and the last stage. `ordered`: groups follow each other as they are numbered. With several
    `chunks` every chunk has a block, there are exactly `depth` stages, each chunk is charged the activations
    of the largest, and the first microbatch passes one chunk of a stage before it goes on.

    A row stands for the number of stages on each group, in mixed radix `slots` + 1, and the group of the
    first of these stages; rows are filled from the last stage backwards.

    Under 1F1B with one chunk (not `eager`) stages i to j, with t seconds per microbatch and h per transfer to
    the next stage, take at least `(sum t + 2 sum h) / (j - i + 1)` per microbatch: the first passes a
    microbatch on only when the next has finished one. So the most by which stages from i on exceed the limit
    is `D_i = t_i - limit + max(0, 2 h_i + D_{i+1})`, and it must not be above zero.

    Filled, [rows, A + 1] by row and first atom covered: `excess` the least D, inf where there is no chain;
    `latency` seconds of one microbatch; `taken` [2, rows, A + 1] the row and the first atom behind its stage.
    """
    sums, fixed, hops, beside, tied, held = prices
    if lacks_blocks(limit_s, passes, depth, slots, StageRoom(sums, fixed, held)):
        return -1
    groups, atoms = slots.shape[0], sums.shape[2] - 1
    rows = excess.shape[0]
    excess[:] = np.inf
    most_hop_s = 0.0 if eager else 2.0 * max(hops.max(), beside[1].max())
    states = rows // groups
    best, best_s = -1, np.inf
    for state in range(states):
        rest, behind = state, 0
        for group in range(groups):
            behind += rest % (slots[group] + 1)
            rest //= slots[group] + 1
        for last in range(groups if state else 1):
            row = state * groups + last
            if excess[row, 0] < np.inf and (chunks == 1 or behind == depth):
                whole_s = latency[row, 0] + (tied[last, back] if back >= 0 and behind > 1 else 0.0)
                if whole_s < best_s:
                    best, best_s = row, whole_s
            if behind >= depth:
                continue
            for end in range(1, atoms + 1):
                if state == 0 and end < atoms:
                    continue
                if state > 0 and excess[row, end] == np.inf:
                    continue
                rest, stride = state, 1
                for group in range(groups):
                    radix = slots[group] + 1
                    count = rest % radix
                    rest //= radix
                    other = (state + stride) * groups + group
                    stride *= radix
                    if count == slots[group] or (behind == 0 and back not in (-1, group)):
                        continue
                    if ordered and behind > 0 and group > last:
                        continue
                    hop_s, carried_s, so_far_s = 0.0, 0.0, 0.0
                    if behind > 0:
                        hop_s, so_far_s = hops[group, last], latency[row, end]
                        if group == last and count % int(beside[0, group]) > 0:
                            hop_s = beside[1, group]
                        if chunks > 1 and chunks * hop_s > limit_s:
                            continue
                        if not eager and behind + 1 < passes:
                            carried_s = max(0.0, 2.0 * hop_s + excess[row, end])
                    floor, ceiling = 0, end  # of the first atom: every chunk, in front, too, has a block
                    if chunks > 1:
                        ceiling = min(end, atoms - 1) - chunks
                        floor = 1 + (depth - behind - 1) * chunks if behind + 1 < depth else 0
                        if ceiling < 1:
                            continue
                    begin = end
                    fullest = max(fixed[1, group], fixed[3, group]) if end == atoms else fixed[1, group]
                    while begin > floor:
                        before = begin - 1
                        if before == 0:
                            fullest = max(fullest, fixed[2, group])
                        own_s = fixed[4, group] + sums[0, group, end] - sums[0, group, before]
                        tail_s = fixed[5, group] + sums[2, group, end] - sums[2, group, before]
                        kept = held[behind] * (sums[3, group, end] - sums[3, group, before])
                        kept *= uneven(before, end, atoms, chunks)
                        state_bytes = sums[4, group, end] - sums[4, group, before]
                        over = own_s + tail_s / passes + carried_s > limit_s
                        if over or kept + fullest + state_bytes > fixed[0, group]:
                            break
                        begin = before
                    while (
                        begin < end and begin <= ceiling
                    ):  # as many as there is room for, and fewer while that leaves slack
                        own_s = fixed[4, group] + sums[0, group, end] - sums[0, group, begin]
                        tail_s = fixed[5, group] + sums[2, group, end] - sums[2, group, begin]
                        over_s = max(own_s + tail_s / passes + carried_s - limit_s, -most_hop_s)
                        total_s = so_far_s + own_s / chunks + 2.0 * hop_s
                        known_s = excess[other, begin]
                        if over_s < known_s or (over_s == known_s and total_s < latency[other, begin]):
                            excess[other, begin] = over_s
                            latency[other, begin] = total_s
                            taken[0, other, begin] = row
                            taken[1, other, begin] = end
                        if over_s <= -most_hop_s:
                            break
                        begin += 1
    return best


@njit(cache=True)
def play_interleaved(
    times: Floats, blocks: IntArray, hop_s: Floats, wrap_s: float, passes: int, chunks: int
) -> float:
    """Seconds of a step of interleaved 1F1B (`training.schedules.interleaved`).

    `times` [S, 4]: seconds of the forward and of the backward pass of a whole stage and after the last pass.
    `blocks` [S]: transformer blocks of each stage, split into chunks as evenly as possible, larger chunks
    first. `wrap_s`: seconds of the transfer from the last stage to the first.
    """
    stages, total = len(times), passes * chunks
    arrived = np.full((2, stages, total), np.inf)
    arrived[0, 0, ::chunks] = 0.0
    sent, clock, done = np.zeros((2, stages)), np.zeros(stages), np.zeros((2, stages), np.int64)
    left = 2 * total * stages
    while left > 0:
        for stage in range(stages):
            held = 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1
            while done[1, stage] < total:
                way = 1 if done[0, stage] == total or done[0, stage] - done[1, stage] >= held else 0
                number = done[way, stage]
                place = number % (stages * chunks)
                chunk = place // stages if way == 0 else chunks - 1 - place // stages
                key = (number // (stages * chunks) * stages + place % stages) * chunks + chunk
                if arrived[way, stage, key] == np.inf:
                    break
                share = (blocks[stage] // chunks + (chunk < blocks[stage] % chunks)) / blocks[stage]
                clock[stage] = max(clock[stage], arrived[way, stage, key]) + times[stage, way] * share
                done[way, stage] += 1
                left -= 1
                if way == 0 and stage == stages - 1 and chunk == chunks - 1:
                    arrived[1, stage, key] = clock[stage]
                elif way == 0 or stage > 0 or chunk > 0:
                    step = 1 - 2 * way
                    target = (stage + step) % stages
                    around = target != stage + step
                    sent[way, stage] = max(sent[way, stage], clock[stage])
                    sent[way, stage] += wrap_s if around else hop_s[stage - way]
                    arrived[way, target, key + step * around] = sent[way, stage]
    return float((clock + times[:, 2]).max())


@njit(cache=True)
def stage_times(
    chunks: int,
    prices: ChainPrices,
    groups: IntArray,
    bounds: IntArray,
    times: Floats,
    hop_s: Floats,
) -> bool:
    """Whether stages on `groups` [S] have the memory for the atoms between `bounds` [S + 1].

    Filled: `times` [S, 4], seconds of the forward pass, of the backward pass and after the last pass, and 0;
    `hop_s` [S], seconds to send a microbatch to the next stage.
    """
    sums, fixed, hops, beside, _, held = prices
    stages, atoms = len(groups), sums.shape[2] - 1
    used = np.zeros(hops.shape[0], np.int64)
    for behind in range(stages):
        stage = stages - 1 - behind
        group, start, stop = groups[stage], bounds[stage], bounds[stage + 1]
        if start >= stop or (chunks > 1 and min(stop, atoms - 1) - max(start, 1) < chunks):
            return False
        fullest = fixed[1, group]
        if start == 0:
            fullest = max(fullest, fixed[2, group])
        if stop == atoms:
            fullest = max(fullest, fixed[3, group])
        kept = held[behind] * (sums[3, group, stop] - sums[3, group, start])
        kept *= uneven(start, stop, atoms, chunks)
        state = sums[4, group, stop] - sums[4, group, start]
        if kept + fullest + state > fixed[0, group]:  # summed as in `cover`, to the last digit
            return False
        own_s = fixed[4, group] + sums[0, group, stop] - sums[0, group, start]
        forward_s = sums[1, group, stop] - sums[1, group, start]
        tail_s = fixed[5, group] + sums[2, group, stop] - sums[2, group, start]
        if behind > 0:
            near = group == groups[stage + 1] and used[group] % int(beside[0, group]) > 0
            hop_s[stage] = beside[1, group] if near else hops[group, groups[stage + 1]]
        used[group] += 1
        times[stage, 0], times[stage, 1], times[stage, 2] = forward_s, own_s - forward_s, tail_s
    return True


@njit(cache=True)
def step_of(
    passes: int,
    eager: bool,
    chunks: int,
    prices: ChainPrices,
    groups: IntArray,
    bounds: IntArray,
    below_s: float,
) -> float:
    """Seconds of the step of stages on `groups` [S] with atoms between `bounds` [S + 1]; inf without memory.

    Played pass by pass, each transfer over a road of its own. inf, too, where one stage surely is not through
    `below_s`: it does all microbatches while those in front of it wait for the first and for the last one.
    """
    hops, tied = prices.hops, prices.tied
    stages, atoms = len(groups), prices.sums.shape[2] - 1
    times, hop_s = np.zeros((stages, 4)), np.zeros(stages)
    if not stage_times(chunks, prices, groups, bounds, times, hop_s):
        return np.inf
    ahead_s = 0.0
    for stage in range(stages if chunks == 1 else 0):
        own_s = times[stage, 0] + times[stage, 1]
        if (ahead_s + passes * own_s) * (1.0 - 1e-9) >= below_s:
            return np.inf
        ahead_s += own_s + 2.0 * hop_s[stage]
    if chunks > 1:
        wrap_s = hops[groups[stages - 1], groups[0]]
        blocks = np.minimum(bounds[1:], atoms - 1) - np.maximum(bounds[:-1], 1)
        rounds = min(passes // stages, 4)  # what one more takes goes on
        longest = play_interleaved(times, blocks, hop_s, wrap_s, rounds * stages, chunks)
        if rounds < passes // stages:
            shorter = play_interleaved(times, blocks, hop_s, wrap_s, (rounds - 1) * stages, chunks)
            longest += (passes // stages - rounds) * (longest - shorter)
        return float(longest + tied[groups[0], groups[stages - 1]])
    if eager:
        ended, longest = play(times, hop_s, passes, eager)
    else:
        ended, longest = play_ahead(times, hop_s, passes)
    if stages > 1:
        both_s = max(ended[0] + times[0, 2], ended[stages - 1] + times[stages - 1, 2])
        longest = max(longest, both_s + tied[groups[0], groups[stages - 1]])
    return float(longest)


@njit(cache=True)
def improve(
    passes: int,
    eager: bool,
    chunks: int,
    ordered: bool,
    prices: ChainPrices,
    groups: IntArray,
    bounds: IntArray,
    reach: int,
    rounds: int,
) -> float:
    """Change a chain in place while its step gets shorter; returns the seconds of its step.

    Moves: an atom to a stage at most `reach` away, stages between keep their number of atoms; or, unless
    `ordered`, two stages swap places with their atoms. At most `rounds` over all moves. With a `reach` of 0
    every stage keeps its number of atoms and two stages swap their groups only.
    """
    stages = len(groups)
    best_s = step_of(passes, eager, chunks, prices, groups, bounds, below_s=np.inf)
    for _ in range(rounds):
        before_s = best_s
        for first in range(1, stages):
            for last in range(first, min(first + reach, stages)):
                for move in (1, -1):
                    while True:
                        bounds[first : last + 1] += move
                        moved_s = step_of(passes, eager, chunks, prices, groups, bounds, below_s=best_s)
                        if moved_s >= best_s * (1.0 - 1e-9):
                            bounds[first : last + 1] -= move
                            break
                        best_s = moved_s
        for index in range(0 if ordered else stages - 1):
            for other in range(index + 1, stages):
                if groups[index] == groups[other]:
                    continue
                less = (bounds[other + 1] - bounds[other]) - (bounds[index + 1] - bounds[index])
                less *= min(reach, 1)
                groups[index], groups[other] = groups[other], groups[index]
                bounds[index + 1 : other + 1] += less
                moved_s = step_of(passes, eager, chunks, prices, groups, bounds, below_s=best_s)
                if moved_s < best_s * (1.0 - 1e-9):
                    best_s = moved_s
                else:
                    bounds[index + 1 : other + 1] -= less
                    groups[index], groups[other] = groups[other], groups[index]
        if best_s >= before_s:
            break
    return best_s

"""Compiled loop of chains: how stages of one width on several node groups cover a model, front to back.

Callers pass contiguous float64 and int64 arrays, always, so that it is compiled once; importing this module
imports numba, hence it is imported inside functions only.
"""

import numpy as np

from tangram_sim.compiling import njit
from tangram_sim.cost.kernels import Floats
from tangram_sim.opgraph import IntArray
from tangram_sim.planners.tangram.composition.play_kernels import play, play_ahead


@njit(cache=True)
def cover(
    limit_s: float,
    passes: int,
    depth: int,
    eager: bool,
    slots: IntArray,
    sums: Floats,
    fixed: Floats,
    hops: Floats,
    tied: Floats,
    back: int,
    held: Floats,
    excess: Floats,
    latency: Floats,
    taken: IntArray,
) -> int:
    """The row in which stages cover all atoms with a microbatch every `limit_s` seconds, the least latency.

    -1 where none do. The last stage stands on the group `back`, or on any where that is -1; `tied` [G, G]
    counts as latency between the first and the last stage.

    A row is how many stages each group holds, in mixed radix `slots` + 1, and the group of the first of these
    stages; it is reached from the last stage backwards. `sums` [5, G, A + 1] of the atoms in front of each
    boundary: seconds of a microbatch, forward seconds of it, seconds after the last pass, bytes kept of a
    microbatch, bytes of state. `fixed` [6, G]: usable bytes, bytes beside what is kept (of blocks, with the
    embedding, with the head), seconds of a microbatch and after the last pass whatever the stage holds.
    `hops` [G, G] seconds to hand a microbatch on, `held` microbatches in flight with so many stages behind.

    Under 1F1B stages i to j, t seconds of a microbatch each and h to hand one on, take at least
    `(sum t + 2 sum h) / (j - i + 1)` a microbatch: the first hands one on only when the next has finished
    one. So the most by which stages from i on exceed the limit is
    `D_i = t_i - limit + max(0, 2 h_i + D_{i+1})`, and it may not be above zero.

    Filled, [rows, A + 1] by row and first atom covered: `excess` the least D, inf where there is no chain;
    its `latency` of one microbatch; `taken` [2, rows, A + 1] the row and the first atom behind its stage.
    """
    groups, atoms = slots.shape[0], sums.shape[2] - 1
    rows = excess.shape[0]
    excess[:] = np.inf
    most_hop_s = 0.0 if eager else 2.0 * hops.max()
    states = rows // groups
    best, best_s = -1, np.inf
    for state in range(states):
        rest, behind = state, 0
        for group in range(groups):
            behind += rest % (slots[group] + 1)
            rest //= slots[group] + 1
        for last in range(groups if state else 1):
            row = state * groups + last
            if excess[row, 0] < np.inf:
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
                    hop_s, carried_s, so_far_s = 0.0, 0.0, 0.0
                    if behind > 0:
                        hop_s, so_far_s = hops[group, last], latency[row, end]
                        if not eager and behind + 1 < passes:
                            carried_s = max(0.0, 2.0 * hop_s + excess[row, end])
                    begin = end
                    beside = max(fixed[1, group], fixed[3, group]) if end == atoms else fixed[1, group]
                    while begin > 0:
                        before = begin - 1
                        if before == 0:
                            beside = max(beside, fixed[2, group])
                        own_s = fixed[4, group] + sums[0, group, end] - sums[0, group, before]
                        tail_s = fixed[5, group] + sums[2, group, end] - sums[2, group, before]
                        kept = held[behind] * (sums[3, group, end] - sums[3, group, before])
                        state_bytes = sums[4, group, end] - sums[4, group, before]
                        over = own_s + tail_s / passes + carried_s > limit_s
                        if over or kept + beside + state_bytes > fixed[0, group]:
                            break
                        begin = before
                    while begin < end:  # as many as there is room for, and fewer while that leaves slack
                        own_s = fixed[4, group] + sums[0, group, end] - sums[0, group, begin]
                        tail_s = fixed[5, group] + sums[2, group, end] - sums[2, group, begin]
                        over_s = max(own_s + tail_s / passes + carried_s - limit_s, -most_hop_s)
                        total_s = so_far_s + own_s + 2.0 * hop_s
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
def step_of(
    passes: int,
    eager: bool,
    sums: Floats,
    fixed: Floats,
    hops: Floats,
    tied: Floats,
    held: Floats,
    groups: IntArray,
    bounds: IntArray,
) -> float:
    """Seconds of the step of stages on `groups` [S] with atoms between `bounds` [S + 1]; inf without memory.

    Played pass by pass, each transfer over a road of its own. `tied` [G, G]: seconds in which the first and
    the last stage add up the gradients of a matrix that both read, 0 where they read none.
    """
    stages, atoms = len(groups), sums.shape[2] - 1
    times, hop_s = np.zeros((stages, 4)), np.zeros(stages)
    for behind in range(stages):
        stage = stages - 1 - behind
        group, start, stop = groups[stage], bounds[stage], bounds[stage + 1]
        if start >= stop:
            return np.inf
        beside = fixed[1, group]
        if start == 0:
            beside = max(beside, fixed[2, group])
        if stop == atoms:
            beside = max(beside, fixed[3, group])
        kept = held[behind] * (sums[3, group, stop] - sums[3, group, start])
        state = sums[4, group, stop] - sums[4, group, start]
        if kept + beside + state > fixed[0, group]:  # summed as in `cover`, to the last digit
            return np.inf
        own_s = fixed[4, group] + sums[0, group, stop] - sums[0, group, start]
        forward_s = sums[1, group, stop] - sums[1, group, start]
        tail_s = fixed[5, group] + sums[2, group, stop] - sums[2, group, start]
        hop_s[stage] = hops[group, groups[stage + 1]] if behind else 0.0
        times[stage, 0] = forward_s
        times[stage, 1] = own_s - forward_s
        times[stage, 2] = tail_s
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
    sums: Floats,
    fixed: Floats,
    hops: Floats,
    tied: Floats,
    held: Floats,
    groups: IntArray,
    bounds: IntArray,
    reach: int,
    rounds: int,
) -> float:
    """Change a chain in place while that makes its step shorter; the seconds of the step then.

    An atom goes from one stage to another at most `reach` stages away, those between keep as many; or two
    stages change places with all they hold. At most so many `rounds` over all of these.
    """
    stages = len(groups)
    best_s = step_of(passes, eager, sums, fixed, hops, tied, held, groups, bounds)
    for _ in range(rounds):
        before_s = best_s
        for first in range(1, stages):
            for last in range(first, min(first + reach, stages)):
                for move in (1, -1):
                    while True:
                        bounds[first : last + 1] += move
                        moved_s = step_of(passes, eager, sums, fixed, hops, tied, held, groups, bounds)
                        if moved_s >= best_s * (1.0 - 1e-9):
                            bounds[first : last + 1] -= move
                            break
                        best_s = moved_s
        for one in range(stages - 1):
            for other in range(one + 1, stages):
                if groups[one] == groups[other]:
                    continue
                less = (bounds[other + 1] - bounds[other]) - (bounds[one + 1] - bounds[one])
                groups[one], groups[other] = groups[other], groups[one]
                bounds[one + 1 : other + 1] += less
                moved_s = step_of(passes, eager, sums, fixed, hops, tied, held, groups, bounds)
                if moved_s < best_s * (1.0 - 1e-9):
                    best_s = moved_s
                else:
                    bounds[one + 1 : other + 1] -= less
                    groups[one], groups[other] = groups[other], groups[one]
        if best_s >= before_s:
            break
    return best_s

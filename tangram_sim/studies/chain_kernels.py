"""Compiled loop of chains: how stages of one width on several node groups cover a model, front to back.

Callers pass contiguous float64 and int64 arrays, always, so that it is compiled once; importing this module
imports numba, hence it is imported inside functions only.
"""

from tangram_sim.compiling import njit
from tangram_sim.cost.kernels import Floats
from tangram_sim.opgraph import IntArray


@njit(cache=True)
def cover(
    limit_s: float,
    passes: int,
    depth: int,
    slots: IntArray,
    seconds: Floats,
    kept: Floats,
    beside: Floats,
    usable: Floats,
    state: Floats,
    held: Floats,
    first: IntArray,
    taken: IntArray,
    spent: Floats,
) -> int:
    """The state in which stages of at most `limit_s` seconds cover all atoms with the least step; -1: none.

    A state is how many stages each group holds, in mixed radix `slots` + 1; it is reached from the last stage
    backwards, each stage taking as many atoms as its seconds and its memory allow, so that with the same
    stages none covers more. Per group: `seconds` [G, A + 1] and `kept` bytes [G, A + 1] of the atoms in front
    of each boundary, `beside` and `usable` bytes; `state` [A + 1] bytes of what the atoms in front of a
    boundary keep on every GPU, `held` microbatches in flight with so many stages behind. Filled for every
    state: `first` atom that it covers, the group `taken` last, `spent` [2, states] sum and maximum of its
    stages' seconds. The step is `passes` - 1 times the maximum and the sum.
    """
    groups, atoms = slots.shape[0], seconds.shape[1] - 1
    states = first.shape[0]
    for one in range(states):
        first[one] = atoms + 1
    first[0] = atoms
    spent[0, 0] = 0.0
    spent[1, 0] = 0.0
    best, best_s = -1, 1e300
    for one in range(states):
        end = first[one]
        if end > atoms:
            continue
        if end == 0:
            step_s = spent[0, one] + (passes - 1) * spent[1, one]
            if step_s < best_s:
                best, best_s = one, step_s
            continue
        rest, behind = one, 0
        for group in range(groups):
            behind += rest % (slots[group] + 1)
            rest //= slots[group] + 1
        if behind >= depth:
            continue
        rest, stride = one, 1
        for group in range(groups):
            radix = slots[group] + 1
            count = rest % radix
            rest //= radix
            if count < slots[group]:
                begin = end
                while begin > 0:
                    own_s = seconds[group, end] - seconds[group, begin - 1]
                    busy = held[behind] * (kept[group, end] - kept[group, begin - 1]) + beside[group]
                    if own_s > limit_s or busy + state[end] - state[begin - 1] > usable[group]:
                        break
                    begin -= 1
                if begin < end:
                    own_s = seconds[group, end] - seconds[group, begin]
                    total, most = spent[0, one] + own_s, max(spent[1, one], own_s)
                    other = one + stride
                    if begin < first[other] or (begin == first[other] and total < spent[0, other]):
                        first[other] = begin
                        taken[other] = group
                        spent[0, other] = total
                        spent[1, other] = most
            stride *= radix
    return best

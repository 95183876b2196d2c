"""Compiled loops of the exact composition: labels under a bound on the played step."""

from typing import Any

import numpy as np
from numba import njit

from tangram_sim.planners.tangram.composition.play_kernels import (
    BACK,
    DEEPEST,
    DEPTH,
    DOMINATORS,
    ENDS,
    FORWARD,
    INNER_HOP,
    KIND,
    LATENCY,
    LONGER,
    LOSS,
    MOST,
    NESTED,
    NODES,
    OPTION,
    OWN,
    PARENT,
    RATE,
    REPEATS,
    SHADOW,
    STAGES,
    TAIL,
    A,
    E,
    Floats,
    Ints,
    L,
    gather,
    play,
)


@njit(cache=True)
def still_to_come(
    slice_class: Ints,
    pointers: Ints,
    floats: Floats,
    ints: Ints,
    counts: Ints,
    most_behind: float,
    limit_s: float,
) -> Any:
    """(atoms + 1, node counts used behind, 4): the least that atoms [0, start) on the nodes left can add.

    Least latency, forward latency, own time of the slowest stage with what is in front of it, and repeats
    beyond the latency; each alone over all ways to place them, hence never too much. Infinite: no way.
    """
    atoms, kinds = slice_class.shape[0] - 1, len(counts)
    strides = np.ones(kinds + 1, np.int64)
    for kind in range(kinds):
        strides[kind + 1] = strides[kind] * (counts[kind] + 1)
    states = strides[kinds]
    left = np.empty((kinds, states), np.int64)
    for used in range(states):
        for kind in range(kinds):
            left[kind, used] = counts[kind] - (used // strides[kind]) % (counts[kind] + 1)
    least = np.full((atoms + 1, states, 4), np.inf)
    least[0, :, :3] = 0.0
    least[0, :, 3] = -np.inf
    for stop in range(1, atoms + 1):
        for start in range(stop):
            group = slice_class[start, stop]
            if group < 0:
                continue
            for option in range(pointers[group], pointers[group + 1]):
                kind, nodes = ints[option, KIND], ints[option, NODES]
                move = nodes * strides[kind]
                latency, forward, own = floats[option, LATENCY], floats[option, FORWARD], floats[option, OWN]
                ahead = min(most_behind, ints[option, MOST] + ints[option, STAGES] - 1.0)
                repeats = floats[option, REPEATS] - ahead * floats[option, LOSS]
                for used in range(states - move):
                    if left[kind, used] < nodes:
                        continue
                    before = used + move
                    in_front = least[start, before, 0]
                    if own + in_front >= limit_s:
                        continue
                    least[stop, used, 0] = min(least[stop, used, 0], latency + in_front)
                    least[stop, used, 1] = min(least[stop, used, 1], forward + least[start, before, 1])
                    worst = max(own + in_front, least[start, before, 2])
                    least[stop, used, 2] = min(least[stop, used, 2], worst)
                    worst = max(repeats, least[start, before, 3])
                    least[stop, used, 3] = min(least[stop, used, 3], worst)
    return least


@njit(cache=True)
def below(
    slice_class: Ints,  # (atoms + 1, atoms + 1): class of atoms [start, stop), -1 none
    pointers: Ints,  # (classes + 1): options of a class
    floats: Floats,  # (options, 9)
    ints: Ints,  # (options, 4): kind, nodes, inner stages, most stages behind
    counts: Ints,  # (kinds): nodes of each kind
    between: Floats,  # (2, kinds, kinds): latency (inf: forbidden) and bytes/s between stages of two kinds
    size: float,  # bytes of a boundary
    tied_bytes: float,  # of a matrix that both ends hold and all-reduce; 0: none
    least: Floats,  # of `still_to_come`
    microbatches: int,
    stage_ptr: Ints,  # (options + 1): inner stages of an option
    times: Floats,  # (inner stages, 4): forward, backward, sync, optimizer
    lost: int,  # forwards that run ahead of the first backward: 0 none, 1 one per stage behind, 2 all
    whole_depth: bool,  # stages hold as many microbatches as the pipeline is deep
    limit_s: float,
    proving: bool,  # a label's times hold for all that it dominated, too
    rivals: int,  # a label is dropped when so many others are no worse in everything; 0: never
    most_labels: int,
    passes_left: int,  # microbatches x stages that may still be played for labels
) -> Any:
    """Pipelines whose bound lies below `limit_s`, as labels that place every atom.

    A label is a suffix of the pipeline: latency L of one microbatch through it, A until its front stage ends
    its last backward, E until its last stage has ended its tail, all from its first forward on. See
    docs/models/composition.md for the recursion and why it is a bound. Returns (label floats, label ints,
    complete labels, their bounds); nothing when there are more than `most_labels`.
    """
    atoms, kinds = slice_class.shape[0] - 1, len(counts)
    strides = np.ones(kinds + 1, np.int64)
    for kind in range(kinds):
        strides[kind + 1] = strides[kind] * (counts[kind] + 1)
    states = strides[kinds]
    values = np.empty((4096, 3), np.float64)
    facts = np.empty((4096, 9), np.int64)
    bounds = np.empty(4096, np.float64)
    first = np.zeros((atoms + 1, states), np.int64)
    last = np.zeros((atoms + 1, states), np.int64)
    values[0] = 0.0
    facts[0] = -1
    facts[0, DEPTH], facts[0, DOMINATORS], facts[0, SHADOW], facts[0, NESTED] = 0, 0, 0, 0
    facts[0, DEEPEST] = np.iinfo(np.int64).max
    last[atoms, 0] = 1
    count = 1
    repeats = microbatches - 1.0
    for start in range(atoms - 1, -1, -1):
        for used in range(1, states):
            latency_left, forward_left = least[start, used, 0], least[start, used, 1]
            repeats_left = least[start, used, 3]
            begin = count
            if least[start, used, 2] >= limit_s:
                first[start, used], last[start, used] = begin, begin
                continue
            for stop in range(start + 1, atoms + 1):
                group = slice_class[start, stop]
                if group < 0:
                    continue
                for option in range(pointers[group], pointers[group + 1]):
                    kind, nodes = ints[option, KIND], ints[option, NODES]
                    if (used // strides[kind]) % (counts[kind] + 1) < nodes:
                        continue
                    own = floats[option, OWN]
                    if own + latency_left >= limit_s:
                        continue
                    inner = ints[option, STAGES]
                    in_all = floats[option, LATENCY] + latency_left + repeats_left
                    before = used - nodes * strides[kind]
                    for label in range(first[stop, before], last[stop, before]):
                        behind = facts[label, DEPTH]
                        if behind > ints[option, MOST]:
                            continue
                        soonest = values[label, E] + floats[option, FORWARD] + forward_left
                        if soonest >= limit_s or values[label, L] + in_all >= limit_s:
                            continue
                        depth = behind + inner
                        deepest = facts[label, DEEPEST]
                        if whole_depth:
                            deepest = min(deepest, inner + ints[option, MOST])
                            if depth > deepest:
                                continue
                        hop, back = 0.0, option
                        if facts[label, OPTION] >= 0:
                            after, back = facts[label, OPTION], facts[label, BACK]
                            lag = between[0, kind, ints[after, KIND]]
                            if lag == np.inf:
                                continue
                            rate = min(floats[option, RATE], floats[after, RATE])
                            hop = lag + size / min(rate, between[1, kind, ints[after, KIND]])
                        ahead, round_trips = 0.0, 0.0
                        new_l = values[label, L] + floats[option, LATENCY] + 2 * hop
                        if lost == 1:
                            ahead = min(depth - 1.0, repeats)
                            again, rest = divmod(microbatches - 1, depth)
                            round_trips = again * new_l + rest * floats[option, LONGER]
                        elif lost == 2 and depth > 1:
                            ahead = repeats
                        slow = max(
                            floats[option, REPEATS] - ahead * floats[option, LOSS],
                            repeats * max(hop, floats[option, INNER_HOP]),
                            round_trips,
                        )
                        new_a = max(values[label, A] + floats[option, LATENCY] + 2 * hop, own, new_l + slow)
                        new_e = max(
                            values[label, E] + floats[option, FORWARD] + hop, new_a + floats[option, TAIL]
                        )
                        bound = max(
                            new_e + forward_left,
                            new_a + latency_left,
                            new_l + latency_left + repeats_left,
                        )
                        # Both ends inside one node reduce the tied matrix over its own links.
                        if start == 0 and tied_bytes > 0 and depth > inner:
                            end = ints[back, KIND]
                            rate = min(floats[option, RATE], floats[back, RATE], between[1, kind, end])
                            bound = max(bound, new_a + tied_bytes / rate + 2 * between[0, kind, end])
                        if bound >= limit_s:
                            continue
                        parent_shadow = facts[label, SHADOW]
                        ends = kind * kinds + ints[back, KIND]  # who meets the next stage, and who is tied
                        nested = max(facts[label, NESTED], int(inner > 1))
                        alone = parent_shadow == 0 or not proving
                        if lost > 0 and nested == 0 and alone and passes_left > 0:
                            passes_left -= microbatches * depth
                            # What one that is there beats already need not be played.
                            beaten = False
                            for other in range(begin, count if rivals == 1 and start > 0 else begin):
                                theirs = facts[other, OPTION]
                                if (
                                    facts[other, ENDS] == ends
                                    and values[other, L] <= new_l
                                    and values[other, A] <= new_a
                                    and values[other, E] <= new_e
                                    and facts[other, DEPTH] <= depth
                                    and facts[other, DEEPEST] >= deepest
                                    and floats[theirs, RATE] >= floats[option, RATE]
                                    and (
                                        tied_bytes == 0
                                        or floats[facts[other, BACK], RATE] >= floats[back, RATE]
                                    )
                                ):
                                    facts[other, SHADOW] = 1
                                    beaten = True
                                    break
                            if beaten:
                                continue
                            stages, hops = np.empty((depth, 4)), np.zeros(depth)
                            stages[0], hops[0] = times[stage_ptr[option]], hop
                            gather(
                                label, 1, facts, floats, ints, stage_ptr, times, between, size, stages, hops
                            )
                            ended, ending = play(stages, hops, microbatches, lost == 2)
                            new_a = max(new_a, ended[0])
                            new_e = max(new_e, ending)
                            if max(new_e + forward_left, new_a + latency_left) >= limit_s:
                                continue
                            bound = max(bound, new_e)
                        dominators, shadow = 0, 0
                        other = begin
                        while other < count and start > 0 and rivals > 0:
                            # Fewer stages behind let fewer microbatches run ahead: no better for a bound.
                            if facts[other, ENDS] == ends and (not proving or facts[other, DEPTH] == depth):
                                theirs = facts[other, OPTION]
                                their_tie, my_tie = 0.0, 0.0
                                if tied_bytes > 0:
                                    their_tie, my_tie = floats[facts[other, BACK], RATE], floats[back, RATE]
                                if (
                                    values[other, L] <= new_l
                                    and values[other, A] <= new_a
                                    and values[other, E] <= new_e
                                    and facts[other, DEPTH] <= depth
                                    and facts[other, DEEPEST] >= deepest
                                    and floats[theirs, RATE] >= floats[option, RATE]
                                    and their_tie >= my_tie
                                ):
                                    dominators += 1
                                    if dominators >= rivals:
                                        facts[other, SHADOW] = 1
                                        break
                                elif (
                                    values[other, L] >= new_l
                                    and values[other, A] >= new_a
                                    and values[other, E] >= new_e
                                    and facts[other, DEPTH] >= depth
                                    and facts[other, DEEPEST] <= deepest
                                    and floats[theirs, RATE] <= floats[option, RATE]
                                    and their_tie <= my_tie
                                ):
                                    facts[other, DOMINATORS] += 1
                                    if facts[other, DOMINATORS] >= rivals:
                                        shadow = 1
                                        count -= 1
                                        values[other] = values[count]
                                        facts[other] = facts[count]
                                        continue
                            other += 1
                        if rivals > 0 and dominators >= rivals:
                            continue
                        if count == len(values):
                            if count >= most_labels:
                                return values[:0], facts[:0], np.empty(0, np.int64), bounds[:0]
                            values = np.concatenate((values, np.empty_like(values)))
                            facts = np.concatenate((facts, np.empty_like(facts)))
                            bounds = np.concatenate((bounds, np.empty_like(bounds)))
                        values[count, L], values[count, A], values[count, E] = new_l, new_a, new_e
                        facts[count, DEPTH], facts[count, PARENT] = depth, label
                        facts[count, OPTION], facts[count, BACK] = option, back
                        facts[count, DEEPEST], facts[count, DOMINATORS] = deepest, dominators
                        facts[count, SHADOW] = max(shadow, parent_shadow)
                        facts[count, NESTED], facts[count, ENDS] = nested, ends
                        bounds[count] = bound
                        count += 1
            first[start, used], last[start, used] = begin, count
    finals = 0
    for used in range(states):
        finals += last[0, used] - first[0, used]
    complete = np.empty(finals, np.int64)
    position = 0
    for used in range(states):
        for label in range(first[0, used], last[0, used]):
            complete[position] = label
            position += 1
    return values[:count], facts[:count], complete, bounds[complete]

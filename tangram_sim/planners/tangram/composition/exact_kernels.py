"""Compiled loops of the exact composition: label-setting under a lower bound on the played step."""

import numpy as np
from numpy.typing import NDArray

from tangram_sim.compiling import njit
from tangram_sim.planners.tangram.composition.play_kernels import (
    BACK,
    DEEPEST,
    DEPTH,
    ENDS,
    FORWARD,
    INNER_HOP,
    KIND,
    LATENCY,
    LONGER,
    LOSS,
    MOST,
    MOVE,
    NESTED,
    OPTION,
    OWN,
    PARENT,
    RATE,
    REPEATS,
    SECOND,
    SHADOW,
    STAGES,
    TAIL,
    TIED,
    A,
    E,
    Floats,
    Ints,
    L,
    gather,
    passes_played,
    play,
    play_ahead,
)

DEBT = 3  # column of the labels' floats, behind L, A and E: see `below`
# Where a call left off: labels there are, the state, the stage that is put in front of which label; passes
# that may still be played; what was done in all; whether there is nothing left to do.
COUNT, START, USED, STOP, AT_OPTION, AT_LABEL, BEGIN, PASSES, WORK, DONE = range(10)
LEAST_DROPPED, WORST_KEPT = 0, 1
# In comparisons of two labels: a microbatch played through one stage, a stage put in front of a label.
COST_OF_PASS, COST_OF_STAGE = 4, 12


@njit(cache=True)
def moved(values: Floats, facts: NDArray[np.int32], bounds: Floats, source: int, target: int) -> None:
    """Overwrite one label with another. Column by column: code for whole rows takes seconds to compile."""
    for column in range(values.shape[1]):
        values[target, column] = values[source, column]
    for column in range(facts.shape[1]):
        facts[target, column] = facts[source, column]
    bounds[target] = bounds[source]


@njit(cache=True)
def below(
    slice_class: Ints,  # (atoms + 1, atoms + 1): class of atoms [start, stop), -1 none
    pointers: Ints,  # (classes + 1): options of a class
    floats: Floats,  # (options, 10)
    ints: Ints,  # (options, 4): kind, which move, inner stages, most stages behind
    before: Ints,  # (moves, states): the state without the nodes that a stage takes; -1 there is none
    reached: NDArray[np.bool_],  # (states): nodes that some stages take together
    between: Floats,  # (2, all kinds, all kinds): latency (inf: forbidden) and bytes/s between kinds
    size: float,  # bytes of a boundary
    tied_bytes: float,  # of a matrix that both ends hold and all-reduce; 0: none
    least: Floats,  # of `still_to_come`
    microbatches: int,
    stage_ptr: Ints,  # (options + 1): inner stages of an option
    times: Floats,  # (inner stages, 4): forward, backward, sync, optimizer
    lost: int,  # forwards that run ahead of the first backward: 0 none, 1 one per stage behind, 2 all
    whole_depth: bool,  # what stages hold depends on the depth of the pipeline
    limit_s: float,
    proving: bool,  # a label's times hold for all that it dominated, too
    dropping: bool,  # labels that others beat are dropped
    tolerance_s: float,  # so are those that are better by less than this
    width: int,  # labels kept of a state, those with the least bound; 0: all
    most_work: int,  # comparisons after which to leave off, to be called again
    values: Floats,  # (room, 4): L, A, E, debt
    facts: NDArray[np.int32],  # (room, 8)
    bounds: Floats,  # (room)
    first: Ints,  # (atoms + 1, states): labels of a state
    last: Ints,
    cursor: Ints,
    edge: Floats,  # least bound of a label dropped for `width`, greatest bound that a state keeps
) -> None:
    """One turn of the label-setting search for pipelines whose bound lies below `limit_s`.

    A label is a suffix of the pipeline: latency L of one microbatch through it, A until its front stage ends
    its last backward, E until its last stage has ended its tail, all from its first forward on. See
    docs/models/composition.md for the recursion and why it is a bound. A label that replaces others that are
    better by less than the tolerance has a debt in seconds: its bound less the debt bounds all of them.
    `cursor` holds the progress: to the end, to `most_work`, or until the arrays were full.
    """
    atoms, kinds = slice_class.shape[0] - 1, between.shape[1]
    states, repeats = before.shape[1], microbatches - 1.0
    count, start, used, begin = cursor[COUNT], cursor[START], cursor[USED], cursor[BEGIN]
    stop, option, at_label = cursor[STOP], cursor[AT_OPTION], cursor[AT_LABEL]
    passes_left, work = cursor[PASSES], 0
    while start >= 0:
        while used < states:
            if stop == 0:  # a new state
                begin, stop, option, at_label = count, start + 1, -1, -1
                edge[WORST_KEPT] = np.inf
            latency_left, forward_left = least[start, 0, used], least[start, 1, used]
            repeats_left = least[start, 3, used]
            if not reached[used] or least[start, 2, used] >= limit_s:
                stop = atoms + 1
            while stop <= atoms:
                group = slice_class[start, stop]
                if group < 0:
                    stop += 1
                    continue
                option = max(option, pointers[group])
                while option < pointers[group + 1]:
                    kind, without = ints[option, KIND], before[ints[option, MOVE], used]
                    own = floats[option, OWN]
                    work += 1
                    if without < 0 or own + latency_left >= limit_s:
                        option += 1
                        continue
                    inner = ints[option, STAGES]
                    in_all = floats[option, LATENCY] + latency_left + repeats_left
                    at_label = max(at_label, first[stop, without])
                    while at_label < last[stop, without]:
                        if work >= most_work or count == len(values):
                            cursor[COUNT], cursor[START], cursor[USED], cursor[BEGIN] = (
                                count,
                                start,
                                used,
                                begin,
                            )
                            cursor[STOP], cursor[AT_OPTION], cursor[AT_LABEL] = stop, option, at_label
                            cursor[PASSES] = passes_left
                            cursor[WORK] += work
                            return
                        label = at_label
                        at_label += 1
                        work += 2
                        behind = facts[label, DEPTH]
                        if behind > ints[option, MOST]:
                            continue
                        debt = values[label, DEBT]
                        room_s = limit_s + debt
                        soonest = values[label, E] + floats[option, FORWARD] + forward_left
                        if soonest >= room_s or values[label, L] + in_all >= room_s:
                            continue
                        depth = behind + inner
                        deepest = facts[label, DEEPEST]
                        if whole_depth:
                            deepest = min(deepest, inner + ints[option, MOST])
                            if depth > deepest:
                                continue
                        work += COST_OF_STAGE
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
                        elif lost == 2:
                            ahead = repeats  # of a lone stage, too: what it does itself is in `own`
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
                        # Both ends inside one node reduce the tied matrix over its own links. Either end
                        # sends its own copies at least.
                        if start == 0 and tied_bytes > 0 and depth > inner:
                            end = ints[back, KIND]
                            rate = min(floats[option, TIED], floats[back, TIED], between[1, kind, end])
                            bound = max(bound, new_a + tied_bytes / rate + 2 * between[0, kind, end])
                        if bound >= room_s:
                            continue
                        if bound > edge[WORST_KEPT]:
                            edge[LEAST_DROPPED] = min(edge[LEAST_DROPPED], bound - debt)
                            continue
                        parent_shadow = facts[label, SHADOW]
                        ends = kind * kinds + ints[back, KIND]  # who meets the next stage, and who is tied
                        nested = max(facts[label, NESTED], int(inner > 1))
                        alone = parent_shadow == 0 or not proving
                        my_rate = floats[option, RATE]
                        my_tie = floats[back, TIED] if tied_bytes > 0 else 0.0
                        if lost > 0 and nested == 0 and alone and passes_left > 0:
                            played = microbatches
                            if lost == 1 and not proving:
                                played = passes_played(depth, microbatches)
                            passes_left -= played * depth
                            # What one that is there beats already need not be played.
                            beaten = False
                            for other in range(begin, count if dropping and start > 0 else begin):
                                if (
                                    facts[other, ENDS] == ends
                                    and values[other, L] <= new_l
                                    and values[other, A] <= new_a
                                    and values[other, E] <= new_e
                                    and facts[other, DEPTH] <= depth
                                    and facts[other, DEEPEST] >= deepest
                                    and floats[facts[other, OPTION], RATE] >= my_rate
                                    and (tied_bytes == 0 or floats[facts[other, BACK], TIED] >= my_tie)
                                ):
                                    facts[other, SHADOW] = 1
                                    values[other, DEBT] = max(values[other, DEBT], debt)
                                    beaten = True
                                    break
                            if beaten:
                                continue
                            stages, hops = np.empty((depth, 4)), np.zeros(depth)
                            hops[0] = hop
                            for column in range(4):
                                stages[0, column] = times[stage_ptr[option], column]
                            gather(
                                label,
                                place=SECOND,
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
                            work += COST_OF_PASS * played * depth
                            if lost == 1 and not proving:
                                ended, ending = play_ahead(stages, hops, microbatches)
                            else:
                                ended, ending = play(stages, hops, microbatches, lost == 2)
                            new_a = max(new_a, ended[0])
                            new_e = max(new_e, ending)
                            if max(new_e + forward_left, new_a + latency_left) >= room_s:
                                continue
                            bound = max(bound, new_e)
                        shadow, dropped = 0, False
                        # So much later does a round trip more per stages behind make the rest.
                        trips = 1.0 + (repeats / (depth + 1.0) if lost == 1 else 0.0)
                        other = begin
                        while other < count and start > 0 and dropping:
                            work += 1
                            # Fewer stages behind let fewer microbatches run ahead: no better for a bound.
                            if facts[other, ENDS] == ends and (not proving or facts[other, DEPTH] == depth):
                                their_rate = floats[facts[other, OPTION], RATE]
                                their_tie = floats[facts[other, BACK], TIED] if tied_bytes > 0 else 0.0
                                excess = max(
                                    (values[other, L] - new_l) * trips,
                                    values[other, A] - new_a,
                                    values[other, E] - new_e,
                                )
                                if (
                                    excess <= tolerance_s
                                    and facts[other, DEPTH] <= depth
                                    and facts[other, DEEPEST] >= deepest
                                    and their_rate >= my_rate
                                    and their_tie >= my_tie
                                ):
                                    facts[other, SHADOW] = 1
                                    values[other, DEBT] = max(values[other, DEBT], debt + max(excess, 0.0))
                                    dropped = True
                                    break
                                if (
                                    values[other, L] >= new_l
                                    and values[other, A] >= new_a
                                    and values[other, E] >= new_e
                                    and facts[other, DEPTH] >= depth
                                    and facts[other, DEEPEST] <= deepest
                                    and their_rate <= my_rate
                                    and their_tie <= my_tie
                                ):
                                    shadow = 1
                                    debt = max(debt, values[other, DEBT])
                                    count -= 1
                                    moved(values, facts, bounds, count, other)
                                    continue
                            other += 1
                        if dropped:
                            continue
                        values[count, L], values[count, A], values[count, E] = new_l, new_a, new_e
                        values[count, DEBT] = debt
                        facts[count, DEPTH], facts[count, PARENT] = depth, label
                        facts[count, OPTION], facts[count, BACK] = option, back
                        facts[count, DEEPEST] = deepest
                        facts[count, SHADOW] = max(shadow, parent_shadow)
                        facts[count, NESTED], facts[count, ENDS] = nested, ends
                        bounds[count] = bound
                        count += 1
                        if width > 0 and count - begin >= 2 * width:
                            count = narrowed(values, facts, bounds, begin, count, width, edge=edge)
                            work += 4 * width
                    option += 1
                    at_label = -1
                stop += 1
            if width > 0 and count - begin > width:
                count = narrowed(values, facts, bounds, begin, count, width, edge=edge)
            first[start, used], last[start, used] = begin, count
            stop = 0
            used += 1
        used = 1
        start -= 1
    cursor[COUNT], cursor[START], cursor[DONE] = count, start, 1
    cursor[WORK] += work


@njit(cache=True)
def narrowed(
    values: Floats,
    facts: NDArray[np.int32],
    bounds: Floats,
    begin: int,
    count: int,
    width: int,
    edge: Floats,
) -> int:
    """Keep the `width` labels of a state with the smallest bounds; returns the end of the labels."""
    least, most = 0.0, 0.0
    for label in range(begin, count):
        most = max(most, bounds[label])
    for _ in range(40):  # halvings between two bounds of which one keeps too few labels and one enough
        middle = 0.5 * (least + most)
        within = 0
        for label in range(begin, count):
            within += bounds[label] <= middle
        if within >= width:
            most = middle
        else:
            least = middle
    kept, places = begin, width
    for label in range(begin, count):
        places -= bounds[label] <= least
    for label in range(begin, count):
        if bounds[label] <= least or (bounds[label] <= most and places > 0):
            places -= bounds[label] > least
            moved(values, facts, bounds, label, kept)
            kept += 1
        else:
            edge[LEAST_DROPPED] = min(edge[LEAST_DROPPED], bounds[label] - values[label, DEBT])
    edge[WORST_KEPT] = most
    return kept

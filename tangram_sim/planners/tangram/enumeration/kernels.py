"""Compiled loops of the composition: label-setting over (atoms placed, nodes used, stages behind)."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Columns of the label tables.
L, G, SLOWEST = 0, 1, 2
DEPTH, KIND, PARENT, OPTION, DEEPEST = 0, 1, 2, 3, 4


@njit(cache=True)
def _grow_floats(table: Floats) -> Floats:
    larger = np.empty((2 * table.shape[0], table.shape[1]), np.float64)
    larger[: table.shape[0]] = table
    return larger


@njit(cache=True)
def _grow_ints(table: Ints) -> Ints:
    larger = np.empty((2 * table.shape[0], table.shape[1]), np.int64)
    larger[: table.shape[0]] = table
    return larger


@njit(cache=True)
def _states(counts: Ints, strides: Ints, one_by_one: bool) -> Ints:
    """Numbers of nodes used, as digits of one number; `one_by_one`: at most one kind is used in part."""
    size = 1
    for count in counts:
        size *= count + 1
    found, kept = np.empty(size, np.int64), 0
    for used in range(size):
        begun = 0
        for kind in range(len(counts)):
            begun += 0 < (used // strides[kind]) % (counts[kind] + 1) < counts[kind]
        if begun <= 1 or not one_by_one:
            found[kept] = used
            kept += 1
    return found[:kept].copy()


@njit(cache=True)
def compose(
    slice_class: Ints,  # (atoms + 1, atoms + 1): class of atoms [start, stop), -1 none
    option_ptr: Ints,  # (classes + 1): options of a class
    option_floats: Floats,  # (options, 4): slowest, latency, forward, closing
    option_ints: Ints,  # (options, 4): kind, nodes, depth, most stages behind
    counts: Ints,  # (kinds): nodes of each kind
    joint: Ints,  # (joint kinds, kinds): nodes that one unit of each takes; numbered behind the kinds
    hop_s: Floats,  # (all kinds, all kinds): transfer between neighbours, inf where the order forbids it
    work: Floats,  # (atoms + 1): work of atoms [0, i)
    whole_depth: bool,  # stages hold as many microbatches as the pipeline is deep, not as stages stand behind
    repeats: float,  # microbatches - 1
    limit_s: float,  # pipelines that do not end below this are of no interest
    tolerance_s: float,  # labels that another beats but for so little are dropped; 0: none is lost
    one_by_one: bool,  # kinds are used up one after another: never several of them in part
    most_work: int,  # comparisons after which to give up: no labels are returned
) -> Any:
    """Non-dominated ways to place every atom that end below `limit_s`.

    Suffixes of the pipeline are extended to the front (prepending), so the number of stages behind is
    known. A label is (latency L, latency-with-tails G, slowest stage, depth); the objective is
    G + repeats * slowest. A label is dropped when even the best continuation misses the limit: what is left
    needs at least `work / rate` per period on the nodes left, and latency at the rate of the fastest
    option that the nodes left allow. Both bounds are valid, so nothing below the limit is lost.
    Returns label floats (n, 3), label ints (n, 5) and the indices of labels that place everything.
    """
    atoms, kinds = slice_class.shape[0] - 1, len(counts)
    strides = np.ones(kinds, np.int64)
    for kind in range(1, kinds):
        strides[kind] = strides[kind - 1] * (counts[kind - 1] + 1)
    states = _states(counts, strides, one_by_one)  # those that may be used up, in ascending order
    number = np.full(strides[kinds - 1] * (counts[kinds - 1] + 1), -1, np.int32)  # of a state in this list
    for position in range(len(states)):
        number[states[position]] = position
    # G is at least the slowest stage, so every stage of a pipeline below the limit is faster than this.
    bound_s = limit_s / (repeats + 1.0)
    most_nodes = 0
    for kind in range(kinds):
        most_nodes = max(most_nodes, counts[kind])
    period_rate = np.zeros(kinds)  # work per node and second of the slowest stage
    latency_cost = np.full((kinds, most_nodes + 1), np.inf)  # least seconds per work with at most n nodes
    forward_cost = np.full((kinds, most_nodes + 1), np.inf)
    for start in range(atoms):
        for stop in range(start + 1, atoms + 1):
            group = slice_class[start, stop]
            if group < 0:
                continue
            amount = work[stop] - work[start]
            for option in range(option_ptr[group], option_ptr[group + 1]):
                slowest = option_floats[option, 0]
                if slowest >= bound_s:
                    continue
                kind, nodes = option_ints[option, 0], option_ints[option, 1]
                if kind < kinds:
                    period_rate[kind] = max(period_rate[kind], amount / (nodes * slowest))
                else:  # the rates of its members together cover it; it needs so many nodes of the first one
                    taken = joint[kind - kinds] * nodes
                    lacking = amount / slowest - (taken * period_rate).sum()
                    for member in range(kinds):
                        if lacking > 0 and taken[member]:
                            period_rate[member] += lacking / taken.sum()
                    kind = np.nonzero(taken)[0][0]
                    nodes = taken[kind]
                latency_cost[kind, nodes] = min(latency_cost[kind, nodes], option_floats[option, 1] / amount)
                forward_cost[kind, nodes] = min(forward_cost[kind, nodes], option_floats[option, 2] / amount)
    for kind in range(kinds):
        for nodes in range(1, most_nodes + 1):
            latency_cost[kind, nodes] = min(latency_cost[kind, nodes], latency_cost[kind, nodes - 1])
            forward_cost[kind, nodes] = min(forward_cost[kind, nodes], forward_cost[kind, nodes - 1])
    floats = np.empty((4096, 3), np.float64)
    ints = np.empty((4096, 5), np.int64)
    first = np.zeros((atoms + 1, len(states)), np.int64)
    last = np.zeros((atoms + 1, len(states)), np.int64)
    floats[0, L], floats[0, G], floats[0, SLOWEST] = 0.0, 0.0, 0.0
    ints[0, DEPTH], ints[0, KIND], ints[0, PARENT], ints[0, OPTION] = 0, -1, -1, -1
    ints[0, DEEPEST] = np.iinfo(np.int64).max
    last[atoms, 0] = 1
    size, spent = 1, 0
    for start in range(atoms - 1, -1, -1):
        for position in range(1, len(states)):
            used = states[position]
            rate, latency_left, forward_left = 0.0, np.inf, np.inf
            for kind in range(kinds):
                left = counts[kind] - (used // strides[kind]) % (counts[kind] + 1)
                rate += left * period_rate[kind]
                latency_left = min(latency_left, latency_cost[kind, left])
                forward_left = min(forward_left, forward_cost[kind, left])
            if start == 0:
                least_s, latency_left, forward_left = 0.0, 0.0, 0.0
            elif rate <= 0.0:
                continue  # no node left for the atoms left
            else:
                least_s = work[start] / rate * (1 - 1e-9)
                latency_left *= work[start] * (1 - 1e-9)
                forward_left *= work[start] * (1 - 1e-9)
            if least_s >= bound_s or latency_left + repeats * least_s >= limit_s:
                continue
            begin = size
            for stop in range(start + 1, atoms + 1):
                group = slice_class[start, stop]
                if group < 0:
                    continue
                for option in range(option_ptr[group], option_ptr[group + 1]):
                    slowest = option_floats[option, 0]
                    if slowest >= bound_s:
                        continue
                    kind, nodes = option_ints[option, 0], option_ints[option, 1]
                    before = used
                    if kind < kinds:
                        if (used // strides[kind]) % (counts[kind] + 1) < nodes:
                            continue
                        before -= nodes * strides[kind]
                        before = number[before]
                        if before < 0:
                            continue
                    else:
                        for member in range(kinds):
                            wanted = joint[kind - kinds, member] * nodes
                            if (used // strides[member]) % (counts[member] + 1) < wanted:
                                before = -1
                                break
                            before -= wanted * strides[member]
                        if before >= 0:
                            before = number[before]
                        if before < 0:
                            continue
                    if spent > most_work:
                        return floats[:0], ints[:0], np.empty(0, np.int64)
                    for label in range(first[stop, before], last[stop, before]):
                        spent += 2
                        behind = ints[label, DEPTH]
                        if behind > option_ints[option, 3]:
                            continue
                        new_depth = behind + option_ints[option, 2]
                        deepest = ints[label, DEEPEST]  # the deepest whole pipeline that fits so far
                        if whole_depth:
                            deepest = min(deepest, option_ints[option, 2] + option_ints[option, 3])
                            if new_depth > deepest:
                                continue
                        hop = 0.0
                        if ints[label, KIND] >= 0:
                            hop = hop_s[kind, ints[label, KIND]]
                            if hop == np.inf:
                                continue
                        new_l = floats[label, L] + option_floats[option, 1] + 2 * hop
                        new_g = max(
                            floats[label, G] + option_floats[option, 2] + hop,
                            floats[label, L] + option_floats[option, 3] + 2 * hop,
                        )
                        new_slowest = max(floats[label, SLOWEST], slowest)
                        at_least = max(new_g + forward_left, new_l + latency_left)
                        if at_least + repeats * max(least_s, new_slowest) >= limit_s:
                            continue
                        dominated = False
                        other = begin
                        while other < size:
                            spent += 1
                            if ints[other, KIND] == kind:
                                if (
                                    floats[other, L] <= new_l + tolerance_s
                                    and floats[other, G] <= new_g + tolerance_s
                                    and ints[other, DEPTH] <= new_depth
                                    and ints[other, DEEPEST] >= deepest
                                    and repeats * floats[other, SLOWEST]
                                    <= repeats * max(new_slowest, least_s) + tolerance_s
                                ):
                                    dominated = True
                                    break
                                if (
                                    floats[other, L] >= new_l
                                    and floats[other, G] >= new_g
                                    and ints[other, DEPTH] >= new_depth
                                    and ints[other, DEEPEST] <= deepest
                                    and max(floats[other, SLOWEST], least_s) >= new_slowest
                                ):
                                    size -= 1
                                    floats[other] = floats[size]
                                    ints[other] = ints[size]
                                    continue
                            other += 1
                        if dominated:
                            continue
                        if size == len(floats):
                            floats, ints = _grow_floats(floats), _grow_ints(ints)
                        floats[size, L], floats[size, G], floats[size, SLOWEST] = new_l, new_g, new_slowest
                        ints[size, DEPTH], ints[size, KIND] = new_depth, kind
                        ints[size, PARENT], ints[size, OPTION], ints[size, DEEPEST] = label, option, deepest
                        size += 1
            first[start, position], last[start, position] = begin, size
    complete = np.empty((last[0] - first[0]).sum(), np.int64)
    found = 0
    for position in range(len(states)):
        for label in range(first[0, position], last[0, position]):
            complete[found] = label
            found += 1
    return floats[:size], ints[:size], complete


@njit(cache=True)
def undominated(pointers: Ints, floats: Floats, ints: Ints, most: Ints) -> NDArray[np.bool_]:
    """Which options to keep: none of the same class and kind is as good in every quantity with no more nodes.

    Stages behind count only up to what can stand behind the class (`most`). Of equals the first is kept.
    """
    kept = np.ones(len(floats), np.bool_)
    for group in range(len(pointers) - 1):
        for mine in range(pointers[group], pointers[group + 1]):
            behind = min(ints[mine, 3], most[group])
            for other in range(pointers[group], pointers[group + 1]):
                if other == mine or not kept[other] or ints[other, 0] != ints[mine, 0]:
                    continue
                if ints[other, 1] > ints[mine, 1] or ints[other, 2] > ints[mine, 2]:
                    continue
                if min(ints[other, 3], most[group]) < behind:
                    continue
                if (
                    floats[other, 0] <= floats[mine, 0]
                    and floats[other, 1] <= floats[mine, 1]
                    and floats[other, 2] <= floats[mine, 2]
                    and floats[other, 3] <= floats[mine, 3]
                ):
                    kept[mine] = False
                    break
    return kept

"""Chains of atoms' programs as one op graph, simulated for K layouts."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.program import (
    BEFORE_PREVIOUS,
    CLASSES,
    CLOSING,
    DATA,
    HOST,
    PREVIOUS,
    STREAMS,
    Program,
    Shape,
)
from tangram_sim.opgraph import IntArray, OpGraph, column, op_graph
from tangram_sim.sim.fast import repeating

# Groups of ops: what a pass waits for, gradient synchronisation, that at the end of a step, the rest.
_PASS, _GRADIENTS, _CLOSING, _BACKGROUND = 0, 1, 2, -1


class Played(NamedTuple):
    """End times of a simulated chain after each atom, in the order played. Arrays of (atoms, K), seconds."""

    done: Floats  # the pass itself
    synced: Floats  # the pass and its gradient synchronisation, were this the last atom; 0 where none has any
    closed: Floats  # the same at the end of a step, of programs that stand for both backward passes


class _Structure(NamedTuple):
    graph: OpGraph  # durations zero
    source: IntArray  # which of the distinct programs' ops, counted through, each op is
    group: IntArray
    groups: frozenset[int]  # that there are
    last: IntArray  # index of each atom's last op
    atom: IntArray  # place of each op's atom in the chain
    repeats: IntArray  # where atoms repeat: see `repeating`


@lru_cache(maxsize=1024)
def _structure(shapes: tuple[Shape, ...], order: tuple[int, ...]) -> _Structure:
    """Op graph of a chain: the programs `shapes[i]` for i in `order`, one after another."""
    offsets = np.concatenate([[0], np.cumsum([len(ops) for ops, _ in shapes])])
    placed = _issue_order(shapes, order)
    index_of = {op: index for index, op in enumerate(placed)}
    resource: list[int] = []
    kind: list[int] = []
    group: list[int] = []
    source: list[int] = []
    pointers, predecessors = [0], list[int]()
    last = [0] * len(order)
    for place, number in placed:
        stream, op_kind, after, gradients = shapes[order[place]][0][number]
        last[place] = len(resource)
        resource.append(stream)
        kind.append(op_kind)
        synchronises = _CLOSING if stream == CLOSING else _GRADIENTS
        group.append(synchronises if gradients else _BACKGROUND if stream in (DATA, HOST) else _PASS)
        source.append(int(offsets[order[place]]) + number)
        for other in after:
            back = {PREVIOUS: 1, BEFORE_PREVIOUS: 2}.get(other, 0)
            if place >= back:
                target = shapes[order[place - back]][1] if back else other
                predecessors.append(index_of[place - back, target])
        pointers.append(len(predecessors))
    graph = op_graph(
        resource=resource,
        duration_s=np.zeros(len(resource)),
        pred_ptr=pointers,
        pred=predecessors,
        resources=STREAMS,
        kind=kind,
        kinds=CLASSES,
    )
    atoms = [place for place, _ in placed]
    sources, groups, lasts, atom = (column(values, np.int32) for values in (source, group, last, atoms))
    repeats = repeating(graph, sources, groups, lasts)
    return _Structure(
        graph=graph,
        source=sources,
        group=groups,
        groups=frozenset(group),
        last=lasts,
        atom=atom,
        repeats=repeats,
    )


def _issue_order(shapes: tuple[Shape, ...], order: tuple[int, ...]) -> list[tuple[int, int]]:
    """(position in the chain, op of its program) of every op in issue order.

    Program after program, except that an atom's weights are gathered before the gradients of the atom in
    front of it are reduced: prefetching, without which a ZeRO-3 backward would overlap nothing.
    """
    placed: list[tuple[int, int]] = []
    for place, number in enumerate(order):
        ops = shapes[number][0]
        ahead = [index for index, op in enumerate(ops) if op[0] == DATA and op[2] == (BEFORE_PREVIOUS,)]
        cut = len(placed)
        while cut and placed[cut - 1][0] == place - 1 and shapes[order[place - 1]][0][placed[cut - 1][1]][3]:
            cut -= 1
        placed[cut:cut] = [(place, index) for index in ahead]
        placed += [(place, index) for index in range(len(ops)) if index not in ahead]
    return placed


class _Joined(NamedTuple):
    """Programs to be simulated one after another: the distinct ones, and the sequence of their numbers."""

    distinct: list[Program]
    order: tuple[int, ...]
    structure: _Structure
    durations: Floats  # of the distinct programs' ops, (ops, K)


def _join(programs: Sequence[Program]) -> _Joined:
    distinct = {id(program): program for program in programs}
    numbers = {key: number for number, key in enumerate(distinct)}
    order = tuple(map(numbers.__getitem__, map(id, programs)))
    structure = _structure(tuple(program.shape for program in distinct.values()), order)
    durations = np.concatenate([program.table for program in distinct.values()])
    return _Joined(list(distinct.values()), order, structure, durations)


def play_chain(programs: Sequence[Program]) -> Played:
    """Simulate programs in sequence with the fast engine, for all layouts at once."""
    from tangram_sim.sim.fast import latest_ends  # compiled code: loaded when something is played

    distinct, order, structure, durations = _join(programs)
    ends = latest_ends(
        structure.graph,
        structure.source,
        durations,
        group=structure.group,
        groups=3,
        marks=structure.last,
        repeats=structure.repeats,
    )
    done, reduced, closed = ends[_PASS], ends[_GRADIENTS], ends[_CLOSING]
    places = list(order)
    if _GRADIENTS in structure.groups:
        seconds = np.array([program.gradients for program in distinct])
        reduced = _behind(done, reduced, seconds[places])
    if _CLOSING in structure.groups:
        # ZeRO-3 synchronises gradients on the link of other things, and after every pass alike.
        both = np.maximum(ends[_GRADIENTS], closed)
        at_end = [program.gradients if program.closing is None else program.closing for program in distinct]
        closed = _behind(done, both, np.array(at_end)[places])
    return Played(done, reduced, closed)


def _behind(done: Floats, reduced: Floats, gradients: Floats) -> Floats:
    """End times of the gradient synchronisation if each atom were the last, (atoms, K).

    Nothing is prefetched behind the last atom, so its gradients wait only for itself and those before.
    """
    ends = done.copy()
    np.maximum(ends[1:], reduced[:-1], out=ends[1:])
    ends += gradients
    return ends


def class_seconds(programs: Sequence[Program]) -> Floats:
    """Seconds of each class of ops on the critical path of programs simulated in sequence, (K, CLASSES).

    The path leads to the end of the pass or of its gradient synchronisation, whichever is later.
    """
    from tangram_sim.sim.fast import path_totals

    _, _, structure, durations = _join(programs)
    graph = structure.graph
    counted = structure.group != _BACKGROUND
    return path_totals(graph, structure.source, durations.T, graph.kind, len(CLASSES), counted)

"""Atoms' programs joined into one op graph of a slice, and what playing it for K layouts gives."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from tangram_sim.cost.kernels import Floats
from tangram_sim.lowering.program import BEFORE_PREVIOUS, CLASSES, DATA, HOST, PREVIOUS, STREAMS, Program
from tangram_sim.opgraph import IntArray, OpGraph, column, op_graph

GRADIENTS = "gradients"  # the op that synchronises an atom's gradients; nothing inside the pass waits for it

# What of a program decides the structure of a chain: (stream, kind, predecessors, is gradients) of every op, and the output.
Shape: TypeAlias = tuple[tuple[tuple[int, int, tuple[int, ...], bool], ...], int]

_PASS, _GRADIENTS, _BACKGROUND = 0, 1, -1  # groups of ops: what a pass waits for, gradient synchronisation, the rest


class Played(NamedTuple):
    """Ends of a played chain behind each atom, in the order played. Arrays of (K, atoms)."""

    done: Floats  # the pass itself
    synced: Floats  # gradient synchronisation so far; 0 where there is none


class _Structure(NamedTuple):
    graph: OpGraph  # durations zero
    source: IntArray  # which of the distinct programs' ops, counted through, each op is
    group: IntArray
    last: IntArray  # index of each atom's last op


def _shape(program: Program) -> Shape:
    return tuple((op.stream, op.kind, op.after, op.name == GRADIENTS) for op in program.ops), program.output


@lru_cache(maxsize=1024)
def _structure(shapes: tuple[Shape, ...], order: tuple[int, ...]) -> _Structure:
    """Programs number `order` of the distinct `shapes` joined one after another."""
    offsets = np.concatenate([[0], np.cumsum([len(ops) for ops, _ in shapes])])
    resource: list[int] = []
    kind: list[int] = []
    group: list[int] = []
    source: list[int] = []
    pointers, predecessors = [0], list[int]()
    outputs: list[int] = []
    last: list[int] = []
    for number in order:
        ops, output = shapes[number]
        base = len(resource)
        for index, (stream, op_kind, after, gradients) in enumerate(ops):
            resource.append(stream)
            kind.append(op_kind)
            group.append(_GRADIENTS if gradients else _BACKGROUND if stream in (DATA, HOST) else _PASS)
            source.append(int(offsets[number]) + index)
            for other in after:
                if other >= 0:
                    predecessors.append(base + other)
                elif other == PREVIOUS and outputs:
                    predecessors.append(outputs[-1])
                elif other == BEFORE_PREVIOUS and len(outputs) > 1:
                    predecessors.append(outputs[-2])
            pointers.append(len(predecessors))
        outputs.append(base + output)
        last.append(len(resource) - 1)
    graph = op_graph(
        resource=resource,
        duration_s=np.zeros(len(resource)),
        pred_ptr=pointers,
        pred=predecessors,
        resources=STREAMS,
        kind=kind,
        kinds=CLASSES,
    )
    return _Structure(graph, *(column(values, np.int32) for values in (source, group, last)))


def _join(programs: Sequence[Program]) -> tuple[_Structure, Floats]:
    """The structure of programs played one after another, and durations (K, distinct ops)."""
    distinct = {id(program): program for program in programs}
    numbers = {key: number for number, key in enumerate(distinct)}
    structure = _structure(
        tuple(_shape(program) for program in distinct.values()), tuple(numbers[id(program)] for program in programs)
    )
    durations = np.stack([op.seconds for program in distinct.values() for op in program.ops], axis=1)
    return structure, durations


def play_chain(programs: Sequence[Program]) -> Played:
    """Play programs in sequence under the fast engine, for all layouts at once."""
    from tangram_sim.sim.fast import latest_ends  # compiled code: loaded when something is played

    structure, durations = _join(programs)
    ends = latest_ends(structure.graph, structure.source, durations, structure.group, 2, structure.last)
    return Played(ends[:, _PASS], ends[:, _GRADIENTS])


def chain_graph(programs: Sequence[Program], names: Sequence[str], layout: int = 0) -> OpGraph:
    """The op graph of one layout of the chain, labelled for people: what a slice looks like inside."""
    structure, durations = _join(programs)
    labels = [f"{name}: {op.name}" for name, program in zip(names, programs, strict=True) for op in program.ops]
    graph = structure.graph
    return op_graph(
        resource=graph.resource,
        duration_s=durations[layout, structure.source],
        pred_ptr=graph.pred_ptr,
        pred=graph.pred,
        resources=STREAMS,
        kind=graph.kind,
        kinds=CLASSES,
        label=labels.__getitem__,
    )

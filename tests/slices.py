"""What a slice of a stage looks like inside, as an op graph of one layout."""

from collections.abc import Sequence

from tangram_sim.layers.chain import _join
from tangram_sim.layers.program import CLASSES, STREAMS, Program
from tangram_sim.opgraph import OpGraph, op_graph


def chain_graph(programs: Sequence[Program], names: Sequence[str], layout: int = 0) -> OpGraph:
    """The op graph of one layout of the chain, labelled for people: what a slice looks like inside."""
    distinct, _, structure, durations = _join(programs)
    ops = [op.name for program in distinct for op in program.ops]
    labels = [
        f"{names[atom]}: {ops[source]}" for atom, source in zip(structure.atom, structure.source, strict=True)
    ]
    graph = structure.graph
    return op_graph(
        resource=graph.resource,
        duration_s=durations[structure.source, layout],
        pred_ptr=graph.pred_ptr,
        pred=graph.pred,
        resources=STREAMS,
        kind=graph.kind,
        kinds=CLASSES,
        label=labels.__getitem__,
    )

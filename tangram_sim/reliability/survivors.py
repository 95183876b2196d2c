"""Replicas of a plan that survive losses of nodes, and liveput over random losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from tangram_sim.training.plan import Part, Plan, Stage

_DRAWS = 1024  # orders in which nodes go, the same for every plan
_REST = 1e-6  # of the losses' distribution that is put on its last count


@dataclass(frozen=True, slots=True)
class PipelineNodes:
    """One pipeline: its share of the plan's samples, and for every stage the nodes of each replica."""

    share: float
    stages: tuple[tuple[frozenset[int], ...], ...]


def replicas_on_nodes(plan: Plan, node_of: Sequence[int]) -> tuple[PipelineNodes, ...]:
    """For every pipeline and stage of a plan, the replicas, each as the set of nodes that it needs."""
    sequences = [item.microbatches * item.microbatch for item in plan.pipelines]
    return tuple(
        PipelineNodes(count / sum(sequences), tuple(_replicas(stage, node_of) for stage in pipeline.stages))
        for pipeline, count in zip(plan.pipelines, sequences, strict=True)
    )


def _replicas(stage: Stage, node_of: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Replicas of a stage: those of all its parts that process sequences."""
    taking = [part for part in stage.parts if part.sequences_per_microbatch] or list(stage.parts)
    return tuple(nodes for part in taking for nodes in _of_part(part, node_of))


def _of_part(part: Part, node_of: Sequence[int]) -> list[frozenset[int]]:
    dp = part.layouts[0].layout.dp
    size = len(part.ranks) // dp
    return [
        frozenset(node_of[rank] for rank in part.ranks[first : first + size])
        for first in range(0, size * dp, size)
    ]


def lost_with_each(pipelines: Sequence[PipelineNodes], nodes: Sequence[int]) -> tuple[float, ...]:
    """Share of the speed lost with each of `nodes` alone; 1: every replica of some stage needs the node."""
    return tuple(
        sum(
            pipeline.share
            * max(sum(node in held for held in replicas) / len(replicas) for replicas in pipeline.stages)
            for pipeline in pipelines
        )
        for node in nodes
    )


def left_after(pipelines: Sequence[PipelineNodes], nodes: int, most: int) -> list[float]:
    """Expected share of the speed left after losing 0, 1, ... `most` of `nodes`, all sets equally likely.

    No node changes its stage: a pipeline keeps the share of live replicas in the stage with the lowest share.
    Sampled over orders of losses, which are the same for every plan on this number of nodes.
    """
    draw = np.random.default_rng(0)
    orders = np.argsort(draw.random((_DRAWS, nodes)), axis=1)  # [draws, nodes]: who goes when
    when = np.argsort(orders, axis=1)  # [draws, nodes]: at which place of the order a node goes
    found = np.zeros(most + 1)
    for pipeline in pipelines:
        least = np.full((_DRAWS, most + 1), np.inf)
        for replicas in pipeline.stages:
            first = np.stack([when[:, sorted(held)].min(axis=1) for held in replicas])  # [replicas, draws]
            alive = (first[:, :, None] >= np.arange(most + 1)).mean(axis=0)  # [draws, lost]
            least = np.minimum(least, alive)
        found += pipeline.share * least.mean(axis=0)
    return [float(value) for value in found]


def poisson(mean: float, most: int) -> list[float]:
    """Probabilities of 0, 1, ... losses; the last entry collects all beyond `most` and negligible tails."""
    chances, term, left = list[float](), exp(-mean), 1.0
    for count in range(most):
        chances.append(term)
        left -= term
        if left < _REST:
            break
        term *= mean / (count + 1)
    return [*chances, max(left, 0.0)]


def liveput_share(pipelines: Sequence[PipelineNodes], nodes: int, losses: float) -> float:
    """Share of its speed that a plan keeps, on average over a Poisson number of losses with mean `losses`."""
    chances = poisson(losses, nodes)
    left = left_after(pipelines, nodes, len(chances) - 1)
    return sum(chance * share for chance, share in zip(chances, left, strict=True))

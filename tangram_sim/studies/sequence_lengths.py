"""Time of passes whose sequences differ in length, from the share of attention."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import FloatArray, OpGraph
from tangram_sim.studies.forecast import Forecast
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.ideal import model_flop

_PASSES = ("F", "B", "W")
_QUADRATIC = "attention"  # the class of kernels whose work grows with the square of a sequence


def with_lengths(graph: OpGraph, healthy: Forecast, sequences: Sequence[Sequence[int]]) -> OpGraph:
    """The step's ops, with each pass scaled to the lengths of its microbatch's sequences.

    `sequences`: tokens of the sequences in each microbatch, pipeline by pipeline. `healthy`: the plan
    simulated with full sequences, which gives the share of attention. Attention scales with the sum of
    squared lengths, all else with the tokens; transfers keep their size. Raises `BadInputError` for another
    number of microbatches.
    """
    plan, lowered = healthy.plan, healthy.lowered
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    if len(sequences) != sum(counts):
        raise BadInputError(
            f"sequences of {len(sequences)} microbatches; the plan has {sum(counts)} "
            f"({' + '.join(map(str, counts))}): give one line each, pipeline by pipeline"
        )
    single = len(lowered.steps) == 1
    step = np.zeros(len(graph), np.int32) if single else lowered.step_of
    stage = lowered.steps[0].template.stage if single else lowered.stage_of
    microbatch = lowered.microbatch_of
    factors = np.ones(len(graph))
    passes = np.isin(np.array(graph.kinds)[graph.kind], _PASSES)
    first = np.cumsum([0, *counts])
    for (pipeline, place), share in _attention(healthy).items():
        here = passes & (step == pipeline) & (stage == place)
        longer = _longer(plan, pipeline, share, sequences[first[pipeline] : first[pipeline + 1]])
        factors[here] = longer[microbatch[here]]
    return graph.with_durations(graph.duration_s * factors)


def _attention(healthy: Forecast) -> dict[tuple[int, int], float]:
    """Attention's share of the time of a stage's passes, by (pipeline, stage); the largest over its parts."""
    found: dict[tuple[int, int], float] = {}
    for seat, shares in zip(healthy.seats, healthy.inside, strict=True):
        total = sum(share.seconds for share in shares)
        mine = sum(share.seconds for share in shares if share.cause == _QUADRATIC) / total if total else 0.0
        key = (seat.pipeline, seat.stage)
        found[key] = max(found.get(key, 0.0), mine)
    return found


def _longer(plan: Plan, pipeline: int, attention: float, sequences: Sequence[Sequence[int]]) -> FloatArray:
    """Time of each microbatch's pass over that with full sequences, [microbatches]."""
    full = plan.pipelines[pipeline].microbatch
    tokens = np.array([sum(held) for held in sequences], dtype=np.float64) / (full * plan.job.seq)
    squares = np.array([sum(n * n for n in held) for held in sequences], dtype=np.float64)
    return np.asarray((1 - attention) * tokens + attention * squares / (full * plan.job.seq**2))


class StepShares(NamedTuple):
    """Ratios of a step with sequences of given lengths to a step with full sequences."""

    tokens: float
    flop: float  # that the model needs, the numerator of MFU
    least_work: float  # passes take at least this share of their time, whatever attention takes of it


def step_shares(plan: Plan, sequences: Sequence[Sequence[int]], hwdb: Hwdb) -> StepShares:
    """Ratios for `sequences`, the tokens of each sequence, microbatch by microbatch."""
    job = plan.job
    gpu = plan.cluster.groups[0].node.gpu  # operations are the same on any
    lengths = Counter(length for held in sequences for length in held)
    flop = sum(
        many * model_flop(plan.model, replace(job, global_batch=1, seq=length), gpu, hwdb)
        for length, many in lengths.items()
    )
    linear = sum(many * length for length, many in lengths.items()) / job.tokens
    least = sum(
        min(sum(held) / job.seq, sum(length**2 for length in held) / job.seq**2) for held in sequences
    )
    return StepShares(
        linear, flop / model_flop(plan.model, job, gpu, hwdb), min(1.0, least / job.global_batch)
    )

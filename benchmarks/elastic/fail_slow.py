"""Gains of remedies for slow phases; computed where a row says how slow the ranks were."""

import re

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.reliability.stragglers.replicas import split_microbatches

_SEVERITY = re.compile(r"\bx\s*=\s*(\d+(?:\.\d+)?)")
_REPLICAS = re.compile(r"one slow replica of (\d+)")
# Enough that a split into whole microbatches comes near its limit.
_MICROBATCHES_PER_REPLICA = 1024


def compute(figure: Figure, data: Data) -> Answer:
    """The gain of sharing out microbatches again, where replicas and severity are given."""
    severity = _SEVERITY.search(f"{figure.setting} {figure.metric} {figure.inputs}")
    replicas = _REPLICAS.search(figure.metric)
    if severity is None:
        raise RefusedError("the severity that was injected is not given (x = ...): nothing to compute from")
    if replicas is None:
        raise RefusedError("only microbatch re-splits over replicas are computed")
    slow = [float(severity[1]), *[1.0] * (int(replicas[1]) - 1)]
    counts = split_microbatches(slow, _MICROBATCHES_PER_REPLICA * len(slow))
    return Answer(slow[0] * _MICROBATCHES_PER_REPLICA / max(n * x for n, x in zip(counts, slow, strict=True)))

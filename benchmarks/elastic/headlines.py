"""One system over another, "up to": our policies on the shipped tables and traces. Direction only.

Published ratios are those of the authors' own clusters; what is computed is the largest ratio of the policies
that stand for the systems over the shipped replays, and whether the first leads all others in the median one.
"""

import re
from collections.abc import Iterator, Sequence
from math import inf
from statistics import median

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from benchmarks.elastic.node_losses import average
from tangram_sim.reliability.spot.speeds import read_speeds
from tangram_sim.reliability.spot.tracefile import read_trace
from tangram_sim.reliability.spot.transitions import read_transitions
from tangram_sim.studies.replaying import ReplayQuestion, outcomes

_OVER = re.compile(r"(\w+) over (\w+), up to")
SYSTEMS = {
    "ReCycle": "reroute",
    "Oobleck": "templates",
    "Bamboo": "redundancy",
    "Varuna": "restart",
    "Parcae": "hold",
}
_RIVALS: dict[str, tuple[str, ...]] = {name: (policy,) for name, policy in SYSTEMS.items()}
_RIVALS["others"] = ("redundancy", "restart")  # those that Parcae was held against: Bamboo and Varuna
_NODE_MODELS = ("BERT-large", "GPT-2", "GPT-3-medium", "GPT-3-2.7B", "GPT-3-6.7B")
_NODE_TRACES = ("every_6h", "every_3h", "every_1h", "every_30m", "every_10m")
_BY_NODES = ("templates", "restart", "redundancy")
_LAYOUT_MODELS = ("gpt-1.5b", "gpt-6.7b", "bert")


def compute(figure: Figure, data: Data) -> Answer:
    """The largest ratio over the least of the others; within where the median over the best is above 1."""
    named = _OVER.fullmatch(figure.metric)
    if named is None or named[1] not in SYSTEMS or named[2] not in _RIVALS:
        raise RefusedError(
            "how slow its ranks were made is not published"
            if "gain" in figure.metric
            else f"no policies stand for {figure.metric!r}; known: {', '.join(SYSTEMS)}"
        )
    first, others = SYSTEMS[named[1]], _RIVALS[named[2]]
    by_nodes = {first, *others} <= set(_BY_NODES)
    ratios = list((_by_nodes if by_nodes else _by_layouts)(first, others, data))
    found = max((most for most, _ in ratios if most < inf), default=0.0)
    leads = bool(ratios) and median(least for _, least in ratios) > 1.0
    where = "node tables" if by_nodes else "layout tables"
    return Answer(found, leads, note=f"direction only: {first} on {len(ratios)} replays of {where}")


def _by_nodes(first: str, others: Sequence[str], data: Data) -> Iterator[tuple[float, float]]:
    """Ratios over models and constant losses, from measured speeds by number of nodes."""
    for model in _NODE_MODELS:
        for trace in _NODE_TRACES:
            ours, *theirs = (average(model, trace, policy, data)[0] for policy in (first, *others))
            if ours > 0:
                yield _over(ours, min(theirs)), _over(ours, max(theirs))


def _by_layouts(first: str, others: Sequence[str], data: Data) -> Iterator[tuple[float, float]]:
    """Ratios over models on a measured history of spot nodes; of the others, those that can run there."""
    history = read_trace(data.path("traces/spot_p3_parcae.csv"))
    for model in _LAYOUT_MODELS:
        speeds = read_speeds(data.path("policies/parcae_throughput.csv"), model)
        costs, _ = read_transitions(data.path("policies/parcae_migration_costs.csv"), model)
        found, _ = outcomes(ReplayQuestion(history, speeds, costs), [first, *others])
        theirs = [found[name].samples for name in others if name in found]
        if first in found and theirs:
            yield _over(found[first].samples, min(theirs)), _over(found[first].samples, max(theirs))


def _over(ours: float, theirs: float) -> float:
    return ours / theirs if theirs > 0 else inf

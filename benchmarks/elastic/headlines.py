"""One system over another, "up to": our policies on the shipped tables and traces. Direction only.

Published ratios are those of the authors' own clusters; what is computed is the largest ratio of the policies
that stand for the systems over the shipped replays, and whether it leads at all.
"""

import re
from collections.abc import Iterator
from math import inf

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from benchmarks.elastic.node_losses import average
from tangram_sim.reliability.spot.speeds import read_speeds
from tangram_sim.reliability.spot.tracefile import read_trace
from tangram_sim.reliability.spot.transitions import read_transitions
from tangram_sim.studies.replaying import POLICIES, ReplayQuestion, outcomes

_OVER = re.compile(r"(\w+) over (\w+), up to")
SYSTEMS = {
    "ReCycle": "reroute",
    "Oobleck": "templates",
    "Bamboo": "redundancy",
    "Varuna": "restart",
    "Parcae": "hold",
    "others": "",
}
_NODE_MODELS = ("BERT-large", "GPT-2", "GPT-3-medium", "GPT-3-2.7B", "GPT-3-6.7B")
_NODE_TRACES = ("every_6h", "every_3h", "every_1h", "every_30m", "every_10m")
_BY_NODES = ("templates", "restart", "redundancy")
_LAYOUT_MODELS = ("gpt-1.5b", "gpt-6.7b", "bert")


def compute(figure: Figure, data: Data) -> Answer:
    """The largest ratio; within where it leads."""
    named = _OVER.fullmatch(figure.metric)
    unknown = [name for name in named.groups() if name not in SYSTEMS] if named else []
    if named is None or unknown:
        raise RefusedError(
            "how slow its ranks were made is not published"
            if "gain" in figure.metric
            else f"no policy stands for {', '.join(unknown) or 'this'}; known: {', '.join(SYSTEMS)}"
        )
    first, second = (SYSTEMS[name] for name in named.groups())
    both_by_nodes = first in _BY_NODES and second in _BY_NODES
    ratios = list((_by_nodes if both_by_nodes else _by_layouts)(first, second, data))
    found = max((ratio for ratio in ratios if ratio < inf), default=0.0)
    where = "node tables" if both_by_nodes else "layout tables"
    return Answer(found, found > 1.0, note=f"direction only: {first} on {len(ratios)} replays of {where}")


def _by_nodes(first: str, second: str, data: Data) -> Iterator[float]:
    """Ratios over models and constant losses, from measured speeds by number of nodes."""
    for model in _NODE_MODELS:
        for trace in _NODE_TRACES:
            ours, theirs = (average(model, trace, policy, data)[0] for policy in (first, second))
            if ours > 0:
                yield ours / theirs if theirs > 0 else inf


def _by_layouts(first: str, second: str, data: Data) -> Iterator[float]:
    """Ratios over models on a measured history of spot nodes; without a second one over the least of all."""
    history = read_trace(data.path("traces/spot_p3_parcae.csv"))
    for model in _LAYOUT_MODELS:
        speeds = read_speeds(data.path("policies/parcae_throughput.csv"), model)
        costs, _ = read_transitions(data.path("policies/parcae_migration_costs.csv"), model)
        names = [first, second] if second else [name for name in POLICIES if name != "wait"]
        found, _ = outcomes(ReplayQuestion(history, speeds, costs), names)
        others = [one.samples for name, one in found.items() if name != first and one.samples > 0]
        if first in found and others:
            yield found[first].samples / min(others)

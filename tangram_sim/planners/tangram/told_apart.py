"""Limits on the islands and nodes that a composition distinguishes: states grow as a product over islands."""

from collections.abc import Sequence
from math import prod

from tangram_sim.clusters import Island
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.planners.api import Scored
from tangram_sim.training.plan import Plan


def node_units(islands: Sequence[Island], most_states: int) -> tuple[int, ...]:
    """Size of each island's groups of nodes so that the composition has at most `most_states` states.

    Every island keeps at least one group: with very many islands some have to be left out (`likeliest`).
    """
    units = [1] * len(islands)
    while prod(island.nodes // unit + 1 for island, unit in zip(islands, units, strict=True)) > most_states:
        widest = max(range(len(islands)), key=lambda kind: islands[kind].nodes // units[kind])
        if islands[widest].nodes // units[widest] == 1:
            break
        units[widest] *= 2
    # As many groups of more nodes, where that strands fewer: 7 by 4 would leave 3.
    return tuple(item.nodes // (item.nodes // unit) for item, unit in zip(islands, units, strict=True))


def in_units(nodes: int, unit: int) -> tuple[int, ...]:
    """Numbers of nodes of an island's parts in steps of `unit`; the last also includes the remainder."""
    return (*range(unit, nodes - nodes % unit, unit), nodes)


def likeliest(work: Sequence[float], most_states: int) -> tuple[int, ...]:
    """Indices of the islands with most `work`, ascending; 2 to their number is at most `most_states`.

    `work`: of every island.
    """
    most = max(most_states.bit_length() - 1, 1)
    ordered = sorted(range(len(work)), key=lambda kind: (-work[kind], kind))
    return tuple(sorted(ordered[:most]))


IN_GROUPS = declare(
    "nodes-in-groups",
    Severity.NOTE,
    "nodes are taken in groups ({groups:listed}): stages that split a group were not searched",
)


def in_groups(islands: Sequence[Island], units: Sequence[int]) -> Finding:
    """Finding: nodes were taken in groups of `units`, one number per island, so plans were left out."""
    taken = [
        f"{island.name} by {unit}" + (f", the last {island.nodes % unit} more" if island.nodes % unit else "")
        for island, unit in zip(islands, units, strict=True)
        if unit > 1
    ]
    return IN_GROUPS(groups=taken)


def spans(scored: Scored, islands: Sequence[Island]) -> bool:
    """Whether a plan is a single pipeline with a stage outside these islands or on several parts."""
    known = {island.name for island in islands}
    first = scored.plan.pipelines[0]
    return len(scored.plan.pipelines) == 1 and any(
        len(stage.parts) > 1 or stage.parts[0].island not in known for stage in first.stages
    )


def used_islands(islands: Sequence[Island], plan: Plan) -> tuple[int, ...]:
    """Indices of the islands on which a plan uses any GPU."""
    busy, first = plan.ranks, plan.cluster.first_rank
    return tuple(
        kind
        for kind, island in enumerate(islands)
        if any(not busy.isdisjoint(range(*first[node : node + 2])) for node in island.node_indices)
    )

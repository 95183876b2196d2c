"""Selects islands of a large cluster, few enough to be searched node by node next to patterns.

Patterns repeat: where islands are many and small, or some are better left idle, a single pipeline over some
of them may be faster than copies over all. A request without the idle islands would be searched node by node
as soon as the islands are few, so the search over all islands includes that, too.
"""

from collections.abc import Sequence

from tangram_sim.clusters import Island
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.planners.tangram.fleet_budget import FleetBudget
from tangram_sim.planners.tangram.told_apart import node_units, used_islands
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import puts_off_weights


def few_apart(
    islands: Sequence[Island], work: Sequence[float], plan: Plan, budget: FleetBudget
) -> tuple[Island, ...]:
    """Islands few enough to search by node: those the plan uses, if few enough, then those of most `work`."""
    used = used_islands(islands, plan)
    first = () if budget.is_large([islands[kind].nodes for kind in used]) else used
    kept: list[int] = []
    for kind in sorted(range(len(islands)), key=lambda kind: (kind not in first, -work[kind], kind)):
        if not budget.is_large([islands[item].nodes for item in (*kept, kind)]):
            kept.append(kind)
    return tuple(islands[kind] for kind in sorted(kept))


def looks_apart(
    islands: Sequence[Island], work: Sequence[float], plan: Plan | None, budget: FleetBudget
) -> list[tuple[Island, ...]]:
    """One set of few islands to search besides copies (composing many takes far longer); [] without a plan.

    Under `zb-h1` also all islands, in groups of nodes, since the time of copies is only estimated there.
    """
    if plan is None:
        return []
    some = few_apart(islands, work, plan, budget)
    grouped = puts_off_weights(plan.job.schedule) and 2 ** len(islands) <= budget.states
    return [fromkey for fromkey in dict.fromkeys((some, tuple(islands) if grouped else ())) if fromkey]


NODE_BY_NODE = declare(
    "gain-node-by-node",
    Severity.DETAIL,
    "{islands:listed} node by node: {gain:percent1} faster than copies of patterns",
)
ALL_IN_GROUPS = declare(
    "gain-in-groups",
    Severity.DETAIL,
    "all islands, nodes in groups: {gain:percent1} faster than the best so far",
)


def gain_apart(islands: Sequence[Island], budget: FleetBudget, step_s: float, others_s: float) -> Finding:
    """Finding: the gain of searching these islands by node or by group over the best step before."""
    kind = ALL_IN_GROUPS if max(node_units(islands, budget.states)) > 1 else NODE_BY_NODE
    return kind(islands=[island.name for island in islands], gain=1 - step_s / others_s)

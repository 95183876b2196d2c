"""Some islands of a large cluster, few enough to tell their nodes apart beside copies of patterns.

Patterns repeat: where islands are many and small, or some are better left out, a single pipeline over some of
them may be faster than any copies over all. A question without the islands that a plan leaves idle is
answered node by node as soon as they are few; so they are looked at here, too.
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
    """Islands that are few enough: those that the plan uses, if they are, then those that do most `work`."""
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
    """Sets of islands to look at beside a plan of copies: some few; under `zb-h1` all, in groups of nodes.

    What copies take is only estimated there. Of many islands composing all takes far longer than copies do.
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
    """What a look at these islands gained over the best found before it."""
    kind = ALL_IN_GROUPS if max(node_units(islands, budget.states)) > 1 else NODE_BY_NODE
    return kind(islands=[island.name for island in islands], gain=1 - step_s / others_s)

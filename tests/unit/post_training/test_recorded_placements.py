"""Placement of roles on small fleets: plans, bounds, rules of others and work counted, as recorded."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tangram_sim.hwdb import load_cluster
from tangram_sim.post_training.overheads import load_overheads
from tangram_sim.rl_planners.baselines import baselines
from tangram_sim.rl_planners.problem import RlProblem
from tangram_sim.rl_planners.search import RlSearch
from tangram_sim.studies.rl_plan import in_words
from tests.records import HWDB, hold
from tests.unit.post_training.setups import work


def placed(fleet: str, staleness: int) -> dict[str, Any]:
    """A search, and what other rules choose."""
    step = work(16, 4, 400, 1600)
    search = RlSearch(RlProblem(step, load_cluster(fleet, HWDB), HWDB, load_overheads(HWDB), staleness))
    found = search.run()
    rules = {rule.name: rule.plan(search.problem, search.pools, search.judge) for rule in baselines()}
    return {
        "bound": found.bound_s,
        "plans": found.plans,
        "ranked": {in_words(outcome.plan): outcome.step_s for outcome in (found.best, *found.ranked)},
        "curve": [(point.training, point.step_s) for point in found.curve],
        "kinds": [(kind.kind, kind.trains, kind.generates, kind.token_s) for kind in found.kinds],
        "rules": {
            name: [in_words(plan), search.judge.step_s(plan)] if plan else None
            for name, plan in rules.items()
        },
    }


def placements() -> dict[str, Callable[[], dict[str, Any]]]:
    """Two kinds that are alike and two that are not, on policy and off."""
    fleets = (("H800-SXM5-80GBx8:2+H20-96GBx8:1", 3), ("A100-SXM4-80GBx8:1+L40Sx8:2", 0))
    return {f"{fleet}, {staleness}": partial(placed, fleet, staleness) for fleet, staleness in fleets}


@pytest.mark.parametrize("case", placements())
def test_placements_are_as_recorded(case: str) -> None:
    hold("placements", case, placements()[case]())

"""The bound on fleets of pipelines: chains against brute force, and no covered plan below it."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from tangram_sim.clusters import Cluster, Network, NodeGroup
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.jobs import Job
from tangram_sim.lowering.placement import Placement
from tangram_sim.lowering.prices import StagePrices
from tangram_sim.lowering.side_by_side import lower_plan
from tangram_sim.lowering.step import Lowering
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import Counts, FleetBound, Wishes
from tangram_sim.planners.bound import WorkBound
from tangram_sim.planners.fleet_bound import NODES, REPLICAS, covers, fleet_bound, spread
from tangram_sim.planners.patterns import Ground
from tangram_sim.planners.tangram import usable_islands
from tangram_sim.planners.trivial import layouts
from tangram_sim.planners.uniform import uniform_plan
from tangram_sim.studies import api
from tangram_sim.studies.documents import FLEETS

HWDB = Hwdb.load()


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_chain_is_that_of_brute_force(seed: int) -> None:
    """All ways to cut four atoms and to choose a stage for each piece: what waits, holds and ends counts."""
    from tangram_sim.planners.fleet_bound_kernels import cheapest

    rng = np.random.default_rng(seed)
    atoms, many, depths = 4, 3, 8
    pieces = [(start, stop) for start in range(atoms) for stop in range(start + 1, atoms + 1)]
    of_slice = np.full((atoms + 1, atoms + 1), -1, np.int64)
    for number, piece in enumerate(pieces):
        of_slice[piece] = number
    count = many * len(pieces)
    price, forward_s = rng.uniform(1, 3, count), rng.uniform(0.2, 1, count)
    seconds, tails_s = forward_s + rng.uniform(0.2, 2, count), rng.uniform(0, 4, count)
    behind, kinds = rng.integers(0, 4, count), rng.integers(0, 2, count)
    pace_s, microbatches, within_s = 1.6, int(rng.integers(1, 8)), 14.0
    best = float("inf")
    for cuts in (cut for size in range(atoms) for cut in combinations(range(1, atoms), size)):
        bounds = [0, *cuts, atoms]
        numbers = [of_slice[pair] for pair in pairwise(bounds)]
        for chosen in product(range(many), repeat=len(numbers)):
            options = [many * number + one for number, one in zip(numbers, chosen, strict=True)]
            for place, option in enumerate(options):
                after, others = len(options) - 1 - place, microbatches - 1
                hidden = 1.0 if after >= others else after / others
                if (
                    microbatches * seconds[option] + tails_s[option] > within_s
                    or seconds[option] - hidden * forward_s[option] > pace_s
                    or min(after, others) > behind[option]
                ):
                    break
            else:
                best = min(best, sum(0.7 * price[one] + 1.3 * seconds[one] for one in options))
    pointers = np.arange(0, count + 1, many)
    value, shares = cheapest(
        of_slice,
        pointers,
        kinds,
        price,
        seconds,
        forward_s,
        behind,
        tails_s,
        within_s,
        pace_s,
        float(microbatches),
        0.7,
        1.3,
        2,
        depths,
    )
    assert value == pytest.approx(best)
    assert value == float("inf") or shares.sum() > 0


def shallow(name: str = "gpt3-6.7b", layers: int = 6) -> Model:
    """Few layers: few slices to ask about."""
    model = load_model(name)
    return replace(model, blocks=model.blocks[:layers])


def two_kinds(nodes: int = 14) -> Cluster:
    base = load_cluster("a100x128-h100x128", HWDB)
    groups = tuple(NodeGroup(group.name, nodes, group.node) for group in base.groups)
    return Cluster("two", groups, Network())


@pytest.mark.slow
def test_no_covered_plan_ends_below_the_bound() -> None:
    """The planner's, and every uniform layout over both kinds and over one of them."""
    model, cluster, job = shallow(), two_kinds(), Job(224, dtype="bf16")
    wishes = Wishes(fleet_bound=True)
    result = api.plan(model, cluster, job, wishes=wishes, hwdb=HWDB.fresh())
    made = result.document
    islands, _ = usable_islands(cluster, job, HWDB, wishes)
    bound = WorkBound(model, job, islands, HWDB, cluster)
    ground = Ground(model, cluster, job, islands, HWDB.fresh(), Constraints(), "grid")
    least = fleet_bound(ground, bound, result.forecast.plan, made.step_s, Counts())
    assert bound.step_s() * 1.02 < least.step_s <= made.step_s
    assert least.replicas >= REPLICAS and least.nodes >= NODES
    if covers(least, result.forecast.plan):
        assert made.lower_bound_step_s == pytest.approx(least.step_s)
        assert made.lower_bound_covers == FLEETS.format(replicas=least.replicas, nodes=least.nodes)
    lowering = Lowering(Placement(cluster, HWDB), StagePrices(model, job, HWDB))
    covered = 0
    for order in (("g0", "g1"), ("g1", "g0"), ("g0",), ("g1",)):
        for wanted in layouts(model, cluster, job, order, Constraints()):
            try:
                plan = uniform_plan(model, cluster, job, replace(wanted, zero_stage=1))
                lowered = lower_plan(plan, lowering)
            except TangramError:
                continue
            if covers(least, plan) and lowered.fits():
                covered += 1
                assert lowered.step_s() >= least.step_s * (1 - 1e-9), wanted
    assert covered > 100


def test_few_replicas_and_mixed_stages_are_not_covered() -> None:
    """What the bound says nothing about keeps the bound on work."""
    model, cluster, job = shallow(), two_kinds(), Job(224, dtype="bf16")
    order = ("g0", "g1")
    found = {
        wanted: uniform_plan(model, cluster, job, wanted)
        for wanted in layouts(model, cluster, job, order, Constraints())
        if wanted.micro_batch == 1 and wanted.pp in (1, 2)
    }
    assert any(min(spread(plan)) >= REPLICAS for plan in found.values())
    least = FleetBound(1.0, REPLICAS, NODES)
    for wanted, plan in found.items():
        mixed = any(len(stage.parts) > 1 for stage in plan.pipelines[0].stages)
        few = wanted.dp < REPLICAS or wanted.tp * wanted.dp < 8 * NODES
        assert covers(least, plan) == (not mixed and not few)

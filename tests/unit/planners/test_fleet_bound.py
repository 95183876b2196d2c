"""The bound on fleets of pipelines: chains against brute force, and no covered plan below it."""

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from tangram_sim.clusters import Cluster, Network, NodeGroup
from tangram_sim.errors import TangramError
from tangram_sim.health import Health
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import Counts, SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.fleets.fleet_bound import covers, fleet_bound_s, unbounded
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem
from tangram_sim.planners.uniform.layouts import uniform_plan
from tangram_sim.planners.uniform.trivial import layouts
from tangram_sim.planners.usable import usable_islands
from tangram_sim.studies import api
from tangram_sim.studies.documents import EVERY_PLAN, FLEETS
from tangram_sim.training.job import Job
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan

HWDB = Hwdb.load()
NORMAL = budget("normal")


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_chain_is_that_of_brute_force(seed: int) -> None:
    """All ways to cut four atoms and to choose a stage for each piece: what waits, holds and ends counts."""
    from tangram_sim.planners.tangram.fleets.fleet_bound_kernels import cheapest

    rng = np.random.default_rng(seed)
    atoms, many, depths = 4, 3, 8
    pieces = [(start, stop) for start in range(atoms) for stop in range(start + 1, atoms + 1)]
    of_slice = np.full((atoms + 1, atoms + 1), -1, np.int64)
    for number, piece in enumerate(pieces):
        of_slice[piece] = number
    count = many * len(pieces)
    price, seconds = rng.uniform(1, 3, count), rng.uniform(0.4, 3, count)
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
                    microbatches * seconds[option] > within_s
                    or seconds[option] * (1 - hidden / 2) > pace_s
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
        behind,
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


def two_kinds(first: int = 14, second: int = 14) -> Cluster:
    base = load_cluster("a100x128-h100x128", HWDB)
    pairs = zip(base.groups, (first, second), strict=True)
    return Cluster(
        "two", tuple(NodeGroup(one.name, count, one.node) for one, count in pairs if count), Network()
    )


CASES = {  # model, cluster, job, how many uniform plans are covered at least
    "two kinds": (shallow(), two_kinds(), Job(224, dtype="bf16"), 100),
    "short sequences, huge microbatches": (
        shallow(layers=2),
        two_kinds(0, 26),
        Job(208 * 64, seq=64, dtype="bf16"),
        40,
    ),
    "one node beside many": (shallow(layers=4), two_kinds(26, 1), Job(216, dtype="bf16"), 40),
    "a mixture": (shallow("mixtral-8x7b", 4), two_kinds(0, 28), Job(448, dtype="bf16"), 40),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_covered_plan_ends_below_the_bound(name: str) -> None:
    """The planner's, and every uniform layout over all kinds and over one of them, most far from the best."""
    model, cluster, job, least = CASES[name]
    wishes = SearchOptions(fleet_bound=True)
    found = tangram(model, cluster, job, HWDB, wishes)
    islands, _ = usable_islands(cluster, job, HWDB, wishes)
    bound = WorkBound(model, job, islands, HWDB, cluster)
    ground = FleetProblem(model, cluster, job, islands, HWDB, Constraints(), "grid", NORMAL)
    # As if the best plan were not known: nothing but the bound itself keeps it below.
    least_s = fleet_bound_s(ground, bound, 2 * found.ranked[0].step_s, Counts(), Deadline())
    assert bound.step_s() <= found.fleet_bound_s <= found.ranked[0].step_s
    if found.covered:
        assert least_s <= found.ranked[0].step_s
    lowering = Lowering(Placement(cluster, HWDB), StagePrices(model, job, HWDB))
    covered = 0
    names = [group.name for group in cluster.groups]
    for order in {tuple(names), *((one,) for one in names)}:
        for wanted in layouts(model, cluster, job, order, Constraints()):
            try:
                plan = uniform_plan(model, cluster, job, replace(wanted, zero_stage=1))
                lowered = lower_plan(plan, lowering)
            except TangramError:
                continue
            if covers(plan, islands, NORMAL.fleets) and lowered.fits():
                covered += 1
                assert lowered.step_s() >= least_s * (1 - 1e-9), wanted
    assert covered >= least


@pytest.mark.slow
def test_the_plan_file_says_what_the_bound_covers_or_why_there_is_none() -> None:
    """Nearer than work where the plan is a fleet of that kind; a note where there is no bound."""
    wishes = SearchOptions(fleet_bound=True)
    composed = replace(wishes, beside=False)  # no uniform plan beside it, which may be the faster one
    many = replace(CASES["one node beside many"][2], global_batch=864)  # of few, one stage is the best plan
    made = api.plan(*CASES["one node beside many"][:2], many, wishes=composed, hwdb=HWDB).document
    assert made.lower_bound_covers == FLEETS
    assert made.work_bound_step_s < made.lower_bound_step_s <= made.step_s
    # A best plan that is no such fleet: the note has the bound on fleets, the file that on work.
    model, cluster, job = shallow(layers=2), two_kinds(0, 26), Job(208, dtype="bf16")
    made = api.plan(model, cluster, job, wishes=wishes, hwdb=HWDB).document
    assert made.lower_bound_covers == EVERY_PLAN
    assert made.lower_bound_step_s == made.work_bound_step_s
    assert any(FLEETS in note for note in made.notes)
    for wishes in (
        SearchOptions(fleet_bound=True, constraints=Constraints(fixed=(("tp", 8),))),
        SearchOptions(fleet_bound=True, time_limit_s=0.01),
        SearchOptions(fleet_bound=True, sub_islands=False),
    ):
        made = api.plan(model, cluster, job, wishes=wishes, hwdb=HWDB).document
        assert made.lower_bound_covers != FLEETS
        assert any("fleet_bound=" in note or "no bound on fleets" in note for note in made.notes)


def test_islands_that_join_unequal_nodes_are_not_covered() -> None:
    """Options are priced at the worst node: a fleet on the better ones may end below the bound."""
    alike = two_kinds(0, 26)
    (group,) = alike.groups
    slower = replace(group.node, nic_bytes_per_s=0.99 * group.node.nic_bytes_per_s)
    for cluster, reason in (
        (alike, ""),
        (replace(alike, groups=(group, replace(group, name="g2", node=slower))), "g1+g2 joins unequal"),
        (replace(alike, health=Health(compute=((3, 1.01),))), "g1 joins unequal"),
        (replace(alike, health=Health(network=((0, 1.01),))), "g1 joins unequal"),
    ):
        job = Job(224, dtype="bf16")
        islands, _ = usable_islands(cluster, job, HWDB, SearchOptions())
        assert len(islands) == 1
        ground = FleetProblem(shallow(), cluster, job, islands, HWDB, Constraints(), "grid", NORMAL)
        told = unbounded(ground)
        assert reason in told and bool(reason) == bool(told)


def test_other_stages_are_not_covered() -> None:
    """Stages on two islands, sequences and replicas that no option stands for."""
    model, cluster, job = shallow(), two_kinds(), Job(224, dtype="bf16")
    islands, _ = usable_islands(cluster, job, HWDB, SearchOptions())
    for wanted in layouts(model, cluster, job, ("g0", "g1"), Constraints()):
        if wanted.pp > 2 or wanted.ep > 1:
            continue
        plan = uniform_plan(model, cluster, job, wanted)
        mixed = wanted.pp == 1 and wanted.tp * wanted.dp > 112
        odd = wanted.micro_batch not in NORMAL.fleets.sequences
        assert covers(plan, islands, NORMAL.fleets) == (not mixed and not odd), wanted
        other = replace(job, schedule="gpipe")
        assert not covers(uniform_plan(model, cluster, other, wanted), islands, NORMAL.fleets)

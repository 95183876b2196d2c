"""Peer planners: closed form, exact splits against brute force, and their recorded plans reproduced."""

import csv
import json
from itertools import combinations, pairwise, product

import pytest

from benchmarks.peer_runs import RecordedProfile, outline_of, runs
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.coarse.coarse_plan import (
    CoarsePlan,
    ReplicaGroup,
    balanced,
    fits,
    shared_out,
    step_s,
    sync_s,
)
from tangram_sim.planners.coarse.profile import Kind, LayerTable, Profile
from tangram_sim.planners.peers import amp, metis, sailor
from tangram_sim.planners.whole_cluster import Price, ranked
from tangram_sim.training.job import Job
from tests.places import SHARED

FACTS = SHARED / "data"


class Toy(Profile):
    """Two kinds, one twice as fast; layers of unequal length; tp halves time and memory."""

    def __init__(self, gpus=(2, 2), memory=(1e9, 1e9), atoms=5) -> None:
        first = 0
        kinds = []
        for number, count in enumerate(gpus):
            kinds.append(Kind(f"k{number}", f"gpu{number}", 1, count, tuple(range(first, first + count))))
            first += count
        self.kinds, self.atoms, self.memory = tuple(kinds), atoms, memory
        self.boundary_bytes, self.gradient_bytes = 1.0, (4.0,) * atoms

    def tps(self, kind):
        return tuple(tp for tp in (1, 2) if self.kinds[kind].gpus_per_node % tp == 0)

    def layers(self, kind, tp, sequences):
        if sequences > 8:
            return None
        pace = sequences / (kind + 1) / tp
        work = tuple(pace * (1 + atom % 3) for atom in range(self.atoms))
        size = (100.0 / tp,) * self.atoms
        held = (10.0 * sequences / tp,) * self.atoms
        return LayerTable(work, work, (0.0,) * self.atoms, size, held, self.memory[kind])

    def rate(self, a, b, size, gpus):
        return 10.0

    def inside_rate(self, kind, size):
        return 40.0


def test_the_closed_form_is_the_one_written_down():
    toy = Toy()
    outline = CoarsePlan(4, 2, (0, 2, 5), ((ReplicaGroup(0, 2, 1, 2),), (ReplicaGroup(1, 2, 1, 2),)))
    first, second = 2 * (1 + 2), 2 * (3 + 1 + 2) / 2
    sync = 2 * 0.5 * 12 / 40  # three atoms inside a node
    hop = 2 * 1.0 / 2 / 10
    assert step_s(outline, toy) == pytest.approx(3 * max(first, second) + first + second + 2 * hop + sync)
    assert sync_s((ReplicaGroup(0, 1, 1, 1), ReplicaGroup(1, 1, 1, 1)), 0, 5, toy) == pytest.approx(
        2 * 0.5 * 20 / 10
    )


@pytest.mark.parametrize("memory", [(1e9, 1e9), (330.0, 1e9), (1e9, 250.0), (150.0, 150.0)])
def test_layers_are_split_as_well_as_brute_force_splits_them(memory):
    toy = Toy(memory=memory)
    stages = ((ReplicaGroup(0, 1, 1, 1),), (ReplicaGroup(1, 1, 1, 1),), (ReplicaGroup(0, 1, 1, 1),))

    def slowest(cuts):
        tables = [toy.layers(team.kind, 1, 1) for (team,) in stages]
        return max(t.seconds[b] - t.seconds[a] for t, (a, b) in zip(tables, pairwise(cuts), strict=True))

    every = [(0, *inner, 5) for inner in combinations(range(1, 5), 2)]
    every = [cuts for cuts in every if fits(CoarsePlan(3, 1, cuts, stages), toy)]
    found = balanced(stages, 3, toy)
    if not every:
        assert found is None
        return
    assert found is not None
    assert found[1] == pytest.approx(min(map(slowest, every)))
    assert slowest(found[0]) == pytest.approx(found[1])


def test_data_is_shared_out_as_well_as_brute_force_shares_it():
    toy = Toy()
    teams = shared_out([(0, 2, 1), (1, 2, 1)], 12, toy)
    assert teams is not None

    def ends(shares):
        return max(
            toy.layers(kind, 1, -(-share // 2)).seconds[-1]
            for kind, share in zip((0, 1), shares, strict=True)
        )

    best = min(ends((share, 12 - share)) for share in range(1, 12))
    assert ends([team.sequences for team in teams]) == pytest.approx(best)


def test_sailor_finds_the_best_plan_of_its_space():
    """Even stages, one dp, any mixture of kinds: all of them, on four GPUs."""
    toy, batch = Toy(), 8
    best = step_s(next(sailor.outlines(toy, batch)), toy)
    every = []
    for depth, size, tps in product((1, 2, 3), (1, 2, 4, 8), product((1, 2), repeat=2)):
        cuts = sailor.even_cuts(toy.atoms, depth)
        for counts in product(range(3), repeat=2 * depth):
            stages = [counts[2 * place : 2 * place + 2] for place in range(depth)]
            dp = sum(stages[0])
            if not dp or any(sum(stage) != dp for stage in stages):
                continue
            if any(sum(stage[kind] for stage in stages) * tps[kind] > 2 for kind in (0, 1)):
                continue
            teams = tuple(
                tuple(ReplicaGroup(kind, n, tps[kind], n * size) for kind, n in enumerate(stage) if n)
                for stage in stages
            )
            every.append(step_s(CoarsePlan(-(-batch // (size * dp)), size * dp, cuts, teams), toy))
    assert best == pytest.approx(min(every))


def test_device_groups_are_powers_of_two_that_use_every_gpu():
    for gpus, depth in ((16, 3), (24, 2), (12, 4), (20, 5)):
        groups = list(metis.device_groups(gpus, depth, 1.0, 4))
        assert groups
        assert len(set(groups)) == len(groups)
        for sizes in groups:
            assert sum(sizes) == gpus
            assert len(sizes) == depth
            assert all(size & (size - 1) == 0 for size in sizes)
    assert list(metis.device_groups(24, 1, 1.0, 4)) == [(24,)]  # where the published code stops


def test_metis_and_amp_plans_use_all_gpus_and_hold_every_layer_once():
    toy = Toy(gpus=(2, 4), memory=(500.0, 700.0))
    for module in (metis, amp):
        found = list(module.outlines(toy, 8))
        assert found
        for outline in found:
            assert sum(team.replicas * team.tp for stage in outline.stages for team in stage) == 6
            assert outline.cuts[0] == 0
            assert outline.cuts[-1] == toy.atoms
            assert all(a < b for a, b in pairwise(outline.cuts))
            assert outline.microbatches * outline.microbatch == 8


@pytest.mark.skipif(not FACTS.is_dir(), reason="recorded runs of peers are not beside this checkout")
@pytest.mark.parametrize("planner", ["sailor", "metis"])
def test_recorded_plans_are_reproduced_or_beaten_under_the_planners_own_cost(planner):
    """Small clusters of the acceptance; `python -m benchmarks.peers --own-cost` takes all of them."""
    module = {"sailor": sailor, "metis": metis}[planner]
    looked = 0
    for run in runs(FACTS):
        if not run.planner.startswith(planner) or run.gpus > (24 if planner == "sailor" else 16):
            continue
        profile = RecordedProfile(FACTS, run.model, run.cluster)
        recorded = outline_of(run, profile, planner == "metis")
        assert step_s(recorded, profile) < float("inf"), run
        found = next(module.outlines(profile, run.global_batch))
        assert step_s(found, profile) <= step_s(recorded, profile) * (1 + 1e-9), run
        looked += 1
    assert looked >= 2


@pytest.mark.skipif(not FACTS.is_dir(), reason="recorded runs of peers are not beside this checkout")
def test_amp_does_no_worse_than_its_recorded_plans_under_its_own_cost():
    """AMP's 14 rows on 12 V100 and 4 T4; of its 30 units about three stand before the first block."""
    hwdb = Hwdb.load()
    model, cluster = load_model("amp-gpt2-24l"), load_cluster("amp-v100x12-t4x4", hwdb)
    profile = Price(model, cluster, Job(32, 1024, "fp16"), hwdb).profile
    best = ranked(amp.outlines(profile, 32), profile)[0][0]
    recorded = []
    with (FACTS / "heterogeneous_runs.csv").open() as file:
        for row in csv.DictReader(file):
            tp, pp, dp = int(row["tp"]), int(row["pp"]), int(row["dp"])
            microbatch = int(row["mbs"]) * dp
            inner = [min(max(cut - 3, 0), 24) + 1 for cut in json.loads(row["stage_layers"])[1:-1]]
            places = metis.occupied(profile, (0, 1), [tp * dp] * pp)
            stages = amp.stages_of(places, tp, int(row["mbs"]))
            recorded.append(
                step_s(CoarsePlan(32 // microbatch, microbatch, (0, *inner, 26), stages), profile)
            )
    assert len(recorded) == 14
    assert best <= min(recorded) * (1 + 1e-9)

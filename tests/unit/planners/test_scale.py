"""Large clusters: patterns and fleets, what they may not lose, time limits, several processes."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tangram_sim.clusters import Cluster, Network, NodeGroup
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.layouts import layouts
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import BY_LIMIT, Deadline
from tangram_sim.planners.peers.sailor import Sailor
from tangram_sim.planners.tangram.composition.composed import Composed
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.enumeration.parallel import Pieces
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.planners.tangram.fleets.fleet import PipelineCopies, apportion, master, whole
from tangram_sim.planners.tangram.fleets.patterns import (
    SEQUENCES,
    FleetProblem,
    PatternLimits,
    PipelinePattern,
    patterns_of,
    shapes,
)
from tangram_sim.planners.tangram.fleets.scale import COPIES_OF_PATTERNS, LEAST_SHARE
from tangram_sim.planners.uniform.best_uniform import BestUniform
from tangram_sim.planners.usable import usable_islands
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner
from tangram_sim.studies import api
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
NORMAL = budget("normal")
FEW_SECONDS = SearchOptions(time_limit_s=0.0)


def pattern(
    nodes: tuple[float, ...], first: float, pace: float, sequences: int = 1, granule: int = 1
) -> PipelinePattern:
    places = Composed(first + pace, (), hash((nodes, first, pace)), sequences)
    return PipelinePattern(nodes, 4, granule, sequences, first, pace, places)


POOL = [
    pattern((2, 0), 1.0, 0.5),
    pattern((1, 0), 1.5, 1.2, 2),
    pattern((0, 2), 2.0, 1.1),
    pattern((1, 1), 1.4, 0.7, 1),
]


def test_the_master_problem_is_no_worse_than_any_whole_mix() -> None:
    """Fractions of copies and of microbatches can do all that whole ones can."""
    nodes, batch = (4, 4), 40
    answer = master(POOL, nodes, batch)
    assert answer is not None
    best = float("inf")
    for copies in product(range(5), range(5), range(3), range(5)):
        used = [sum(n * one.nodes[kind] for n, one in zip(copies, POOL, strict=True)) for kind in (0, 1)]
        chosen = {one: n for one, n in zip(POOL, copies, strict=True) if n}
        if not chosen or used[0] > 4 or used[1] > 4:
            continue
        groups = apportion(chosen, batch)
        if groups:
            best = min(best, ends_s(groups))
    assert answer.step_s <= best * (1 + 1e-4)
    done = sum(float(x) * one.done(answer.step_s) for x, one in zip(answer.copies, POOL, strict=True))
    assert done == pytest.approx(batch, rel=1e-3)
    assert (answer.prices >= -1e-9).all()


def ends_s(groups: list[PipelineCopies]) -> float:
    return max(one.pattern.first_s + (one.microbatches - 1) * one.pattern.pace_s for one in groups)


@pytest.mark.parametrize("seed", range(12))
def test_apportioned_microbatches_add_up_exactly_and_no_node_is_used_twice(seed: int) -> None:
    """Every sequence of the batch is done once, by whole granules of copies."""
    rng = np.random.default_rng(seed)
    pool = [
        pattern(
            (int(rng.integers(1, 4)), 0) if rng.random() < 0.5 else (0, int(rng.integers(1, 4))),
            float(rng.uniform(1, 3)),
            float(rng.uniform(0.2, 1)),
            int(rng.choice([1, 2, 4])),
            int(rng.choice([1, 2, 4])),
        )
        for _ in range(5)
    ] + [pattern((1, 0), 1.0, 1.0)]
    nodes, batch = (24, 17), int(rng.integers(200, 1000))
    answer = master(pool, nodes, batch)
    assert answer is not None
    chosen = whole(pool, answer, nodes, LEAST_SHARE)
    for kind in (0, 1):
        assert sum(one.nodes[kind] * copies for one, copies in chosen.items()) <= nodes[kind]
    groups = apportion(chosen, batch)
    if groups is None:  # only where no sum of the granules' microbatches meets the batch
        assert np.gcd.reduce([one.granule * one.sequences for one in chosen]) > 1
        return
    assert sum(one.copies * one.microbatches * one.pattern.sequences for one in groups) == batch
    assert all(one.copies % one.pattern.granule == 0 for one in groups)


def test_copies_may_share_nodes_and_come_in_granules() -> None:
    """Half a node of each kind per copy: two copies make whole nodes."""
    pool = [pattern((0.5, 0.5), 1.0, 0.5, granule=2), pattern((1.5, 0), 1.0, 0.4, granule=2)]
    answer = master(pool, (5, 2), 64)
    assert answer is not None
    chosen = whole(pool, answer, (5, 2), LEAST_SHARE)
    assert chosen == {pool[0]: 4, pool[1]: 2}
    for kind, there in enumerate((5, 2)):
        used = sum(one.nodes[kind] * copies for one, copies in chosen.items())
        assert used <= there and used == int(used)


def ground(model: str = "gpt3-6.7b", batch: int = 256) -> FleetProblem:
    cluster, job = large(), Job(batch, dtype="bf16")
    hwdb = HWDB
    islands, _ = usable_islands(cluster, job, hwdb, SearchOptions())
    return FleetProblem(
        load_model(model), cluster, job, hwdb, islands, SearchOptions().constraints, "grid", NORMAL
    )


def test_shapes_cut_all_islands_alike_and_never_take_more_nodes_than_there_are() -> None:
    """Also where one island has many more nodes than the other."""
    known = ground()
    uneven = replace(known, islands=(known.islands[0], known.islands[1].part(9)))
    for one, kinds in ((known, (0, 1)), (uneven, (0, 1)), (known, (0,))):
        found = shapes(one, kinds)
        assert found
        for shape in found:
            pairs = list(zip(shape.nodes, one.islands, strict=True))
            assert all(count * shape.copies <= island.nodes for count, island in pairs)
            assert {kind for kind, count in enumerate(shape.nodes) if count} == set(kinds)
            finer = shape.finer()
            assert finer is None or (finer.copies % finer.parts == 0 and finer.nodes == shape.nodes)


def test_stages_on_parts_of_nodes_are_no_worse_than_whole_nodes() -> None:
    """Every pipeline on whole nodes is one on parts; its dp splits over the copies."""
    known, shape = ground(), PatternLimits((1, 1), 8)
    finer = shape.finer()
    assert finer == PatternLimits((1, 1), 8, 8)
    coarse, coarse_s, usual, _ = patterns_of(known, shape, 1, "yes", 0.2, float("inf"), Deadline())
    assert usual in SEQUENCES
    fine, fine_s = list[PipelinePattern](), float("inf")
    for size in SEQUENCES:  # as the planner does
        found, best_s, _, _ = patterns_of(known, finer, size, "no", 0.2, coarse_s, Deadline())
        fine, fine_s = fine + found, min(fine_s, best_s)
    assert fine_s <= coarse_s * (1 + 1e-9) and coarse_s < float("inf")
    for one in (*coarse, *fine):
        for place in one.composed.places:
            assert place.partial.layout.dp % 8 == 0
            assert place.partial.nodes * one.granule % one.copies == 0


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_layouts_for_copies_are_those_whose_dp_the_copies_divide(copies: int) -> None:
    """Made directly, not filtered: the same set."""
    model = load_model("mixtral-8x7b")
    every = set(layouts(model, 24, (1,)))
    assert set(layouts(model, 24, (1,), copies)) == {one for one in every if one.dp % copies == 0}


def large() -> Cluster:
    """640 GPUs of two kinds: too many nodes to count one by one."""
    base = load_cluster("a100x128-h100x128", HWDB)
    groups = tuple(NodeGroup(group.name, 40, group.node) for group in base.groups)
    return Cluster("large", groups, Network())


@pytest.mark.slow
def test_a_large_cluster_is_planned_whole_and_says_what_was_not_searched() -> None:
    """The plan uses ranks once, does the whole batch, fits, is above the bound and no worse than uniform."""
    cluster, model, job = large(), load_model("gpt3-6.7b"), Job(512, dtype="bf16")
    assert FLEETS["normal"].is_large([40, 40])
    told: list[tuple[int, int, str]] = []
    found = tangram(model, cluster, job, HWDB, SearchOptions(), lambda *far: told.append(far))
    assert [done for done, _, _ in told] == list(range(1, len(told) + 1)), "shape after shape, while it runs"
    assert all(done <= total and "shapes of copies" in what for done, total, what in told)
    best = found.ranked[0]
    ranks = [rank for one in best.plan.pipelines for stage in one.stages for rank in stage.ranks]
    assert len(ranks) == len(set(ranks)) == best.plan.gpus_used
    assert sum(one.microbatches * one.microbatch for one in best.plan.pipelines) == 512
    assert best.step.fits()
    assert best.step_s >= found.lower_bound_step_s
    assert COPIES_OF_PATTERNS.among(found.findings)
    assert found.counts.asked and found.counts.played
    uniform = tangram(model, cluster, job, HWDB, FEW_SECONDS)
    assert best.step_s <= uniform.ranked[0].step_s


@pytest.fixture
def unhurried(monkeypatch) -> None:
    """What is done though time is over takes as long as it needs: the same plan on every machine."""
    monkeypatch.setattr(Deadline, "grace", lambda self, grace_s: Deadline())


@pytest.mark.slow
@pytest.mark.usefixtures("unhurried")
def test_a_time_limit_of_zero_gives_a_uniform_plan_or_says_there_is_none() -> None:
    """Nothing is searched, and the plan can be replayed like any other."""
    cluster = load_cluster("azure-c3", HWDB)
    result = api.plan(load_model("gpt3-6.7b"), cluster, Job(64), wishes=FEW_SECONDS, hwdb=HWDB)
    assert any("nothing was searched" in note for note in result.document.notes)
    layouts = {(stage.tp, stage.dp) for stage in result.document.stages}
    assert len(layouts) == 1
    again = api.simulate(result.document, hwdb=HWDB)
    assert again.document.step_s == pytest.approx(result.document.step_s, rel=1e-9)
    small = load_cluster("azure-c1-t4x4-v100x4", HWDB)
    with pytest.raises(InfeasibleError, match=r"no uniform layout .* `time_limit_s=`"):
        tangram(load_model("gpt3-175b"), small, Job(64, dtype="fp16"), HWDB, FEW_SECONDS)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["azure-c1", "azure-c3"])
def test_the_plan_without_a_search_is_no_worse_than_the_uniform_planner(name: str) -> None:
    """The same layouts over all GPUs, and those over one kind."""
    model, cluster, job = load_model("gpt3-1.3b"), load_cluster(name, HWDB), Job(64, dtype="fp16")
    at_once = tangram(model, cluster, job, HWDB, FEW_SECONDS).ranked[0]
    price = Price(model, cluster, job, HWDB)
    assert at_once.step_s <= price.step_s(BestUniform().plan(model, cluster, job, price)) * (1 + 1e-9)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.slow
def test_the_plan_without_a_search_keeps_to_what_is_excluded_ordered_and_fixed() -> None:
    """Islands left out are not used; an order is kept; fixed degrees are the plan's."""
    cluster = load_cluster("azure-c1-t4x4-v100x4", HWDB)
    model, job = load_model("gpt3-1.3b"), Job(64, dtype="fp16")
    for wishes in (
        replace(FEW_SECONDS, exclude=("g1",)),
        replace(FEW_SECONDS, order=("g1", "g0")),
        replace(FEW_SECONDS, constraints=Constraints(fixed=(("tp", 4), ("zero_stage", 2)))),
    ):
        plan = tangram(model, cluster, job, HWDB, wishes).ranked[0].plan
        stages = plan.pipelines[0].stages
        named = [stage.parts[0].island for stage in stages]
        assert not set(wishes.exclude) & set("+".join(named).split("+"))
        if wishes.order:
            assert named == sorted(named, reverse=True)
        if wishes.constraints.fixed:
            assert {(stage.layout.tp, stage.layout.zero_stage) for stage in stages} == {(4, 2)}


@pytest.mark.usefixtures("unhurried")
def test_a_short_time_limit_gives_the_best_plan_so_far_never_worse_than_uniform() -> None:
    """Stopped in mid-search, and said so."""
    model, cluster, job = load_model("gpt3-6.7b"), load_cluster("azure-c3", HWDB), Job(64, dtype="fp16")
    at_once = tangram(model, cluster, job, HWDB, FEW_SECONDS)
    stopped = tangram(model, cluster, job, HWDB, SearchOptions(time_limit_s=0.3))
    assert stopped.ranked[0].step_s <= at_once.ranked[0].step_s * (1 + 1e-9)
    assert BY_LIMIT(limit_s=0.3) in stopped.stopped
    # A bound beyond that on work there is only where the first sweep over sizes was through by then, as it
    # may be where much is loaded already: it is below what a search without a limit finds.
    assert stopped.pipeline_bound_s <= tangram(model, cluster, job, HWDB, SearchOptions()).ranked[0].step_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch", "counts", "peers"),
    [
        ("llama3-70b", 2048, (64, 64, 0), (BestUniform(), Sailor())),
        # The best uniform plan takes three times as long, and twice the time to find.
        ("mixtral-8x7b", 1024, (90, 30, 8), (Sailor(),)),
    ],
)
def test_at_1024_gpus_no_worse_than_uniform_and_sailor(
    name: str, batch: int, counts: tuple[int, ...], peers: tuple[WholeClusterPlanner, ...]
) -> None:
    """A dense model on two kinds with 64 nodes each, a mixture on unequal counts of three kinds."""
    h100, a100 = large().groups[1].node, large().groups[0].node
    slow = replace(h100, gpu=HWDB.gpu("H20-96GB"))
    model, job = load_model(name), Job(batch, dtype="bf16")
    nodes = zip(counts, (h100, a100, slow), strict=True)
    groups = tuple(NodeGroup(f"g{n}", count, node) for n, (count, node) in enumerate(nodes) if count)
    cluster = Cluster("x", groups, Network())
    assert cluster.gpus == 1024
    ours_s = tangram(model, cluster, job, HWDB, SearchOptions()).ranked[0].step_s
    price = Price(model, cluster, job, HWDB)
    for peer in peers:
        assert ours_s <= price.step_s(peer.plan(model, cluster, job, price)), peer.name


@pytest.mark.slow
def test_equal_islands_are_searched_once() -> None:
    """Two islands that differ in name alone cost the questions of one."""
    here = replace(large().groups[1], count=13)
    apart, whole = replace(here, name="g0"), replace(here, count=26)
    one, twice = Cluster("one", (whole,), Network()), Cluster("twice", (apart, here), Network())
    assert all(FLEETS["normal"].is_large(nodes) for nodes in ([26], [13, 13]))
    model, job = load_model("gpt3-6.7b"), Job(512, dtype="bf16")
    asked = [tangram(model, cluster, job, HWDB, SearchOptions()).counts.asked for cluster in (one, twice)]
    assert asked[1] <= asked[0] * 1.5


def _slow_square(number: int, folder: str) -> int:
    """Squares; the first time it is asked for 3 its process dies as if killed."""
    marker = Path(folder) / "killed"
    if number == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return number * number


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    """Real processes, one killed by the signal that the system's memory killer sends."""
    pytest.importorskip("joblib")
    pieces = Pieces(2)
    answers = pieces.run(_slow_square, [(number, str(tmp_path)) for number in range(12)])
    assert answers == [number * number for number in range(12)]
    assert pieces.repeated >= 1
    with pytest.raises(BadInputError, match="`jobs=-1`"):
        Pieces(-1)


DASK = """
import sys, time, threading, os, signal
from distributed import Client
from joblib import parallel_config
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.training.job import Job
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.tangram.engine import tangram

def found(jobs):
    cluster, model = load_cluster("a100x128-h100x128", Hwdb.load()), load_model("gpt3-6.7b")
    found = tangram(model, cluster, Job(64, dtype="bf16"), Hwdb.load(), SearchOptions(jobs=jobs))
    best = found.ranked[0]
    return repr((best.step_s, [one.microbatches for one in best.plan.pipelines], found.counts))

def kill_one(client):
    while not any(client.processing().values()):
        time.sleep(0.01)
    os.kill(int(sys.argv[2]), signal.SIGKILL)

if __name__ == "__main__":
    with Client(scheduler_file=sys.argv[1]) as client:
        client.wait_for_workers(2)
        threading.Thread(target=kill_one, args=(client,), daemon=True).start()
        with parallel_config(backend="dask"):
            print(found(2), flush=True)
        print(len(client.scheduler_info()["workers"]), flush=True)
    print(found(1), flush=True)
"""


@pytest.mark.slow
def test_a_whole_plan_on_dask_workers_is_the_same_though_one_is_killed(tmp_path: Path) -> None:
    """`dask scheduler` and two `dask worker` processes; one is killed while it works on the plan."""
    pytest.importorskip("distributed")
    (tmp_path / "run.py").write_text(DASK)
    file = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    calls = [
        ["scheduler", "--host", "127.0.0.1", "--port", "0"],
        *[["worker", "--nthreads", "1", "--no-nanny"]] * 2,
    ]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "dask", *call, *common], cwd=tmp_path, stderr=subprocess.DEVNULL
        )
        for call in calls
    ]
    try:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "run.py"), str(file), str(started[1].pid)],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert not done.returncode, done.stderr
    with_dask, left, alone = done.stdout.splitlines()
    assert left == "1"
    assert with_dask == alone

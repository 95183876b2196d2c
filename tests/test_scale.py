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
from tangram_sim.jobs import Job
from tangram_sim.planners.api import Wishes
from tangram_sim.planners.compose import Composed
from tangram_sim.planners.fleet import Group, apportion, master, whole
from tangram_sim.planners.parallel import Pieces
from tangram_sim.planners.patterns import Pattern
from tangram_sim.planners.scale import is_large
from tangram_sim.planners.tangram import tangram
from tangram_sim.studies import api

HWDB = Hwdb.load()
FEW_SECONDS = Wishes(time_limit_s=0.0)


def pattern(
    nodes: tuple[int, ...], first: float, pace: float, sequences: int = 1, granule: int = 1
) -> Pattern:
    places = Composed(first + pace, (), hash((nodes, first, pace)), sequences)
    return Pattern(nodes, 4, granule, sequences, first, pace, places)


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


def ends_s(groups: list[Group]) -> float:
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
    chosen = whole(pool, answer, nodes)
    for kind in (0, 1):
        assert sum(one.nodes[kind] * copies for one, copies in chosen.items()) <= nodes[kind]
    groups = apportion(chosen, batch)
    if groups is None:  # only where no sum of the granules' microbatches meets the batch
        assert np.gcd.reduce([one.granule * one.sequences for one in chosen]) > 1
        return
    assert sum(one.copies * one.microbatches * one.pattern.sequences for one in groups) == batch
    assert all(one.copies % one.pattern.granule == 0 for one in groups)


def large() -> Cluster:
    """640 GPUs of two kinds: too many nodes to count one by one."""
    base = load_cluster("a100x128-h100x128", HWDB)
    groups = tuple(NodeGroup(group.name, 40, group.node) for group in base.groups)
    return Cluster("large", groups, Network())


@pytest.mark.slow
def test_a_large_cluster_is_planned_whole_and_says_what_was_not_searched() -> None:
    """The plan uses ranks once, does the whole batch, fits, is above the bound and no worse than uniform."""
    cluster, model, job = large(), load_model("gpt3-6.7b"), Job(512, dtype="bf16")
    assert is_large([40, 40])
    found = tangram(model, cluster, job, HWDB.fresh(), Wishes())
    best = found.ranked[0]
    ranks = [rank for one in best.plan.pipelines for stage in one.stages for rank in stage.ranks]
    assert len(ranks) == len(set(ranks)) == best.plan.gpus_used
    assert sum(one.microbatches * one.microbatch for one in best.plan.pipelines) == 512
    assert best.step.fits()
    assert best.step_s >= found.lower_bound_step_s
    assert any("patterns" in note and "not searched" in note for note in found.notes)
    assert found.counts.asked and found.counts.played
    uniform = tangram(model, cluster, job, HWDB.fresh(), FEW_SECONDS)
    assert best.step_s <= uniform.ranked[0].step_s


def test_a_time_limit_of_zero_gives_a_uniform_plan_or_says_there_is_none() -> None:
    """Nothing is searched, and the plan can be replayed like any other."""
    cluster = load_cluster("azure-c3", HWDB)
    result = api.plan(load_model("gpt3-6.7b"), cluster, Job(64), wishes=FEW_SECONDS, hwdb=HWDB.fresh())
    assert any("nothing was searched" in note for note in result.document.notes)
    layouts = {(stage.tp, stage.dp) for stage in result.document.stages}
    assert len(layouts) == 1
    again = api.simulate(result.document, hwdb=HWDB.fresh())
    assert again.document.step_s == pytest.approx(result.document.step_s, rel=1e-9)
    small = load_cluster("azure-c1-t4x4-v100x4", HWDB)
    with pytest.raises(InfeasibleError, match=r"no uniform layout .* --time-limit"):
        tangram(load_model("gpt3-175b"), small, Job(64, dtype="fp16"), HWDB.fresh(), FEW_SECONDS)


def test_a_short_time_limit_gives_the_best_plan_so_far_never_worse_than_uniform() -> None:
    """Stopped in mid-search, and said so."""
    model, cluster, job = load_model("gpt3-6.7b"), load_cluster("azure-c3", HWDB), Job(64, dtype="fp16")
    at_once = tangram(model, cluster, job, HWDB.fresh(), FEW_SECONDS)
    stopped = tangram(model, cluster, job, HWDB.fresh(), Wishes(time_limit_s=0.3))
    assert stopped.ranked[0].step_s <= at_once.ranked[0].step_s * (1 + 1e-9)
    assert any("time limit of 0.3 s" in note for note in stopped.notes)
    assert stopped.pipeline_bound_s == 0.0  # not all was looked at: no bound beyond that on work


@pytest.mark.slow
def test_equal_islands_are_searched_once() -> None:
    """Two islands that differ in name alone cost the questions of one."""
    both = large()
    one = Cluster("one", (both.groups[1],), Network())
    apart = replace(both.groups[1], name="g0")
    twice = Cluster("twice", (apart, both.groups[1]), Network())
    model, job = load_model("gpt3-6.7b"), Job(512, dtype="bf16")
    asked = [
        tangram(model, cluster, job, HWDB.fresh(), Wishes()).counts.asked
        for cluster in (replace(one, groups=(replace(apart, count=80),)), twice)
    ]
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
    with pytest.raises(BadInputError, match="--jobs -1"):
        Pieces(-1)


DASK = """
import signal, os, time, sys
from distributed import Client, LocalCluster
from joblib import parallel_config
from tangram_sim.planners.parallel import Pieces
sys.path.insert(0, {folder!r})
from work import square
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        with Client(cluster) as client, parallel_config(backend="dask"):
            client.upload_file({folder!r} + "/work.py")
            pieces = Pieces(2)
            print(pieces.run(square, [(n, {folder!r}) for n in range(8)]), flush=True)
"""
WORK = """
import os, signal, time
def square(number, folder):
    time.sleep(0.05)
    try:
        if number == 3:
            os.close(os.open(folder + "/killed", os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        pass
    return number * number
"""


@pytest.mark.slow
def test_dask_workers_give_the_same_answers_and_one_may_be_killed(tmp_path: Path) -> None:
    """A real scheduler and two worker processes; the scheduler gives a dead worker's pieces to the other."""
    pytest.importorskip("distributed")
    (tmp_path / "work.py").write_text(WORK)
    script = tmp_path / "run.py"
    script.write_text(DASK.format(folder=str(tmp_path)))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert str([number * number for number in range(8)]) in done.stdout, done.stderr
    assert (tmp_path / "killed").exists()

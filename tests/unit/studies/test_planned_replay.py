"""Replays with our planner's speeds: kinds, state that moves, plans asked once."""

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners import deadline
from tangram_sim.studies.planned_speeds import PlannedSpeeds
from tangram_sim.training.job import Job
from tests.commands import MODEL, tangram
from tests.remembered import searched_once

CLUSTER = """\
name: spot
nodes:
  - {count: 2, gpu: V100-PCIe-16GB, gpus: 2, intra_link: PCIe3x16, nic_gbps: 32}
  - {count: 2, gpu: T4, gpus: 2, intra_link: PCIe3x16, nic_gbps: 32}
"""
KINDS = ("V100-PCIe-16GB", "T4")


def trace(seed: int, folder: Path) -> Path:
    """A history of both kinds, 1 to 2 nodes of each at any time."""
    draw, rows, made = random.Random(seed), ["time_s,event,node,kind"], 0
    there: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        for _ in range(2):
            made += 1
            there[kind].append(f"n{made}")
            rows.append(f"0,add,n{made},{kind}")
    at = 0
    for _ in range(6):
        at += draw.randint(10, 60) * 60
        kind = draw.choice(KINDS)
        if len(there[kind]) == 2:
            gone = there[kind].pop(draw.randrange(2))
            rows.append(f"{at},remove,{gone},{kind}")
        else:
            made += 1
            there[kind].append(f"n{made}")
            rows.append(f"{at},add,n{made},{kind}")
    path = folder / f"trace{seed}.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(autouse=True, scope="module")
def one_search_for_all_histories() -> Iterator[None]:
    """They lose and gain nodes of the same two kinds, so fleets recur."""
    with searched_once():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spot")
    (path / "model.yaml").write_text(MODEL.replace("hidden: 512", "hidden: 1024"))
    (path / "cluster.yaml").write_text(CLUSTER)
    return path


def replayed(folder: Path, history: Path, *more: object) -> Any:
    found = tangram(
        "replay-trace",
        folder / "model.yaml",
        history,
        folder / "cluster.yaml",
        "--global-batch",
        16,
        "--seq",
        512,
        "--json",
        *more,
    )
    assert found.code == 0, found.err
    return found.json


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_two_kinds_planning_for_both_beats_one_kind_and_none(seed: int, folder: Path) -> None:
    found = replayed(folder, trace(seed, folder), "--policy", "restart,replan")
    policies = found["policies"]
    best = policies["replan"]["tokens"]
    for name, policy in policies.items():
        if "only" in name or "ignored" in name:
            assert policy["tokens"] < best, name
        assert sum(policy["accounts"].values()) == pytest.approx(found["duration_s"])
        assert policy["tokens"] <= found["upper_bound"] * (1 + 1e-9)


def test_losing_a_kind_that_no_plan_uses_changes_nothing(folder: Path) -> None:
    """A history of V100s, and the same with a T4 that comes and goes, planned for V100s only."""
    plain, other = folder / "plain.csv", folder / "other.csv"
    head = f"time_s,event,node,kind\n0,add,a,{KINDS[0]}\n0,add,b,{KINDS[0]}\n"
    plain.write_text(head + f"3600,remove,b,{KINDS[0]}\n7200,add,c,{KINDS[0]}\n")
    other.write_text(
        head
        + f"0,add,t,{KINDS[1]}\n3600,remove,b,{KINDS[0]}\n5000,remove,t,{KINDS[1]}\n7200,add,c,{KINDS[0]}\n"
    )
    item, both = (
        replayed(folder, history, "--policy", "replan", "--kinds", KINDS[0], "--until-s", 9000)
        for history in (plain, other)
    )
    assert both["policies"]["replan"]["tokens"] == pytest.approx(item["policies"]["replan"]["tokens"])


def test_kinds_that_the_cluster_does_not_have_are_named(folder: Path) -> None:
    history = folder / "strange.csv"
    history.write_text("time_s,event,node,kind\n0,add,a,H100\n60,add,b,H100\n")
    found = tangram("replay-trace", folder / "model.yaml", history, folder / "cluster.yaml")
    assert found.code == 2
    assert "unknown kind of node 'H100'" in found.err
    history.write_text("time_s,event,node\n0,add,a\n60,add,b\n")
    found = tangram("replay-trace", folder / "model.yaml", history, folder / "cluster.yaml")
    assert found.code == 2
    assert "names no kinds" in found.err


def test_plans_of_one_kind_do_not_depend_on_how_fast_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds between any two looks at it: the same layouts, none given up for lack of time."""
    hwdb = Hwdb.load()
    model, cluster = load_model("gpt3-350m"), load_cluster("azure-c1", hwdb)
    kind = cluster.groups[0].name

    def step_s() -> list[float]:
        speeds = PlannedSpeeds(model, cluster, Job(16, 512, "fp16"), hwdb, "uniform")
        plans = [speeds.best(((kind, nodes),)) and speeds.plans[(kind, nodes),] for nodes in (1, 2)]
        return [plan.document.step_s if plan else 0.0 for plan in plans]

    usual, ticks = step_s(), count(0, 10)
    monkeypatch.setattr(deadline.time, "monotonic", lambda: float(next(ticks)))
    assert step_s() == usual
    assert min(usual) > 0

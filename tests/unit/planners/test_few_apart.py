"""What is told apart where islands or nodes are too many; what a plan leaves idle is of no use to it."""

from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, Island, Node, NodeGroup
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.api import Scored, SearchOptions
from tangram_sim.planners.tangram import engine
from tangram_sim.planners.tangram.few_apart import ALL_IN_GROUPS, NODE_BY_NODE, few_apart, gain_apart
from tangram_sim.planners.tangram.fleet_budget import FleetBudget
from tangram_sim.planners.tangram.fleets.scale import COPIES_OF_PATTERNS
from tangram_sim.planners.tangram.told_apart import in_units, node_units, used_islands
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares
from tests.planning import HWDB

LIMITS = FleetBudget()
BLOCK = Block(Attention(32, 32, 128, 128), FeedForward(16384, gated=False))
MODEL = Model("deep", "gpt2", 4096, 32000, 16 * (BLOCK,))
JOB = Job(32, 2048, "fp16")
KINDS = (
    ("H100-SXM5-80GB", "NVLink4"),
    ("A100-SXM4-80GB", "NVLink3"),
    ("L40S", "PCIe4x16"),
    ("V100-SXM2-32GB", "NVLink2"),
    ("RTX-A6000", "PCIe4x16"),
    ("A40", "PCIe4x16"),
    ("L4", "PCIe4x16"),
    ("A10", "PCIe4x16"),
)


def cluster(sizes: list[tuple[int, int, float]]) -> Cluster:
    """(nodes, GPUs of each, Gb/s of each) of groups, one kind after the other."""
    return Cluster(
        "c",
        tuple(
            NodeGroup(f"g{place}", nodes, Node(HWDB.gpu(gpu), gpus, HWDB.link(link), gbps / 8 * 1e9))
            for place, ((nodes, gpus, gbps), (gpu, link)) in enumerate(zip(sizes, KINDS, strict=False))
        ),
    )


MANY: list[tuple[int, int, float]] = [
    (1, 4, 100),
    (3, 4, 200),
    (3, 2, 100),
    (2, 1, 50),
    (3, 2, 100),
    (3, 2, 200),
    (3, 1, 100),
    (3, 1, 50),
]


def islands_of(nodes: list[int]) -> tuple[Island, ...]:
    """Islands of so many nodes, alike in all else."""
    (first,) = find_islands(cluster([(1, 1, 100)]), "bf16", hwdb=HWDB)
    return tuple(replace(first, name=f"g{place}", nodes=count) for place, count in enumerate(nodes))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_as_many_islands_are_told_apart_as_may_be(nodes: list[int], random: Random) -> None:
    """Those that the plan uses are among them if that can be; no other one can be added."""
    group = cluster([(1, 1, 100)]).groups[0]
    groups = (replace(group, name=f"g{place}", count=many) for place, many in enumerate(nodes))
    where = Cluster("c", tuple(groups))
    first = where.first_rank
    islands, begin = [], 0
    for island in islands_of(nodes):
        islands.append(replace(island, node_indices=tuple(range(begin, begin + island.nodes))))
        begin += island.nodes
    used = sorted(random.sample(range(len(nodes)), random.randint(1, len(nodes))))
    shares = [[Share(f"g{kind}", (first[islands[kind].node_indices[-1]],), 1, Layout())] for kind in used]
    plan = Plan(MODEL, where, JOB, (pipeline_of_shares(32, range(len(used) + 1), shares),))
    assert used_islands(islands, plan) == tuple(used)

    def few(kinds: list[int]) -> bool:
        return sum(nodes[kind] for kind in kinds) <= LIMITS.nodes and (
            prod(nodes[kind] + 1 for kind in kinds) <= LIMITS.states
        )

    work = [random.random() for _ in nodes]
    kept = [islands.index(item) for item in few_apart(islands, work, plan, LIMITS)]
    assert few(kept) and kept == sorted(kept)
    assert not few(used) or set(used) <= set(kept)
    assert not any(few([*kept, kind]) for kind in range(len(nodes)) if kind not in kept)


ODD = """name: odd
nodes:
  - {count: 1, gpu: H100-SXM5-80GB, gpus: 8}
  - {count: 13, gpu: L4, gpus: 1, nic_gbps: 10}
  - {count: 1, gpu: MI300X, gpus: 8}
"""


def steps_with_and_without_idle_groups(model: Model, where: Cluster, job: Job) -> tuple[float, float]:
    """Of a free plan, and of one that may not use what the first one leaves idle."""
    free = SearchOptions(beside=False)
    found = api.plan(model, where, job, wishes=free, hwdb=HWDB)
    islands = find_islands(where, job.dtype, hwdb=HWDB)
    busy = {islands[kind].name for kind in used_islands(islands, found.forecast.plan)}
    idle = {group.name for group in where.groups} - busy
    assert idle and busy <= {group.name for group in where.groups}
    without = api.plan(model, where, job, wishes=replace(free, exclude=tuple(sorted(idle))), hwdb=HWDB)
    return found.document.step_s, without.document.step_s


@pytest.mark.slow
def test_no_question_without_idle_groups_has_a_faster_plan() -> None:
    """Copies of patterns over eight groups leave five idle; without these, single pipelines are searched."""
    step_s, without_s = steps_with_and_without_idle_groups(MODEL, cluster(MANY), JOB)
    assert step_s <= without_s * (1 + 1e-3)


def test_pipelines_stand_side_by_side_where_a_third_island_is_of_no_use(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(ODD, encoding="utf-8")
    job = Job(64, 4096, "bf16")
    where = load_cluster(str(path), HWDB)
    step_s, without_s = steps_with_and_without_idle_groups(load_model("qwen3-14b"), where, job)
    assert step_s <= without_s * (1 + 1e-3)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=8), st.integers(1, 2000))
def test_no_node_is_stranded_where_nodes_are_taken_in_groups(nodes: list[int], states: int) -> None:
    """Parts grow group by group, the last to the whole island, of which as little as may be is odd."""
    for count, unit in zip(nodes, node_units(islands_of(nodes), states), strict=True):
        parts = in_units(count, unit)
        assert len(parts) == count // unit
        assert parts[-1] == count
        assert all(part == unit * place for place, part in enumerate(parts[:-1], start=1))
        assert count % unit < count // unit  # else groups could have a node more


def test_whole_islands_are_no_better_than_nodes_in_groups_where_weights_wait() -> None:
    """Groups of four of seven nodes left three idle, and copies of patterns were not tried."""
    where = cluster([(7, 1, 100)] * 5)
    job = replace(JOB, dtype="bf16", schedule="zb-h1")
    where = replace(where, groups=(where.groups[0], where.groups[1], where.groups[2], *where.groups[4:]))
    model = replace(MODEL, blocks=8 * (replace(BLOCK, feed_forward=FeedForward(8192, gated=False)),))
    free = api.plan(model, where, job, wishes=SearchOptions(effort="quick"), hwdb=HWDB).document
    whole = SearchOptions(effort="quick", sub_islands=False)
    assert free.step_s <= api.plan(model, where, job, wishes=whole, hwdb=HWDB).document.step_s * 1.005
    assert COPIES_OF_PATTERNS.among(free.findings)


def test_a_note_on_a_look_apart_says_whether_nodes_were_told_apart() -> None:
    few, many = islands_of([2, 3]), islands_of([70, 45])
    assert (
        str(gain_apart(few, LIMITS, 0.9, 1.0)) == "g0, g1 node by node: 10.0 % faster than copies of patterns"
    )
    assert str(gain_apart(many, LIMITS, 0.9, 1.0)) == (
        "all islands, nodes in groups: 10.0 % faster than the best so far"
    )


def test_of_looks_that_gain_one_after_the_other_the_last_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    where, ways = cluster(MANY), islands_of([70, 45])

    def faster(_: object, islands: object, known: list[Scored]) -> list[Scored]:
        best = min(known, key=lambda scored_plan: scored_plan.step_s)
        return [replace(best, step_s=best.step_s * 0.9)]

    monkeypatch.setattr(engine, "looks_apart", lambda *_: [ways[:1], ways])
    monkeypatch.setattr(engine, "_node_by_node_below", faster)
    found = engine.tangram(MODEL, where, JOB, HWDB, SearchOptions(effort="quick"))
    gains = [*NODE_BY_NODE.among(found.findings), *ALL_IN_GROUPS.among(found.findings)]
    assert [each.code for each in gains] == [ALL_IN_GROUPS.code]
    assert gains[0].figures["gain"] == pytest.approx(0.1)

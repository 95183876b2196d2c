"""The whole model as one stage: no plain layout on an island of a large cluster beats its plan."""

from itertools import product

import pytest

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.hwdb import load_model
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import Counts, SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.fleets.lone_stage import LoneStages
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.studies.batch_estimates import Estimate
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering
from tests.planning import HWDB

BLOCK = Block(Attention(32, 32, 128, 128), FeedForward(16384, gated=False))
MODEL = Model("wide", "gpt2", 4096, 32000, 8 * (BLOCK,))
FREE = Constraints()
QUICK = SearchOptions(effort="quick", beside=False, memory_margin=0.0)


def cluster(nodes: int, nic_bytes_per_s: float) -> Cluster:
    """Many nodes of one kind, two of another."""
    many = Node(HWDB.gpu("A100-SXM4-80GB"), 8, HWDB.link("NVLink3"), nic_bytes_per_s)
    few = Node(HWDB.gpu("H100-SXM5-80GB"), 8, HWDB.link("NVLink4"), 12.5e9)
    return Cluster("c", (NodeGroup("g0", nodes, many), NodeGroup("g1", 2, few)))


def fastest_plain(where: Cluster, job: Job, group: str, gpus: int, model: Model = MODEL) -> Estimate:
    """The fastest layout of one stage on a node group, degrees powers of two."""
    powers = [1 << power for power in range(8)]
    asked = [
        Uniform(tp, 1, dp, cp, zero_stage=zero, recompute=again, sequence_parallel=tp > 1, order=(group,))
        for tp, dp, cp, zero, again in product(powers[:4], powers, powers[:6], (0, 1, 3), ("none", "full"))
        if tp * dp * cp <= gpus and job.global_batch % dp == 0
    ]
    found = api.estimate_many(model, where, job, asked, hwdb=HWDB)
    return min(
        (item for item in found if isinstance(item, Estimate) and item.feasible),
        key=lambda estimate: estimate.step_s,
    )


@pytest.mark.parametrize(("batch", "seq", "nic"), [(4, 65536, 100e9), (24, 512, 5e9)])
def test_no_plain_layout_of_one_stage_beats_the_plan(batch: int, seq: int, nic: float) -> None:
    """Few long sequences want context parallelism over many nodes; few short ones on slow NICs a node."""
    where, job = cluster(27, nic), Job(batch, seq, "bf16")
    step_s = api.plan(MODEL, where, job, wishes=QUICK, hwdb=HWDB).document.step_s
    for group, gpus in (("g0", 216), ("g1", 16)):
        assert step_s <= fastest_plain(where, job, group, gpus).step_s * (1 + 1e-3)
    found = lone(where, job).best(float("inf"))
    assert found is not None
    assert step_s <= found.step_s * (1 + 1e-3)


def test_a_small_batch_stays_on_one_of_many_nodes() -> None:
    """Two nodes are worse than one behind slow NICs, four worse still: halving did not come so far."""
    node = Node(HWDB.gpu("H100-SXM5-80GB"), 8, HWDB.link("NVLink4"), 5e9)
    where, job = Cluster("c", (NodeGroup("g0", 84, node),)), Job(24, 512, "fp16")
    found = lone(where, job).best(float("inf"))
    assert found is not None
    assert stage_of(found.plan) == (1, 8)
    assert found.step_s <= fastest_plain(where, job, "g0", 8).step_s * (1 + 1e-3)


def test_a_small_batch_takes_some_gpus_of_a_node() -> None:
    """A composition of nodes takes them whole; two sequences on eight GPUs are more sent than computed."""
    block = Block(Attention(8, 8, 96, 96), FeedForward(3072, gated=False))
    model, job = Model("small", "gpt2", 768, 8192, 12 * (block,)), Job(2, 2048, "fp16")
    node = Node(HWDB.gpu("A100-PCIe-80GB"), 8, HWDB.link("PCIe4x16"), 1e9)
    where = Cluster("c", (NodeGroup("g0", 2, node),))
    answer = api.plan(model, where, job, wishes=QUICK, hwdb=HWDB).document
    assert answer.gpus_used < 8
    assert any("one stage" in note for note in answer.notes)
    for gpus in (1, 2, 4, 8):
        assert answer.step_s <= fastest_plain(where, job, "g0", gpus, model).step_s * (1 + 1e-3)


def lone(where: Cluster, job: Job, constraints: Constraints = FREE) -> LoneStages:
    """The look at one cluster, all of whose islands may be used."""
    islands = find_islands(where, job.dtype, hwdb=HWDB)
    ground = FleetProblem(MODEL, where, job, HWDB, islands, constraints, "grid", budget("normal"))
    bound = WorkBound(MODEL, job, islands, HWDB, where)
    lowering = Lowering(Placement(where, HWDB), StagePrices(MODEL, job, HWDB))
    return LoneStages(ground, bound, lowering, Counts(), Deadline())


def stage_of(plan: Plan) -> tuple[int, int]:
    """(stages, GPUs of the first)."""
    (pipeline,) = plan.pipelines
    return len(pipeline.stages), len(pipeline.stages[0].ranks)


def test_it_divides_the_nodes_of_odd_counts() -> None:
    """27 nodes of 8: 24 or 16 of them hold whole degrees for a batch with threes, or without."""
    for batch, gpus in ((12, 192), (4, 128)):
        look = lone(cluster(27, 100e9), Job(batch, 65536, "bf16"))
        found = look.best(float("inf"))
        assert found is not None
        assert stage_of(found.plan) == (1, gpus)


def test_it_asks_nothing_where_work_alone_takes_longer() -> None:
    """A limit that no part of an island can keep ends the look before any question."""
    look = lone(cluster(27, 100e9), Job(64, 8192, "bf16"))
    assert look.best(look.bound.step_s()) is None
    assert look.counts.asked == 0


def test_it_keeps_what_is_fixed() -> None:
    """Degrees of the user hold for it, too."""
    fixed = Constraints(fixed=(("cp", 1), ("tp", 4)))
    found = lone(cluster(27, 100e9), Job(16, 8192, "bf16"), fixed).best(float("inf"))
    assert found is not None
    layout = found.plan.pipelines[0].stages[0].layout
    assert (layout.cp, layout.tp) == (1, 4)


@pytest.mark.parametrize("batch", [3, 7])
def test_a_stage_on_some_gpus_of_a_node_is_not_bounded_by_stages_on_whole_nodes(batch: int) -> None:
    """Its step may lie below theirs; that no pipeline is faster is not known then."""
    few = Node(HWDB.gpu("T4"), 4, HWDB.link("PCIe3x16"), 6.25e9)
    where = cluster(1, 25e9)
    where = Cluster("c", (where.groups[0], NodeGroup("g1", 1, few)))
    job, wishes = Job(batch, 2048, "fp16"), SearchOptions(beside=False, memory_margin=0.0)
    found = api.plan(load_model("gpt3-1.3b"), where, job, wishes=wishes, hwdb=HWDB)
    used = sum(len(stage.ranks) for stage in found.forecast.plan.pipelines[0].stages)
    assert used < 8
    assert found.document.lower_bound_step_s < found.step_s * (1 - 1e-6)

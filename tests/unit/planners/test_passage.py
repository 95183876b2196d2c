"""One sequence through all layers: worked by hand, and no plan of a small batch below it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.cost.device import device_rates
from tangram_sim.errors import TangramError
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.passage import passage_s
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.sim import fast
from tangram_sim.training.job import Job
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering
from tests.planning import HWDB

ATTENTION = Attention(16, 16, 64, 64)
DENSE = Model("dense", "gpt2", 1024, 8192, 6 * (Block(ATTENTION, FeedForward(4096, gated=False)),))
SPARSE = Model("sparse", "gpt2", 1024, 8192, 4 * (Block(ATTENTION, Experts(8, 2, 2048)),))


def cluster(*kinds: str, gpus: int = 4) -> Cluster:
    """A node of every kind, and two of the first."""
    nodes = [Node(HWDB.gpu(kind), gpus, HWDB.link("PCIe4x16"), 12.5e9) for kind in kinds]
    return Cluster("c", tuple(NodeGroup(f"g{at}", 2 - min(at, 1), node) for at, node in enumerate(nodes)))


def bounds(model: Model, where: Cluster, job: Job) -> tuple[float, float]:
    """(one sequence's passage, work spread over all GPUs)."""
    islands = find_islands(where, job.dtype, hwdb=HWDB)
    work = WorkBound(model, job, islands, HWDB, where).step_s()
    return passage_s(model, job, islands, HWDB, where), work


@pytest.mark.parametrize(
    ("model", "kinds", "schedule"),
    [
        (DENSE, ("A100-SXM4-40GB", "V100-SXM2-32GB"), "1f1b"),
        (DENSE, ("V100-SXM2-32GB", "T4"), "zb-h1"),
        (SPARSE, ("A100-SXM4-40GB", "T4"), "gpipe"),
        (SPARSE, ("A100-SXM4-40GB",), "zb-h1"),
    ],
)
def test_no_layout_of_a_small_batch_is_below_it(model: Model, kinds: tuple[str, ...], schedule: str) -> None:
    """Every split of the GPUs that the laws allow, with short and long sequences; the best is near."""
    where = cluster(*kinds)
    placement = Placement(where, HWDB)
    for seq in (64, 2048):
        job = Job(4, seq, "fp16", schedule=schedule)
        passing, work = bounds(model, where, job)
        lowering, steps = Lowering(placement, StagePrices(model, job, HWDB)), []
        for pp, tp, cp, dp, ep in product((1, 2), (1, 2, 4), (1, 2), (1, 2, 4), (1, 4)):
            shape = Uniform(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sequence_parallel=tp > 1)
            try:
                plan = uniform_plan(model, where, job, shape)
            except TangramError:
                continue
            step = lowering.lower(plan.pipelines[0])
            steps.append(fast.makespan(step.template.with_durations(step.times)))
        assert len(steps) > 10
        assert min(steps) >= max(passing, work) * (1 - 1e-9)
        if seq == 64:  # launches are most of it, and work on so many GPUs is next to nothing
            assert 10 * work < passing and min(steps) < 5 * passing


def test_one_sequence_on_one_gpu_by_hand() -> None:
    """Kernel after kernel of a block, forward and back; a host that is slower counts instead.

    A rank alone has whole matrices; each kernel takes its launch and the larger of arithmetic and traffic.
    """
    where = cluster("A100-SXM4-40GB", gpus=1)
    where = replace(where, groups=(replace(where.groups[0], count=1),))
    job, tokens, hidden = Job(2, 512, "fp16"), 512, 1024
    rates = device_rates(HWDB.gpu("A100-SXM4-40GB"), job.precision.types, HWDB)

    def product_s(rows: int, columns: int, inner: int) -> float:
        moved = 2 * (rows * inner + inner * columns + rows * columns)
        flop = 2 * rows * columns * inner
        return rates.launch_s + max(flop / rates.gemm_flop_per_s, moved / rates.memory_bytes_per_s)

    def weights_s(rows: int, columns: int) -> float:  # read, added to and written
        moved = 2 * tokens * (rows + columns) + 2 * job.recipe.gradient_bytes * rows * columns
        flop = 2 * rows * columns * tokens
        return rates.launch_s + max(flop / rates.gemm_flop_per_s, moved / rates.memory_bytes_per_s)

    def streamed_s(moved: float) -> float:
        return rates.launch_s + moved / rates.memory_bytes_per_s

    shapes = ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden))
    forward = sum(product_s(tokens, columns, inner) for columns, inner in shapes)
    inputs = sum(product_s(tokens, inner, columns) for columns, inner in shapes)
    norms, activation = 2 * streamed_s(5 * tokens * hidden * 2), streamed_s(2 * tokens * 4 * hidden * 2)
    scores, columns = tokens * tokens / 2 * 16, 2 * 64 + 2 * rates.exponent_columns
    moved = 4 * tokens * hidden * 2
    core = rates.launch_s + 2 * scores * columns / rates.attention_flop_per_s
    core += moved / rates.memory_bytes_per_s
    forward += norms + activation + core
    inputs += 1.5 * (norms + activation) + 2.5 / 0.85 * core
    weights = sum(weights_s(columns, inner) for columns, inner in shapes)
    launched, again = 14 * rates.dispatch_s, 26 * rates.dispatch_s
    assert launched > forward and again - weights > inputs  # so short are these kernels

    def each(job: Job) -> float:
        """Seconds of one block more."""
        passing = [
            bounds(replace(DENSE, blocks=DENSE.blocks[:1] * blocks), where, job)[0] for blocks in (5, 2)
        ]
        return (passing[0] - passing[1]) / 3

    busy = replace(job, cuda_graphs=True)  # one launch a block: the kernels are what it takes
    assert each(job) == pytest.approx(launched + again, rel=1e-9)
    assert each(busy) == pytest.approx(forward + inputs + weights, rel=1e-9)
    # Weight gradients that are put off are not on the way, whoever was busy meanwhile.
    assert each(replace(job, schedule="zb-h1")) == pytest.approx(launched + again - weights, rel=1e-9)
    assert each(replace(busy, schedule="zb-h1")) == pytest.approx(forward + inputs, rel=1e-9)


def test_exchanges_are_on_the_way() -> None:
    """Where wider groups would be faster but for their links: the slower these, the longer the passage."""
    model, job = replace(DENSE, blocks=DENSE.blocks[:2]), Job(1, 8192, "fp16", cuda_graphs=True)

    def passing(link: str, nic_bytes_per_s: float) -> float:
        node = Node(HWDB.gpu("A100-SXM4-40GB"), 4, HWDB.link(link), nic_bytes_per_s)
        return bounds(model, Cluster("c", (NodeGroup("g0", 2, node),)), job)[0]

    alone = Node(HWDB.gpu("A100-SXM4-40GB"), 1, HWDB.link("PCIe4x16"), 1e9)
    item = bounds(model, Cluster("c", (NodeGroup("g0", 1, alone),)), job)[0]
    fast, slow, slowest = passing("NVLink3", 1e12), passing("NVLink3", 1e9), passing("PCIe3x16", 1e9)
    assert item / 8 < fast < slow < slowest < item


@pytest.mark.parametrize(
    ("gpus", "rack", "nodes", "shapes"),
    [  # GPUs of a node, nodes of a rack: groups that fill neither, where whole nodes and racks cut others
        (6, 1, 2, (Uniform(tp=4, dp=1), Uniform(tp=2, cp=2, dp=1))),
        (6, 2, 4, (Uniform(tp=8, dp=1), Uniform(tp=4, cp=2, dp=1))),
    ],
)
def test_groups_that_fill_no_node_or_rack_are_near(
    gpus: int, rack: int, nodes: int, shapes: tuple[Uniform, ...]
) -> None:
    """Behind slow NICs a layout that uses some GPUs of a node, or of a rack, is not held to cross them."""
    node = Node(HWDB.gpu("A100-SXM4-80GB"), gpus, HWDB.link("NVLink3"), 1e9, scale_up_nodes=rack)
    where, model = Cluster("c", (NodeGroup("g0", nodes, node),)), replace(DENSE, blocks=DENSE.blocks[:4])
    job = Job(1, 8192, "fp16", cuda_graphs=True, trainable=0.01)
    passing = bounds(model, where, job)[0]
    for shape in shapes:
        plan = uniform_plan(model, where, job, shape)
        step = Lowering.of(plan, HWDB).lower(plan.pipelines[0])
        step_s = fast.makespan(step.template.with_durations(step.times))
        assert passing <= step_s < 1.7 * passing


def test_adding_up_gradients_is_left_out_once() -> None:
    """Where weight gradients are put off and added up in passes of their own, the passes before take time."""
    where = cluster("H100-SXM5-80GB")
    job = Job(1, 32, "fp32", schedule="zb-h1", stack="fsdp", cuda_graphs=True)
    wide = Block(ATTENTION, FeedForward(16384, gated=False))
    assert bounds(replace(DENSE, hidden=4096, blocks=(wide, wide)), where, job)[0] > 0


def test_a_kind_that_cannot_hold_an_atom_leaves_the_bound_of_the_others() -> None:
    """Infinite seconds of one atom on one kind, where no layout of it is allowed: no NaN."""
    where, job = cluster("H100-SXM5-80GB", "A100-SXM4-80GB"), Job(64, seq=1024, dtype="bf16")
    bound = WorkBound(DENSE, job, find_islands(where, job.dtype, hwdb=HWDB), HWDB, where)
    without = np.zeros_like(bound.seconds)
    without[1, 3] = np.inf
    narrowed = bound.tightened(without)
    assert 0.99 * bound.step_s() < narrowed.step_s() < np.inf
    without[0, 4] = np.inf  # each kind lacks another one
    assert 0.99 * bound.step_s() < bound.tightened(without).step_s() < np.inf
    without[0, 3] = np.inf
    assert bound.tightened(without).step_s() == np.inf

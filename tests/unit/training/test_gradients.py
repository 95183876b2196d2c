"""What data parallelism moves by stack and setting: hybrid groups, broadcasts of shards, accumulation."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim import Job, load_model
from tangram_sim.clusters import Island
from tangram_sim.cost.collectives import all_gather_s, all_reduce_s, broadcast_s
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.training.stage import atom_prices, pricing, state
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

HWDB = Hwdb.load()
MODEL = load_model("llama3-8b")
BLOCK = MODEL.blocks[0]
JOB = Job(128, 4096, "bf16", stack="fsdp")


def setting(job: Job = JOB, nodes: int = 16, zero: int = 3) -> Setting:
    """Replicas on nodes of eight A100."""
    island = Island("nodes", HWDB.gpu("A100-80GB"), nodes, 8, HWDB.link("NVLink3"), 5e10, 1e-5)
    layout = Layout(dp=8 * nodes, zero_stage=zero)
    return Setting(MODEL, island, job, 8 * nodes, (layout,), HWDB)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_hybrid_group_of_all_replicas_is_no_group(zero: int) -> None:
    """128 of 128 ranks: the same bytes and seconds as without."""
    plain, whole = setting(zero=zero), setting(replace(JOB, shard_ranks=128), zero=zero)
    assert state.static_bytes(plain, BLOCK) == state.static_bytes(whole, BLOCK)
    for last in (False, True):
        assert state.gradient_sync_s(whole, BLOCK, last) == pytest.approx(
            state.gradient_sync_s(plain, BLOCK, last)
        )


def test_hybrid_sharding_gathers_inside_the_node_and_holds_more() -> None:
    """Groups of eight: 16 times the state; weights come over NVLink; a shard of gradients crosses nodes."""
    plain, hybrid = setting(), setting(replace(JOB, shard_ranks=8))
    assert state.static_bytes(hybrid, BLOCK) == pytest.approx(16 * state.static_bytes(plain, BLOCK))
    weights = state.sharded_weights_gather_s(hybrid, BLOCK)
    assert weights < 0.3 * state.sharded_weights_gather_s(plain, BLOCK)
    alone = setting(nodes=1)
    assert weights == pytest.approx(state.sharded_weights_gather_s(alone, BLOCK))
    crossing = state.gradient_sync_s(hybrid, BLOCK, True) - state.gradient_sync_s(alone, BLOCK, True)
    # Ring bound: 2 (D - 1) / D of a rank's eighth through its share of the NICs.
    shard = state.parameters_per_rank(plain, BLOCK)[0] * JOB.recipe.gradient_bytes / 8
    bound = 2 * 15 / 16 * shard / (5e10 / 8) * plain.rates.data_exposed
    assert bound < crossing < 2 * bound


def test_broadcasts_of_shards_cost_what_gathering_does_until_their_starts_rule() -> None:
    """InternEvo hands weights out owner by owner: no matter on two nodes, several times as long on 128.

    Measured beside groups of a node (`traces/published`, internevo-001 to -016): 0.1 s more on 16 ranks,
    2.7 s on 1,024.
    """
    for nodes, low, high in ((2, 1.0, 1.5), (128, 5.0, 15.0)):
        job = replace(JOB, stack="internevo", gradient_bytes=2.0)
        handed = setting(job, nodes, zero=1)
        total = sum(
            float(state.updated_weights_gather_s(handed, atom)[0]) * count
            for atom, count in ((BLOCK, MODEL.layers),)
        )
        share = MODEL.layers * BLOCK.parameters(MODEL.hidden) / MODEL.parameters
        weights = 2.0 * MODEL.parameters
        exposed = handed.rates.data_exposed
        gathered = float(all_gather_s(weights, handed.dp_group)[0]) * exposed
        assert low < total / share / gathered < high
        item = float(broadcast_s(weights / (8 * nodes), handed.dp_group)[0])
        assert total == pytest.approx(8 * nodes * item * share * exposed)


@pytest.mark.parametrize(
    ("stack", "zero", "passes"), [("megatron", 1, 0), ("deepspeed", 1, 10), ("fsdp", 3, 0)]
)
def test_gradients_are_added_up_by_a_kernel_where_no_product_does(stack: str, zero: int, passes: int) -> None:
    """bf16 beside fp32 sums: two bytes read of the product, four read and four written of the sum."""
    found = setting(replace(JOB, stack=stack), zero=zero)
    moved = passes * BLOCK.parameters(MODEL.hidden) / found.rates.memory_bytes_per_s
    assert state.accumulation_s(found, BLOCK) == pytest.approx(moved, abs=1e-5)
    assert np.all(state.accumulation_s(found, BLOCK) >= moved)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_reductions_apart_take_their_whole_time_behind_the_passes(zero: int) -> None:
    """In buckets behind the last pass; ZeRO-2's in every pass; ZeRO-3's are none of it."""
    beside = Pricer(setting(replace(JOB, stack="megatron"), 4, zero)).price(1, 9)
    job = replace(JOB, stack="megatron", gradients_last=True)
    apart = Pricer(setting(job, 4, zero)).price(1, 9)
    layer = state.parameters_per_rank(setting(job, 4, zero), BLOCK)[0]
    size, over = 8 * layer * job.recipe.gradient_bytes, setting(job, 4).dp_group
    share = setting(job, 4).rates.data_exposed
    once = share * (all_reduce_s(size, over) if zero == 0 else all_gather_s(size, over))
    behind = apart.gradient_sync_s - beside.gradient_sync_s
    longer = apart.backward_s - beside.backward_s
    if zero < 2:
        gathered = np.where(zero == 1, 8 * share * all_gather_s(size / 16, over), 0.0)
        assert apart.gradient_sync_s == pytest.approx(once + gathered, rel=0.02)
        assert 0.1 * once < behind < once and longer == pytest.approx(0.0)
    elif zero == 2:
        assert 0.1 * once < longer < once
    else:
        assert behind == longer == 0.0


@pytest.mark.parametrize("stack", ["generic", "megatron"])
def test_both_backward_passes_at_once_take_what_each_takes_alone(
    stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One play with two ways to synchronise gradients is a shortcut, not another model."""
    of_zero = [Layout(tp=2, dp=16, zero_stage=zero, sequence_parallel=True) for zero in range(4)]
    island = Island("nodes", HWDB.gpu("A100-80GB"), 4, 8, HWDB.link("NVLink3"), 1e9, 1e-5)
    where = Setting(MODEL, island, replace(JOB, stack=stack), 16, tuple(of_zero), HWDB)
    slices = [(0, 1), (0, 12), (3, 20), (20, 34)]
    together = Pricer(where).price_many(slices)
    assert (together.gradient_sync_s[:, :2] > 0).all()
    for room in (atom_prices, pricing):
        monkeypatch.setattr(room, "backward_directions", lambda job: ("backward", "last"))
    apart = Pricer(where).price_many(slices)
    for name in ("forward_s", "backward_s", "backward_weight_s", "gradient_sync_s"):
        assert getattr(together, name) == pytest.approx(getattr(apart, name), rel=1e-12), name


def test_copies_of_a_hybrid_group_agree_on_gradients_that_are_reduced_apart_too() -> None:
    """ZeRO-1 over 4 of 16 replicas: shards are scattered, then all-reduced with three other copies."""
    where = setting(replace(JOB, stack="megatron", gradients_last=True, shard_ranks=4), 4, 1)
    dense, width = state.parameters_per_rank(where, BLOCK)[0], where.job.recipe.gradient_bytes
    shards = all_gather_s(dense * width, where.shard_group)
    copies = all_reduce_s(dense * width / 4, where.copy_group)
    assert (copies > 0.1 * shards).all()
    found = state.reduced_apart_s(where, BLOCK)
    assert found == pytest.approx(where.rates.data_exposed * (shards + copies), rel=0.05)

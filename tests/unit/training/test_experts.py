"""What mixtures of experts cost beside their products."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim import Job, load_model
from tangram_sim.clusters import Island
from tangram_sim.cost.collectives import all_to_all_s, group
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.training.stage import gemms
from tangram_sim.training.stage.block import block_times
from tangram_sim.training.stage.experts import OVERLAPPED, dispatch_s, expert_kernels, narrow_bytes
from tangram_sim.training.stage.setting import Setting

HWDB = Hwdb.load()
MODEL = load_model("mixtral-8x7b")
BLOCK = MODEL.blocks[0]
LAYOUTS = (Layout(dp=8), Layout(dp=8, ep=2), Layout(dp=8, ep=8))


def setting(stack: str = "generic", dtype: str = "bf16") -> Setting:
    """Eight H100 of one node."""
    gpu = HWDB.gpu("H100")
    island = Island("node", gpu, 1, 8, HWDB.link("NVLink4"), 4e11, 1e-5)
    return Setting(MODEL, island, Job(8, 4096, dtype, stack=stack), 8, LAYOUTS, HWDB)


def test_stacks_without_grouped_products_launch_every_local_expert() -> None:
    """8, 4 and 1 local experts: each beyond the first adds its kernels, on the host and on the device."""
    grouped, apart = setting(), setting("pytorch")
    for backward, each in ((False, 3), (True, 6)):
        more = expert_kernels(apart, BLOCK, backward) - expert_kernels(grouped, BLOCK, backward)
        assert np.array_equal(more, each * np.array([7, 3, 0]))
    part = BLOCK.feed_forward
    together = gemms.passes(apart, gemms.expert_up(apart, part, gemms.computed_rows(apart, part)))
    starts = block_times(apart, BLOCK).up.forward - together.forward
    assert starts == pytest.approx(apart.rates.launch_s * np.array([7, 3, 0]), abs=1e-12)


def test_dense_blocks_have_none_of_it() -> None:
    """A mixture launches more than a dense block, with one expert per rank too."""
    dense = load_model("llama3-8b").blocks[0]
    assert expert_kernels(setting(), dense, False) == 0.0
    assert (np.asarray(expert_kernels(setting(), BLOCK, False)) > 0).all()


def test_narrow_types_convert_the_weights_of_local_experts_and_pad_copies_of_tokens() -> None:
    """Four bytes a weight; four passes over two copies of 4,096 tokens, 1.2 times behind an exchange."""
    assert not narrow_bytes(setting(), BLOCK.feed_forward).any()
    moved = narrow_bytes(setting(dtype="fp8"), BLOCK.feed_forward)
    weights = 3 * 4096 * 14336 * np.array([8, 4, 1])
    copies = 2 * 4096 * 4096 * np.array([1.0, 1.2, 1.2])
    assert moved == pytest.approx(4 * weights + 8 * copies)


@pytest.mark.parametrize("copies", [1, 2, 8])
def test_a_token_leaves_for_a_domain_once(copies: int) -> None:
    """Ranks drawn at random: the share that leaves, against counting draws."""
    gpu = HWDB.gpu("H100")
    island = Island("nodes", gpu, 4, 8, HWDB.link("NVLink4"), 4e10, 1e-5)
    over = group(island, np.array([32]), np.array([1]), HWDB)
    size = 1e12  # so that only rates matter
    plain = float(all_to_all_s(size, over)[0])
    once = float(all_to_all_s(size, over, copies=copies)[0])
    drawn = np.random.default_rng(7).integers(0, 4, size=(20_000, copies))
    leaving = np.mean([len(set(row.tolist()) - {0}) for row in drawn])
    assert once / plain == pytest.approx(leaving / (copies * 3 / 4), rel=0.02)


def test_only_some_stacks_send_once_and_never_at_a_loss() -> None:
    """Inside one node there is nothing to save."""
    generic, nemo = (dispatch_s(setting(stack), BLOCK.feed_forward) for stack in ("generic", "nemo"))
    assert np.array_equal(generic, nemo)
    wide = replace(setting().island, nodes=2, gpus_per_node=4, nic_bytes_per_s=1e10)
    generic, nemo = (
        dispatch_s(replace(setting(stack), island=wide), BLOCK.feed_forward) for stack in ("generic", "nemo")
    )
    assert generic[2] < nemo[2]
    assert (generic <= nemo).all()


def test_exchanges_beside_another_microbatch_are_nearly_hidden_where_stages_are_interleaved() -> None:
    """Under Megatron-Bridge, and under no other stack or schedule."""
    part = BLOCK.feed_forward
    plain = dispatch_s(setting("megatron-bridge"), part)
    assert plain == pytest.approx(dispatch_s(setting("megatron"), part))
    interleaved = [
        replace(setting(stack), job=replace(setting(stack).job, schedule="interleaved"))
        for stack in ("megatron-bridge", "megatron")
    ]
    hidden, shown = (dispatch_s(item, part) for item in interleaved)
    assert hidden == pytest.approx(OVERLAPPED * plain) and shown == pytest.approx(plain)


def test_latent_experts_are_sent_their_own_width() -> None:
    """A quarter of the hidden size: a quarter of the bytes, so less time, but not the launch's."""
    part = BLOCK.feed_forward
    narrow = replace(part, sent_width=MODEL.hidden // 4)
    whole, less = dispatch_s(setting(), part), dispatch_s(setting(), narrow)
    assert whole[0] == less[0] == 0.0
    assert (less[1:] < 0.5 * whole[1:]).all() and (less[1:] > 0.2 * whole[1:]).all()
    assert dispatch_s(setting(), replace(part, sent_width=MODEL.hidden)) == pytest.approx(whole)

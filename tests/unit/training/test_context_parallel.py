"""Context parallelism: what a ring of ranks, or an exchange of heads, adds to the attention core."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim import Job, load_model
from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.training.stage.attention import Core, cores
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import held, kv_bytes

HWDB = Hwdb.load()
MODEL = load_model("llama3-8b")


def setting(
    gpu: str, seq: int, layouts: tuple[Layout, ...], microbatch: int = 1, **of_job: object
) -> Setting:
    """One node of eight."""
    kind = HWDB.gpu(gpu)
    link = HWDB.link(HWDB.gpu_row(kind.name)["link"])
    island = Island("node", kind, 1, 8, link, 1e11, 1e-5)
    job = replace(Job(1, seq, "bf16"), **of_job)  # type: ignore[arg-type]
    return Setting(MODEL, island, job, microbatch, layouts, HWDB)


def seconds(core: Core) -> float:
    """One core alone: the steps and transfers of a ring side by side, then the last step."""
    exchanges = core.inward[0] + core.outward[0]
    return float(exchanges + max(core.ahead[0], core.passing[0]) + core.last[0])


# github.com/zhuzilin/ring-flash-attention, README at 01c8baf: zigzag_ring_flash_attn_func on eight GPUs,
# heads of Llama 3.1 8B, 8,192 tokens a GPU, against flash attention over an eighth of the work eight times.
@pytest.mark.parametrize(
    ("gpu", "forward", "both"), [("H800-SXM5-80GB", 0.852, 0.902), ("A100-SXM4-80GB", 0.817, 0.898)]
)
def test_a_zigzag_ring_of_eight_keeps_the_share_that_was_measured(
    gpu: str, forward: float, both: float
) -> None:
    """Partial results are added up and the last round of tiles is half empty, eight times over."""
    ring = cores(setting(gpu, 65536, (Layout(cp=8),), stack="pytorch"), MODEL.blocks[0])
    alone = cores(setting(gpu, 8192, (Layout(),), stack="pytorch"), MODEL.blocks[0])
    kept = [8 * seconds(item) / seconds(other) for item, other in zip(alone, ring, strict=True)]
    total = 8 * sum(map(seconds, alone)) / sum(map(seconds, ring))
    assert kept[0] == pytest.approx(forward, abs=0.06)
    assert total == pytest.approx(both, abs=0.02)


def pass_seconds(seq: int, cp: int, **of_job: object) -> float:
    """Forward and backward of the model with 8,192 tokens a rank, whatever cp: of short sequences several."""
    per_rank = 8192 // seq
    priced = Pricer(setting("H100-SXM5-80GB", seq, (Layout(cp=cp),), per_rank * cp, **of_job)).price(0, 34)
    return float(priced.forward_s[0] + priced.backward_s[0])


def test_more_context_parallelism_costs_more_at_equal_tokens_and_most_for_short_sequences() -> None:
    """Steps, merges and launches are the same however short the sequence; what they hide behind is not."""
    for seq in (1024, 8192):
        times = [pass_seconds(seq, cp) for cp in (1, 2, 4, 8)]
        assert times == sorted(times)
        assert times[-1] > 1.05 * times[0]
    short, long = (pass_seconds(seq, 8) / pass_seconds(seq, 1) for seq in (1024, 8192))
    assert short > long


def test_transfers_hide_behind_steps_until_the_link_is_slower_than_they_are() -> None:
    """All but the first step wait for the slower of step and transfer."""
    item = setting("H100-SXM5-80GB", 32768, (Layout(cp=8),))
    ring, _ = cores(item, MODEL.blocks[0])
    assert ring.passing[0] < ring.ahead[0]
    starved = replace(item, island=replace(item.island, intra=replace(item.island.intra, bytes_per_s=1e9)))
    ring, _ = cores(starved, MODEL.blocks[0])
    assert ring.passing[0] > ring.ahead[0]
    assert ring.passing[0] > 7 * float(kv_bytes(starved, MODEL.blocks[0].attention)[0]) / 1e9


def test_rings_over_nodes_pass_keys_through_the_network() -> None:
    """Of a ring over two nodes every step waits for the pair that crosses, over one rank's share of NICs."""
    item = setting("H100-SXM5-80GB", 32768, (Layout(cp=8),))
    inside, _ = cores(item, MODEL.blocks[0])
    two = replace(item, island=replace(item.island, nodes=2, gpus_per_node=4))
    across, _ = cores(two, MODEL.blocks[0])
    assert across.passing[0] > 2 * inside.passing[0]
    assert across.ahead[0] == inside.ahead[0]


def test_deepspeed_exchanges_heads_instead_of_passing_keys() -> None:
    """Ulysses: nothing is merged, no step is waited for, backward the exchanges swap places."""
    item = setting("H100-SXM5-80GB", 32768, (Layout(), Layout(cp=8)), 8, stack="deepspeed")
    forward, backward = cores(item, MODEL.blocks[0])
    assert not forward.ahead.any() and not forward.passing.any()
    assert forward.inward[0] == forward.outward[0] == 0.0
    assert forward.inward[1] > forward.outward[1] > 0.0
    assert np.array_equal(forward.inward, backward.outward)


def test_a_ring_holds_two_blocks_of_keys_and_of_their_gradients() -> None:
    """Double buffers, beside what a rank keeps of its own sequence."""
    both = setting("H100-SXM5-80GB", 32768, (Layout(), Layout(cp=8)), 8)
    block = MODEL.blocks[0]
    assert (
        kv_bytes(both, block.attention)[1] == 32768 * 8 * 256 * 2
    )  # 8 sequences' eighths, 8 heads of 2 x 128
    ring, heads = (
        held(replace(both, job=replace(both.job, stack=stack)), block).transient
        for stack in ("nemo", "deepspeed")
    )
    assert ring[0] == heads[0]
    assert ring[1] - heads[1] == 4 * kv_bytes(both, block.attention)[1]

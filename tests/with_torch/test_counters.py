"""Our parameters, FLOPs and kept activations against torch's counters, on blocks written in plain torch."""

from dataclasses import replace

import pytest
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode

from tangram_sim.clusters import Island
from tangram_sim.cost.kernels import attention_flop
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers import products
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tangram_sim.training.job import Job
from tangram_sim.training.stage import gemms
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import held
from tests.with_torch.blocks import TorchBlock

pytestmark = pytest.mark.filterwarnings("ignore:::torch")

SEQ, HIDDEN, BATCH = 256, 256, 2
BLOCKS = {
    "gpt": Block(
        Attention(4, 4, 64, 64, qkv_bias=True, out_bias=True),
        FeedForward(4 * HIDDEN, gated=False, bias=True),
        norm_bias=True,
    ),
    "llama-gqa": Block(Attention(4, 2, 64, 64), FeedForward(704)),
    "moe": Block(Attention(4, 4, 64, 64), Experts(8, 2, 512)),
    "moe-shared": Block(Attention(4, 1, 64, 64), Experts(4, 1, 384, shared_width=256)),
    "mla": Block(Attention(4, 4, 96, 64, query_rank=128, kv_rank=64, rope_dim=32), FeedForward(704)),
}
HWDB = Hwdb.load()


def setting(block: Block) -> Setting:
    gpu = HWDB.gpu("H100-SXM5-80GB")
    where = Island("i", gpu, 1, 1, HWDB.link("NVLink4"), 0.0, 0.0)
    model = Model("m", "m", HIDDEN, 1024, (block,))
    return Setting(model, where, Job(seq=SEQ, dtype="bf16"), BATCH, (Layout(),), HWDB)


def our_gemm_flop(where: Setting, block: Block) -> float:
    part = block.feed_forward
    found = products.input_projections(where, block.attention) + products.output_projection(
        where, block.attention
    )
    if isinstance(part, Experts):
        rows = gemms.balanced_rows(where, part)
        found += gemms.expert_up(where, part, rows) + gemms.expert_down(where, part, rows)
        found.append(products.Gemm(where.tokens, part.experts, HIDDEN))
        part = FeedForward(part.shared_width) if part.shared_width else None
    if part is not None:
        found += products.up_projection(where, part) + products.down_projection(where, part)
    return sum(float((2.0 * item.rows * item.n * item.k * item.count).item()) for item in found)


@pytest.mark.parametrize("name", BLOCKS)
def test_parameters_are_torchs(name):
    """On meta tensors: nothing is allocated, every tensor of the block counts."""
    with torch.device("meta"):
        made = TorchBlock(HIDDEN, BLOCKS[name])
    assert sum(p.numel() for p in made.parameters()) == BLOCKS[name].parameters(HIDDEN)


@pytest.mark.parametrize("name", BLOCKS)
def test_forward_and_backward_flop_are_torchs(name):
    """Products and the attention core; FlopCounterMode counts the whole score matrix, masked or not."""
    block = BLOCKS[name]
    where = setting(block)
    with torch.device("meta"):
        made = TorchBlock(HIDDEN, block)
        x = torch.empty(BATCH, SEQ, HIDDEN, requires_grad=True)
    forward, whole = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with forward:
        made(x)
    with whole:
        made(x).sum().backward()
    attention = block.attention
    core = attention_flop(where.tokens, SEQ, attention.heads, attention.head_dim, attention.value_dim)
    ours = our_gemm_flop(where, block) + float(core[0])
    assert forward.get_total_flops() == pytest.approx(ours, rel=1e-9)
    assert whole.get_total_flops() == pytest.approx(3 * ours, rel=1e-9)


def kept_bytes(block: Block, dropout: float) -> float:
    """Bytes a forward pass leaves for the backward one, by MemTracker: input counted, output not."""
    torch.manual_seed(0)
    made = TorchBlock(HIDDEN, block, dropout).to(torch.bfloat16)
    tracker = MemTracker()
    tracker.track_external(made)
    with tracker:
        # The input is the output of a block before: it needs a gradient and is kept.
        x = torch.randn(BATCH, SEQ, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
        before = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
        y = made(x)
        after = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
    return after - before + x.nbytes - y.nbytes


@pytest.mark.parametrize("name", BLOCKS)
def test_kept_activations_are_mem_trackers(name):
    """Within 3 %: torch keeps a few numbers per token more (statistics of norms and softmax, the routing)."""
    block = BLOCKS[name]
    ours = float(held(setting(block), block).activation[0])
    kept = kept_bytes(block, 0.1 if block.norm_bias else 0.0)
    assert kept == pytest.approx(ours, rel=0.03)


def test_dropout_masks_are_what_gpt_blocks_keep_beside():
    """Without dropout a GPT block keeps two bytes per element of the residual stream less."""
    block = BLOCKS["gpt"]
    tokens = BATCH * SEQ * HIDDEN
    with_masks, without = kept_bytes(block, 0.1), kept_bytes(block, 0.0)
    assert with_masks - without == 2 * tokens
    gated = replace(block, feed_forward=FeedForward(4 * HIDDEN, gated=True, bias=True))
    plain, swish = (held(setting(item), item).activation[0] for item in (block, gated))
    assert swish - plain == tokens * (2 * 4 - 2)  # one more width of 4 h in 16 bits, no masks

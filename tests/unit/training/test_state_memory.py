"""Bytes of a rank against the literature.

Activations (Korthikanti et al.), ZeRO states (Rajbhandari et al.).
"""

import numpy as np
import pytest

from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.layers.atoms import Embedding, Head, atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tangram_sim.training.job import Job
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import held, parameters_per_rank, static_bytes

HWDB = Hwdb.load()
SEQ, HIDDEN, HEADS = 1024, 2048, 16
BLOCK = Block(
    Attention(HEADS, HEADS, HIDDEN // HEADS, HIDDEN // HEADS, qkv_bias=True, out_bias=True),
    FeedForward(4 * HIDDEN, gated=False, bias=True),
    norm_bias=True,
)
GPT = Model("gpt", "gpt", HIDDEN, 51200, (BLOCK,) * 4, tied=True, positions=SEQ)


def setting(*layouts: Layout, model=GPT, gpu="V100-SXM2-16GB", microbatch=1, job=None) -> Setting:
    where = Island("i", HWDB.gpu(gpu), 4, 16, HWDB.link("NVLink2"), 25e9, 10e-6)
    return Setting(model, where, job or Job(seq=SEQ, dtype="fp16"), microbatch, layouts, HWDB)


def activation(layout: Layout, microbatch: int = 1, **changes) -> float:
    return float(held(setting(layout, microbatch=microbatch, **changes), BLOCK).activation[0])


@pytest.mark.parametrize("b", [1, 4])
@pytest.mark.parametrize("t", [1, 2, 8])
class TestActivationsOfAGptLayer:
    """arXiv:2205.05198: table 2 gives bytes per layer for 16-bit activations and unfused attention."""

    def sbh(self, b: int) -> float:
        return SEQ * b * HIDDEN

    def scores(self) -> float:
        return 5 * HEADS * SEQ / HIDDEN

    def test_tensor_parallel(self, b, t):
        """sbh (10 + 24/t + 5as/(ht)).

        Norms, dropout masks and block inputs are on every rank. t = 1: eq. 1.
        """
        expected = self.sbh(b) * (10 + 24 / t + self.scores() / t)
        assert activation(Layout(tp=t), b) == pytest.approx(expected, rel=1e-12)

    def test_tensor_and_sequence_parallel(self, b, t):
        """sbh/t (34 + 5as/h): everything is sharded (equation 4)."""
        expected = self.sbh(b) / t * (34 + self.scores())
        assert activation(Layout(tp=t, sequence_parallel=t > 1), b) == pytest.approx(expected, rel=1e-12)

    def test_selective_recompute(self, b, t):
        """34 sbh/t: the scores go (equation 6)."""
        layout = Layout(tp=t, sequence_parallel=t > 1, recompute="selective")
        assert activation(layout, b) == pytest.approx(34 * self.sbh(b) / t, rel=1e-12)

    def test_full_recompute(self, b, t):
        """2 sbh: only the layer's input; with sequence parallelism its shard, where the paper gathers it."""
        assert activation(Layout(tp=t, recompute="full"), b) == 2 * self.sbh(b)
        if t > 1:
            sharded = Layout(tp=t, recompute="full", sequence_parallel=True)
            assert activation(sharded, b) == 2 * self.sbh(b) / t


def test_the_papers_example_saves_what_it_says():
    """Section 5 of arXiv:2205.05198.

    Selective recomputation saves 70 % for GPT-3 and 65 % for MT-NLG 530B.
    """
    for name, saved in (("gpt3-175b", 0.70), ("gpt3-530b", 0.65)):
        model = load_model(name)
        job = Job(seq=2048, dtype="fp16")
        both = setting(Layout(), Layout(recompute="selective"), model=model, job=job)
        everything, kept = held(both, model.blocks[0]).activation
        assert 1 - kept / everything == pytest.approx(saved, abs=0.01)


def test_recomputed_bytes_come_back_while_the_block_runs():
    """What recomputation does not keep is the transient of one block.

    Full and none peak alike on one layer.
    """
    layouts = (Layout(), Layout(recompute="selective"), Layout(recompute="full"))
    found = held(setting(*layouts), BLOCK)
    assert np.ptp(found.activation + found.transient) == 0
    assert found.transient[0] == 0 < found.transient[1] < found.transient[2]


def test_fused_attention_keeps_no_scores():
    """On a GPU with a flash kernel a layer keeps 34 sbh without recomputation.

    And selective saves nothing.
    """
    both = setting(Layout(), Layout(recompute="selective"), gpu="A100-SXM4-80GB")
    everything, selective = held(both, BLOCK).activation
    assert everything == selective == 34 * SEQ * HIDDEN


def test_without_dropout_a_score_is_kept_once():
    """Behind the softmax; with dropout a second time, and the mask of one byte. Llama's blocks have none."""
    gpt, off = Job(seq=SEQ, dtype="fp32"), Job(seq=SEQ, dtype="fp32", dropout=False)
    scores = HEADS * SEQ * SEQ
    with_dropout, without = (
        held(setting(Layout(), Layout(recompute="selective"), job=job), BLOCK).activation
        for job in (gpt, off)
    )
    assert with_dropout[0] - with_dropout[1] == scores * (4 + 4 + 1)
    assert without[0] - without[1] == scores * 4
    llama = Block(BLOCK.attention, FeedForward(4 * HIDDEN, gated=True))
    kept, selective = held(setting(Layout(), Layout(recompute="selective")), llama).activation
    assert kept - selective == scores * 2


def test_a_window_does_not_shrink_what_an_unfused_kernel_keeps():
    """Without a flash kernel the masked part of the score matrix is stored like the rest."""
    windowed = Block(
        Attention(HEADS, HEADS, 128, 128, window=128), FeedForward(4 * HIDDEN, gated=False), norm_bias=True
    )
    here = setting(Layout())
    assert held(here, windowed).activation[0] == held(here, BLOCK).activation[0]


@pytest.mark.parametrize("c", [2, 4])
def test_context_parallelism_shards_tokens(c):
    """Each of c ranks keeps 1/c of a layer's activations, scores included (its queries see all keys)."""
    assert activation(Layout(cp=c)) == pytest.approx(activation(Layout()) / c)


def test_data_parallel_shares_may_be_uneven_and_the_largest_counts():
    """5 sequences on 4 ranks: one rank holds two."""
    assert activation(Layout(dp=4), 5) == activation(Layout(dp=4), 8) == 2 * activation(Layout(dp=4), 4)


def test_gated_and_grouped_blocks_are_generalised():
    """What a layer of Llama keeps, counted by hand.

    2 norm inputs and 2 block inputs, q and output, k and v of few heads, gate, up, product; no dropout.
    """
    model = load_model("llama3-8b")
    block, width = model.blocks[0], 2
    attention, inner = block.attention, block.feed_forward.width
    per_token = model.hidden * 4 * width + width * (
        2 * attention.heads * attention.head_dim + 2 * attention.kv_heads * attention.head_dim + 3 * inner
    )
    where = setting(Layout(), model=model, gpu="H100-SXM5-80GB", job=Job(seq=8192, dtype="bf16"))
    assert held(where, block).activation[0] == 8192 * per_token


@pytest.mark.parametrize(
    ("stage", "bytes_per_parameter"),
    [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)],
)
def test_zero_stages_per_parameter(stage, bytes_per_parameter):
    """arXiv:1910.02054, figure 1: (2 + 2 + 12) with N = 64 gives 16, 4.19, 2.22 and 0.25 bytes."""
    where = setting(Layout(dp=64, zero_stage=stage), microbatch=64)
    expected = BLOCK.parameters(HIDDEN) * bytes_per_parameter
    assert static_bytes(where, BLOCK)[0] == pytest.approx(expected, rel=1e-12)


def test_zero_papers_example_fits_its_table():
    """The 7.5 B model of figure 1 in arXiv:1910.02054: 120, 31.4, 16.6 and 1.9 GB per device."""
    model = load_model("gpt3-7.5b")
    scale = 7.5e9 / model.parameters
    job = Job(seq=2048, dtype="fp16")
    layouts = [Layout(dp=64, zero_stage=stage) for stage in range(4)]
    where = setting(*layouts, model=model, microbatch=64, job=job)
    blocks = sum(static_bytes(where, block) for block in model.blocks)
    ends = static_bytes(where, Embedding(model.embedding_parameters))
    total = (blocks + ends) * scale / 1e9
    assert total == pytest.approx([120, 31.4, 16.6, 1.9], rel=0.02)


def test_bf16_keeps_fp32_gradients():
    """Megatron-LM's bf16 recipe: 2 + 4 + 12 bytes per parameter."""
    where = setting(Layout(), gpu="A100-SXM4-80GB", job=Job(seq=SEQ, dtype="bf16"))
    assert static_bytes(where, BLOCK)[0] == 18 * BLOCK.parameters(HIDDEN)


def test_sharded_stages_need_room_for_what_they_gather():
    """ZeRO-2 holds one block's whole gradient while it runs, ZeRO-3 also its weights and the next one's."""
    where = setting(*(Layout(dp=4, zero_stage=stage) for stage in range(4)), microbatch=4)
    transient = held(where, BLOCK).transient / BLOCK.parameters(HIDDEN)
    assert transient.tolist() == [0, 0, 2, 6]


@pytest.mark.parametrize(
    "name",
    ["gpt3-6.7b", "mixtral-8x7b", "gshard-moe-2.4b", "gemma2-9b", "deepseek-v2-lite", "bert-large", "gpt2"],
)
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4), Layout(dp=8, ep=4), Layout(tp=2, dp=4, ep=2)])
def test_parameters_over_ranks_and_stages_are_the_models(name, layout):
    """Nothing is lost or held twice in a model-parallel group, except a tied matrix (once at either end)."""
    model = load_model(name)
    if not any(isinstance(block.feed_forward, Experts) for block in model.blocks):
        layout = Layout(layout.tp, layout.dp)
    where = setting(layout, model=model, microbatch=8, job=Job(seq=512, dtype="fp16"))
    dense = expert = 0.0
    for atom in atoms_of(model):
        share = parameters_per_rank(where, atom)
        dense, expert = dense + share[0][0], expert + share[1][0]
    tied = model.vocabulary_parameters if model.tied else 0
    assert dense * layout.tp + expert * layout.tp * layout.ep == pytest.approx(model.parameters + tied)


def test_expert_states_shard_over_their_own_replicas():
    """ZeRO-1 over dp x cp / ep ranks for experts: with ep = dp nothing is left to shard."""
    model = load_model("mixtral-8x7b")
    block = model.blocks[0]
    layouts = [Layout(dp=8, ep=ep, zero_stage=zero) for ep in (1, 8) for zero in (0, 1)]
    where = setting(*layouts, model=model, microbatch=8, job=Job(seq=512, dtype="fp16"))
    experts = block.feed_forward.expert_parameters(model.hidden)
    dense = block.parameters(model.hidden) - experts
    assert static_bytes(where, block) == pytest.approx(
        [
            16 * (dense + experts),
            4 * (dense + experts) + 12 * (dense + experts) / 8,
            16 * (dense + experts / 8),
            4 * (dense + experts / 8) + 12 * (dense + experts) / 8,
        ]
    )


def test_logits_are_the_heads_transient():
    """16-bit logits and their fp32 copy, sharded over tp."""
    head = atoms_of(GPT)[-1]
    assert isinstance(head, Head)
    found = held(setting(Layout(), Layout(tp=4)), head).transient
    assert found == pytest.approx([SEQ * 51200 * 6, SEQ * 51200 * 6 / 4])


def test_a_loss_of_plain_operations_keeps_three_copies_of_the_logits():
    """PyTorch's cross-entropy: the softmax's logarithms, their gradient and that of the logits, in fp32.

    Stacks whose own loss works in place do so unless the job's recipe does not use it.
    """
    head = atoms_of(GPT)[-1]
    for stack, fused, per_logit in (
        ("deepspeed", True, 12),
        ("fsdp", True, 6),
        ("fsdp", False, 12),
        ("megatron", True, 6),
    ):
        job = Job(seq=SEQ, dtype="fp16", stack=stack, fused_loss=fused)
        assert held(setting(Layout(), job=job), head).transient[0] == SEQ * 51200 * per_logit


def test_norms_of_plain_operations_keep_what_they_compute():
    """LlamaRMSNorm keeps an fp32 copy and the normalised input, twice a block; LlamaMLP what SiLU returns."""
    llama = load_model("llama2-7b")
    bytes_of = {
        stack: held(setting(Layout(), model=llama, job=Job(seq=SEQ, stack=stack, dtype="fp16")), block)
        for stack in ("deepspeed", "generic")
        for block in llama.blocks[:1]
    }
    more = bytes_of["deepspeed"].activation[0] - SEQ * (2 * (4 + 2) * 4096 + 2 * 11008)
    kept_scores = {stack: item.transient[0] for stack, item in bytes_of.items()}
    assert more == pytest.approx(bytes_of["generic"].activation[0]) and min(kept_scores.values()) >= 0


def test_dtensor_keeps_inputs_as_gathered():
    """Under sequence parallelism: four 16-bit bytes a number for the two products, on every rank whole."""
    split = Layout(tp=4, sequence_parallel=True)
    jobs = (Job(seq=SEQ, dtype="fp16", stack=stack) for stack in ("fsdp", "generic"))
    kept, again = (activation(split, job=job) for job in jobs)
    assert kept - again == pytest.approx(SEQ * HIDDEN * 4 * (1 - 1 / 4))


def test_a_stages_bytes_are_the_sum_of_its_layers():
    """Static and per-microbatch bytes add up over any cut; the transient is the worst atom's.

    GPT ties its ends: two stages hold a copy of the vocabulary matrix each, one stage holds it once.
    """
    layouts = (Layout(dp=2), Layout(tp=2, recompute="full"), Layout(dp=2, zero_stage=3))
    where = setting(*layouts, microbatch=2)
    pricer = Pricer(where)
    whole = pricer.price(0, 6)
    second_copy = static_bytes(where, Embedding(GPT.vocabulary_parameters))
    for cut in range(1, 6):
        front, back = pricer.price(0, cut), pricer.price(cut, 6)
        assert front.static_bytes + back.static_bytes == pytest.approx(whole.static_bytes + second_copy)
        assert front.activation_bytes + back.activation_bytes == pytest.approx(whole.activation_bytes)
        assert np.maximum(front.transient_bytes, back.transient_bytes) == pytest.approx(whole.transient_bytes)

"""A slice as ops: what it computes, how long it lasts, and that its price is the play of its whole graph."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, Island, Node, NodeGroup
from tangram_sim.cost.collectives import all_gather_s
from tangram_sim.hwdb import load_model
from tangram_sim.layers.chain import chain_graph
from tangram_sim.layers.program import COMPUTE, GRADIENTS, Program
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.parallelizers.layouts import layouts as every_layout
from tangram_sim.placement.ranks import Placement
from tangram_sim.sim import fast
from tangram_sim.training.job import Job
from tangram_sim.training.stage import block as block_room
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.step.ideal import ideal_seconds, model_flop
from tests.neutral import neutral_hwdb

HWDB = neutral_hwdb()
NAMES = (
    "gpt3-6.7b",  # equal blocks
    "mixtral-8x7b",  # every block has experts
    "gshard-moe-2.4b",  # every other block has experts
    "gemma2-9b",  # every other block has a window
    "deepseek-v2-lite",  # latent attention; one dense block, then experts
    "gpt-neox-20b",  # attention and feed-forward side by side
)


def island(gpu="A100-SXM4-80GB", link="NVLink3", nodes=2, gpus=4, nic=25e9) -> Island:
    return Island("i", HWDB.gpu(gpu), nodes, gpus, HWDB.link(link), nic, 10e-6)


def job(where: Island, seq: int) -> Job:
    return Job(seq=seq, dtype="bf16" if where.gpu.peak_flop_per_s("bf16") else "fp16")


def layouts_of(model: Model, where: Island) -> tuple[Layout, ...]:
    """Layouts that fill the island, those with a degree the model's heads do not divide by left out."""
    heads = model.blocks[0].attention.heads
    return tuple(found for found in every_layout(model, where.gpus, (1,)) if heads % found.tp == 0)


def pricer(name: str, where: Island, seq: int = 2048, microbatch: int = 8) -> Pricer:
    model = load_model(name)
    return Pricer(Setting(model, where, job(where, seq), microbatch, layouts_of(model, where), HWDB))


class TestOperations:
    """Floating-point operations against closed forms of the literature."""

    @pytest.mark.parametrize("name", ["gpt3-6.7b", "gpt3-175b", "gpt3-1.3b", "gpt3-22b"])
    @pytest.mark.parametrize("seq", [1024, 2048, 8192])
    def test_gpt_matches_the_megatron_formula(self, name, seq):
        """72 B s L h^2 (1 + s/12h + V/12hL): arXiv:2104.04473 without recomputation, causal half of s/6h."""
        model, work = load_model(name), Job(global_batch=16, seq=seq, dtype="bf16")
        depth, hidden = model.layers, model.hidden
        shape = 1 + seq / (12 * hidden) + model.vocab / (12 * hidden * depth)
        expected = 72 * work.global_batch * seq * depth * hidden**2 * shape
        assert model_flop(model, work, HWDB.gpu("A100-SXM4-80GB"), HWDB) == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize(
        "name",
        [
            "llama3-8b",
            "llama2-70b",
            "qwen3-8b",
            "mixtral-8x7b",
            "gshard-moe-2.4b",
            "deepseek-v2-lite",
            "falcon-40b",
        ],
    )
    def test_six_flop_per_active_parameter_and_token(self, name):
        """6 N per token for every matrix a token meets.

        N counts active parameters without the input embedding; attention comes on top.
        """
        model, seq = load_model(name), 2048
        attention = sum(
            6 * (seq / 2) * block.attention.heads * (block.attention.head_dim + block.attention.value_dim)
            for block in model.blocks
        )
        weights = sum(block.active_parameters(model.hidden) for block in model.blocks)
        expected = seq * (6 * (weights + model.vocabulary_parameters) + attention)
        work = Job(global_batch=1, seq=seq, dtype="bf16")
        assert model_flop(model, work, HWDB.gpu("H100-SXM5-80GB"), HWDB) == pytest.approx(expected, rel=0.01)

    def test_windows_cut_attention(self):
        """gemma2 at 8192 tokens.

        Every other block sees 4096 keys at most, 3072 on average instead of 4096.
        """
        model, gpu = load_model("gemma2-9b"), HWDB.gpu("H100-SXM5-80GB")
        wide = replace(
            model,
            blocks=tuple(
                replace(block, attention=replace(block.attention, window=0)) for block in model.blocks
            ),
        )
        work = Job(global_batch=1, seq=8192, dtype="bf16")
        attention = model.blocks[0].attention
        saved = 21 * 3 * 2 * 8192 * 1024 * attention.heads * 2 * attention.head_dim
        difference = model_flop(wide, work, gpu, HWDB) - model_flop(model, work, gpu, HWDB)
        assert difference == pytest.approx(saved)

    def test_masked_language_models_predict_few_tokens(self):
        """BERT's head runs on about 16 % of tokens: its logits must not count in full."""
        model, gpu = load_model("bert-large"), HWDB.gpu("A100-SXM4-80GB")
        work = Job(global_batch=1, seq=512, dtype="bf16")
        full = model_flop(replace(model, masked_lm=False), work, gpu, HWDB)
        masked = model_flop(model, work, gpu, HWDB)
        logits = 6 * 512 * model.vocabulary_parameters
        assert full - masked == pytest.approx(0.84 * logits, rel=1e-6)


class TestStackDoesWhatItsSoftwareDoes:
    """Facts of frameworks that change what is computed or sent, not how fast."""

    def test_recomputation_that_stops_early_leaves_out_the_last_product(self):
        """FSDP and JAX recompute a block without its down-projection."""
        model, where = load_model("gpt3-6.7b"), island()
        layouts = (Layout(dp=8, recompute="none"), Layout(dp=8, recompute="full"))
        for stack, saves in (("generic", 0.0), ("fsdp", 1.0)):
            setting = Setting(model, where, replace(job(where, 2048), stack=stack), 8, layouts, HWDB)
            found = Pricer(setting).price(1, 2)
            none, full = found.backward_s
            down = block_room.block_times(setting, model.blocks[0]).down.forward[0]
            assert full - none == pytest.approx(float(found.forward_s[0] - saves * down), rel=1e-3)

    def test_without_sequence_parallelism_every_rank_sends_its_tokens_to_their_experts(self):
        """With it each of tp ranks holds a share of the tokens and sends those."""
        model, where = load_model("mixtral-8x7b"), island()
        alone, shared = (
            Layout(tp=2, dp=4, ep=4, sequence_parallel=sequence_parallel)
            for sequence_parallel in (False, True)
        )
        setting = Setting(model, where, job(where, 4096), 8, (alone, shared), HWDB)
        whole, half = block_room.block_times(setting, model.blocks[0]).dispatch
        assert 1.8 < whole / half <= 2.0


class TestPricesArePlays:
    """Prices come from prefixes of long chains; each must be the play of the slice's own op graph."""

    def slices(self, size: int) -> list[tuple[int, int]]:
        middle = size // 2
        return [
            (0, 1),
            (size - 1, size),
            (0, size),
            (0, 2),
            (0, 7),
            (middle, middle + 1),
            (1, 5),
            (2, size - 1),
            (3, size),
            (size - 3, size),
            (1, size - 1),
            (middle, size),
            (0, middle),
        ]

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize(
        ("where", "seq"),
        [
            (island(), 2048),
            (island("T4", "PCIe3x16", nodes=4, gpus=2, nic=1.25e9), 512),  # bound by communication
            (island("H100-SXM5-80GB", "NVLink4", nodes=1, gpus=8), 128),  # bound by the host
        ],
        ids=["balanced", "slow network", "host bound"],
    )
    def test_every_layout_and_slice(self, name, where, seq):
        """Forward, backward and the last backward with its reductions, for every layout, within 1e-3."""
        prices = pricer(name, where, seq)
        chosen = np.linspace(0, len(prices.setting.layouts) - 1, 23).astype(int)
        few = tuple(prices.setting.layouts[index] for index in chosen)
        prices = Pricer(replace(prices.setting, layouts=few))
        for start, stop in self.slices(len(prices.atoms)):
            price = prices.price(start, stop)
            for index in range(0, len(few), 3):
                played = {}
                for direction in ("forward", "backward", "last"):
                    atoms = prices.atoms[start:stop]
                    atoms = atoms if direction == "forward" else atoms[::-1]
                    graph = chain_graph(
                        [prices.program(atom, direction) for atom in atoms], [""] * len(atoms), index
                    )
                    end = fast.play(graph).end_s
                    # Nothing waits for the host to have launched everything, nor for prefetched weights.
                    waited = [
                        graph.label_of(op).split(": ")[1] not in ("launch", "weights")
                        for op in range(len(graph))
                    ]
                    played[direction] = float(end[waited].max())
                where_, what = (few[index], start, stop), price.row(index)
                assert what.forward_s[0] == pytest.approx(played["forward"], rel=1e-3), where_
                assert what.backward_s[0] == pytest.approx(played["backward"], rel=1e-3), where_
                gathered = sum(prices_gather(prices, atom)[index] for atom in prices.atoms[start:stop])
                end = what.backward_s[0] + what.gradient_sync_s[0] - gathered
                assert end == pytest.approx(played["last"], rel=1e-3), where_

    def test_all_layouts_at_once_equal_one_at_a_time(self):
        """A batch is a shortcut, not another model."""
        batch = pricer("mixtral-8x7b", island())
        together = batch.price(0, 12)
        for index in range(0, len(batch.setting.layouts), 17):
            alone = Pricer(replace(batch.setting, layouts=(batch.setting.layouts[index],))).price(0, 12)
            for column in ("forward_s", "backward_s", "gradient_sync_s", "static_bytes", "activation_bytes"):
                assert getattr(together.row(index), column) == pytest.approx(
                    getattr(alone, column), rel=1e-12
                )

    def test_short_slices_cost_the_same_whether_their_chain_is_played_whole_or_in_part(self):
        """What the first atoms of a chain take does not depend on those behind them, not to the last bit."""
        first, second = pricer("gpt3-1.3b", island()), pricer("gpt3-1.3b", island())
        for whole in ((0, 26), (1, 25)):
            second.price(*whole)
        for start, stop in ((0, 3), (1, 4), (4, 7), (21, 26), (2, 22)):
            mine, other = first.price(start, stop), second.price(start, stop)
            for column in fields(mine):
                assert (getattr(mine, column.name) == getattr(other, column.name)).all()


def prices_gather(prices: Pricer, atom):
    from tangram_sim.training.stage.state import updated_weights_gather_s

    return updated_weights_gather_s(prices.setting, atom)


@pytest.mark.parametrize("name", NAMES)
def test_longer_slices_take_longer(name):
    """Forward and backward seconds grow with every atom, under every layout."""
    prices = pricer(name, island())
    size = len(prices.atoms)
    for start in (0, 1, size // 2):
        found = [prices.price(start, stop) for stop in range(start + 1, size + 1)]
        assert (np.diff([price.forward_s for price in found], axis=0) > 0).all()
        assert (np.diff([price.backward_s for price in found], axis=0) > 0).all()


@pytest.mark.parametrize("name", [*NAMES, "bert-large", "gpt2"])
@pytest.mark.parametrize(
    "where",
    [island(), island("T4", "PCIe3x16", nodes=1, gpus=6), island("V100-SXM2-16GB", "NVLink2", nodes=1)],
)
def test_ideal_seconds_are_a_lower_bound(name, where):
    """All ranks together spend at least the ideal on each slice: the planner prunes by it."""
    model = load_model(name)
    seq, microbatch = min(model.max_seq or 1024, 1024), 9
    ideal = np.array(ideal_seconds(model, where.gpu, job(where, seq), HWDB))
    prices = pricer(name, where, seq, microbatch)
    for start, stop in ((0, model.layers + 2), (0, 3), (1, 2), (model.layers, model.layers + 2)):
        price = prices.price(start, stop)
        spent = where.gpus * (price.forward_s + price.backward_s)
        assert (spent >= ideal[start:stop].sum() * microbatch * (1 - 1e-9)).all()


def test_the_ideal_is_not_far_below():
    """A bound of nothing would prune nothing: one GPU, no communication, large blocks reach 80 % of it."""
    where = island("A100-SXM4-80GB", nodes=1, gpus=1)
    model = load_model("gpt3-6.7b")
    ideal = sum(ideal_seconds(model, where.gpu, job(where, 2048), HWDB)) * 4
    price = pricer("gpt3-6.7b", where, microbatch=4).price(0, model.layers + 2)
    assert 0.8 < ideal / (price.forward_s + price.backward_s)[0] <= 1


class TestOverlap:
    """What runs beside what: the reason stage times come from playing a graph."""

    def price(self, *layouts: Layout, nic=25e9, name="gpt3-6.7b", microbatch=32):
        where = island(nodes=4, gpus=8, nic=nic)
        model = load_model(name)
        return Pricer(Setting(model, where, job(where, 2048), microbatch, layouts, HWDB)).price(1, 33)

    def test_gradients_of_a_block_hide_behind_the_backward_of_the_next(self):
        """Plain data parallelism on a fast network exposes about one block's all-reduce out of 32."""
        found = self.price(Layout(dp=32), nic=1e12)
        backward = found.backward_s[0]
        where = Setting(
            load_model("gpt3-6.7b"),
            island(nodes=4, gpus=8, nic=1e12),
            Job(seq=2048, dtype="bf16"),
            32,
            (Layout(dp=32),),
            HWDB,
        )
        prices = Pricer(where)
        one = float(prices.program(prices.atoms[1], "last").gradients[0])
        assert backward > 32 * one, "the case must be bound by compute"
        assert found.gradient_sync_s[0] == pytest.approx(one, rel=1e-6)

    def test_gradients_on_a_slow_network_are_what_remains(self):
        """Bound by communication the step's end is the link's.

        All reductions in a row behind the first block's.
        """
        where = Setting(
            load_model("gpt3-6.7b"),
            island(nodes=4, gpus=8, nic=5e9),
            Job(seq=2048, dtype="bf16"),
            32,
            (Layout(dp=32),),
            HWDB,
        )
        prices = Pricer(where)
        one = float(prices.program(prices.atoms[1], "last").gradients[0])
        first = float(prices.price(32, 33).backward_s[0])
        found = prices.price(1, 33)
        assert found.backward_s[0] + found.gradient_sync_s[0] == pytest.approx(first + 32 * one, rel=1e-6)

    def test_zero_3_prefetches_in_both_directions(self):
        """On a fast network gathered weights cost little.

        Without prefetching each block would pay them in full.
        """
        plain, sharded = Layout(dp=32), Layout(dp=32, zero_stage=3)
        found = self.price(plain, sharded, nic=400e9)
        assert found.forward_s[1] < 1.05 * found.forward_s[0]
        assert found.backward_s[1] < 1.06 * found.backward_s[0]

    def test_zero_3_on_a_slow_network_moves_weights_and_gradients_over_one_link(self):
        """Gathering and reducing take turns: the backward lasts as long as both together."""
        layout = Layout(dp=32, zero_stage=3)
        where = Setting(
            load_model("gpt3-6.7b"),
            island(nodes=4, gpus=8, nic=5e9),
            Job(seq=2048, dtype="bf16"),
            32,
            (layout,),
            HWDB,
        )
        prices = Pricer(where)
        program = prices.program(prices.atoms[1], "backward")
        weights = next(float(op.seconds[0]) for op in program.ops if op.name == "weights")
        moved = 32 * (weights + float(program.gradients[0]))
        assert moved * (1 - 1e-9) <= prices.price(1, 33).backward_s[0] < 1.05 * moved

    def test_weight_gradients_cover_the_tensor_parallel_reduction(self):
        """The reduction of an input gradient runs beside the weight gradient.

        As Megatron-LM does (arXiv:1909.08053).
        """
        found = self.price(Layout(tp=8, dp=4))
        where = Setting(
            load_model("gpt3-6.7b"),
            island(nodes=4, gpus=8),
            Job(seq=2048, dtype="bf16"),
            32,
            (Layout(tp=8, dp=4),),
            HWDB,
        )
        prices = Pricer(where)
        program = prices.program(prices.atoms[1], "backward")
        serial = 32 * sum(
            float(op.seconds[0]) for op in program.ops if op.name not in ("launch", GRADIENTS, "weights")
        )
        assert found.backward_s[0] < 0.98 * serial

    def test_sequence_parallelism_moves_the_same_bytes_and_saves_compute(self):
        """All-gather and reduce-scatter instead of all-reduce; norms on a share of the tokens."""
        found = self.price(Layout(tp=8, dp=4), Layout(tp=8, dp=4, sequence_parallel=True))
        assert 0.85 * found.forward_s[0] < found.forward_s[1] < found.forward_s[0]

    def test_tensor_parallel_experts_gather_every_copy_of_a_token(self):
        """With expert and tensor parallelism the tp collective moves `active` copies, else one."""
        model, where = load_model("mixtral-8x7b"), island(nodes=1, gpus=8)
        layouts = (
            Layout(tp=4, dp=2, sequence_parallel=True),
            Layout(tp=4, dp=2, ep=2, sequence_parallel=True),
        )
        prices = Pricer(Setting(model, where, job(where, 2048), 4, layouts, HWDB))
        seconds = {op.name: op.seconds for op in prices.program(model.blocks[0], "forward").ops}
        assert seconds["gather 2"][0] == seconds["gather 1"][0]
        over = prices.setting.tp_group
        start, root, slope = (float(np.asarray(part).ravel()[-1]) for part in over.once)
        # The bytes behind the first gather, from its seconds: start + root sqrt(S) + slope S.
        rest = seconds["gather 1"][1] - start
        once = ((np.sqrt(root**2 + 4 * slope * rest) - root) / (2 * slope)) ** 2
        assert seconds["gather 2"][1] == pytest.approx(all_gather_s(2 * once, over)[1])
        assert seconds["reduce 2"][1] == seconds["gather 2"][1]

    def test_full_recomputation_adds_about_one_forward(self):
        """A replayed forward is a third more work (arXiv:2205.05198), seen in the backward alone."""
        found = self.price(Layout(dp=32), Layout(dp=32, recompute="full"))
        assert found.forward_s[1] == found.forward_s[0]
        assert found.backward_s[1] - found.backward_s[0] == pytest.approx(found.forward_s[0], rel=0.05)

    def test_selective_recomputation_costs_little(self):
        """Unfused attention again, 2 to 5 % of a large model's time (arXiv:2205.05198, table 4)."""
        model, where = load_model("gpt3-22b"), island("V100-SXM2-32GB", "NVLink2", nodes=1, gpus=8)
        plain = Layout(tp=8, sequence_parallel=True)
        setting = Setting(
            model, where, job(where, 2048), 4, (plain, replace(plain, recompute="selective")), HWDB
        )
        found = Pricer(setting).price(1, 49)
        total = found.forward_s + found.backward_s
        assert 1.01 < total[1] / total[0] < 1.12

    def test_host_dispatch_bounds_tiny_work(self):
        """A GPU that outruns its host waits: one block's forward lasts as long as launching its kernels."""
        where = island("H100-SXM5-80GB", nodes=1, gpus=1)
        model = load_model("gpt2")
        prices = Pricer(Setting(model, where, Job(seq=16, dtype="bf16"), 1, (Layout(),), HWDB))
        dispatch = prices.setting.rates.dispatch_s
        found = prices.price(1, 13)
        assert found.forward_s[0] >= 12 * block_room.KERNELS_FORWARD * dispatch
        assert found.backward_s[0] >= 12 * block_room.KERNELS_BACKWARD * dispatch


@given(
    nic=st.floats(1e9, 1e12),
    faster=st.floats(1, 20),
    name=st.sampled_from(["gpt3-1.3b", "gshard-moe-2.4b"]),
)
@settings(max_examples=12, deadline=None)
def test_a_faster_network_never_slows_a_stage(nic, faster, name):
    """Whatever overlaps with what, under every layout."""
    slow, fast_ = (pricer(name, island(nic=rate)).price(1, 9) for rate in (nic, nic * faster))
    tolerance = 1 + 1e-9
    assert (fast_.forward_s <= slow.forward_s * tolerance).all()
    assert (fast_.backward_s <= slow.backward_s * tolerance).all()
    ends = [price.backward_s + price.gradient_sync_s for price in (slow, fast_)]
    assert (ends[1] <= ends[0] * tolerance).all()


class TestPerturbation:
    """Stage times come from playing the op graph: one op's duration must move the plan's numbers."""

    @staticmethod
    def request() -> Request:
        from tangram_sim.layers.atoms import Slice

        model = load_model("gshard-moe-2.4b")
        where = island("V100-SXM2-32GB", "NVLink2", nodes=2, gpus=4, nic=3e9)
        return Request(Slice(model, 1, 7), where, Job(seq=1024, dtype="fp16"), 8, 4, HWDB)

    @pytest.mark.parametrize(
        ("op", "layout", "moved"),
        [
            ("attention", Layout(dp=8, ep=8), "forward_s"),
            ("up", Layout(tp=4, dp=2), "forward_s"),
            ("reduce 1", Layout(tp=4, dp=2), "forward_s"),
            ("dispatch", Layout(dp=8, ep=8), "forward_s"),
            ("attention ring", Layout(cp=8), "forward_s"),
            ("weights", Layout(dp=8, zero_stage=3), "forward_s"),
            ("down dx", Layout(dp=8), "backward_s"),
            ("qkv dw", Layout(dp=8), "backward_s"),
            ("gradient dispatch", Layout(dp=8, ep=8), "backward_s"),
            (GRADIENTS, Layout(dp=8, zero_stage=2), "backward_s"),
            (GRADIENTS, Layout(dp=8), "gradient_sync_s"),
        ],
    )
    def test_one_slower_op_moves_the_partial_plan(self, monkeypatch, op, layout, moved):
        """One named op of one kind of block, twice as long, reaches the partial plan that Grid prices."""
        before = Grid().price(self.request(), layout)
        add = Program.add

        def slower(self, name, stream, kind, seconds, *after):
            return add(self, name, stream, kind, 2 * np.asarray(seconds) if name == op else seconds, *after)

        monkeypatch.setattr(Program, "add", slower)
        if op == GRADIENTS:
            gradients = Program.add_gradients

            def slower_gradients(self, seconds, shares_link, *after):
                gradients(self, seconds, shares_link, *after)
                self.gradients = 2 * seconds

            monkeypatch.setattr(Program, "add_gradients", slower_gradients)
        after = Grid().price(self.request(), layout)
        assert getattr(after.stages[0], moved) > 1.001 * getattr(before.stages[0], moved)
        assert after.stages[0].static_bytes == before.stages[0].static_bytes

    def test_a_hidden_op_moves_nothing_until_it_shows(self):
        """A reduction behind compute is free; the same one on a link a thousand times slower is not."""
        model, layout = load_model("gpt3-1.3b"), Layout(dp=8)
        found = {}
        for nic in (1e12, 0.999e12, 1e8):
            where = island(nodes=8, gpus=1, nic=nic)
            price = Pricer(Setting(model, where, job(where, 2048), 8, (layout,), HWDB)).price(1, 25)
            found[nic] = float(price.backward_s[0] + price.gradient_sync_s[0])
        assert found[0.999e12] == pytest.approx(found[1e12], rel=1e-4)
        assert found[1e8] > 10 * found[1e12]

    def test_a_compute_op_moves_a_block_by_its_own_seconds(self):
        """On one GPU everything but the host is in a row: the slice slows by exactly what was added."""
        where = island("A100-SXM4-80GB", nodes=1, gpus=1)
        setting = Setting(load_model("gpt3-1.3b"), where, job(where, 2048), 4, (Layout(),), HWDB)
        before, after = Pricer(setting), Pricer(setting)
        block = after.atoms[1]
        program = after.program(block, "forward")
        index = next(number for number, op in enumerate(program.ops) if op.stream == COMPUTE)
        program.ops[index] = program.ops[index]._replace(seconds=program.ops[index].seconds + 1e-3)
        added = after.price(1, 11).forward_s - before.price(1, 11).forward_s
        assert added[0] == pytest.approx(10 * 1e-3)


class TestPlacement:
    """Ranks of a cluster as islands and roads."""

    def cluster(self, *groups: tuple[int, Node]) -> Cluster:
        return Cluster("c", tuple(NodeGroup(f"g{i}", count, node) for i, (count, node) in enumerate(groups)))

    def node(self, gpus=4, scale_up=1, gpu="A100-SXM4-80GB") -> Node:
        return Node(HWDB.gpu(gpu), gpus, HWDB.link("NVLink3"), 100e9, scale_up_nodes=scale_up)

    def test_a_share_of_a_node_gets_its_share_of_the_nics(self):
        place = Placement(self.cluster((2, self.node(8))), HWDB)
        found = place.island((0, 1, 8, 9))
        assert (found.nodes, found.gpus_per_node, found.nic_bytes_per_s) == (2, 2, 25e9)

    def test_uneven_shares_fall_back_to_their_common_divisor(self):
        """8 + 4 GPUs are three places of 4."""
        found = Placement(self.cluster((2, self.node(8))), HWDB).island(tuple(range(12)))
        assert (found.nodes, found.gpus_per_node) == (3, 4)

    @pytest.mark.parametrize(
        ("nodes", "domain_nodes"),
        [
            (range(18), 18),
            (range(36), 18),
            (range(9, 27), 9),
            (range(16, 20), 2),
            (range(17, 21), 1),
            (range(2), 2),
            (range(20), 18),
        ],
    )
    def test_a_stage_over_two_racks_is_not_one_domain(self, nodes, domain_nodes):
        """Trays 9 to 26 are nine of one NVL72 rack and nine of the next: no NVLink joins all of them."""
        place = Placement(self.cluster((36, self.node(4, scale_up=18))), HWDB)
        found = place.island(tuple(rank for node in nodes for rank in range(4 * node, 4 * node + 4)))
        assert found.scale_up_nodes == domain_nodes

    def test_the_worst_member_sets_every_figure(self):
        place = Placement(self.cluster((1, self.node()), (1, self.node(gpu="V100-SXM2-32GB"))), HWDB)
        mixed, a100, v100 = (
            place.island(tuple(range(8))).gpu,
            HWDB.gpu("A100-SXM4-80GB"),
            HWDB.gpu("V100-SXM2-32GB"),
        )
        assert mixed.memory_bytes == v100.memory_bytes
        assert mixed.peak_flop_per_s("fp16") == min(
            a100.peak_flop_per_s("fp16"), v100.peak_flop_per_s("fp16")
        )
        assert mixed.peak_flop_per_s("bf16") == 0, "V100 has none, so the pair has none"

    def test_the_road_inside_a_node_is_its_link_and_between_nodes_the_nics(self):
        place = Placement(self.cluster((2, self.node(8))), HWDB)
        link = HWDB.link("NVLink3")
        inside, _ = place.road((0, 1), (2, 3))
        outside, latency = place.road((0, 1, 2, 3), (8, 9))
        assert inside == pytest.approx(2 * link.bytes_per_s * HWDB.link_efficiency(link).value)
        assert outside == pytest.approx(100e9 * 2 / 8 * HWDB.network_efficiency.value)
        assert latency == 10e-6

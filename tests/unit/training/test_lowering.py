"""A slice as ops: what it computes, how long it lasts, and that its price is the play of its whole graph."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.hwdb import load_model
from tangram_sim.layouts import Layout
from tangram_sim.placement.ranks import Placement
from tangram_sim.sim import fast
from tangram_sim.training.job import Job
from tangram_sim.training.stage import block as block_room
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.step.ideal import ideal_seconds, model_flop
from tests.slices import chain_graph
from tests.unit.training.stages import HWDB, island, job, pricer

NAMES = (
    "gpt3-6.7b",  # equal blocks
    "mixtral-8x7b",  # every block has experts
    "gshard-moe-2.4b",  # every other block has experts
    "gemma2-9b",  # every other block has a window
    "deepseek-v2-lite",  # latent attention; one dense block, then experts
    "gpt-neox-20b",  # attention and feed-forward side by side
)


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
            captured = replace(job(where, 2048), stack=stack, cuda_graphs=True)  # no gaps of launches
            setting = Setting(model, where, captured, 8, layouts, HWDB)
            found = Pricer(setting).price(1, 2)
            none, full = found.backward_s
            down = block_room.block_times(setting, model.blocks[0]).down.forward[0]
            assert full - none == pytest.approx(float(found.forward_s[0] - saves * down), rel=1e-3)

    def test_reductions_behind_weight_gradients_hide_behind_nothing(self):
        """Megatron-LM 2.x: on slow links every reduction of the backward pass adds its whole time."""
        model, where = load_model("gpt3-6.7b"), island()
        layouts = (Layout(tp=8),)
        beside, behind = (
            Setting(model, where, replace(job(where, 2048), stack=stack, cuda_graphs=True), 1, layouts, HWDB)
            for stack in ("generic", "megatron-deepspeed")
        )
        block = model.blocks[0]
        hidden = {}
        for setting in (beside, behind):
            times = block_room.block_times(setting, block)
            program = block_room.block_backward(setting, block, times, "backward")
            start = {op.name: number for number, op in enumerate(program.ops)}
            for half, product in ((1, "qkv dw"), (2, "up dw")):
                reduce = start[f"gradient reduce {half}"]
                hidden[setting.job.stack, half] = start[product] > reduce
                assert (start[product] in program.ops[reduce].after) == setting.job.code.reduces_late
        assert hidden == {
            (stack, half): stack == "generic"
            for stack in ("generic", "megatron-deepspeed")
            for half in (1, 2)
        }

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
                    atoms = prices.stage_atoms(start, stop)
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
                gathered = sum(prices_gather(prices, atom)[index] for atom in prices.stage_atoms(start, stop))
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


@pytest.mark.parametrize("microbatch", [9, 64])
def test_converting_weights_of_experts_is_no_part_of_the_ideal(microbatch):
    """It is done once for any number of sequences: counted with each, the bound was above real steps."""
    model, where = load_model("mixtral-8x7b"), island("H100-SXM5-80GB", "NVLink4", nodes=1)
    narrow = replace(job(where, 1024), dtype="fp8")
    ideal = np.array(ideal_seconds(model, where.gpu, narrow, HWDB))
    layouts = (Layout(dp=where.gpus, zero_stage=3), Layout(dp=where.gpus, ep=where.gpus))
    prices = Pricer(Setting(model, where, narrow, microbatch, layouts, HWDB))
    price = prices.price(1, 3)
    spent = where.gpus * (price.forward_s + price.backward_s)
    assert (spent >= ideal[1:3].sum() * microbatch * (1 - 1e-9)).all()


def test_the_ideal_is_not_far_below():
    """A bound of nothing would prune nothing: one GPU, no communication, large blocks reach 80 % of it."""
    where = island("A100-SXM4-80GB", nodes=1, gpus=1)
    model = load_model("gpt3-6.7b")
    ideal = sum(ideal_seconds(model, where.gpu, job(where, 2048), HWDB)) * 4
    price = pricer("gpt3-6.7b", where, microbatch=4).price(0, model.layers + 2)
    assert 0.8 < ideal / (price.forward_s + price.backward_s)[0] <= 1


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

"""What hides behind what in a stage, and what a slower op moves."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.cost.collectives import all_gather_s
from tangram_sim.hwdb import load_model
from tangram_sim.layers.program import COMPUTE, GRADIENTS, Program
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.training.job import Job
from tangram_sim.training.stage import block as block_room
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting
from tests.unit.training.stages import HWDB, island, job, pricer


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
        item = float(prices.program(prices.atoms[1], "last").gradients[0])
        assert backward > 32 * item, "the case must be bound by compute"
        assert found.gradient_sync_s[0] == pytest.approx(item, rel=1e-6)

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
        item = float(prices.program(prices.atoms[1], "last").gradients[0])
        first = float(prices.price(32, 33).backward_s[0])
        found = prices.price(1, 33)
        assert found.backward_s[0] + found.gradient_sync_s[0] == pytest.approx(first + 32 * item, rel=1e-6)

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

            def slower_gradients(self, seconds, shares_link, *after, closing, apart):
                gradients(self, seconds, shares_link, *after, closing=closing, apart=apart)
                self.gradients, self.closing = 2 * seconds, 2 * closing

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

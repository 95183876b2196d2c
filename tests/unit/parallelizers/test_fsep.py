"""Fully sharded experts: the worked example of LAER-MoE's sheet in ../shared/specs, and layouts with it."""

from collections.abc import Sequence

import pytest

from tangram_sim.cost.collectives import all_to_all_s
from tangram_sim.hwdb import load_model
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.models import Experts
from tangram_sim.parallelizers import fsep
from tangram_sim.parallelizers.contract import check_parallelizer
from tangram_sim.parallelizers.galvatron_uniform import GalvatronUniform
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.training.job import Job
from tangram_sim.training.stage import state
from tangram_sim.training.stage.setting import Setting
from tests.contracts.requests import HWDB, island, request
from tests.unit.parallelizers.test_galvatron import best

LOADS = (400, 100, 100, 100, 50, 25, 15, 10)
PARAMETERS = 3 * 4096 * 14336  # of one expert of Mixtral: 176.16 M


def largest_load(loads: Sequence[float], copies: Sequence[int]) -> float:
    """Load of the fullest copy when tokens are shared evenly among copies."""
    return max(load / count for load, count in zip(loads, copies, strict=True))


def resharded_bytes(expert_parameters: float, experts_per_rank: int, ranks: int, width: float) -> float:
    """Bytes a rank receives to put its experts together: C P b (N - 1) / N."""
    return experts_per_rank * expert_parameters * width * (ranks - 1) / ranks


def hiding_tokens(
    experts_per_rank: int, ranks: int, flop_per_s: float, active: int, width: float, bytes_per_s: float
) -> float:
    """Tokens per rank from which the gathering hides under the experts' forward, whatever their size.

    2 P k T / F seconds of compute against C P b (N - 1) / N / bw of transfer.
    """
    share = experts_per_rank * (ranks - 1) / ranks
    return share * width * flop_per_s / (2 * active * bytes_per_s)


def test_copies_follow_the_load():
    """Rule (b): [6, 2, 2, 2, 1, 1, 1, 1] for the example; even copies and none at all are worse."""
    copies = fsep.replicas(LOADS, 16)
    assert copies == (6, 2, 2, 2, 1, 1, 1, 1)
    assert largest_load(LOADS, [1] * 8) == 400
    # A rank of the example holds two copies: 400 / 6 beside 100 / 2.
    assert largest_load(LOADS, copies) + 100 / 2 == pytest.approx(116.67, abs=0.01)
    with pytest.raises(ValueError, match="7 slots cannot hold 8 experts"):
        fsep.replicas(LOADS, 7)


def test_the_example_gathers_what_the_sheet_says():
    """V = 616.6 MB, hidden from 683 tokens per rank on."""
    assert resharded_bytes(PARAMETERS, 2, 8, 2.0) == pytest.approx(616.6e6, rel=1e-3)
    assert resharded_bytes(PARAMETERS, 8, 8, 2.0) == pytest.approx(2466.3e6, rel=1e-3)  # what FSDP moves
    assert hiding_tokens(2, 8, 156e12, 2, 2.0, 200e9) == pytest.approx(683, abs=1)


def priced(*layouts):
    model = load_model("mixtral-8x7b")
    where = island("A100-SXM4-80GB", "NVLink3", 1, 8)
    return Setting(model, where, Job(64, 4096, "bf16"), 16, layouts, HWDB), atoms_of(model)[1]


def test_states_and_buffers_of_a_layout_with_fsep():
    """Of 8 experts on 8 ranks, two put together on each: all states over 8, buffers of two experts."""
    setting, block = priced(Layout(dp=8, ep=4), Layout(dp=8, ep=4, fsep=True), Layout(dp=8, ep=8))
    assert isinstance(block.feed_forward, Experts)
    width = 4.0  # bf16 keeps fp32 gradients
    per_parameter = setting.job.bytes_per_parameter
    experts = block.feed_forward.expert_parameters(4096)
    assert experts == pytest.approx(8 * PARAMETERS)
    static = state.held(setting, block).static
    assert static[0] - static[1] == pytest.approx(per_parameter * experts * (1 / 4 - 1 / 8))
    assert static[1] == pytest.approx(static[2])  # as if every rank had one expert of its own
    transient = state.held(setting, block).transient
    buffers = 2 * (2 * PARAMETERS * 2.0) + 2 * PARAMETERS * width
    assert transient[1] - transient[0] == pytest.approx(buffers)
    assert pytest.approx(704.6e6, rel=1e-3) == 2 * PARAMETERS * 2.0


def test_three_all_to_alls_per_microbatch_and_none_at_its_end():
    """Weights before forward and backward, gradients behind it; nothing is gathered behind the optimizer."""
    setting, block = priced(Layout(dp=8, ep=4, zero_stage=1, fsep=True), Layout(dp=8, ep=4, zero_stage=1))
    weights = state.sharded_weights_gather_s(setting, block)
    volume = resharded_bytes(PARAMETERS, 2, 8, 2.0)
    # What an all-to-all sends is what a rank keeps of its share for the others: 7 eighths of it.
    exchange = all_to_all_s(volume * 8 / 7, setting.dp_group)
    assert weights[0] == pytest.approx(setting.rates.data_exposed * exchange[0])
    assert weights[1] == 0
    gradients = state.gradient_sync_s(setting, block, last=False)
    assert gradients[0] > weights[0]  # twice the bytes: gradients are fp32
    assert gradients[1] == 0
    behind = state.updated_weights_gather_s(setting, block)
    assert behind[0] < behind[1]


def test_fully_sharded_experts_win_where_memory_is_short_and_experts_are_many():
    """Mixtral blocks: dense weights replicated, experts cut over all ranks; grid cannot name that."""
    where = island("A100-SXM4-40GB", "NVLink3", 1, 8)
    asked = request("mixtral-8x7b", where, (1, 5), 32, 8, Job(256, 4096, "bf16"))
    uniform, found = Grid().parallelize(asked), GalvatronUniform().parallelize(asked)
    seconds, partial = best(GalvatronUniform(), asked)
    assert partial.layout.fsep
    assert partial.layout.zero_stage == 1
    assert seconds < best(Grid(), asked)[0]
    assert 3 * found.considered < uniform.considered
    check_parallelizer(GalvatronUniform(), [asked])

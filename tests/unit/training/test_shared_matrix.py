"""A tied matrix that one stage holds at both ends, or two stages at one each, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.layers.atoms import End
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayerLayout, Part, Pipeline, Stage
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.runs import LayerRun, with_one_copy
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import parameters_per_rank
from tangram_sim.training.step.lowered import LoweredStep, Lowering

HWDB = Hwdb.load()
BLOCK = Block(Attention(16, 16, 64, 64), FeedForward(4096, gated=False, bias=True), norm_bias=True)
MODEL = Model("small", "gpt2", 1024, 51200, (BLOCK,) * 4, tied=True)
ATOMS = len(MODEL.blocks) + 2
MATRIX = 51200 * 1024  # parameters
BYTES = 2 + 2 + 4 + 8  # of a parameter: weight, gradient, master copy, two moments (fp16, adamw)
GRADIENT = 2  # bytes
TP, DP = Layout(tp=4), Layout(dp=4)
CLUSTER = load_cluster("azure-c1-t4x4-v100x4", HWDB)
(ISLAND, *_) = find_islands(CLUSTER, "fp16", hwdb=HWDB)
JOB = Job(16, 1024, "fp16")


def static_bytes(model: Model, layouts: tuple[Layout, Layout]) -> float:
    """Bytes on every rank of four of a whole model as one stage, its halves laid out as said."""
    prices = StagePrices(model, JOB, HWDB)
    pricers = [prices.pricer(ISLAND, layout, 4) for layout in layouts]
    (runs,) = with_one_copy([(LayerRun(pricers[0], 0, 3), LayerRun(pricers[1], 3, ATOMS))])
    return prices.joined(runs).static_bytes


@pytest.mark.parametrize(
    ("layouts", "saved"),
    [
        ((TP, TP), MATRIX / 4 * BYTES),
        ((DP, DP), MATRIX * BYTES),
        # A rank holds all of the matrix for one end and a quarter for the other: the quarter goes, whichever
        # end has it.
        ((TP, DP), MATRIX / 4 * BYTES),
        ((DP, TP), MATRIX / 4 * BYTES),
    ],
)
def test_the_smaller_copy_goes(layouts: tuple[Layout, Layout], saved: float) -> None:
    apart, tied = (static_bytes(replace(MODEL, tied=item), layouts) for item in (False, True))
    assert apart - tied == pytest.approx(saved, rel=1e-12)


def reduced_bytes(pricer: Pricer, start: int, stop: int) -> float:
    """Gradients of atoms [start, stop) as one stage that a rank hands to the reduction over replicas."""
    kept = [parameters_per_rank(pricer.setting, atom)[0][0] for atom in pricer.stage_atoms(start, stop)]
    return float(sum(kept)) * GRADIENT


def test_gradients_of_one_stage_are_those_of_all_parameters() -> None:
    """One stage reduces every parameter once, as publishers count them; two stages the matrix twice.

    The second reduction is of the second copy, which the first and the last stage then exchange
    (Megatron-LM, `_allreduce_word_embedding_grads`: only where there is more than one stage).
    """
    pricer = Pricer(Setting(MODEL, ISLAND, JOB, 16, (DP,), HWDB))
    assert reduced_bytes(pricer, 0, ATOMS) == MODEL.parameters * GRADIENT
    in_two = reduced_bytes(pricer, 0, 3) + reduced_bytes(pricer, 3, ATOMS)
    assert in_two == (MODEL.parameters + MATRIX) * GRADIENT
    apart = Pricer(Setting(replace(MODEL, tied=False), ISLAND, JOB, 16, (DP,), HWDB))
    assert reduced_bytes(apart, 0, ATOMS) == (MODEL.parameters + MATRIX) * GRADIENT


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_one_stage_waits_for_the_matrix_once(zero: int) -> None:
    """With next to no tokens a step is its collectives: tied ends save the matrix's reduction, no more.

    ZeRO-1 and -2 also gather its updated weights once instead of twice (as many bytes as gradients, in
    fp16); ZeRO-3 gathers what either end reads, so that only the scatter is saved, here and in the passes.
    """
    sync = []
    for model in (replace(MODEL, tied=False), MODEL):
        setting = Setting(model, ISLAND, replace(JOB, seq=1), 4, (Layout(dp=4, zero_stage=zero),), HWDB)
        price = Pricer(setting).price(0, ATOMS)
        sync.append(float((price.backward_s + price.gradient_sync_s)[0]))
    moved = {0: 2, 1: 2, 2: 2, 3: 1}[zero] * 3 / 4 * MATRIX * GRADIENT  # around a ring of four
    ring = setting.dp_group.ring
    seconds = moved / float(ring.bytes_per_s[0]) * float(setting.rates.data_exposed)
    assert sync[0] - sync[1] == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_runs_of_one_layout_are_the_stage_of_it(cut: int) -> None:
    """Cut into two runs under one layout, a stage costs what it costs whole."""
    prices = StagePrices(MODEL, JOB, HWDB)
    layout = Layout(dp=4, zero_stage=1)
    pricer = prices.pricer(ISLAND, layout, 4)
    (runs,) = with_one_copy([(LayerRun(pricer, 0, cut), LayerRun(pricer, cut, ATOMS))])
    cut_up, whole = prices.joined(runs), prices.price(ISLAND, layout, 4, 0, ATOMS)
    for name in ("gradient_sync_s", "optimizer_s", "static_bytes", "backward_s"):
        assert getattr(cut_up, name) == pytest.approx(getattr(whole, name), rel=1e-6)


def lowered(schedule: str, *stages: tuple[tuple[int, int], ...], layout: Layout = DP) -> LoweredStep:
    """Two stages on one node each, of chunks of blocks."""
    job = replace(JOB, schedule=schedule)
    held = []
    for place, chunks in enumerate(stages):
        ranks = tuple(range(4 * place, 4 * place + 4))
        part = Part(ISLAND.name, ranks, 4, (LayerLayout((chunks[0][0], chunks[-1][1]), layout),))
        held.append(Stage(chunks, place == 0, chunks[-1][1] == len(MODEL.blocks), (part,)))
    lowering = Lowering(Placement(CLUSTER, HWDB), StagePrices(MODEL, job, HWDB))
    return lowering.lower(Pipeline(4, 4, tuple(held)))


def test_two_stages_exchange_and_a_turning_pipeline_does_not() -> None:
    """Bytes of weights and state over all stages: with the matrix twice in rounds, once in a V."""
    rounds = lowered("1f1b", ((0, 2),), ((2, 4),))
    turned = lowered("zb-v", ((0, 1), (3, 4)), ((1, 2), (2, 3)))
    total = [sum(chunk.static_bytes for row in step.prices for chunk in row) for step in (rounds, turned)]
    np.testing.assert_allclose(total, np.array([MODEL.parameters + MATRIX, MODEL.parameters]) * BYTES)
    assert rounds.times.tied_s > 0.0 == turned.times.tied_s


@pytest.mark.parametrize(("layout", "copies"), [(DP, 4), (TP, 1), (Layout(dp=4, zero_stage=2), 1)])
def test_every_replica_exchanges_its_copy(layout: Layout, copies: int) -> None:
    """Two stages on a node each: so many whole matrices cross their NICs in either direction."""
    step = lowered("1f1b", ((0, 2),), ((2, 4),), layout=layout)
    rate, latency = step.placement.road(*(stage.ranks for stage in step.pipeline.stages))
    expected = copies * MATRIX * GRADIENT / rate + 2 * latency
    assert step.times.tied_s == pytest.approx(expected, rel=1e-12)
    nic = CLUSTER.groups[0].node.nic_bytes_per_s
    assert expected >= copies * MATRIX * GRADIENT / nic


@pytest.mark.parametrize("layout", [TP, DP, Layout(dp=2, tp=2, zero_stage=1), Layout(dp=4, zero_stage=3)])
def test_a_pass_over_atoms_is_the_play_of_these_very_atoms(layout: Layout) -> None:
    """Chains that are shared and ends that are added give what playing the stage as a whole gives."""
    pricer = StagePrices(MODEL, JOB, HWDB).pricer(ISLAND, layout, 4)
    shapes = ((0, ATOMS), (0, 1), (0, 3), (2, ATOMS), (ATOMS - 1, ATOMS), (1, 4))
    assert [pricer.borrower(*shape) for shape in shapes] == ["head", None, None, None, None, None]
    borrowing: list[tuple[int, int, End | None]] = [(*shape, pricer.borrower(*shape)) for shape in shapes]
    for start, stop, borrower in (*borrowing, (0, 3, "embedding"), (2, ATOMS, "head")):
        atoms = pricer.stage_atoms(start, stop, borrower)
        for direction in ("forward", pricer._backward):
            ordered = atoms if direction == "forward" else atoms[::-1]
            done, *_ = pricer._pass(direction, start, stop, borrower)
            played = pricer.play(ordered, direction).done[-1]
            assert done == pytest.approx(played, rel=1e-12), (direction, start, stop)

"""A tied matrix that one stage holds at both ends, counted by hand."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.training.job import Job
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.stage.runs import LayerRun

HWDB = Hwdb.load()
BLOCK = Block(Attention(16, 16, 64, 64), FeedForward(4096, gated=False, bias=True), norm_bias=True)
MODEL = Model("small", "gpt2", 1024, 51200, (BLOCK,) * 4, tied=True)
ATOMS = len(MODEL.blocks) + 2
MATRIX = 51200 * 1024  # parameters
BYTES = 2 + 2 + 4 + 8  # of a parameter: weight, gradient, master copy, two moments (fp16, adamw)
TP, DP = Layout(tp=4), Layout(dp=4)


def static_bytes(model: Model, layouts: tuple[Layout, Layout]) -> float:
    """Bytes on every rank of four of a whole model as one stage, its halves laid out as said."""
    (island, *_) = find_islands(load_cluster("azure-c1-t4x4-v100x4", HWDB), "fp16", hwdb=HWDB)
    prices = StagePrices(model, Job(16, 1024, "fp16"), HWDB)
    pricers = [prices.pricer(island, layout, 4) for layout in layouts]
    return prices.joined((LayerRun(pricers[0], 0, 3), LayerRun(pricers[1], 3, ATOMS))).static_bytes


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
    apart, tied = (static_bytes(replace(MODEL, tied=one), layouts) for one in (False, True))
    assert apart - tied == pytest.approx(saved, rel=1e-12)

"""A tied matrix that one stage holds at both ends, counted by hand."""

from dataclasses import replace

import pytest

from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.training.job import Job
from tangram_sim.training.plan import LayoutRun
from tangram_sim.training.stage.prices import StagePrices

HWDB = Hwdb.load()
BLOCK = Block(Attention(16, 16, 64, 64), FeedForward(4096, gated=False, bias=True), norm_bias=True)
MODEL = Model("small", "gpt2", 1024, 51200, (BLOCK,) * 4, tied=True)
JOB = Job(16, 1024, "fp16")
ATOMS = len(MODEL.blocks) + 2


def _prices(model: Model) -> StagePrices:
    return StagePrices(model, JOB, HWDB)


def _island():
    (island, *_) = find_islands(load_cluster("azure-c1-t4x4-v100x4", HWDB), "fp16", hwdb=HWDB)
    return island.part(1)

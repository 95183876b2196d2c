"""Stages to price: an island, a job and layouts."""

from tangram_sim.clusters import Island
from tangram_sim.hwdb import load_model
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import layouts as every_layout
from tangram_sim.training.job import Job
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting
from tests.neutral import neutral_hwdb

HWDB = neutral_hwdb()


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

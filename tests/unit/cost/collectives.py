"""Islands and seconds of collectives on them."""

import numpy as np

from tangram_sim.clusters import Island
from tangram_sim.cost.collectives import (
    group,
)
from tangram_sim.hwdb import Hwdb

HWDB = Hwdb.load()

H100, A100, V100 = (HWDB.gpu(name) for name in ("H100-SXM5-80GB", "A100-SXM4-80GB", "V100-SXM2-16GB"))

NVLINK4 = HWDB.link("NVLink4")


def island(nodes=1, gpus=8, gpu=H100, link=NVLINK4, nic=400e9, **changes) -> Island:
    return Island("i", gpu, nodes, gpus, link, nic, 10e-6, **changes)


def over(where: Island, ranks: int, stride: int = 1):
    return group(where, np.array([ranks]), np.array([stride]), HWDB)


def seconds(function, size, where, *more, **named) -> float:
    return float(function(size, where, *more, **named)[0])

"""Fits GPU kinds to measured times of whole transformer blocks (layer profiles of Sailor).

The profiles do not say in which precision they ran. Their rates do: V100, Titan-RTX and RTX-2080 stay just
below the fp32 vector peak at any size and far below the tensor peak, and 16-bit data would move faster;
the RTX-3090 has the same fp32 and tf32 peak. So they give fp32 efficiencies, and none for fp16. The
attention is unfused: it is a batched GEMM and shares the efficiency. What streams through memory is assumed
to reach `MEMORY` of its rate, or fitted beside (`fit_both`) where matrix units leave it half of the time and
two models of different width tell the two apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from tangram_sim.clusters import Island, Link
from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.hwdb.tables import Row
from tangram_sim.layouts import Layout
from tangram_sim.training.job import RECIPES, Job
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting
from tangram_validate.calibration.robust import Floats, median_error, spread

# Model name in the profiles -> (model file, tokens of one sequence).
MODELS = {"OPT-350": ("opt-350m-sailor", 2048), "GPT-Neo-2.7": ("gpt-neo-2.7b", 2048)}
BLOCK = 1  # atom 0 is the embedding
LOWEST, HIGHEST, CELLS = 0.05, 1.0, 1 << 13
MEMORY = 0.8  # share of the memory's rate, where it is not fitted
SHARES = tuple(0.4 + 0.05 * step for step in range(13))  # that are tried where it is
# Relative: two models on the V100 lie 5 to 10 % apart under one constant; kinds with one model show less.
LEAST_SPREAD = 0.10


@dataclass(frozen=True, slots=True)
class BlockTime:
    """Measured seconds of one block, forward and backward together, on one GPU."""

    model: str  # model file
    seq: int
    sequences: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ScaleFit:
    """The efficiency at which blocks match in the median, residual spread, count and median error."""

    efficiency: float
    sigma: float
    n: int
    error: float
    memory: float = MEMORY  # share of the memory's rate that goes with it


def read_profiles(path: Path, gpu: str) -> list[BlockTime]:
    """The single-GPU rows (tp 1) of `gpu`, as the profiles name it; several GPUs also measure links.

    Raises BadInputError when the file holds none.
    """
    rows = [
        row for row in read_csv(path) if row["gpu"] == gpu and row["tp"] == "1" and row["model"] in MODELS
    ]
    if not rows:
        raise BadInputError(f"{path}: no single-GPU rows of {gpu} and of {', '.join(MODELS)}")
    return [
        BlockTime(
            *MODELS[row["model"]], int(row["mbs"]), float(row["block_fwd_s"]) + float(row["block_bwd_s"])
        )
        for row in rows
    ]


def columns(dtype: str) -> tuple[tuple[str, str], ...]:
    """(kernel, dtype) of the two rows that one constant fills; attention runs in the vector type."""
    precision = RECIPES[dtype].precision
    return ("gemm", precision.compute), ("attention", precision.vector)


def block_seconds(
    blocks: Sequence[BlockTime], gpu: str, dtype: str, efficiency: float, memory: float = MEMORY
) -> Floats:
    """Forward and backward seconds of each block as `lowering` prices it. Array of N.

    GEMM and attention efficiency of the GPU are set to `efficiency`, all else is assumed.
    """
    database = _assumed(gpu, dtype, efficiency, memory)
    device = database.gpu(gpu)
    alone = Island("one", device, 1, 1, Link("none", "none", 0.0, 0.0), 0.0, 0.0)
    times = []
    for block in blocks:
        job = Job(block.sequences, block.seq, dtype, flash_attention=False, dropout=False)
        setting = Setting(load_model(block.model), alone, job, block.sequences, (Layout(),), database)
        prices = Pricer(setting).price(BLOCK, BLOCK + 1)
        times.append(float(prices.forward_s[0] + prices.backward_s[0]))
    return np.array(times)


def _assumed(gpu: str, dtype: str, efficiency: float, memory: float) -> Hwdb:
    """The shipped database with these efficiencies of a GPU, and all else as assumed.

    Whatever rows the database has by now: a fit must not depend on other fits.
    """
    base = Hwdb.load()
    name = base.gpu(gpu).name
    values = {(name, column, kernel, "efficiency"): efficiency for kernel, column in columns(dtype)} | {
        (name, "*", "memory", "efficiency"): memory,
        (name, "*", "launch", "seconds"): 4e-6,
        ("*", "*", "dispatch", "seconds"): 5e-6,
        ("*", "*", "stack", "time_scale"): 1.0,
        ("*", "*", "stack", "attention_scale"): 1.0,
    }
    return base.with_efficiency(
        [
            Row(
                "efficiency",
                f"{'/'.join(place)}/generic/{parameter}",
                dict(zip(("gpu", "dtype", "kernel"), place, strict=True))
                | {"stack": "generic", "parameter": parameter, "value": repr(value)}
                | {"sigma": "0", "n": "0", "source": "assumed"},
            )
            for (*place, parameter), value in values.items()
        ]
    )


def fit_scale(blocks: Sequence[BlockTime], gpu: str, dtype: str, memory: float = MEMORY) -> ScaleFit:
    """The efficiency at which predicted and measured block times agree in the median.

    To one of `CELLS` equal steps of its logarithm. Two looks of three are where a straight line through the
    last two says that times agree, the third halves what is still open.
    """
    measured = np.array([block.seconds for block in blocks])
    step = math.log(HIGHEST / LOWEST) / CELLS

    def edge(cell: int) -> float:
        return LOWEST * math.exp(cell * step)

    low, high, cell, last, before = 0, CELLS, CELLS // 2, 0, math.nan
    for look in count(1):
        off = math.log(np.median(block_seconds(blocks, gpu, dtype, edge(cell), memory) / measured))
        low, high = (cell, high) if off > 0 else (low, cell)
        if high - low == 1:
            break
        # Times fall as the efficiency rises, at most in proportion; at an eighth of that all is memory.
        slope = step if math.isnan(before) else max((before - off) / (cell - last), step / 8)
        last, before = cell, off
        cell = (low + high) // 2 if look % 3 == 0 else min(max(cell + round(off / slope), low + 1), high - 1)
    efficiency = math.sqrt(edge(low) * edge(high))
    predicted = block_seconds(blocks, gpu, dtype, efficiency, memory)
    return ScaleFit(
        efficiency,
        efficiency * max(spread(predicted, measured), LEAST_SPREAD),
        len(blocks),
        median_error(predicted, measured),
        memory,
    )


def fit_both(blocks: Sequence[BlockTime], gpu: str, dtype: str) -> ScaleFit:
    """As `fit_scale`, at the memory's share under which the models agree best (squares of logarithms)."""
    measured = np.log([block.seconds for block in blocks])

    def off(scale_fit: ScaleFit) -> float:
        predicted = np.log(block_seconds(blocks, gpu, dtype, scale_fit.efficiency, scale_fit.memory))
        return float(((predicted - measured) ** 2).sum())

    return min((fit_scale(blocks, gpu, dtype, share) for share in SHARES), key=off)

"""Two statistical baselines to compare ours with: one MFU per GPU kind, and a log-linear ridge regression.

Both are fitted on the same rows as the software stacks and scored on the same rows left out. They predict
log(step / ideal step), where the ideal step is the model's FLOPs at the datasheet's peak.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tangram_sim.hwdb import Hwdb
from tangram_sim.models import has_experts
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.ideal import model_flop
from tangram_validate.published.reading import Run

PENALTY = 3.0  # of squared standardised coefficients, in rows; sources weigh ten rows
ROWS = 10.0

Mask = NDArray[np.bool_]


def ideal_s(run: Run, hwdb: Hwdb) -> float:
    """Seconds of the model's FLOPs at the dense peak of all GPUs."""
    gpu = run.cluster.groups[0].node.gpu
    peak = gpu.peak_flop_per_s(run.job.precision.compute) or gpu.peak_flop_per_s("bf16")
    return model_flop(run.model, run.job, gpu, hwdb) / (peak * run.cluster.gpus)


def features(run: Run) -> list[float]:
    """The regression's inputs for a run: logarithms of sizes and parallel degrees, 0 or 1 for switches."""
    layout, node = run.layout, run.cluster.groups[0].node
    passes = max(run.job.global_batch // max(layout.micro_batch * layout.dp, 1), 1)
    tokens = layout.micro_batch * run.job.seq / layout.cp
    sizes = (
        *(layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.vpp),
        *(tokens, run.job.seq, run.model.hidden, run.model.layers),
        1 + (layout.pp - 1) / (passes * layout.vpp),  # the bubble of equal stages
        *(node.gpu.memory_bytes_per_s, node.nic_bytes_per_s),
    )
    switches = (
        has_experts(run.model),
        run.recompute == "full",
        layout.zero_stage == 3,
        run.job.precision.operand_bytes < 2,
        run.job.flash_attention,
        run.cluster.gpus > node.gpus,
        layout.tp > node.gpus,
    )
    return [*np.log(sizes).tolist(), *map(float, switches)]


def matrix(runs: Sequence[Run]) -> FloatArray:
    """Features of N runs and one column per architecture of their GPUs, [N, F]."""
    kinds = [run.cluster.groups[0].node.gpu.architecture for run in runs]
    columns = [[float(kind == name) for name in sorted(set(kinds))] for kind in kinds]
    return np.hstack([np.array([features(run) for run in runs]), np.array(columns)])


def null(ratio: FloatArray, kind: NDArray[np.str_], source: NDArray[np.str_], use: Mask) -> FloatArray:
    """Log of step / ideal of every run [N]: the median of its GPU kind among the rows in use, else of all.

    `ratio` [N] is what was measured.
    """
    weights = _weights(source)

    def middle(mask: Mask) -> float:
        order = np.argsort(ratio[mask], kind="stable")
        heap = np.cumsum(weights[mask][order])
        return float(ratio[mask][order][np.searchsorted(heap, heap[-1] / 2)])

    everything = middle(use)
    found = np.full(len(ratio), everything)
    for name in np.unique(kind):
        own = use & (kind == name)
        if own.any():
            found[kind == name] = middle(own)
    return found


def ridge(ratio: FloatArray, columns: FloatArray, source: NDArray[np.str_], use: Mask) -> FloatArray:
    """Steps predicted by ridge regression: least squares on standardised features with a penalty, [N]."""
    weights = _weights(source)[use]
    middle = weights @ columns[use] / weights.sum()
    width = np.sqrt(weights @ (columns[use] - middle) ** 2 / weights.sum())
    scaled = (columns - middle) / np.where(width > 1e-9, width, np.inf)
    level = weights @ ratio[use] / weights.sum()
    inside = scaled[use]
    normal = (inside * weights[:, None]).T @ inside + PENALTY * np.eye(columns.shape[1])
    slopes = np.linalg.solve(normal, inside.T @ (weights * (ratio[use] - level)))
    answer: FloatArray = level + scaled @ slopes
    return answer


def _weights(source: NDArray[np.str_]) -> FloatArray:
    """Weights of N rows by which every source counts as much as `ROWS` rows, [N]."""
    _, place, counts = np.unique(source, return_inverse=True, return_counts=True)
    answer: FloatArray = ROWS / counts[place]
    return answer

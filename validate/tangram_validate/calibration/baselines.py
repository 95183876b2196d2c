"""Two baselines to compare ours with: one MFU per GPU kind, and a closed form of few parameters.

Both are fitted on the same rows as the software stacks and scored on the same rows left out. They predict
log(step / ideal step), where the ideal step is the model's FLOPs at the datasheet's peak. The closed form has
nine weights beside one for each architecture.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Experts, has_experts
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.ideal import model_flop
from tangram_validate.published.reading import Run

PENALTY = 3.0  # of squared standardised coefficients, in rows; sources weigh ten rows
ROWS = 10.0
RECOMPUTED, SELECTIVE, SILENT = 1 / 3, 0.04, 0.08  # of a step without, by kind of recomputation
KERNELS, LAUNCH_S = 42.0, 60e-6  # of a block forward and backward, and of the host for each
SCORES = 8192.0  # tokens of a microbatch at which unfused attention counts as one

Mask = NDArray[np.bool_]


def ideal_s(run: Run, hwdb: Hwdb) -> float:
    """Seconds of the model's FLOPs at the dense peak of all GPUs."""
    gpu = run.cluster.groups[0].node.gpu
    peak = gpu.peak_flop_per_s(run.job.precision.compute) or gpu.peak_flop_per_s("bf16")
    return model_flop(run.model, run.job, gpu, hwdb) / (peak * run.cluster.gpus)


@dataclass(frozen=True, slots=True)
class Physics:
    """What the closed form knows of N runs: a factor on the ideal step, and columns to weigh, [N, F]."""

    log_factor: FloatArray  # recomputation and the bubble of equal stages
    columns: FloatArray


def physics(runs: Sequence[Run], hwdb: Hwdb) -> Physics:
    """Recomputation and bubble as they are; traffic, launches and streaming as shares of the ideal step.

    One column more for each architecture of the GPUs.
    """
    kinds = [run.cluster.groups[0].node.gpu.architecture for run in runs]
    dummies = np.array([[float(kind == name) for name in sorted(set(kinds))] for kind in kinds])
    found = [_terms(run, hwdb) for run in runs]
    shares = np.log1p(np.array([share for _, share, _ in found]))
    switches = np.array([switch for _, _, switch in found])
    return Physics(np.array([factor for factor, _, _ in found]), np.hstack([shares, switches, dummies]))


def _terms(run: Run, hwdb: Hwdb) -> tuple[float, list[float], list[float]]:
    """(log factor, seconds over the ideal step, switches) of one run."""
    layout, model, node = run.layout, run.model, run.cluster.groups[0].node
    passes = max(run.job.global_batch // max(layout.micro_batch * layout.dp, 1), 1)
    per_stage = model.layers / layout.pp
    full = (min(run.full_layers / per_stage, 1.0) if run.full_layers else 1.0) * RECOMPUTED
    again = {"full": full, "selective": SELECTIVE, "none": 0.0, "": SILENT}[run.recompute]
    factor = math.log1p(again) + math.log1p((layout.pp - 1) / (passes * layout.vpp))

    def rate(ranks: int) -> float:
        inside = ranks <= node.gpus * node.scale_up_nodes
        return node.intra.bytes_per_s if inside else node.nic_bytes_per_s / node.gpus

    residual = 2.0 * layout.micro_batch * run.job.seq / layout.cp * model.hidden
    blocks, sharded = per_stage * passes, layout.zero_stage == 3
    weights = 2.0 * model.parameters / (layout.tp * layout.pp)
    part = model.blocks[-1].feed_forward
    active = part.active if isinstance(part, Experts) and layout.ep > 1 else 0
    replicas = layout.dp * layout.cp
    seconds = (
        weights * (3.0 * passes if sharded else 2.0) / rate(run.cluster.gpus) if replicas > 1 else 0.0,
        12.0 * residual * blocks / rate(layout.tp) if layout.tp > 1 else 0.0,
        6.0 * residual * blocks * active / rate(layout.ep),
        KERNELS * LAUNCH_S * blocks,
        60.0 * residual / 2.0 * blocks / layout.tp / node.gpu.memory_bytes_per_s,
    )
    ideal = ideal_s(run, hwdb)
    scores = 0.0 if run.job.flash_attention else run.job.seq * layout.micro_batch / SCORES
    narrow = run.job.precision.operand_bytes < 2
    return factor, [second / ideal for second in seconds], [narrow, has_experts(model), scores, sharded]


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


def closed_form(ratio: FloatArray, known: Physics, source: NDArray[np.str_], use: Mask) -> FloatArray:
    """Log of step / ideal of every run [N]: its factor, and columns weighed by what the rows in use say."""
    return known.log_factor + _ridge(ratio - known.log_factor, known.columns, source, use)


def _ridge(ratio: FloatArray, columns: FloatArray, source: NDArray[np.str_], use: Mask) -> FloatArray:
    """Least squares on standardised columns with a penalty, [N]."""
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

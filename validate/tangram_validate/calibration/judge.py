"""Accuracy of predictions on runs left out of every fit, beside that of the two statistical `baselines`.

Every split leaves rows out of the fit of stacks and of both baselines alike. A source left out whole meets
every stack as unseen unless another source runs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.hwdb import Hwdb
from tangram_sim.models import has_experts
from tangram_sim.opgraph import FloatArray
from tangram_validate.calibration import baselines, stackfit
from tangram_validate.calibration.folds import setting
from tangram_validate.calibration.novelty import CLASSES
from tangram_validate.calibration.ranking import SCATTER, Ranking, orders, ranking
from tangram_validate.calibration.stackfit import MeasuredRuns
from tangram_validate.published.predict import Prediction

WORST = 30
OURS, ONE_MFU, CLOSED_FORM = "ours", "one MFU", "closed form"
LEFT_OUT, PUBLISHERS_OUT = "sources left out", "publishers left out"
STACKS_OUT, GENERATIONS_OUT = "stacks left out", "GPU generations left out"
WHOLE = (LEFT_OUT, PUBLISHERS_OUT)  # splits that also leave out what a source says of its GPU's kernels
PUBLISHERS = dict.fromkeys(("dgxc", "korthikanti22", "nemo2407", "nv_bert"), "NVIDIA")
UNSEEN = (LEFT_OUT, STACKS_OUT, GENERATIONS_OUT)  # splits whose errors tell how wide intervals must be

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of N runs that scoring needs in addition to `MeasuredRuns`."""

    name: tuple[str, ...]
    gpu: NDArray[np.str_]
    kind: NDArray[np.str_]  # GPU kind and dtype: what an MFU belongs to
    setting: NDArray[np.int64]  # the same for runs of one sweep
    mixture: Mask
    measured: Mask  # the GPU kind has kernel tables, or one on the same chip has
    ideal_s: FloatArray
    physics: baselines.Physics  # what the closed form knows of them
    remark: tuple[str, ...]  # model, layout and what was assumed, for people


def facts(predictions: Sequence[Prediction], hwdb: Hwdb) -> Facts:
    """The facts of some predictions."""
    runs = [prediction.run for prediction in predictions]
    gpus = [run.cluster.groups[0].node.gpu.name for run in runs]
    kinds = [f"{gpu} {run.job.precision.compute}" for gpu, run in zip(gpus, runs, strict=True)]
    return Facts(
        name=tuple(run.id for run in runs),
        gpu=np.array(gpus),
        kind=np.array(kinds),
        setting=np.array([setting(run) for run in runs]),
        mixture=np.array([has_experts(run.model) for run in runs]),
        measured=np.array(
            [
                hwdb.residuals(run.cluster.groups[0].node.gpu, run.job.precision.compute).gpu_measured
                for run in runs
            ]
        ),
        ideal_s=np.array([baselines.ideal_s(run, hwdb) for run in runs]),
        physics=baselines.physics(runs, hwdb),
        remark=tuple(_remark(prediction) for prediction in predictions),
    )


def _remark(prediction: Prediction) -> str:
    run, layout = prediction.run, prediction.run.layout
    degrees = " ".join(
        f"{name}{value}"
        for name in ("tp", "pp", "cp", "ep", "dp", "vpp")
        if (value := getattr(layout, name)) > 1
    )
    stated = run.recompute or f"({prediction.recompute})"
    what = run.model_name or f"{run.model.layers}x{run.model.hidden}"
    return f"{what}, {run.job.dtype}, {degrees or '1 GPU'}, mbs {layout.micro_batch}, recompute {stated}"


@dataclass(frozen=True, slots=True)
class LeftOutPredictions:
    """Seconds predicted of N runs, each by parameters that did not see what is left out with it."""

    name: str
    ours: FloatArray
    null: FloatArray
    closed: FloatArray
    novelty: NDArray[np.int64]  # entry of novelty.CLASSES
    doubt: FloatArray  # log standard deviation of `ours` that the errors of fitted parameters make
    fits: Mapping[str, Mapping[str, stackfit.Fit]]  # by the group left out

    def methods(self) -> dict[str, FloatArray]:
        """Predicted seconds [N] by the name of the method, as tables show it."""
        return {OURS: self.ours, ONE_MFU: self.null, CLOSED_FORM: self.closed}


def splits(
    cases: MeasuredRuns,
    known: Facts,
    fits: Mapping[str, stackfit.Fit],
    held: MeasuredRuns | None = None,
) -> list[LeftOutPredictions]:
    """Everything in-sample, and configurations, sources, stacks, GPU kinds and generations left out.

    `fits` are those of all runs, from which the search for the others starts. `held`: the runs as they are
    predicted without what their own source says of kernels.
    """
    everyone = np.zeros(len(cases.measured), np.int64)
    publisher = np.array([PUBLISHERS.get(name, name) for name in cases.source.tolist()])
    groups: Mapping[str, NDArray[np.generic]] = {
        "in-sample": everyone,
        "configurations left out": cases.fold,
        LEFT_OUT: cases.source,
        PUBLISHERS_OUT: publisher,
        STACKS_OUT: cases.stack,
        "GPU kinds left out": known.gpu,
        GENERATIONS_OUT: cases.generation,
    }
    return [
        _split(name, cases, known, group, fits, held if name in WHOLE else None)
        for name, group in groups.items()
    ]


def _split(
    name: str,
    cases: MeasuredRuns,
    known: Facts,
    groups: NDArray[np.generic],
    near: Mapping[str, stackfit.Fit],
    held: MeasuredRuns | None,
) -> LeftOutPredictions:
    n = len(cases.measured)
    ratio = np.log(cases.measured / known.ideal_s)
    left = stackfit.left_out(cases, groups, near, held)
    null, closed = np.zeros(n), np.zeros(n)
    for group in np.unique(groups):
        out = groups == group
        use = out if out.all() else ~out
        null[out] = baselines.null(ratio, known.kind, cases.source, use)[out]
        closed[out] = baselines.closed_form(ratio, known.physics, cases.source, use)[out]
    scale = known.ideal_s
    null, closed = scale * np.exp(null), scale * np.exp(closed)
    return LeftOutPredictions(name, left.seconds, null, closed, left.novelty, left.doubt, left.fits)


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """Errors of some runs as fractions, every source the same weight, and their order within sweeps."""

    rows: int
    median: float
    p90: float
    bias: float  # mean of the sources' median signed errors
    order: Ranking


def figures(cases: MeasuredRuns, known: Facts, seconds: FloatArray, use: Mask) -> ErrorFigures:
    """How right `seconds` [N] are on the rows in use."""
    error = seconds / cases.measured - 1
    own = [error[use & (cases.source == source)] for source in np.unique(cases.source[use])]
    return ErrorFigures(
        int(use.sum()),
        float(np.mean([np.median(np.abs(item)) for item in own])),
        float(np.mean([np.percentile(np.abs(item), 90) for item in own])),
        float(np.mean([np.median(item) for item in own])),
        ranking(cases.measured[use], seconds[use], cases.source[use], known.setting[use]),
    )


def accuracy_table(cases: MeasuredRuns, known: Facts, found: Sequence[LeftOutPredictions]) -> str:
    """The splits beside each other, as a Markdown table: median / p90 in percent, tau, regret."""
    head = (
        "split",
        "rows",
        *(f"{who}: {what}" for who in found[0].methods() for what in ("error", "tau, regret")),
    )
    rows = []
    for predictions in found:
        for label, use in (
            (predictions.name, np.ones(len(known.mixture), bool)),
            (f"{predictions.name}: mixtures", known.mixture),
        ):
            if not use.any():
                continue
            cells = [label, str(int(use.sum()))]
            for seconds in predictions.methods().values():
                is_of = figures(cases, known, seconds, use)
                cells.append(f"{100 * is_of.median:.1f} / {100 * is_of.p90:.1f} ({100 * is_of.bias:+.1f})")
                cells.append(
                    f"{is_of.order.tau:.2f}, {100 * is_of.order.regret:.1f}" if is_of.order.sweeps else ""
                )
            rows.append(cells)
    return markdown(head, rows)


def source_table(cases: MeasuredRuns, known: Facts, found: Sequence[LeftOutPredictions]) -> str:
    """Every source under the splits and the baselines left out, as a Markdown table."""
    left = next(predictions for predictions in found if predictions.name == LEFT_OUT)
    columns: dict[str, FloatArray] = {predictions.name: predictions.ours for predictions in found[:3]}
    columns |= {f"{who}, {LEFT_OUT}": s for who, s in left.methods().items() if who != OURS}
    rows = []
    for source in np.unique(cases.source):
        use = cases.source == source
        newest = CLASSES[int(np.bincount(left.novelty[use]).argmax())]
        cells = [str(source), str(int(use.sum())), newest]
        for seconds in columns.values():
            is_of = figures(cases, known, seconds, use)
            cells.append(f"{100 * is_of.median:.1f} / {100 * is_of.p90:.0f} ({100 * is_of.bias:+.0f})")
        rows.append(cells)
    return markdown(("source", "rows", "left out it is mostly", *columns), rows)


def order_table(cases: MeasuredRuns, known: Facts, found: LeftOutPredictions) -> str:
    """The order within sweeps of every source that has any, as a Markdown table."""
    by_source = orders(cases.measured, found.ours, cases.source, known.setting)
    rows = [
        [
            name,
            str(sweep_order.sweeps),
            f"{sweep_order.tau:.2f}",
            f"{sweep_order.clear_tau:.2f}",
            f"{100 * sweep_order.unclear:.0f}",
            f"{100 * sweep_order.regret:.1f}",
        ]
        for name, sweep_order in by_source.items()
    ]
    near = f"{100 * SCATTER:.0f} %"
    head = (f"order, {found.name}", "sweeps", "tau", f"tau of pairs over {near} apart", "pairs nearer, %")
    return markdown((*head, "regret, %"), rows) if rows else ""


def worst_table(cases: MeasuredRuns, known: Facts, left: LeftOutPredictions) -> str:
    """The runs that are furthest off when their source is left out, as a Markdown table."""
    off = np.abs(np.log(left.ours / cases.measured))
    rows = []
    for row in np.argsort(-off, kind="stable")[:WORST].tolist():
        error = 100 * (left.ours[row] / cases.measured[row] - 1)
        rows.append(
            [
                known.name[row],
                str(cases.stack[row]),
                str(known.gpu[row]),
                known.remark[row],
                f"{error:+.0f}",
                CLASSES[int(left.novelty[row])],
            ]
        )
    return markdown(("run", "stack", "GPU", "what", "error", "class"), rows)


def class_table(cases: MeasuredRuns, known: Facts, left: LeftOutPredictions, spread: FloatArray) -> str:
    """Coverage and width of 90 % intervals by novelty, mixtures apart, as a Markdown table.

    `spread` [N]: log half-width of each run's interval, made without its source. Every row counts the same.
    """
    inside = np.abs(np.log(left.ours / cases.measured)) <= spread
    rows = []
    for number, name in enumerate(CLASSES):
        for label, use in ((name, ~known.mixture), (f"{name}, mixtures", known.mixture)):
            mask = use & (left.novelty == number)
            if mask.any():
                sources = len(np.unique(cases.source[mask]))
                share, width = inside[mask].mean(), (2 * np.sinh(spread[mask])).mean()
                rows.append(
                    [label, str(int(mask.sum())), str(sources), f"{100 * share:.0f}", f"{100 * width:.0f}"]
                )
    return markdown((LEFT_OUT, "rows", "sources", "inside, %", "mean width, %"), rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)

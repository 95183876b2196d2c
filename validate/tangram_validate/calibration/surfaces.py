"""How predicted steps answer to the five parameters of a software stack: tables that a fit can interpolate.

A prediction takes milliseconds and a fit asks for thousands of every run. Three facts make a small table do:
times are homogeneous (all costs times s = the step times s), exposures act almost linearly, and the host's
dispatch acts piecewise linearly, with one knee where it overtakes the device. Costs that no parameter
scales (transfers between stages, exchanges of experts) are kept in a table of their own.
"""

import csv
import io
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import FloatArray
from tangram_validate.published.predict import Prediction, Predictor
from tangram_validate.published.reading import Run

HEADER = ("gpu", "dtype", "kernel", "stack", "version", "parameter", "value", "sigma", "n", "source", "date")
# Seconds per kernel at which steps are predicted; geometric, so that the knee is met equally well everywhere.
DISPATCH = np.array([2, 10, 30, 70, 130]) * 1e-6
EXPOSED = np.array([0.3, 1.0, 2.0])  # the other factors at which steps are predicted
KNOTS = (
    1,
    3,
)  # entries of DISPATCH at which exposures of communication are varied; other factors at the first


FLAT = 1e-3  # of a step: less than this between the slowest host and a fast one is nothing


class StackParameters(NamedTuple):
    """The five fitted numbers by which one software stack differs from another."""

    time_scale: float = 1.0  # factor on kernel times
    attention_scale: float = 1.0  # factor on those of the attention core alone
    dispatch_s: float = 5e-6  # host seconds per kernel
    tensor_exposed: float = 1.0  # factor on tensor-parallel communication
    data_exposed: float = 1.0  # factor on data-parallel communication


KEYS = (
    ("stack", "time_scale"),
    ("stack", "attention_scale"),
    ("dispatch", "seconds"),
    ("stack", "tensor_exposed"),
    ("stack", "data_exposed"),
)  # (kernel, parameter) of the efficiency row of each field of Parameters


def with_stacks(overlays: Sequence[Path], stacks: Iterable[str], parameters: StackParameters) -> Hwdb:
    """The database with `overlays` and rows of some stacks on top, in memory once it returns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    named = {row["gpu"] for _, row in Hwdb.load(overlays).efficiency_rows() if row["kernel"] == "stack"}
    generations = sorted(gpu for gpu in named if gpu.startswith("arch:"))
    for stack in stacks:
        for (kernel, parameter), value in zip(KEYS, parameters, strict=True):
            # Rows in force for generations of GPUs would hide one for any GPU.
            for gpu in ("*", *(generations if parameter == "time_scale" else ())):
                writer.writerow(
                    (gpu, "*", kernel, stack, "", parameter, f"{value:.6g}", 0, 0, "candidate", "")
                )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "efficiency"
        folder.mkdir()
        (folder / "candidate.csv").write_text(text.getvalue(), encoding="utf-8")
        return Hwdb.load([*overlays, Path(name)])


@dataclass(frozen=True, slots=True)
class Surface:
    """Predicted seconds of N runs as a function of `StackParameters`, tabulated."""

    base: FloatArray  # [N, dispatch]: factors 1
    attention: FloatArray  # [N, knot, factor]: seconds more or less than at factor 1
    tensor: FloatArray  # [N, knot, factor]
    data: FloatArray  # [N, knot, factor]
    other: FloatArray  # [N, knot, factor]: of what no parameter scales

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Surface":
        """The surface of some of the runs, by index or mask."""
        return Surface(
            self.base[rows], self.attention[rows], self.tensor[rows], self.data[rows], self.other[rows]
        )

    def seconds(self, at: StackParameters, more: FloatArray | float = 1.0) -> FloatArray:
        """Steps of all runs, seconds [N]; beyond the table's ends the last slope goes on.

        `more`: a factor on the time scale of each run, [N] or one for all.
        """
        rows = np.arange(len(self.base))
        scale = np.broadcast_to(at.time_scale * np.asarray(more, np.float64), rows.shape)
        dispatch = at.dispatch_s / scale
        low, share = _bracket(DISPATCH, dispatch)
        total: FloatArray = self.base[rows, low] * (1 - share) + self.base[rows, low + 1] * share
        knot, part = _bracket(DISPATCH[list(KNOTS)], dispatch)
        part = np.clip(part, 0.0, 1.0)
        factors = (
            (self.attention, np.broadcast_to(at.attention_scale, rows.shape)),
            (self.tensor, at.tensor_exposed / scale),
            (self.data, at.data_exposed / scale),
            (self.other, 1 / scale),
        )
        for table, factor in factors:
            column, along = _bracket(EXPOSED, factor)
            before, after = (
                table[rows, at_knot, column] * (1 - along) + table[rows, at_knot, column + 1] * along
                for at_knot in (knot, knot + 1)
            )
            total = total + before * (1 - part) + after * part
        return scale * np.maximum(total, 1e-9)


def _bracket(grid: FloatArray, value: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """(index of the interval's left end, share of the way to its right end) of every value."""
    low = np.clip(np.searchsorted(grid, value) - 1, 0, len(grid) - 2)
    share: FloatArray = (value - grid[low]) / (grid[low + 1] - grid[low])
    return low, share


@dataclass(frozen=True, slots=True)
class Mixtures:
    """Predicted seconds of N runs of one variant or more each: logarithms are averaged by weight."""

    surface: Surface  # of M variants
    owner: NDArray[np.int64]  # [M]: the run of each variant; ascending, every run has one
    weight: FloatArray  # [M], 1 in all for each run

    @classmethod
    def single(cls, surface: Surface) -> "Mixtures":
        """One variant per run, with weight 1: for runs that leave nothing open."""
        n = len(surface.base)
        return cls(surface, np.arange(n), np.ones(n))

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> "Mixtures":
        """Those of some of the runs, by mask or by index, in the order of the indices."""
        picked = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        first = np.searchsorted(self.owner, picked)
        counts = np.searchsorted(self.owner, picked, side="right") - first
        kept = np.concatenate(
            [np.arange(at, at + n) for at, n in zip(first, counts, strict=True)] or [picked]
        )
        return Mixtures(
            self.surface.take(kept.astype(np.int64)),
            np.repeat(np.arange(len(picked)), counts),
            self.weight[kept.astype(np.int64)],
        )

    def replaced(self, rows: NDArray[np.int64], others: "Mixtures") -> "Mixtures":
        """A copy in which runs `rows` (ascending) take their tables from `others`, of the same variants."""
        at = np.flatnonzero(np.isin(self.owner, rows))
        tables = []
        for field in ("base", "attention", "tensor", "data", "other"):
            table = getattr(self.surface, field).copy()
            table[at] = getattr(others.surface, field)
            tables.append(table)
        return replace(self, surface=Surface(*tables))

    def seconds(self, at: StackParameters, more: FloatArray | float = 1.0) -> FloatArray:
        """Steps of all runs, seconds [N]; `more` as of Surface, by run."""
        runs = int(self.owner[-1]) + 1 if len(self.owner) else 0
        factors = np.broadcast_to(np.asarray(more, np.float64), (runs,))[self.owner]
        logs = np.log(self.surface.seconds(at, factors))
        answer: FloatArray = np.exp(np.bincount(self.owner, self.weight * logs, runs))
        return answer


def mixtures(predictions: Sequence[Prediction], overlays: Sequence[Path] = ()) -> Mixtures:
    """The mixtures of some predictions, every variant played at the points of the table."""
    found = [(n, *variant) for n, prediction in enumerate(predictions) for variant in prediction.variants]
    return Mixtures(
        surface([run for _, run, _ in found], overlays),
        np.array([n for n, _, _ in found], np.int64),
        np.array([weight for _, _, weight in found]),
    )


def surface(
    runs: Sequence[Run], overlays: Sequence[Path] = (), progress: Callable[[str], None] | None = None
) -> Surface:
    """Predict every run at the points of the table; they must state what they recompute."""
    n, stacks = len(runs), sorted({run.job.stack for run in runs})
    base = np.zeros((n, len(DISPATCH)))
    attention, tensor, data, other = (np.zeros((n, len(KNOTS), len(EXPOSED))) for _ in range(4))
    everyone = list(range(n))
    split = [i for i, run in enumerate(runs) if run.layout.tp > 1]
    copied = [i for i, run in enumerate(runs) if run.layout.dp * run.layout.cp > 1]
    crossed = [i for i, run in enumerate(runs) if run.layout.pp * run.layout.ep * run.layout.cp > 1]

    def fill(
        column: FloatArray,
        of: Iterable[int],
        at: StackParameters,
        minus: FloatArray | float,
        slower: float = 1.0,
    ) -> None:
        if progress:
            progress(f"predicting at {at}")
        predictor = Predictor(with_stacks(overlays, stacks, at))
        for i in of:
            less = minus[i] if isinstance(minus, np.ndarray) else minus
            column[i] = predictor.step_s(runs[i]) / slower - less

    first, last = KNOTS[0], len(DISPATCH) - 1
    for d in (first, last):
        fill(base[:, d], everyone, StackParameters(dispatch_s=float(DISPATCH[d])), 0.0)
    # Where the slowest host changes nothing, none does, and the device's answers hold at every host time.
    hosted = np.abs(base[:, last] / base[:, first] - 1) > FLAT
    for d in range(len(DISPATCH)):
        if d not in (first, last):
            base[:, d] = base[:, first]
            fill(
                base[:, d],
                np.flatnonzero(hosted).tolist(),
                StackParameters(dispatch_s=float(DISPATCH[d])),
                0.0,
            )
    for k, d in enumerate(KNOTS):
        for e, exposed in enumerate(EXPOSED):
            if exposed == 1.0:
                continue
            for table in (attention, tensor, data, other):
                table[:, k, e] = table[:, 0, e]
            at = StackParameters(dispatch_s=float(DISPATCH[d]))
            own = set(np.flatnonzero(hosted).tolist() if k else everyone)
            fill(tensor[:, k, e], own & set(split), at._replace(tensor_exposed=float(exposed)), base[:, d])
            fill(data[:, k, e], own & set(copied), at._replace(data_exposed=float(exposed)), base[:, d])
            if k:
                continue
            fill(attention[:, k, e], everyone, at._replace(attention_scale=float(exposed)), base[:, d])
            # All that parameters scale `slower` times as long, and the step that many times shorter.
            slower = 1 / float(exposed)
            everything = StackParameters(slower, 1.0, at.dispatch_s * slower, slower, slower)
            fill(other[:, k, e], crossed, everything, base[:, d], slower)
    return Surface(base, attention, tensor, data, other)

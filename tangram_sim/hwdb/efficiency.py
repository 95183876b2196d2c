"""Efficiency of GPUs and links: the achieved fraction of a datasheet value, with its standard error.

Rows are long (`gpu, dtype, kernel, stack, ..., parameter, value, sigma`). `gpu` is a row of gpus.csv,
`arch:NAME`, `link:NAME` or `kind:NAME` for links, or `*`; `dtype` may be `*`; stack `generic` stands for
every stack. The most specific row takes precedence, first by gpu, then by dtype, then by stack; for rows
about software (kernels `stack` and `dispatch`) first by stack, so that no stack's runs affect another.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import NamedTuple

from tangram_sim.clusters import Gpu, Link
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.tables import Row, require_between

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")  # peak columns of gpus.csv
ASSUMED = "assumed"  # the source of a row that rests on no measurement
INHERITED = "inherited"  # the source of a row begins so where it rests on measurements of another device
_TRAINING_DTYPES = ("bf16", "fp16", "*")  # an fp32 figure says nothing of a device's matrix units


class FittedValue(NamedTuple):
    """A value and its standard error, in the same unit."""

    value: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Residuals:
    """Prediction errors beyond those of fitted parameters: standard deviations of log errors."""

    step: float  # of a step, whole, of a dense model
    mixture: float  # what a mixture of experts adds to it
    source: float  # what all runs of one source, or of one user, are off by together
    plan: float  # the part of it that two plans of one stack and GPU kind do not share
    memory: float  # of a peak
    memory_plan: float  # of the peak of a stack whose peaks were fitted: what plans leave room for
    prior_share: float  # of the parameters' own errors that is left after calibrating to runs of one's own
    novelty: int  # entry of NOVELTY_STACKS
    gpu_measured: bool  # the kind's kernels were, or those of a kind on the same chip

    @property
    def stack_known(self) -> bool:
        """Whether the stack has fitted rows."""
        return self.novelty < NOVELTY_STACKS.index(SISTER)

    def of(self, mixture: bool) -> "Residuals":
        """Residuals for a dense model, or for a mixture of experts."""
        if not mixture:
            return self
        step, source = (hypot(item, self.mixture) for item in (self.step, self.source))
        return replace(self, step=step, source=source, mixture=0.0)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Efficiency of one GPU kind relative to its datasheet, for one dtype and software stack."""

    gemm_efficiency: FittedValue  # fraction of the dtype's dense peak
    attention_efficiency: FittedValue  # fraction of the dtype's dense peak, exponentials counted as products
    exponent_columns: FittedValue  # head columns whose products take as long as the exponential of a score
    attention_share: FittedValue  # fraction of that rate which the stack's attention kernel reaches
    memory_efficiency: FittedValue  # fraction of the memory bandwidth
    kernel_launch_s: FittedValue  # fixed cost of one kernel on the device
    dispatch_s_per_kernel: FittedValue  # host time to launch one kernel
    fused_attention: FittedValue  # 1 where a flash kernel exists (scores are never stored), else 0
    usable_memory: FittedValue  # fraction of `Gpu.memory_bytes` that tensors can take
    reserved_bytes: FittedValue  # held outside the allocator: driver context, libraries, communication
    time_scale: FittedValue  # factor a software stack puts on all kernel times
    attention_scale: FittedValue  # the same for the attention core alone
    tensor_exposed: FittedValue  # share of tensor-parallel communication that a stack does not hide
    data_exposed: FittedValue  # factor a stack puts on data-parallel communication
    workspace_bytes: FittedValue  # tensors a stack keeps whatever the model: buckets, workspaces
    master_bytes: FittedValue  # per parameter in mixed precision: fp32 master copy and copies a stack makes
    fragmentation: FittedValue  # what the allocator caches beyond activations, as a share of them


class _Parameter(NamedTuple):
    attribute: str
    lowest: float
    highest: float
    worst: str  # which of several members' values a mixed island has: "min" or "max"


# (kernel, parameter) of a row -> what it sets and the range in which it makes sense.
PARAMETERS: Mapping[tuple[str, str], _Parameter] = {
    ("gemm", "efficiency"): _Parameter("gemm_efficiency", 1e-3, 1.0, "min"),
    ("attention", "efficiency"): _Parameter("attention_efficiency", 1e-3, 1.0, "min"),
    ("attention", "exponent_columns"): _Parameter("exponent_columns", 0.0, 1024.0, "max"),
    ("attention", "share"): _Parameter("attention_share", 1e-2, 1.5, "min"),
    ("attention", "fused"): _Parameter("fused_attention", 0.0, 1.0, "min"),
    ("memory", "efficiency"): _Parameter("memory_efficiency", 1e-3, 1.0, "min"),
    ("memory", "usable"): _Parameter(
        "usable_memory", 1e-3, 1.1, "min"
    ),  # 16 "GB" of HBM are 16 GiB: may pass 1
    ("memory", "reserved_bytes"): _Parameter("reserved_bytes", 0.0, 1e11, "max"),
    ("launch", "seconds"): _Parameter("kernel_launch_s", 0.0, 1.0, "max"),
    ("dispatch", "seconds"): _Parameter("dispatch_s_per_kernel", 0.0, 1.0, "max"),
    ("stack", "time_scale"): _Parameter("time_scale", 0.1, 10.0, "max"),
    ("stack", "attention_scale"): _Parameter("attention_scale", 0.1, 10.0, "max"),
    ("stack", "tensor_exposed"): _Parameter("tensor_exposed", 0.0, 10.0, "max"),
    ("stack", "data_exposed"): _Parameter("data_exposed", 0.0, 10.0, "max"),
    ("stack", "memory_workspace_bytes"): _Parameter("workspace_bytes", 0.0, 5e10, "max"),
    ("stack", "memory_master_bytes"): _Parameter("master_bytes", 0.0, 20.0, "max"),
    ("stack", "memory_fragmentation"): _Parameter("fragmentation", 0.0, 1.0, "max"),
    ("link", "efficiency"): _Parameter("link_efficiency", 1e-3, 1.0, "min"),
}
# What rows say about errors; no prediction depends on them, only its interval.
RESIDUALS: Mapping[tuple[str, str], _Parameter] = {
    ("stack", "residual"): _Parameter("step", 0.0, 3.0, "max"),
    ("stack", "residual_unmeasured"): _Parameter("unmeasured", 0.0, 3.0, "max"),  # kinds without tables
    ("stack", "residual_mixture"): _Parameter("mixture", 0.0, 3.0, "max"),
    ("stack", "residual_source"): _Parameter("source", 0.0, 3.0, "max"),
    ("stack", "residual_plan"): _Parameter("plan", 0.0, 3.0, "max"),
    ("stack", "prior_share"): _Parameter("prior_share", 0.0, 1.0, "max"),
    ("memory", "residual"): _Parameter("memory", 0.0, 3.0, "max"),
    ("memory", "residual_plan"): _Parameter("memory_plan", 0.0, 3.0, "max"),
}
# Shares of a board's power limit (kernel `power`), by what draws them; `sigma` is that of log watts.
POWER: Mapping[tuple[str, str], _Parameter] = {
    ("power", "idle"): _Parameter("idle", 0.0, 1.0, "max"),
    ("power", "host"): _Parameter("host", 0.0, 3.0, "max"),
    ("power", "running"): _Parameter("running", 0.0, 1.0, "max"),
    ("power", "arithmetic"): _Parameter("arithmetic", 0.0, 5.0, "max"),
    ("power", "memory"): _Parameter("memory", 0.0, 5.0, "max"),
    ("power", "link"): _Parameter("link", 0.0, 5.0, "max"),
    ("power", "residual"): _Parameter("sigma", 0.0, 3.0, "max"),
}
# In column stack of rows of RESIDUALS: stacks with fitted rows of their own on that generation of GPUs, those
# fitted on other generations, those whose lineage was fitted. `generic` is what is known of none.
CALIBRATED, ELSEWHERE, SISTER = "calibrated", "calibrated-elsewhere", "sister"
NOVELTY_STACKS = (CALIBRATED, ELSEWHERE, SISTER, "generic")
_SOFTWARE = ("stack", "dispatch")
_GPU_PARAMETERS = {key: known for key, known in PARAMETERS.items() if key[0] != "link"}


def check(row: Row, where: str) -> None:
    """Raise BadInputError unless a row's kernel and parameter are known and its value is in range."""
    every = {**PARAMETERS, **RESIDUALS, **POWER}
    known = every.get((row["kernel"], row["parameter"]))
    if known is None:
        options = ", ".join(f"{kernel} {parameter}" for kernel, parameter in sorted(every))
        raise BadInputError(
            f"{where}: kernel {row['kernel']!r} has no parameter {row['parameter']!r}; known pairs: {options}"
        )
    require_between(row, known.lowest, known.highest, f"{row['kernel']} {row['parameter']}", where)


class EfficiencyTable:
    """Efficiency rows, indexed for lookup.

    Among equally specific rows an overlay takes precedence over the database, a measured row over an assumed
    one, a later date over an earlier one, a later row over an earlier one.
    """

    __slots__ = ("_best", "rows")

    def __init__(self, rows: Iterable[tuple[int, Row]]) -> None:
        """`rows` are (layer, row): 0 for the database, 1, 2, ... for overlays."""
        self.rows = tuple(rows)
        best: dict[tuple[str, str, str, str, str], tuple[tuple[int, bool, str, int], Row]] = {}
        for order, (layer, row) in enumerate(self.rows):
            key = (row["kernel"], row["parameter"], row["gpu"], row["dtype"], row["stack"])
            rank = (layer, row["source"] != ASSUMED, row["date"], order)
            if key not in best or rank > best[key][0]:
                best[key] = (rank, row)
        self._best = {key: row for key, (_, row) in best.items()}

    def find(self, kernel: str, parameter: str, gpus: Iterable[str], dtype: str, stack: str) -> Row:
        """The most specific row; `gpus` are the entries of column gpu that apply, most specific first."""
        stacks = dict.fromkeys((stack, "generic"))
        places: Iterable[tuple[str, str, str]]
        if kernel in _SOFTWARE:
            places = ((gpu, kind, own) for own in stacks for gpu in gpus for kind in (dtype, "*"))
        else:
            places = ((gpu, kind, own) for gpu in gpus for kind in (dtype, "*") for own in stacks)
        for gpu, kind, own in places:
            row = self._best.get((kernel, parameter, gpu, kind, own))
            if row is not None:
                return row
        raise BadInputError(
            f"no efficiency row for {kernel} {parameter}: the hardware database needs one for gpu '*'"
        )

    def of_gpu(
        self, gpu: Gpu, dtype: str, stack: str, architectures: Mapping[str, str]
    ) -> tuple[Efficiency, list[Row]]:
        """The efficiency of a GPU and the rows it rests on.

        A mixed island's GPU has its members' names joined by "+": each parameter is then the worst
        member's. `architectures` gives the architecture of each known GPU.
        """
        members = [
            (name, f"arch:{architectures.get(name, gpu.architecture)}", "*") for name in gpu.name.split("+")
        ]
        figures, used = {}, []
        for (kernel, parameter), known in _GPU_PARAMETERS.items():
            rows = [self.find(kernel, parameter, member, dtype, stack) for member in members]
            pick = min if known.worst == "min" else max
            row = pick(rows, key=lambda candidate: candidate.number("value"))
            figures[known.attribute] = _estimate(row)
            used += rows
        return Efficiency(**figures), used

    def in_force(self) -> tuple[tuple[int, Row], ...]:
        """(layer, row) of the rows that lookups can return, in file order, without overridden ones."""
        best = {id(row) for row in self._best.values()}
        return tuple((layer, row) for layer, row in self.rows if id(row) in best)

    def novelty(self, members: Sequence[tuple[str, ...]], dtype: str, stack: str) -> int:
        """How little is known of a stack on some GPUs, as an index into NOVELTY_STACKS; 0: most is known.

        Each of `members` is a GPU as a sequence of entries of column gpu, most specific first. The GPU on
        which least is known decides.
        """
        if stack == "generic":
            return len(NOVELTY_STACKS) - 1
        found = 0
        for member in members:
            rows = [
                (place, row)
                for place in member
                for kind in (dtype, "*")
                if (row := self._best.get(("stack", "time_scale", place, kind, stack))) is not None
            ]
            own = [place for place, row in rows if not row["source"].startswith((ASSUMED, INHERITED))]
            here = 0 if set(own) - {"*"} else 1 if own else 2 if rows else 3
            found = max(found, here)
        return found

    def of_residuals(
        self, gpu: Gpu, dtype: str, stack: str, architectures: Mapping[str, str]
    ) -> tuple[Residuals, list[Row]]:
        """Prediction errors for a GPU under a stack, and the rows used.

        The stack's own row is used first, then the row shared by stacks with equal knowledge
        (NOVELTY_STACKS), then `generic`: the error expected for an unseen stack.
        """
        members = [
            (name, f"arch:{architectures.get(name, gpu.architecture)}", "*") for name in gpu.name.split("+")
        ]
        novelty = self.novelty(members, dtype, stack)
        # A kind on a measured chip is as good as measured: what its rows add to their error says the rest.
        measured = gpu.measured or set(gpu.name.split("+")) <= self.inheriting_gpus()
        figures: dict[str, float] = {}
        used = []
        for (kernel, parameter), figure in RESIDUALS.items():
            if parameter == "residual_unmeasured" and measured:
                figures[figure.attribute] = 0.0
                continue
            rows = []
            for member in members:
                row = self.find(kernel, parameter, member, dtype, stack)
                if row["stack"] == "generic" and kernel in _SOFTWARE:
                    row = self.find(kernel, parameter, member, dtype, NOVELTY_STACKS[novelty])
                rows.append(row)
            worst = max(rows, key=lambda candidate: candidate.number("value"))
            figures[figure.attribute] = worst.number("value")
            used.append(worst)
        unmeasured = figures.pop("unmeasured")
        figures |= {name: hypot(figures[name], unmeasured) for name in ("step", "source")}
        return Residuals(**figures, novelty=novelty, gpu_measured=measured), used

    def of_power(self, gpu: Gpu, architectures: Mapping[str, str]) -> tuple[dict[str, float], list[Row]]:
        """Shares of a GPU's power limit by component (POWER), and the rows used.

        For a mixed island, the largest of its members' shares.
        """
        members = [
            (name, f"arch:{architectures.get(name, gpu.architecture)}", "*") for name in gpu.name.split("+")
        ]
        shares, used = {}, []
        for (kernel, parameter), known in POWER.items():
            rows = [self.find(kernel, parameter, member, "*", "generic") for member in members]
            shares[known.attribute] = max(row.number("value") for row in rows)
            used += rows
        return shares, used

    def of_link(self, link: Link) -> tuple[FittedValue, Row]:
        """The fraction of a link's bandwidth that collectives achieve, and the row used."""
        row = self.find("link", "efficiency", (f"link:{link.name}", f"kind:{link.kind}", "*"), "*", "generic")
        return _estimate(row), row

    def measured_gpus(self) -> frozenset[str]:
        """GPUs with GEMMs measured in a 16-bit type on this kind of device itself."""
        return frozenset(gpu for gpu, source in self._gemm_sources() if not source.startswith(INHERITED))

    def inheriting_gpus(self) -> frozenset[str]:
        """GPUs with GEMMs measured in a 16-bit type on another kind of device with the same chip."""
        return frozenset(gpu for gpu, source in self._gemm_sources() if source.startswith(INHERITED))

    def _gemm_sources(self) -> list[tuple[str, str]]:
        """(GPU, source) of rows on GEMMs in a 16-bit type that are based on measurements."""
        return [
            (gpu, row["source"])
            for (kernel, parameter, gpu, dtype, _), row in self._best.items()
            if (kernel, parameter) == ("gemm", "efficiency")
            and dtype in _TRAINING_DTYPES
            and row["source"] != ASSUMED
        ]


def _estimate(row: Row) -> FittedValue:
    return FittedValue(row.number("value"), row.number("sigma"))

"""Every parameter that predictions depend on: its value, its uncertainty, and the data it was fitted to."""

from collections import Counter
from collections.abc import Iterable

from pydantic import Field

from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.hwdb.efficiency import ASSUMED, INHERITED, RESIDUALS
from tangram_sim.studies.documents import Document

KERNEL_CAP, STACK_CAP = 3, 5  # most parameters of a GPU kind at one dtype, and of a software stack
SOFTWARE = ("stack", "dispatch")
# Kernel classes whose rows say how long kernels take; others say what fits, or which kernels exist.
KERNELS = (
    ("gemm", "efficiency"),
    ("attention", "efficiency"),
    ("memory", "efficiency"),
    ("launch", "seconds"),
)
_UNITS = {
    "efficiency": "share of the datasheet figure",
    "usable": "share of the memory sold",
    "reserved_bytes": "bytes",
    "seconds": "s per kernel",
    "fused": "1 or 0",
    "time_scale": "factor on kernel times",
    "tensor_exposed": "factor on tensor-parallel transfers",
    "data_exposed": "factor on data-parallel transfers",
    "prior_share": "share of factors' errors left",
}
_STEP_TIMES = ("published runs", "runs of one's own")  # words of the sources of rows fitted on step times


def fitted_on(row: Row) -> str:
    """Source of a row: `step times`, `kernel tables`, `link measurements`, `inherited` or `assumed`."""
    source = row["source"]
    if source == ASSUMED:
        return ASSUMED
    if source.startswith(INHERITED):
        return INHERITED
    if row["kernel"] in SOFTWARE or any(words in source for words in _STEP_TIMES):
        return "step times"
    return "link measurements" if row["kernel"] == "link" else "kernel tables"


class Parameter(Document):
    """One row of hwdb/efficiency in force, of `hw parameters --json`."""

    kernel: str
    parameter: str
    role: str = Field(description="`prediction`, or `error`: only intervals depend on it")
    gpu: str = Field(description="a GPU kind, arch:NAME, link:NAME, kind:NAME of links, or * for any")
    dtype: str
    stack: str = Field(description="generic: every stack without a row of its own")
    value: float
    unit: str
    sigma: float = Field(description="standard error, same unit")
    n: int = Field(description="measurements behind it")
    fitted_on: str = Field(description="step times, kernel tables, link measurements, inherited or assumed")
    source: str
    date: str
    layer: str = Field(description="shipped, or the overlay folder it comes from")


class ParameterCounts(Document):
    """How many parameters there are."""

    by_gpu_and_dtype: dict[str, int] = Field(
        description="rows on kernel times of one GPU kind; what holds for all its dtypes counts under `any`"
    )
    by_stack: dict[str, int] = Field(description="rows of one software stack that seconds depend on")
    by_fit: dict[str, int]


class ParametersDocument(Document):
    """`hw parameters --json`."""

    parameters: list[Parameter]
    counts: ParameterCounts
    most_per_gpu_and_dtype: int
    most_per_stack: int


def parameters(hwdb: Hwdb) -> ParametersDocument:
    """All parameters in the order of the files, with counts by kind."""
    found = [_parameter(layer, row, hwdb) for layer, row in hwdb.efficiency_rows()]
    return ParametersDocument(
        parameters=found,
        counts=ParameterCounts(
            by_gpu_and_dtype=_counts(
                f"{parameter.gpu} {parameter.dtype}"
                for parameter in found
                if (parameter.kernel, parameter.parameter) in KERNELS
                and parameter.stack == "generic"
                and not parameter.gpu.startswith(("arch:", "*"))
            ),
            by_stack=_counts(
                parameter.stack
                for parameter in found
                if parameter.kernel in SOFTWARE
                and parameter.role == "prediction"
                and parameter.gpu == "*"
                and not parameter.parameter.startswith("memory_")  # fitted to peaks, never to steps
            ),
            by_fit=_counts(parameter.fitted_on for parameter in found),
        ),
        most_per_gpu_and_dtype=KERNEL_CAP,
        most_per_stack=STACK_CAP,
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _parameter(layer: int, row: Row, hwdb: Hwdb) -> Parameter:
    residual = (row["kernel"], row["parameter"]) in RESIDUALS
    unit = "log standard deviation" if residual else "-"
    return Parameter(
        kernel=row["kernel"],
        parameter=row["parameter"],
        role="error" if residual else "prediction",
        gpu=row["gpu"],
        dtype="any" if row["dtype"] == "*" else row["dtype"],
        stack=row["stack"],
        value=row.number("value"),
        unit=_UNITS.get(row["parameter"], unit),
        sigma=row.number("sigma"),
        n=int(row.number("n")),
        fitted_on=fitted_on(row),
        source=row["source"],
        date=row["date"],
        layer="shipped" if layer == 0 else _overlay(layer, hwdb),
    )


def _overlay(layer: int, hwdb: Hwdb) -> str:
    return str(hwdb.folders[layer]) if layer < len(hwdb.folders) else "memory"

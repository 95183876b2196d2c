"""Turns fits into efficiency rows of the hardware database: measured kinds, and siblings that inherit."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.efficiency import INHERITED
from tangram_validate.calibration import kinds, profiles, tables
from tangram_validate.calibration.attention import AttentionFit, fit_attention
from tangram_validate.calibration.gemm import OPERANDS, Device, GemmFit, fit_gemm

FITTED = "2026-11-21"  # the day of the fit; rows must not depend on the day they are written again
HEADER = "gpu,dtype,kernel,stack,version,parameter,value,sigma,n,source,date,note"
# dtype of the tables -> (peak column of gpus.csv, frameworks). bf16 goes through the same vendor library in
# all three; of the others TensorRT-LLM calls the library that training stacks call (cuBLASLt).
FITTED_DTYPES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fp8": ("fp8", ("trtllm",)),
    "nvfp4": ("fp4", ("trtllm",)),
}
ATTENTION_FRAMEWORKS = ("sglang", "vllm")  # flash kernels on separate inputs, as training calls them


@dataclass(frozen=True, slots=True)
class EfficiencyRow:
    """One row of `hwdb/efficiency/kernels.csv`."""

    gpu: str
    dtype: str
    kernel: str
    version: str
    parameter: str
    value: float
    sigma: float
    n: int
    source: str
    note: str
    stack: str = "generic"

    def cells(self) -> list[str]:
        """The cells in the order of `HEADER`: three decimals for fractions, two digits for seconds."""
        value, sigma = (
            f"{figure:.1e}" if self.parameter == "seconds" else f"{figure:.3f}"
            for figure in (self.value, self.sigma)
        )
        first = [self.gpu, self.dtype, self.kernel, self.stack, self.version, self.parameter]
        return [*first, value, sigma, str(self.n), self.source, FITTED, self.note]


@dataclass(frozen=True, slots=True)
class KindFits:
    """Everything fitted to one measured GPU kind; `gemm` is keyed by the dtype of the tables."""

    system: str
    gpu: str
    gemm: Mapping[str, GemmFit]
    attention: AttentionFit


def device(database: Hwdb, gpu: str, dtype: str) -> Device:
    """Datasheet rates of `gpu`; the peak is 0.0 where gpus.csv has none at `dtype`."""
    found = database.gpu(gpu)
    return Device(found.peak_flop_per_s(dtype), found.memory_bytes_per_s)


def fit_kind(database: Hwdb, system: str) -> KindFits:
    """Fit GEMM and attention of one measured kind; a dtype without tables or without a peak is left out."""
    gpu = kinds.SYSTEMS[system]
    sixteen = device(database, gpu, "bf16")
    base = fit_gemm(tables.gemm_table(system, "bfloat16"), OPERANDS["bfloat16"], sixteen)
    fits = {"bfloat16": base}
    for dtype, (column, frameworks) in FITTED_DTYPES.items():
        rates = device(database, gpu, column)
        table = tables.gemm_table(system, dtype, *frameworks)
        if rates.peak_flop_per_s > 0 and len(table.m):
            fits[dtype] = fit_gemm(table, OPERANDS[dtype], rates, base.parameters.memory_efficiency)
    attention = fit_attention(
        tables.attention_table(system, *ATTENTION_FRAMEWORKS),
        sixteen,
        base.parameters,
        database.efficiency(database.gpu(gpu), "bf16").exponent_columns.value,
    )
    return KindFits(system, gpu, fits, attention)


def _versions(system: str, *only: str) -> str:
    return "; ".join(entry.replace("/", " ") for entry in tables.frameworks(system, *only))


def _errors(fit: GemmFit) -> str:
    big, everything = 100 * fit.big_error, 100 * fit.error
    return f"held-out median error {big:.1f} % at m n k >= 1024 and {everything:.1f} % overall"


def kind_rows(fits: KindFits) -> list[EfficiencyRow]:
    """Rows of one measured kind.

    fp16 takes the bf16 fit (same units, same rate). Memory and launch stand for every dtype.
    """
    source = f"{tables.PACKAGE} {tables.VERSION} {fits.system} (Apache-2.0)"
    base, core = fits.gemm["bfloat16"], fits.attention
    every, flash = _versions(fits.system), _versions(fits.system, *ATTENTION_FRAMEWORKS)
    make = partial(EfficiencyRow, fits.gpu, source=source)

    def gemm(dtype: str, fit: GemmFit, version: str, note: str) -> EfficiencyRow:
        value, sigma = fit.parameters.efficiency, fit.sigma.efficiency
        row = make(dtype, "gemm", version, "efficiency", value, sigma, fit.n, note=note)
        other = kinds.SUSTAINED.get((fits.system, "bf16" if dtype == "fp16" else dtype))
        return row if other is None else between(row, other)

    rows = [gemm("bf16", base, every, _errors(base))]
    rows.append(gemm("fp16", base, every, "the bf16 tables: same units and rate"))
    for dtype, (column, frameworks) in FITTED_DTYPES.items():
        if dtype not in fits.gemm:
            continue
        note = f"{_errors(fits.gemm[dtype])}; casts of the inputs priced apart"
        rows.append(gemm(column, fits.gemm[dtype], _versions(fits.system, *frameworks), note))
    by_dim = " ".join(f"{dim}: {value:.2f}" for dim, value in core.by_head_dim)
    by_seq = " ".join(f"{seq}: {value:.2f}" for seq, value in core.by_seq)
    note = (
        f"causal forward; held-out median error {100 * core.error:.1f} %; "
        f"by head dimension {by_dim}; by sequence length {by_seq}"
    )
    for column in ("bf16", "fp16"):  # what attention runs in under every recipe with kernel tables
        text = note if column == "bf16" else "the bf16 row"
        rows.append(
            make(column, "attention", flash, "efficiency", core.efficiency, core.sigma, core.n, note=text)
        )
    note, values, sigmas = "from the bf16 GEMMs that it rules", base.parameters, base.sigma
    memory, spread = values.memory_efficiency, sigmas.memory_efficiency
    rows.append(make("*", "memory", every, "efficiency", memory, spread, base.n, note=note))
    rows.append(make("*", "launch", every, "seconds", values.launch_s, sigmas.launch_s, base.n, note=note))
    return rows


def between(row: EfficiencyRow, other: kinds.Sustained) -> EfficiencyRow:
    """The row half way (of logarithms) to another table's, with an error that covers both."""
    apart = 0.5 * math.log(row.value / other.efficiency)
    value = row.value * math.exp(-apart)
    return replace(
        row,
        value=value,
        sigma=value * math.hypot(row.sigma / row.value, apart),
        source=f"{row.source}; {other.source}",
        note=f"between {row.value:.3f} and {other.efficiency:.3f}; {row.note}",
    )


def profile_rows(trace: Path) -> list[EfficiencyRow]:
    """Rows of the kinds known by layer profiles alone; GEMM and unfused attention share one constant.

    Kernels of a software of its own have their share of the memory's rate fitted too.
    """
    rows = []
    for name, kind in kinds.PROFILED.items():
        blocks, own = profiles.read_profiles(trace, name), kind.stack != "generic"
        fit = (profiles.fit_both if own else profiles.fit_scale)(blocks, kind.name, kind.dtype)
        text = f"whole blocks forward and backward, unfused attention; median error {100 * fit.error:.1f} %"
        note = "; ".join(filter(None, (text, kind.note)))
        found = [(column, kernel, fit.efficiency) for kernel, column in profiles.columns(kind.dtype)]
        found += [("*", "memory", fit.memory)] if own else []
        rows += [
            EfficiencyRow(
                kind.name,
                column,
                kernel,
                "",
                "efficiency",
                value,
                value * fit.sigma / fit.efficiency,
                fit.n,
                "Sailor layer profiles (eth-easl/sailor cf2c8e3; MIT)",
                note,
                kind.stack,
            )
            for column, kernel, value in found
        ]
    return rows


def inherited(rows: Iterable[EfficiencyRow], siblings: Iterable[kinds.Sibling]) -> list[EfficiencyRow]:
    """Rows of kinds on a measured kind's chip: its constants with a wider error, and n = 0."""
    measured = list(rows)
    return [
        replace(
            row,
            gpu=sibling.name,
            sigma=row.value * math.hypot(row.sigma / row.value, sibling.sigma),
            n=0,
            source=f"{INHERITED} from {sibling.of}: {row.source}",
            note=f"same chip; {100 * sibling.sigma:.0f} % added to the error",
        )
        for sibling in siblings
        for row in measured
        if row.gpu == sibling.of
    ]


def all_rows(fits: Iterable[KindFits], trace: Path) -> list[EfficiencyRow]:
    """Every row of kernels.csv, in a fixed order."""
    measured = [row for kind in fits for row in kind_rows(kind)]
    profiled = profile_rows(trace)
    return [
        *measured,
        *inherited(measured, kinds.SIBLINGS),
        *profiled,
        *inherited(profiled, kinds.PROFILED_SIBLINGS),
    ]


def csv_text(rows: Iterable[EfficiencyRow]) -> str:
    """The CSV file, byte for byte the same for the same rows."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(row.cells() for row in rows)
    return f"{HEADER}\n{stream.getvalue()}"

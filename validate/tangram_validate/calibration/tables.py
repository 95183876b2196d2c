"""Reads the measured kernel tables of the package aiconfigurator-core (Apache-2.0): GEMM and attention.

The package ships one parquet file per (system, kernel family, framework, version): latencies of kernels run
back to back on the device, forward only, without host launches. Only its data files are read, none of
its code.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangram_sim.errors import BadInputError
from tangram_validate.calibration.robust import Floats

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
# The tables of one framework each, newest complete ones.
FRAMEWORKS = ("sglang/0.5.14", "trtllm/1.3.0rc20", "vllm/0.24.0")
OLDER_FRAMEWORKS = {"a100_sxm": ("sglang/0.5.10", "trtllm/1.0.0", "vllm/0.14.0")}
MILLISECOND = 1e-3


@dataclass(frozen=True)
class GemmTable:
    """Measured products (m, k) x (k, n); arrays of N. `table` numbers the framework a row comes from."""

    m: Floats
    n: Floats
    k: Floats
    seconds: Floats
    table: NDArray[np.int64]

    @property
    def big(self) -> NDArray[np.bool_]:
        """The shapes that training runs: all three sizes 1,024 or more."""
        return np.minimum(np.minimum(self.m, self.n), self.k) >= 1024


@dataclass(frozen=True)
class AttentionTable:
    """Measured causal attention with 16-bit inputs, forward; arrays of N. Includes writing the KV cache."""

    batch: Floats
    seq: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    seconds: Floats
    table: NDArray[np.int64]


def folder() -> Path:
    """The folder of the package's tables.

    Raises BadInputError when the package is absent, of another version than the rows are pinned to, or
    when what reads parquet is absent.
    """
    wanted = "install it with: pip install 'tangram-sim[calibrate]'"
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        raise BadInputError(f"calibration reads the tables of {PACKAGE} {VERSION}; {wanted}") from None
    if found != VERSION:
        raise BadInputError(f"{PACKAGE} {found} is installed; calibration is pinned to {VERSION}; {wanted}")
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None or find_spec("pandas") is None or find_spec("pyarrow") is None:
        raise BadInputError(f"calibration needs {PACKAGE}, pandas and pyarrow; {wanted}")
    return Path(spec.origin).parent / "systems" / "data"


def frameworks(system: str, *only: str) -> tuple[str, ...]:
    """`NAME/VERSION` of the frameworks whose tables of `system` are used; `only` restricts the names."""
    known = OLDER_FRAMEWORKS.get(system, FRAMEWORKS)
    return tuple(entry for entry in known if not only or entry.split("/")[0] in only)


def _rows(path: Path, columns: list[str], equal: dict[str, object]) -> dict[str, NDArray[np.object_]]:
    """The chosen columns of the rows whose other columns have the values `equal`; absent columns match."""
    import pandas  # of the extra, and 300 ms

    frame = pandas.read_parquet(path)
    for column, value in equal.items():
        if column in frame:
            frame = frame[frame[column] == value]
    return {column: frame[column].to_numpy() for column in columns}


def gemm_table(system: str, dtype: str, *only: str) -> GemmTable:
    """The GEMMs of a system at the package's `dtype`: bfloat16, fp8, fp8_block, nvfp4; may be empty."""
    parts: list[list[Floats]] = []
    for index, entry in enumerate(frameworks(system, *only)):
        path = folder() / system / "gemm" / entry / "gemm_perf.parquet"
        rows = _rows(path, ["m", "n", "k", "latency"], {"gemm_dtype": dtype})
        part = [values.astype(np.float64) for values in rows.values()]
        parts.append([*part, np.full(len(part[0]), float(index))])
    m, n, k, latency, table = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return GemmTable(m, n, k, latency * MILLISECOND, table.astype(np.int64))


def attention_table(system: str, *only: str) -> AttentionTable:
    """Causal prompt attention of a system, 16-bit throughout, no window, no cached prefix, no Triton kernels.

    Triton kernels stand in where the tuned ones lack a case; training stacks do not call them.
    """
    equal: dict[str, object] = {
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "window_size": 0,
        "step": 0,
    }
    names = ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "latency"]
    parts: list[list[Floats]] = []
    for index, entry in enumerate(frameworks(system, *only)):
        path = folder() / system / "attention" / entry / "context_attention_perf.parquet"
        rows = _rows(path, [*names, "kernel_source"], equal)
        tuned = np.array(["triton" not in str(kernel) for kernel in rows["kernel_source"]], dtype=bool)
        part = [rows[name][tuned].astype(np.float64) for name in names]
        parts.append([*part, np.full(int(tuned.sum()), float(index))])
    batch, seq, heads, kv_heads, head_dim, latency, table = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    return AttentionTable(
        batch, seq, heads, kv_heads, head_dim, latency * MILLISECOND, table.astype(np.int64)
    )

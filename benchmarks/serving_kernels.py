"""What kernels inside serving engines take beside the rates of the hardware database.

    python -m benchmarks.serving_kernels

Reads the tables of aiconfigurator-core (kernels timed in vLLM, SGLang and TensorRT-LLM on one kind of GPU
each) and prints, for each class of kernels that iterations have a factor for, the median of measured over
computed seconds: of the fastest engine on each kind and in each type the median of these and their spread
about it (1.4826 x the median deviation of logarithms), then each engine's own median. Products count where
one side is three times the other, moving kernels where that takes ten launches. What a fit may expect of
factors before any service is seen; scores of services have no say in it.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tangram_validate.calibration.kinds import SYSTEMS
from tangram_validate.calibration.tables import MILLISECOND, folder, frameworks

from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb

# Types of tables -> (column of peaks, bytes of a weight).
TYPES = {"bfloat16": ("bf16", 2.0), "fp8": ("fp8", 1.0), "fp8_block": ("fp8", 1.0), "nvfp4": ("fp4", 0.5625)}
LEAST = 20  # rows of a class, for a median
FAR, LAUNCHES, LARGE = 3.0, 10.0, 1024
HEADS = (2, 16)  # query heads that share keys: fewer are bound by launches, more by arithmetic
Ratios = Iterator[tuple[str, Floats]]


def _table(path: Path) -> Any:
    import pandas  # of the extra, and 300 ms

    return pandas.read_parquet(path) if path.exists() else None


class _Kind:
    """A kind of GPU and its rates: seconds as `cost.kernels` counts them, without launches."""

    def __init__(self, name: str, hwdb: Hwdb) -> None:
        self.gpu = hwdb.gpu(name)
        self.hwdb = hwdb
        found = hwdb.efficiency(self.gpu, "bf16")
        self.launch_s = found.kernel_launch_s.value
        self.bytes_per_s = self.gpu.memory_bytes_per_s * found.memory_efficiency.value
        self.attention_flop_per_s = self.gpu.peak_flop_per_s("bf16") * found.attention_efficiency.value
        self.exponent_columns = found.exponent_columns.value

    def flop_per_s(self, compute: str) -> float:
        """The rate of products, 0 where there are no units."""
        return (
            self.gpu.peak_flop_per_s(compute) * self.hwdb.efficiency(self.gpu, compute).gemm_efficiency.value
        )


def _columns(rows: Any, *names: str) -> list[Floats]:
    return [rows[name].to_numpy(dtype=np.float64) for name in (*names, "latency")]


def products(kind: _Kind, rows: Any) -> Ratios:
    """Dense products: by what bounds them."""
    for name, (compute, width) in TYPES.items():
        rate = kind.flop_per_s(compute)
        own = rows[rows["gemm_dtype"] == name]
        if not rate or not len(own):
            continue
        m, n, k, latency = _columns(own, "m", "n", "k")
        seconds = latency * MILLISECOND - kind.launch_s
        moving = ((m * k + k * n) * width + m * n * 2.0) / kind.bytes_per_s
        arithmetic = 2.0 * m * n * k / rate
        large = np.minimum(np.minimum(m, n), k) >= LARGE
        bound = large & (arithmetic > FAR * moving)
        yield ("arithmetic" if compute == "bf16" else "narrow", (seconds / arithmetic)[bound])
        moved = (moving > FAR * arithmetic) & (moving > LAUNCHES * kind.launch_s)
        yield "gemm", (seconds / moving)[moved]


def experts(kind: _Kind, rows: Any) -> Ratios:
    """Products of experts, all of which are used alike, by what bounds them."""
    for name, (compute, width) in TYPES.items():
        rate = kind.flop_per_s(compute)
        own = rows[
            (rows["moe_dtype"] == name) & (rows["distribution"] == "balanced") & (rows["num_experts"] >= 8)
        ]
        if not rate or not len(own):
            continue
        names = (
            "num_tokens",
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "moe_tp_size",
            "moe_ep_size",
        )
        tokens, hidden, inner, active, total, tp, ep, latency = _columns(own, *names)
        each, inner = tokens * active / total, inner / tp
        elements = 3.0 * hidden * inner
        passed = each * (2.0 * hidden + 3.0 * inner) * 2.0
        moving = total / ep * (elements * width + passed) / kind.bytes_per_s
        arithmetic = 2.0 * each * total / ep * elements / rate
        used = (tokens * active >= total) & (moving > LAUNCHES * kind.launch_s)
        seconds = latency * MILLISECOND
        yield "grouped", (seconds / arithmetic)[used & (arithmetic > FAR * moving)]
        yield "experts", (seconds / moving)[used & (moving > FAR * arithmetic)]


def prompts(kind: _Kind, rows: Any) -> Ratios:
    """Causal attention of whole prompts in 16 bits."""
    own = rows[
        (rows["attn_dtype"] == "bfloat16") & (rows["kv_cache_dtype"] == "bfloat16") & (rows["step"] == 0)
    ]
    own = own[~own["kernel_source"].str.contains("triton")]
    batch, seq, heads, shared, dim, latency = _columns(
        own, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"
    )
    columns = 2.0 * (np.ceil(dim / 32.0) * 32.0 + kind.exponent_columns)
    seconds = batch * seq**2 * heads * columns / kind.attention_flop_per_s
    seconds = seconds + batch * seq * (heads + shared) * 4.0 * dim / kind.bytes_per_s
    long = (seq >= LARGE) & (seconds > LAUNCHES * kind.launch_s)
    yield "attention", ((latency * MILLISECOND - kind.launch_s) / seconds)[long]


def caches(kind: _Kind, rows: Any) -> Ratios:
    """Attention of decoding requests, which reads their caches."""
    for name, width in (("bfloat16", 2.0), ("fp8", 1.0)):
        own = rows[(rows["kv_cache_dtype"] == name) & (rows["head_dim"] == 128) & (rows["batch_size"] >= 8)]
        names = ("batch_size", "step", "num_heads", "num_key_value_heads", "head_dim")
        batch, context, heads, shared, dim, latency = _columns(own, *names)
        moving = 2.0 * batch * (context + 1.0) * shared * dim * width / kind.bytes_per_s
        told = (
            (moving > LAUNCHES * kind.launch_s) & (heads >= HEADS[0] * shared) & (heads <= HEADS[1] * shared)
        )
        yield "cache", ((latency * MILLISECOND - kind.launch_s) / moving)[told]


READERS = (
    ("gemm/{}/gemm_perf.parquet", products),
    ("moe/{}/moe_perf.parquet", experts),
    ("attention/{}/context_attention_perf.parquet", prompts),
    ("attention/{}/generation_attention_perf.parquet", caches),
)


def medians(hwdb: Hwdb) -> dict[str, dict[tuple[str, int], dict[str, float]]]:
    """Class -> (kind, number of the type) -> engine -> median of measured over computed seconds."""
    found = defaultdict[str, dict[tuple[str, int], dict[str, float]]](dict)
    for system, name in SYSTEMS.items():
        kind = _Kind(name, hwdb)
        for entry in frameworks(system):
            for place, reader in READERS:
                rows = _table(folder() / system / place.format(entry))
                if rows is None:
                    continue
                if "window_size" in rows:
                    rows = rows[rows["window_size"] == 0]
                for number, (what, ratios) in enumerate(reader(kind, rows)):
                    if len(ratios) >= LEAST:
                        own = found[what].setdefault((name, number), {})
                        own[entry.split("/")[0]] = float(np.median(ratios))
    return found


def main() -> int:
    """Print the table."""
    sys.stdout.write("class       kinds and types   fastest   spread   by engine\n")
    for what, tables in sorted(medians(Hwdb.load()).items()):
        logs = np.log([min(engines.values()) for engines in tables.values()])
        middle = float(np.median(logs))
        spread = 1.4826 * float(np.median(np.abs(logs - middle)))
        names = sorted({engine for engines in tables.values() for engine in engines})
        own = (np.median([table[name] for table in tables.values() if name in table]) for name in names)
        told = "   ".join(f"{name} {value:.2f}" for name, value in zip(names, own, strict=True))
        sys.stdout.write(f"{what:10}  {len(tables):15}   {np.exp(middle):7.2f}   {spread:6.2f}   {told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

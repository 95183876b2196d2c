"""Our own kernel microbenchmarks with torch, and what they distil to: hwdb efficiency rows.

GEMM forward and backward, attention forward and backward, elementwise, optimizer, host dispatch, device
copy; on CPU or one CUDA device. Raw timings go to a trace; rows are the rates of all shapes together.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from tangram_sim.errors import BadInputError

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes at which kernels are timed."""

    gemms: tuple[tuple[int, int, int], ...]  # (m, n, k): tokens x outputs x inputs of projections
    attentions: tuple[tuple[int, int, int, int], ...]  # (sequences, heads, tokens, head width)
    streams: tuple[int, ...]  # bytes, beyond caches


SHAPES = {
    "small": Shapes(
        ((128, 384, 384), (256, 1536, 384), (512, 1024, 256), (512, 2048, 512), (1024, 512, 2048)),
        ((1, 6, 128, 64), (2, 8, 256, 64)),
        (1 << 24, 1 << 26),
    ),
    "large": Shapes(
        (
            (2048, 4096, 4096),
            (4096, 4096, 4096),
            (4096, 11008, 4096),
            (8192, 8192, 8192),
            (4096, 1024, 8192),
        ),
        ((2, 32, 2048, 128), (1, 32, 4096, 128)),
        (1 << 26, 1 << 29),
    ),
}
LAUNCHES = 200


@dataclass(frozen=True, slots=True)
class Timing:
    """Timings of one kernel at one shape: floating-point operations, bytes moved, seconds of each run."""

    kernel: str  # gemm, attention, elementwise, optimizer, dispatch, copy
    direction: str  # forward or backward
    dtype: str
    shape: tuple[int, ...]
    flop: float
    moved_bytes: float
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median seconds over the repetitions."""
        return statistics.median(self.seconds)


def finish(device: str) -> None:
    """Wait for what the device was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def clock(device: str) -> Callable[[], float]:
    """What kernels are timed by: the wall's clock, or the processor's own where one thread computes.

    Both agree on a quiet machine; on a shared one the wall also counts what other processes took.
    """
    alone = device == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def timed(call: Callable[[], object], device: str, repeats: int, least_s: float = 0.01) -> tuple[float, ...]:
    """Seconds of a call, several times over; calls shorter than `least_s` are timed in rows."""
    now = clock(device)
    call()
    finish(device)
    begun = now()
    call()
    finish(device)
    row = max(1, int(least_s / max(now() - begun, 1e-7)))
    found = []
    for _ in range(repeats):
        begun = now()
        for _ in range(row):
            call()
        finish(device)
        found.append((now() - begun) / row)
    return tuple(found)


def _gemm(shape: tuple[int, int, int], dtype: str, device: str, repeats: int) -> list[Timing]:
    m, n, k = shape
    kind = TORCH_DTYPES[dtype]
    x, w, g = (torch.randn(*size, dtype=kind, device=device) for size in ((m, k), (n, k), (m, n)))
    flop, moved = 2.0 * m * n * k, float((m * k + n * k + m * n) * x.element_size())
    passes: list[tuple[str, Callable[[], object]]] = [
        ("forward", lambda: F.linear(x, w)),
        ("input gradient", lambda: g @ w),
        ("weight gradient", lambda: g.t() @ x),
    ]
    return [
        Timing("gemm", way, dtype, shape, flop, moved, timed(call, device, repeats)) for way, call in passes
    ]


def _attention(shape: tuple[int, int, int, int], dtype: str, device: str, repeats: int) -> list[Timing]:
    q, k, v = (
        torch.randn(*shape, dtype=TORCH_DTYPES[dtype], device=device, requires_grad=True) for _ in range(3)
    )
    batch, heads, seq, width = shape
    flop = 2.0 * batch * heads * seq * seq * width  # the visible half of two products
    moved = 4.0 * q.numel() * q.element_size()
    forward = timed(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), device, repeats)
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.randn_like(made)
    backward = timed(lambda: torch.autograd.grad(made, (q, k, v), grad, retain_graph=True), device, repeats)
    return [
        Timing("attention", "forward", dtype, shape, flop, moved, forward),
        Timing("attention", "backward", dtype, shape, 2.5 * flop, 2 * moved, backward),
    ]


def _streams(size: int, dtype: str, device: str, repeats: int) -> list[Timing]:
    kind = TORCH_DTYPES[dtype]
    count = size // torch.empty(0, dtype=kind).element_size()
    a, b = torch.randn(count, dtype=kind, device=device), torch.randn(count, dtype=kind, device=device)
    out, target = torch.empty_like(a), torch.empty_like(a)
    weight = torch.randn(size // 4, device=device, requires_grad=True)
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True)
    return [
        Timing(
            "elementwise",
            "forward",
            dtype,
            (count,),
            count,
            3.0 * size,
            timed(lambda: torch.add(a, b, out=out), device, repeats),
        ),
        Timing(
            "copy", "forward", dtype, (count,), 0, 2.0 * size, timed(lambda: target.copy_(a), device, repeats)
        ),
        Timing(
            "optimizer",
            "forward",
            "fp32",
            (size // 4,),
            0,
            7.0 * size,
            timed(optimizer.step, device, repeats),
        ),
    ]


def _dispatch(device: str, repeats: int) -> Timing:
    """Host time per launch: a row of kernels too small to matter, without waiting for the device."""
    x = torch.zeros(8, device=device)
    x.add_(1)
    if device == "cuda":
        torch.cuda.synchronize()
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(LAUNCHES):
            x.add_(1)
        found.append((time.perf_counter() - begun) / LAUNCHES)
        if device == "cuda":
            torch.cuda.synchronize()
    return Timing("dispatch", "forward", "fp32", (8,), 0, 0, tuple(found))


def measure(device: str, dtype: str, shapes: Shapes, repeats: int = 5) -> list[Timing]:
    """All benchmarks. Raises BadInputError for a device or dtype that is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInputError("--device cuda: torch sees no CUDA device here; use --device cpu")
    if dtype not in TORCH_DTYPES:
        raise BadInputError(f"--dtype {dtype}: give one of {', '.join(TORCH_DTYPES)}")
    found = [timing for shape in shapes.gemms for timing in _gemm(shape, dtype, device, repeats)]
    found += [timing for shape in shapes.attentions for timing in _attention(shape, dtype, device, repeats)]
    found += [timing for size in shapes.streams for timing in _streams(size, dtype, device, repeats)]
    return [*found, _dispatch(device, repeats)]


def machine_kind(device: str) -> dict[str, Any]:
    """What the figures hold for; no host name, no user."""
    facts: dict[str, Any] = {
        "device": device,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    else:
        facts["cpu_capability"] = torch.backends.cpu.get_cpu_capability()
    return facts


def trace_text(timings: Sequence[Timing], device: str) -> str:
    """The raw trace as JSON."""
    facts = {"format": "tangram-microbench-1", "date": datetime.now(UTC).date().isoformat()}
    facts |= machine_kind(device)
    rows = [asdict(timing) for timing in timings]
    head = json.dumps(facts, indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return f'{head},\n "timings": [\n  {lines}\n ]\n}}\n'


def rate_of(
    timings: Sequence[Timing], kernel: str, exponent_columns: float = 0.0
) -> tuple[float, float, int]:
    """(flop/s over all shapes together, spread as a fraction, samples) of a kernel class, launches left in.

    Attention: the exponential of a score counts as that many head columns of both products.
    """
    own = [timing for timing in timings if timing.kernel == kernel]
    flop = [
        timing.flop * (1 + (exponent_columns / timing.shape[-1] if kernel == "attention" else 0.0))
        for timing in own
    ]
    rates = [count / timing.median_s for count, timing in zip(flop, own, strict=True)]
    whole = sum(flop) / sum(timing.median_s for timing in own)
    return whole, statistics.pstdev(rates) / whole if len(rates) > 1 else 0.0, len(rates)


def stream_rate(timings: Sequence[Timing]) -> tuple[float, float, int]:
    """(median bytes/s, spread, samples) of elementwise kernels, copies and optimizers."""
    kinds = ("elementwise", "copy", "optimizer")
    rates = [timing.moved_bytes / timing.median_s for timing in timings if timing.kernel in kinds]
    middle = statistics.median(rates)
    return middle, statistics.pstdev(rates) / middle, len(rates)


def best_rates(timings: Sequence[Timing]) -> tuple[float, float]:
    """(flop/s, bytes/s) of the fastest kernels seen."""
    products = [timing for timing in timings if timing.kernel in ("gemm", "attention")]
    streams = [timing for timing in timings if timing.kernel in ("elementwise", "copy", "optimizer")]
    return (
        max(product.flop / product.median_s for product in products),
        max(stream.moved_bytes / stream.median_s for stream in streams),
    )


def distil(
    timings: Sequence[Timing],
    gpu: str,
    dtype: str,
    peak_flop_per_s: float,
    memory_bytes_per_s: float,
    date: str,
    exponent_columns: float = 0.0,
) -> list[str]:
    """Rows of hwdb/efficiency for a device whose datasheet peaks are given.

    The attention rate was measured with its exponentials, by whatever kernel torch chose: rows say how many
    columns of it they are (0: none apart), and that nothing is left to take off.
    """
    source = f"tangram calibrate kernels with torch {torch.__version__}"
    rows = ["gpu,dtype,kernel,stack,version,parameter,value,sigma,n,source,date,note"]

    def row(kernel: str, parameter: str, value: float, sigma: float, n: int) -> None:
        rows.append(
            f"{gpu},{dtype},{kernel},generic,,{parameter},{value:.4g},{sigma:.2g},{n},{source},{date},"
        )

    for kernel in ("gemm", "attention"):
        rate, spread, n = rate_of(timings, kernel, exponent_columns)
        share = min(rate / peak_flop_per_s, 1.0)
        row(kernel, "efficiency", share, share * spread, n)
    row("attention", "exponent_columns", exponent_columns, 0.0, 0)
    row("attention", "share", 1.0, 0.0, 0)
    rate, spread, n = stream_rate(timings)
    share = min(rate / memory_bytes_per_s, 1.0)
    row("memory", "efficiency", share, share * spread, n)
    dispatch = next(timing for timing in timings if timing.kernel == "dispatch")
    row("dispatch", "seconds", dispatch.median_s, statistics.pstdev(dispatch.seconds), len(dispatch.seconds))
    return rows


def measure_rank(hidden: int, seq: int, repeats: Sequence[int]) -> dict[str, float]:
    """On a rank of the testbed: rates at the shapes it will meet, over how often it repeats its work."""
    import torch.distributed as dist

    times = repeats[dist.get_rank()]
    tokens = seq * times
    shapes = [(tokens, 3 * hidden, hidden), (tokens, 4 * hidden, hidden), (tokens, hidden, 4 * hidden)]
    timings = [timing for shape in shapes for timing in _gemm(shape, "fp32", "cpu", 3)]
    width = 64
    timings += _attention((times, max(hidden // width, 1), seq, width), "fp32", "cpu", 3)
    timings += _streams(SHAPES["small"].streams[0], "fp32", "cpu", 3)
    dispatch = _dispatch("cpu", 3)
    gemm, own = rate_of(timings, "gemm")[0], rate_of(timings, "attention")[0]
    peak = max(gemm, own)
    memory, _, _ = stream_rate(timings)
    dist.barrier()
    return {
        "flop_per_s": peak / times,
        "gemm": gemm / peak,
        "attention": own / peak,
        "fused": 1.0,
        "memory_bytes_per_s": memory,
        "launch_s": dispatch.median_s,
    }

"""Rows of hwdb for one device at hand: kernels at the shapes it will meet, and passes of a whole block.

Kernels timed alone leave out the host's part of autograd. On a CPU the host computes itself, and two sizes
of a pass give seconds per kernel and a factor on all kernels. On CUDA a pass too small for the device to be
busy gives the host's seconds per launch, a large one the factor.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_validate.testbed import kernels
from tangram_validate.testbed.passes import SIZES, pass_cost, predicted_block_s, scale_between, time_block

GPU = "testbed-device"
PASS_SEQ = 128  # tokens of a sequence of the passes that calibrate a CPU
HOST_PASS = (1, 64)  # sequences x tokens: a GPU has done with it before the next kernel is launched
KERNEL_PASS = (4, 2048)  # the host is far ahead
PROBE_S = 1e-3  # per kernel: shows how many the cost model counts


def shapes_of(model: Model, seqs: Sequence[int], device: str) -> kernels.Shapes:
    """What is timed: products and attention of two sequences of a model, streams beyond caches."""
    hidden, attention = model.hidden, model.blocks[0].attention
    widths = ((hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden), (model.vocab, hidden))
    return kernels.Shapes(
        tuple((2 * seqs[1], n, k) for n, k in widths),
        tuple((2, attention.heads, tokens, attention.head_dim) for tokens in seqs[1:]),
        kernels.SHAPES["large" if device == "cuda" else "small"].streams,
    )


def peaks_of(gpu: str, dtypes: Sequence[str]) -> dict[str, float]:
    """Datasheet flop/s of a known GPU kind. Raises BadInputError where it has no units for a dtype."""
    known = Hwdb.load().gpu(gpu)
    peaks = {dtype: known.peak_flop_per_s(dtype) for dtype in dtypes}
    if lacking := ", ".join(dtype for dtype, peak in peaks.items() if not peak):
        raise BadInputError(
            f"--gpu {known.name}: has no {lacking} units, and the suite runs in it; leave it out"
        )
    return peaks


def overlay(
    device: str,
    model: Model,
    timings: Mapping[str, Sequence[kernels.Timing]],
    folder: Path,
    gpu: str = "",
) -> Hwdb:
    """The database with rows for this device from timings by dtype; peaks as measured, or those of `gpu`."""
    dtypes = tuple(timings)
    if gpu:
        peaks = peaks_of(gpu, dtypes)
        memory = Hwdb.load().gpu(gpu).memory_bytes_per_s
    else:
        peaks = {
            dtype: max(kernels.rate_of(found, kernel)[0] for kernel in ("gemm", "attention"))
            for dtype, found in timings.items()
        }
        memory = kernels.stream_rate(timings[dtypes[0]])[0]
    columns = ",".join(f"{dtype}_tflops" for dtype in dtypes)
    cells = ",".join(f"{peaks[dtype] / 1e12:.9g}" for dtype in dtypes)
    gpus = (
        f"name,vendor,architecture,form,year,{columns},memory_gb,memory_gb_per_s,link,link_gb_per_s,source\n"
        f"{GPU},testbed,Testbed,process,2026,{cells},80,{memory / 1e9:.6g},none,0,microbenchmark\n"
    )
    write_whole(folder / "gpus.csv", gpus)
    rows: list[str] = []
    for dtype, found in timings.items():
        made = kernels.distil(found, GPU, dtype, peaks[dtype], memory, "")
        rows += made[1:] if rows else made
        rows.append(_row(dtype, "memory", "reserved_bytes", 0.0, "tensors are counted alone"))
    rows += [_row("*", "stack", scale, 1.0, "as measured") for scale in ("time_scale", "attention_scale")]
    if device == "cpu":
        return _loaded(rows + passes_cpu(model, dtypes, rows, folder), folder)
    rows = without_dispatch(rows)
    return _loaded(rows + passes_cuda(model, dtypes, rows, folder), folder)


def without_dispatch(rows: Iterable[str]) -> list[str]:
    """Rows less those of a launch timed alone: autograd's part of the host is in passes only."""
    return [row for row in rows if row.split(",")[2] != "dispatch"]


def _row(dtype: str, kernel: str, parameter: str, value: float, note: str) -> str:
    return f"{GPU},{dtype},{kernel},generic,,{parameter},{value:.4g},0,1,microbenchmark,,{note}"


def _loaded(rows: Sequence[str], folder: Path) -> Hwdb:
    write_whole(folder / "efficiency" / "device.csv", "\n".join(rows) + "\n")
    return Hwdb.load((folder,))


def passes_cpu(model: Model, dtypes: Sequence[str], rows: Sequence[str], folder: Path) -> list[str]:
    """Rows of launches and of a factor on all kernels, from passes of two sizes."""
    made = []
    for dtype in dtypes:
        bare, probed = (
            _loaded([*rows, _row(dtype, "launch", "seconds", launch_s, "trial")], folder)
            for launch_s in (0.0, PROBE_S)
        )
        kernels_s = [predicted_block_s(model, GPU, PASS_SEQ, n, dtype, bare) for n in SIZES]
        launches = (predicted_block_s(model, GPU, PASS_SEQ, SIZES[0], dtype, probed) - kernels_s[0]) / PROBE_S
        measured = [time_block(model, PASS_SEQ, n, dtype=dtype) for n in SIZES]
        cost = pass_cost(measured, kernels_s, launches)
        made.append(_row(dtype, "launch", "seconds", cost.launch_s, "passes of a block"))
        made.append(_row(dtype, "stack", "time_scale", cost.time_scale, "passes of a block"))
    return made


def passes_cuda(
    model: Model, dtypes: Sequence[str], rows: Sequence[str], folder: Path, device: str = "cuda"
) -> list[str]:
    """Rows of the host's seconds per kernel and of a factor on all kernels, from a tiny and a large pass."""
    made = []
    for dtype in dtypes:
        probed = _loaded([*rows, _row(dtype, "dispatch", "seconds", PROBE_S, "trial")], folder)
        sequences, seq = HOST_PASS
        launches = predicted_block_s(model, GPU, seq, sequences, dtype, probed) / PROBE_S
        host_s = time_block(model, seq, sequences, device=device, dtype=dtype) / launches
        bare = _loaded([*rows, _row(dtype, "dispatch", "seconds", 0.0, "trial")], folder)
        sequences, seq = KERNEL_PASS
        kernels_s = predicted_block_s(model, GPU, seq, sequences, dtype, bare)
        scale = scale_between(time_block(model, seq, sequences, device=device, dtype=dtype), kernels_s)
        made.append(_row(dtype, "dispatch", "seconds", host_s, "a pass that leaves the device idle"))
        made.append(_row(dtype, "stack", "time_scale", scale, "a large pass of a block"))
    return made

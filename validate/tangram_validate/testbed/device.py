"""Single-device suite: blocks, dtypes, recompute kinds, batches and sequences, predicted and measured.

Time of a training step and peak memory of one device, for dense and mixture-of-experts models. On CUDA
memory is the allocator's peak, on CPU the peak of live tensors.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.hwdb.model_file import from_model_file
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tangram_validate.testbed import kernels
from tangram_validate.testbed.device_rows import GPU, overlay, peaks_of, shapes_of
from tangram_validate.testbed.memory import peak_bytes
from tangram_validate.testbed.transformer import TransformerBlock, build_atom

WARM, RUNS = 1, 3
SEQS = {"cpu": (64, 128, 256), "cuda": (1024, 2048, 4096)}  # tokens of a sequence
ROWS = 2  # sequences of a step, usually
DTYPES = ("fp32", "bf16")


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of the suite; `rows` sequences go through the model in one step."""

    model: str
    dtype: str
    recompute: str
    rows: int
    seq: int

    def __str__(self) -> str:
        return f"{self.model} {self.dtype} recompute={self.recompute} {self.rows} x {self.seq}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A configuration, predicted and measured."""

    configuration: Configuration
    predicted_s: float
    measured_s: tuple[float, ...]
    predicted_bytes: float
    measured_bytes: float
    load: float  # one-minute load average of the machine when it ran

    @property
    def step_s(self) -> float:
        """The median run."""
        return statistics.median(self.measured_s)


def models(device: str) -> dict[str, Model]:
    """Dense and mixture-of-experts models, of a size for the device."""
    large = device == "cuda"
    hidden, layers, vocab = (2048, 4, 32000) if large else (256, 2, 1024)
    heads = hidden // (128 if large else 64)

    def made(name: str, part: dict[str, Any], kv_heads: int) -> Model:
        layer = {"count": layers, "attention": {"heads": heads, "kv_heads": kv_heads}, **part}
        return from_model_file({"hidden": hidden, "vocab": vocab, "layers": [layer]}, "suite", name)

    return {
        "dense": made("dense", {"feed_forward": {"width": 4 * hidden, "gated": False}}, heads),
        "gated": made("gated", {"feed_forward": {"width": 3 * hidden}}, heads // 2),
        "experts": made("experts", {"experts": {"count": 8, "active": 2, "width": hidden}}, heads),
    }


def configurations(device: str) -> Iterator[Configuration]:
    """The suite: 3 models x dtypes x 3 recompute kinds, and sweeps of batch and sequence; 48 in all."""
    seqs = SEQS[device]
    for name in ("dense", "gated", "experts"):
        for dtype in DTYPES:
            for recompute in ("none", "selective", "full"):
                yield Configuration(name, dtype, recompute, ROWS, seqs[1])
            for rows, seq in ((1, seqs[0]), (1, seqs[1]), (4, seqs[0]), (1, seqs[2]), (ROWS, seqs[2])):
                yield Configuration(name, dtype, "none", rows, seq)


def predicted(configuration: Configuration, model: Model, hwdb: Hwdb) -> tuple[float, float]:
    """(seconds, peak bytes) of one step on one device."""
    cluster = cluster_from_dict(
        {
            "name": "device",
            "nodes": [{"count": 1, "gpu": GPU, "gpus": 1, "intra_link": "none", "nic_gbps": 1}],
        },
        hwdb,
        "device",
    )
    job = replace(Job(configuration.rows, configuration.seq, configuration.dtype), gradient_bytes=4.0)
    layout = Uniform(micro_batch=configuration.rows, recompute=configuration.recompute)
    document = api.estimate(model, cluster, job, layout, hwdb=hwdb).document
    return document.step_s, document.peak_memory_bytes


def run(configuration: Configuration, model: Model, device: str) -> tuple[tuple[float, ...], float]:
    """(seconds of every run, peak bytes) of training steps."""
    dtype = kernels.TORCH_DTYPES[configuration.dtype]
    with torch.device(device):  # drawing a billion weights on the host would take longer than the suite
        atoms = [build_atom(model, atom, 1) for atom in range(model.layers + 2)]
    for atom in atoms:
        if isinstance(atom, TransformerBlock):
            atom.recompute = configuration.recompute == "full"
            atom.attention.recompute_core = configuration.recompute == "selective"
    whole = torch.nn.Sequential(*atoms)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4, fused=True)  # as training stacks have it
    tokens = torch.randint(model.vocab, (configuration.rows, configuration.seq + 1), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        loss_of().backward()
        optimizer.step()

    def loss_of() -> torch.Tensor:  # holds no logits beyond what the loss keeps of them
        with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
            logits = whole(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    step()
    peak = peak_bytes(step, optimizer, device)
    taken, now = [], kernels.clock(device)
    for number in range(WARM + RUNS):
        begun = now()
        step()
        kernels.finish(device)
        if number >= WARM:
            taken.append(now() - begun)
    return tuple(taken), peak


def run_suite(
    device: str,
    folder: Path,
    *,
    gpu: str = "",
    most: int = 0,
    trace: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Calibrate, predict everything, then measure everything; raw timings of kernels go to `trace`."""
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInputError("--device cuda: torch sees no CUDA device here; use --device cpu")
    if gpu:
        peaks_of(gpu, DTYPES)  # refused before anything is timed
    threads = torch.get_num_threads()
    if (
        device == "cpu"
    ):  # one core: threads of a shared machine wait for each other, which is no model's affair
        torch.set_num_threads(1)
    try:
        return _run_all(device, folder, gpu, most, trace, say)
    finally:
        torch.set_num_threads(threads)


def _run_all(
    device: str, folder: Path, gpu: str, most: int, trace: Path | None, say: Callable[[str], None]
) -> list[Measured]:
    every = list(configurations(device))[: most or None]
    known = models(device)
    timings = {
        dtype: kernels.measure(device, dtype, shapes_of(known["dense"], SEQS[device], device))
        for dtype in DTYPES
    }
    if trace is not None:
        write_whole(
            trace, kernels.trace_text([timing for some in timings.values() for timing in some], device)
        )
    hwdb = overlay(device, known["dense"], timings, folder, gpu)
    forecasts = [predicted(configuration, known[configuration.model], hwdb) for configuration in every]
    found = []
    for configuration, (seconds, size) in zip(every, forecasts, strict=True):
        taken, peak = run(configuration, known[configuration.model], device)
        found.append(Measured(configuration, seconds, taken, size, peak, os.getloadavg()[0]))
        say(
            f"  {configuration}: predicted {seconds * 1e3:.1f} ms, measured {found[-1].step_s * 1e3:.1f} ms; "
            f"{size / 1e6:.1f} and {peak / 1e6:.1f} MB"
        )
    return found

"""Microbenchmarks on the testbed itself, and the hwdb overlay they give, as for any new kind of GPU.

Compute: passes of a block at two batch sizes, timed. Links: round trips of several sizes between two ranks,
and an all-reduce inside an island. Nothing is fitted to training steps.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tangram_sim.datafiles import write_whole
from tangram_sim.hwdb import Hwdb
from tangram_validate.testbed.emulated import Device, EmulatedAtom, Speed, work_of
from tangram_validate.testbed.launch import Ranks
from tangram_validate.testbed.overlap import bench_hidden
from tangram_validate.testbed.passes import SIZES as SEQUENCES
from tangram_validate.testbed.passes import bench_blocks, pass_cost, predicted_block_s
from tangram_validate.testbed.scenario import Scenario, gpu_name, link_name

SIZES = (65_536, 262_144, 1_048_576)
REPEATS = 8
PASSES = 8  # in a row: what the host adds behind the last one counts once
KERNELS_PER_BLOCK = 32  # launches that the cost model counts in a block, forward and backward
PROBE_S = 1e-3  # per launch: shows how many the cost model counts
PATTERNS = ("ring", "pairwise")
NO_TREES = 0.001  # gloo reduces round a ring, over islands too
_EFFICIENCY_HEADER = "gpu,dtype,kernel,stack,version,parameter,value,sigma,n,source,date,note"


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted transfer time: seconds = latency_s + bytes / bytes_per_s."""

    latency_s: float
    bytes_per_s: float


@dataclass
class Calibration:
    """Rates and latencies that the microbenchmarks measured, by kind of rank and of link."""

    rates: dict[str, dict[str, float]]  # per kind: efficiency parameters and rates
    links: dict[float, Line]  # per link rate in Mbit/s: round trips inside an island
    data_exposed: float  # all-reduces of a block's gradients, over what the links allow
    tensor_exposed: float  # all-reduces of a sequence's activations, over what the links allow
    uplinks: list[tuple[float, Line]]  # (Mbit/s, what crossed)
    blocks: dict[str, tuple[float, ...]] = field(default_factory=dict)  # real: passes of a block, per kind
    hidden: float = 1.0  # share of a gradient reduction that compute hides


def bench_round_trip(a: int, b: int) -> list[tuple[int, list[float]]] | None:
    """On two ranks: seconds one way of every size, several times (task for ranks)."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    found = []
    if rank in (a, b):
        peer = b if rank == a else a
        for size in SIZES:
            buffer = torch.zeros(size // 4)
            taken = []
            for _ in range(REPEATS + 1):
                begun = time.monotonic()
                if rank == a:
                    dist.send(buffer, peer)
                    dist.recv(buffer, peer)
                else:
                    dist.recv(buffer, peer)
                    dist.send(buffer, peer)
                taken.append((time.monotonic() - begun) / 2)
            found.append((size, taken[1:]))
    dist.barrier()
    return found if rank == a else None


def bench_all_reduce(members: Sequence[int], size: int) -> float | None:
    """Seconds of an all-reduce of some ranks, the lower quartile: load only adds (task for ranks)."""
    import torch
    import torch.distributed as dist

    group = dist.new_group(list(members))
    taken = []
    if dist.get_rank() in members:
        buffer = torch.zeros(size // 4)
        for _ in range(REPEATS + 1):
            dist.barrier(group)
            begun = time.monotonic()
            dist.all_reduce(buffer, group=group)
            taken.append(time.monotonic() - begun)
    dist.barrier()
    return sorted(taken[1:])[REPEATS // 4] if taken else None


def bench_waits(speeds: Sequence[Speed], model: Any, seq: int) -> tuple[float, float, float]:
    """On an emulated rank: (flop/s, seconds per pass that do not scale, bytes/s of memory)."""
    import torch
    import torch.distributed as dist

    device = Device(speeds[dist.get_rank()])
    atom = EmulatedAtom(model, 1, seq, device, 1, None, False)
    points = []
    for sequences in (1, 2):
        work, taken = work_of(model, 1, sequences, seq), []
        for _ in range(3):
            given = torch.zeros(sequences, seq, model.hidden, requires_grad=True)
            device.start()
            begun = time.monotonic()
            for _ in range(PASSES):
                made = atom(given)
                made.backward(torch.zeros_like(made))
            taken.append((time.monotonic() - begun) / PASSES)
        points.append((work.forward + work.input_gradient + work.weight_gradient, min(taken)))
    (flop1, s1), (flop2, s2) = points
    rate = (flop2 - flop1) / (s2 - s1)
    streamed = device.speed.memory_bytes_per_s * 0.02
    device.start()
    begun = time.monotonic()
    device.wait(streamed / device.speed.memory_bytes_per_s)
    memory = streamed / (time.monotonic() - begun)
    dist.barrier()
    return rate, max(s1 - flop1 / rate, 0.0), memory


def fit_line(points: Sequence[tuple[int, list[float]]]) -> Line:
    """Rate from the largest message, latency from what the smaller ones take beyond it (noise only adds)."""
    size, taken = points[-1]
    rate = size / min(taken)
    beyond = [min(taken) - size / rate for size, taken in points[:-1]]
    return Line(max(min(beyond), 0.0), rate)


def calibrate(ranks: Ranks, scenario: Scenario) -> Calibration:
    """Run all microbenchmarks on the ranks of a testbed."""
    work = scenario.facts.work[0]
    model = scenario.model(work.model)
    blocks: dict[str, tuple[float, ...]] = {}
    if scenario.emulated:
        answers = ranks.run(bench_waits, scenario.speeds, model, work.seq)
        rates = {
            kind: {"flop_per_s": rate, "launch_s": over / KERNELS_PER_BLOCK, "memory_bytes_per_s": memory}
            for kind, (rate, over, memory) in zip(scenario.kinds, answers, strict=True)
        }
    else:
        from tangram_validate.testbed.kernels import measure_rank

        shapes = (model.hidden, work.seq, scenario.repeats)
        rates = dict(zip(scenario.kinds, ranks.run(measure_rank, *shapes), strict=True))
        passes = ranks.run(bench_blocks, model, work.seq, scenario.repeats)
        blocks = dict(zip(scenario.kinds, passes, strict=True))
    islands = scenario.facts.islands
    links: dict[float, Line] = {}
    firsts = [sum(item.ranks for item in islands[:index]) for index in range(len(islands))]
    for first, island in zip(firsts, islands, strict=True):
        if island.ranks > 1 and island.link_mbps not in links:
            points = next(x for x in ranks.run(bench_round_trip, first, first + 1) if x is not None)
            links[island.link_mbps] = fit_line(points)
    uplinks = []
    for (a, item), (b, two) in pairwise(zip(firsts, islands, strict=True)):
        points = next(x for x in ranks.run(bench_round_trip, a, b) if x is not None)
        slowest = min(item.uplink_mbps, two.uplink_mbps, item.link_mbps, two.link_mbps)
        uplinks.append((slowest, fit_line(points)))
    # Groups that reduce: every island, and everybody; what their slowest link allows.
    groups = [
        (range(first, first + island.ranks), links[island.link_mbps].bytes_per_s)
        for first, island in zip(firsts, islands, strict=True)
        if island.ranks > 1
    ]
    inside = list(groups)
    if uplinks:
        slowest_rate = min([rate for _, rate in groups] + [line.bytes_per_s for _, line in uplinks])
        groups.append((range(len(scenario.kinds)), slowest_rate))
    block = 4 * model.blocks[0].parameters(model.hidden)
    hidden = 1.0
    if not scenario.emulated and groups:
        shares = ranks.run(bench_hidden, list(groups[-1][0]), block)
        hidden = statistics.mean(share for share in shares if share is not None)
    activation = 4 * work.seq * model.hidden
    return Calibration(
        rates,
        links,
        _over_ideal(ranks, groups, block),
        _over_ideal(ranks, inside, activation),
        uplinks,
        blocks,
        hidden,
    )


def _over_ideal(ranks: Ranks, groups: Sequence[tuple[Sequence[int], float]], size: int) -> float:
    """Measured over ideal seconds of all-reduces, mean over groups; ideal: a ring at its slowest link."""
    found = []
    for members, rate in groups:
        n = len(members)
        seconds = max(s for s in ranks.run(bench_all_reduce, list(members), size) if s is not None)
        found.append(seconds / (2 * (n - 1) / n * size / rate))
    return statistics.mean(found) if found else 1.0


def overlay_of(found: Calibration, scenario: Scenario, folder: Path) -> dict[str, float]:
    """Write the overlay of a scenario, with the passes of whole blocks where kernels run for real."""
    if not found.blocks:
        return write_overlay(found, folder)
    work = scenario.facts.work[0]
    model = scenario.model(work.model)

    def predicted(launch_s: float) -> dict[str, list[float]]:
        bare = {kind: rate | {"launch_s": launch_s} for kind, rate in found.rates.items()}
        write_overlay(replace(found, rates=bare), folder)
        hwdb = Hwdb.load((folder,))
        return {
            kind: [predicted_block_s(model, gpu_name(kind), work.seq, n, "fp32", hwdb) for n in SEQUENCES]
            for kind in found.rates
        }

    without, launched = predicted(0.0), predicted(PROBE_S)
    rates = {}
    for kind, rate in found.rates.items():
        launches = (launched[kind][0] - without[kind][0]) / PROBE_S
        cost = pass_cost(found.blocks[kind], without[kind], launches)
        rates[kind] = rate | {"launch_s": cost.launch_s, "time_scale": cost.time_scale}
    return write_overlay(replace(found, rates=rates), folder)


def write_overlay(found: Calibration, folder: Path) -> dict[str, float]:
    """Write the overlay for `--hwdb`; returns latencies for the cluster file."""
    gpus = [
        "name,vendor,architecture,form,year,fp32_tflops,memory_gb,memory_gb_per_s,link,link_gb_per_s,source"
    ]
    rows = [_EFFICIENCY_HEADER]

    def row(who: str, kernel: str, parameter: str, value: float, n: int) -> None:
        source = "testbed microbenchmark"
        rows.append(f"{who},*,{kernel},generic,,{parameter},{value:.6g},{value * 0.03:.3g},{n},{source},,")

    for kind, rate in found.rates.items():
        name = gpu_name(kind)
        peak = rate["flop_per_s"]
        gpus.append(
            f"{name},testbed,Testbed,process,2026,{peak / 1e12:.9g},4,"
            f"{rate['memory_bytes_per_s'] / 1e9:.6g},none,0,testbed microbenchmark"
        )
        row(name, "gemm", "efficiency", min(rate.get("gemm", 1.0), 1.0), 3)
        row(name, "attention", "efficiency", min(rate.get("attention", 1.0), 1.0), 3)
        row(name, "attention", "exponent_columns", 0.0, 1)  # the rate was measured with them
        row(name, "attention", "share", 1.0, 1)
        row(name, "attention", "fused", rate.get("fused", 0.0), 1)
        row(name, "memory", "efficiency", 1.0, 3)
        row(name, "memory", "usable", 1.0, 1)
        row(name, "memory", "reserved_bytes", 0.0, 1)
        row(name, "launch", "seconds", rate["launch_s"], 3)
        row(name, "stack", "time_scale", rate.get("time_scale", 1.0), 3)
        row(name, "stack", "attention_scale", 1.0, 3)
        row(name, "dispatch", "seconds", rate.get("dispatch_s", 0.0), 3)
    collectives = ["link,gpu,pattern,library,version,parameter,value,sigma,n,source,date,note"]

    def collective(link: str, pattern: str, **values: float) -> None:
        for parameter, value in values.items():
            collectives.append(
                f"{link},*,{pattern},gloo,,{parameter},{value:.6g},{value * 0.03:.3g},{REPEATS},"
                "testbed microbenchmark,,"
            )

    links = ["name,kind,gb_per_s,latency_us,source,note"]
    for mbps, line in found.links.items():
        nominal = mbps * 1e6 / 8
        links.append(f"{link_name(mbps)},other,{nominal / 1e9:.6g},{line.latency_s * 1e6:.4g},shaper,")
        share = min(line.bytes_per_s / nominal, 1.0)
        row(f"link:{link_name(mbps)}", "link", "efficiency", share, REPEATS)
        for pattern in PATTERNS:
            hop = {"base_s": 0.0, "hop_s": min(line.latency_s, 1.0), "fill_s": 0.0}
            collective(link_name(mbps), pattern, rate_share=share, **hop)
    row("*", "stack", "data_exposed", min(found.data_exposed, 10.0), REPEATS)
    row("*", "stack", "tensor_exposed", min(found.tensor_exposed, 10.0), REPEATS)
    latency, reached = 0.0, 1.0
    if found.uplinks:
        reached = statistics.mean(line.bytes_per_s / (mbps * 1e6 / 8) for mbps, line in found.uplinks)
        row("kind:network", "link", "efficiency", min(reached, 1.0), REPEATS)
        latency = statistics.mean(line.latency_s for _, line in found.uplinks)
    network = {"rate_share": min(reached, 1.0), "hop_s": 0.0, "fill_s": 0.0, "tree_share": NO_TREES}
    collective("kind:network", "network", **network)
    write_whole(folder / "gpus.csv", "\n".join(gpus) + "\n")
    write_whole(folder / "links.csv", "\n".join(links) + "\n")
    write_whole(folder / "efficiency" / "testbed.csv", "\n".join(rows) + "\n")
    write_whole(folder / "collectives" / "testbed.csv", "\n".join(collectives) + "\n")
    return {"nic_latency_us": latency * 1e6, "latency_us": latency * 1e6}

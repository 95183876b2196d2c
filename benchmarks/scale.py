"""Planning time against cluster size: 16 to 16,384 GPUs of 1 to 6 kinds, dense models and mixtures."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, tangram

KINDS = (
    "node: DGX-H100",
    "node: DGX-A100-80GB",
    "gpu: H20-96GB, gpus: 8, intra_link: NVLink4, nic_gbps: 3200, nic_latency_us: 10",
    "gpu: H200-SXM-141GB, gpus: 8, intra_link: NVLink4, nic_gbps: 3200, nic_latency_us: 10",
    "gpu: B200-HGX, gpus: 8, intra_link: NVLink5, nic_gbps: 3200, nic_latency_us: 10",
    "gpu: A100-SXM4-40GB, gpus: 8, intra_link: NVLink3, nic_gbps: 1600, nic_latency_us: 10",
)
# model, global batch, GPUs, kinds, most CPU seconds
CASES = (
    ("llama3-8b", 256, 16, 1, None),
    ("llama3-8b", 256, 64, 2, None),
    ("llama3-70b", 2048, 256, 4, None),
    ("llama3-70b", 2048, 1024, 4, 10.0),
    ("llama3-70b", 2048, 4096, 4, None),
    ("mixtral-8x7b", 2048, 1024, 4, None),
    ("llama3-405b", 8192, 16384, 6, 60.0),
    ("deepseek-v3", 8192, 16384, 6, 60.0),
)
# model, global batch, kinds: planners side by side on as many GPUs, each for so many seconds at most
COMPARED = (("llama3-70b", 2048, 2), ("llama3-70b", 2048, 4), ("mixtral-8x7b", 2048, 4))
COMPARED_GPUS, LIMIT_S = 1024, 100
PLANNERS = ("tangram", "sailor", "uniform", "amp", "metis", "flashflex", "hap")
BEATEN = ("sailor", "uniform")  # Tangram's step is never longer than theirs
FITTED = "llama3-70b"  # same kinds and batch at several sizes: its exponent is fitted


def write_cluster(folder: Path, gpus: int, kinds: int) -> Path:
    """A cluster of `gpus` GPUs, spread evenly over the first `kinds` kinds of node."""
    nodes = gpus // 8
    counts = [nodes // kinds + (1 if kind < nodes % kinds else 0) for kind in range(kinds)]
    rows = "".join(
        f"  - {{count: {count}, {node}}}\n" for count, node in zip(counts, KINDS, strict=False) if count
    )
    path = folder / f"scale-{gpus}-{kinds}.yaml"
    path.write_text(f"name: scale-{gpus}-{kinds}\nnodes:\n{rows}", encoding="utf-8")
    return path


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """Slope of the least-squares line through (log size, log seconds)."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - mean_x) ** 2 for a in x
    )


def scale(compiled: Path) -> Iterator[Row]:
    """CPU seconds of a cold process, with wall seconds, step and gap to the bound in the note."""
    sizes, seconds = list[float](), list[float]()
    for model, batch, gpus, kinds, target in CASES:
        cluster = write_cluster(compiled, gpus, kinds)
        spent = tangram(f"plan {model} {cluster} --global-batch {batch} --json", compiled)
        found = json.loads(spent.printed)
        gap = found["step_s"] / found["lower_bound_step_s"] - 1
        counts = found["partial_plans"]
        yield Row(
            f"plan {model}, batch {batch}, {gpus} GPUs of {kinds} kinds",
            spent.cpu_s,
            "CPU s",
            target,
            peak_bytes=spent.peak_bytes,
            note=f"wall {spent.wall_s:.1f} s, step {found['step_s']:.3g} s, gap {gap:.0%}, asked "
            f"{counts['asked']}, pruned {counts['imbalanced'] + counts['infeasible']}, "
            f"played {counts['played']}",
        )
        if model == FITTED:
            sizes.append(gpus)
            seconds.append(spent.cpu_s)
    yield Row(f"growth exponent of CPU seconds in GPUs, {FITTED}", exponent(sizes, seconds), "", 1.0)


def compared(compiled: Path) -> Iterator[Row]:
    """Every planner on 1,024 GPUs under a time limit: CPU seconds of planning, with its step in the note."""
    for model, batch, kinds in COMPARED:
        cluster = write_cluster(compiled, COMPARED_GPUS, kinds)
        case = f"{model}, batch {batch}, {COMPARED_GPUS} GPUs of {kinds} kinds"
        steps = dict[str, float]()
        for name in PLANNERS:
            asked = f"compare {model} {cluster} --global-batch {batch} --planners {name}"
            spent = tangram(f"{asked} --time-limit {LIMIT_S} --json", compiled)
            told = json.loads(spent.printed)["planners"][name]
            note = told["reason"]
            if told["plan"]:
                steps[name] = told["step_s"]
                words = (f"step {told['step_s']:.3g} s", f"{told['gpus_used']} GPUs", *told["plan"]["notes"])
                note = ", ".join(words)
            yield Row(
                f"{name}: {case}", told["planning_cpu_s"], "CPU s", peak_bytes=spent.peak_bytes, note=note
            )
        for name in BEATEN:
            yield Row(f"tangram's step over {name}'s: {case}", steps["tangram"] / steps[name], "x", 1.0)

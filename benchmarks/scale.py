"""Planning time and gaps against cluster size: 16 to 16,384 GPUs of 1 to 6 kinds, dense and mixtures."""

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, Spent, tangram

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
LARGEST = ("llama3-70b", 2048, 16384, 4, None)  # for the growth alone: an eighth of a sequence per GPU
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


def planned(
    compiled: Path, case: tuple[str, int, int, int, float | None], *options: str
) -> tuple[Spent, Any]:
    """A cold process plans one case; the plan file it prints."""
    model, batch, gpus, kinds, _ = case
    cluster = write_cluster(compiled, gpus, kinds)
    spent = tangram(" ".join([f"plan {model} {cluster} --global-batch {batch} --json", *options]), compiled)
    return spent, json.loads(spent.printed)


def words(case: tuple[str, int, int, int, float | None]) -> str:
    """A case in words."""
    model, batch, gpus, kinds, _ = case
    return f"plan {model}, batch {batch}, {gpus} GPUs of {kinds} kinds"


def scale(compiled: Path) -> Iterator[Row]:
    """CPU seconds of a cold process, with wall seconds, step and gap to the bound on work in the note."""
    for cluster in ("azure-c1", "a100x128-h100x128"):  # compiles what small and large clusters need
        tangram(f"plan gpt3-6.7b {cluster}", compiled)
    sizes, seconds = list[float](), list[float]()
    for case in (*CASES, LARGEST):
        spent, found = planned(compiled, case)
        gap = found["step_s"] / found["work_bound_step_s"] - 1
        counts = found["partial_plans"]
        yield Row(
            words(case),
            spent.cpu_s,
            "CPU-s",
            case[-1],
            peak_bytes=spent.peak_bytes,
            note=f"wall {spent.wall_s:.1f} s, step {found['step_s']:.4g} s, {gap:.0%} over ideal work, asked "
            f"{counts['asked']}, pruned {counts['imbalanced'] + counts['infeasible']}, "
            f"played {counts['played']}",
        )
        if case[0] == FITTED:
            sizes.append(case[2])
            seconds.append(spent.cpu_s)
    yield Row(f"growth exponent of CPU seconds in GPUs, {FITTED}", exponent(sizes, seconds), "", 1.0)


def gaps(compiled: Path) -> Iterator[Row]:
    """How far plans are from the nearest bound that covers them, `--bound` asked for; and what that cost."""
    found_gaps = []
    for case in CASES:
        spent, found = planned(compiled, case, "--bound")
        found_gaps.append(found["step_s"] / found["lower_bound_step_s"] - 1)
        yield Row(
            words(case),
            100 * found_gaps[-1],
            "% gap",
            peak_bytes=spent.peak_bytes,
            note=f"{spent.cpu_s:.0f} CPU-s, step {found['step_s']:.4g} s, bound "
            f"{found['lower_bound_step_s']:.4g} s on {found['lower_bound_covers']}",
        )
    yield Row("median gap at scale", 100 * statistics.median(found_gaps), "%", 15.0)


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
                facts = (f"step {told['step_s']:.3g} s", f"{told['gpus_used']} GPUs", *told["plan"]["notes"])
                note = ", ".join(facts)
            yield Row(
                f"{name}: {case}", told["planning_cpu_s"], "CPU-s", peak_bytes=spent.peak_bytes, note=note
            )
        for name in BEATEN:
            yield Row(f"tangram's step over {name}'s: {case}", steps["tangram"] / steps[name], "x", 1.0)

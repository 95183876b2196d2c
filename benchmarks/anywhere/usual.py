"""Worlds as people write them by hand: full boxes of two or three usual kinds, models by name."""

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.anywhere.worlds import World
from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_model
from tangram_sim.training.job import Job

# GPU, GPUs of a node, link, Gb/s of a node
BOXES: tuple[tuple[str, int, str, float], ...] = (
    ("H100-SXM5-80GB", 8, "NVLink4", 3200),
    ("H200-SXM-141GB", 8, "NVLink4", 3200),
    ("A100-SXM4-80GB", 8, "NVLink3", 1600),
    ("A100-SXM4-40GB", 8, "NVLink3", 400),
    ("V100-SXM2-32GB", 8, "NVLink2", 100),
    ("V100-SXM2-16GB", 4, "NVLink2", 25),
    ("L40S", 8, "PCIe4x16", 200),
    ("L4", 4, "PCIe4x16", 50),
    ("T4", 4, "PCIe3x16", 25),
    ("MI300X", 8, "xGMI-MI300X", 3200),
)
MODELS = ("llama3-8b", "qwen3-14b", "qwen3-32b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt3-6.7b")
MOST_NODES = 14
STATE_BYTES = 20.0  # of a parameter, about what training takes


def usual(seed: int, hwdb: Hwdb | None = None) -> World:
    """The world of a seed: the same on every machine; a model that its memory holds."""
    rng, hwdb, name = random.Random(f"usual {seed}"), hwdb or Hwdb.load(), f"usual-{seed}"
    kinds = rng.choice((2, 2, 3))
    nodes = [
        _group(box, count) for box, count in zip(rng.sample(BOXES, kinds), _counts(rng, kinds), strict=True)
    ]
    facts: dict[str, Any] = {"name": name, "nodes": nodes}
    cluster = cluster_from_dict(facts, hwdb, name)
    able = [item for item in MODELS if load_model(item).parameters * STATE_BYTES < _memory_bytes(cluster)]
    model = rng.choice(able or MODELS[:1])
    job = Job(rng.choice((32, 64, 96, 128, 256)), rng.choice((2048, 4096)))
    return World(seed, facts, model, cluster, load_model(model), job)


def _group(box: tuple[str, int, str, float], count: int) -> dict[str, Any]:
    gpu, gpus, link, gbps = box
    nics = max(1, round(gbps / 400))
    return {
        "count": count,
        "gpu": gpu,
        "gpus": gpus,
        "intra_link": link,
        "nic_gbps": gbps,
        "nics": min(nics, gpus),
    }


def _counts(rng: random.Random, kinds: int) -> Sequence[int]:
    """Nodes of each kind, `MOST_NODES` at most together."""
    counts = [rng.choice((1, 1, 2, 2, 3, 4, 5, 6)) for _ in range(kinds)]
    while sum(counts) > MOST_NODES:
        counts[counts.index(max(counts))] -= 1
    return counts


def _memory_bytes(cluster: Cluster) -> float:
    return sum(group.count * group.node.gpus * group.node.gpu.memory_bytes for group in cluster.groups)

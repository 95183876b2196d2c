"""One world: cluster, model and job made from a seed, as nouns and as files that `tangram plan` reads."""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.anywhere.hardware import cluster as random_cluster
from benchmarks.anywhere.models import model as random_model
from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_model
from tangram_sim.hwdb.model_file import from_model_file
from tangram_sim.models import Model
from tangram_sim.training.job import Job

STATE_BYTES = 24.0  # about what a parameter takes in training, activations of short sequences with it


@dataclass(frozen=True, slots=True)
class Size:
    """How large worlds may be."""

    nodes: int
    gpus_per_node: int
    parameters: float
    layers: int
    batch: int
    seq: int


FULL = Size(nodes=400, gpus_per_node=16, parameters=700e9, layers=126, batch=4096, seq=131072)
# For tests: planned in about a second.
SMALL = Size(nodes=5, gpus_per_node=4, parameters=4e9, layers=8, batch=32, seq=4096)

# For laws, which ask a dozen questions in every world.
TINY = Size(nodes=4, gpus_per_node=2, parameters=2e9, layers=4, batch=16, seq=2048)


@dataclass(frozen=True)
class World:
    """What a seed gives; the mappings are those of a cluster file and of a model.yaml."""

    seed: int
    cluster_facts: dict[str, Any]
    model_facts: str | dict[str, Any]
    cluster: Cluster
    model: Model
    job: Job

    @property
    def kinds(self) -> int:
        """GPU kinds in the cluster."""
        return len({group.node.gpu.name for group in self.cluster.groups})

    def words(self) -> str:
        """One line: groups, model, job."""
        groups = ", ".join(
            f"{group.count} x {group.node.gpus} {group.node.gpu.name}"
            f" ({group.node.nic_bytes_per_s * 8e-9:g} Gb/s"
            + (f", racks of {group.node.scale_up_nodes}" if group.node.scale_up_nodes > 1 else "")
            + (", bridges" if group.node.bridges else "")
            + ")"
            for group in self.cluster.groups
        )
        name = self.model.name if isinstance(self.model_facts, str) else self._shape()
        job = self.job
        extra = "".join(
            f", {given}"
            for given, usual in ((job.dtype, "auto"), (job.optimizer, "adamw"), (job.schedule, "1f1b"))
            if given != usual
        )
        return f"{groups}; {name}, batch {job.global_batch} of {job.seq}{extra}"

    def _shape(self) -> str:
        mixed = Counter("experts" in entry for entry in self.model_facts["layers"])  # type: ignore[index]
        kind = "mixture" if mixed[True] else "dense"
        return f"{kind} of {self.model.parameters / 1e9:.3g} B in {self.model.layers} layers"

    def write(self, folder: Path) -> str:
        """Write the world's files into `folder`; the command that plans it."""
        folder.mkdir(parents=True, exist_ok=True)
        cluster = folder / f"anywhere-{self.seed}.cluster.yaml"
        cluster.write_text(yaml.safe_dump(self.cluster_facts, sort_keys=False), encoding="utf-8")
        model = self.model_facts
        if not isinstance(model, str):
            path = folder / f"anywhere-{self.seed}.model.yaml"
            path.write_text(yaml.safe_dump(model, sort_keys=False), encoding="utf-8")
            model = str(path)
        job = self.job
        return (
            f"tangram plan {model} {cluster} --global-batch {job.global_batch} --seq {job.seq} "
            f"--dtype {job.dtype} --optimizer {job.optimizer} --schedule {job.schedule}"
        )


def world(seed: int, size: Size = FULL, hwdb: Hwdb | None = None) -> World:
    """The world of a seed: the same on every machine.

    Nine models in ten are no larger than the memory of the cluster holds; the tenth may be any size.
    """
    rng, hwdb, name = random.Random(seed), hwdb or Hwdb.load(), f"anywhere-{seed}"
    facts = random_cluster(rng, name, size.nodes, size.gpus_per_node)
    made = cluster_from_dict(facts, hwdb, name)
    memory = sum(group.count * group.node.gpus * group.node.gpu.memory_bytes for group in made.groups)
    holds = size.parameters if rng.random() < 0.1 else min(size.parameters, memory / STATE_BYTES)
    given = random_model(rng, name, max(holds, 2e8), size.layers)
    model = load_model(given) if isinstance(given, str) else from_model_file(given, name, name)
    return World(seed, facts, given, made, model, _job(rng, made, size))


def _job(rng: random.Random, cluster: Cluster, size: Size) -> Job:
    """Short and long sequences, small and large batches; mostly bf16 or what the GPUs have, mostly AdamW."""
    seqs = [seq for seq in (512, 1024, 2048, 2048, 4096, 4096, 8192, 32768, 131072) if seq <= size.seq]
    batches = (4, 8, 16, 24, 48, 64, 96, 128, 128, 192, 256, 256, 512, 1000, 1024, 2048, 4096)
    seq = rng.choice(seqs)
    tokens = 64 * 2**20  # of one step, at most
    batch = rng.choice([item for item in batches if item <= size.batch and item * seq <= tokens])
    every = [dict(group.node.gpu.peaks) for group in cluster.groups]
    common = [name for name in ("fp16", "bf16", "fp32", "fp8") if all(peaks.get(name) for peaks in every)]
    dtype = rng.choice(common) if common and rng.random() < 0.3 else "auto"
    optimizer = rng.choice(("adamw",) * 6 + ("lion", "adafactor", "adamw-8bit", "sgd"))
    schedule = rng.choice(("1f1b",) * 8 + ("gpipe", "zb-h1"))
    return Job(batch, seq, dtype, optimizer, schedule)

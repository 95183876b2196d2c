"""Rows of published training runs as nouns: model, cluster, job, layout, assumptions, measurements."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tangram_sim.clusters import Cluster, Gpu
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model, has_experts
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.training.job import Job
from tangram_sim.units import GIB, GIGA
from tangram_validate.published import blanks, defaults, workload
from tangram_validate.published.cells import CellError, Cells
from tangram_validate.published.machines import cluster_of
from tangram_validate.published.stacks import stack_of
from tangram_validate.published.table import Problem, read_row, read_rows

HARD = ("gpu", "gpus", "layers", "hidden", "seq_len", "gbs", "tp", "pp", "dp")  # what tells such a table
# What a memory figure counts: tensors; what PyTorch's allocator holds; what the driver shows as used.
ALLOCATED, RESERVED, DEVICE = MEMORY_KINDS = ("allocated", "reserved", "device")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row reports, in seconds and bytes; 0.0 where it does not."""

    step_s: float = 0.0
    peak_bytes: float = 0.0
    memory: str = DEVICE  # what the peak counts: one of MEMORY_KINDS


@dataclass(frozen=True, slots=True)
class Habit:
    """What runs of one sweep may recompute: a launch script says it once for all of them."""

    recompute: str
    rest: str  # what other layers recompute
    share: float  # of a stage's layers, under recompute "full"
    weight: float  # how likely


@dataclass(frozen=True, slots=True)
class Run:
    """One row, ready to be predicted."""

    id: str
    source_id: str
    table: str
    tier: str
    gpu: str  # as the row writes it
    model_name: str  # groups rows into sweeps; never looked up
    software: defaults.Software
    model: Model
    cluster: Cluster
    job: Job
    layout: Uniform
    recompute: str  # "" = unstated: a mixture (see `silent`)
    full_layers: int  # of every stage, under recompute "full"; 0 = all
    assumed: tuple[str, ...]
    measured: Measured
    doubt: float = 0.0  # log standard deviation of the step for what had to be assumed of batch and degrees
    network_sigma: float = 0.0  # log standard deviation of the rate between nodes, beyond networks in general
    rest: str = "none"  # what the layers beside `full_layers` recompute
    highest_zero: int = 0  # the stage that unstated ZeRO may rise to before anything is recomputed
    habit_full: float = 0.0  # share of such runs that recompute fully whether they must or not
    habits: tuple["Habit", ...] = ()  # what the sweep of a silent run may have recomputed, where known


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a table of published runs, as text. Raises BadInputError for another file."""
    return read_rows(path, HARD, "training runs")


def read_run(row: Mapping[str, str], hwdb: Hwdb, number: int = 1) -> Run | Problem:
    """One row; `number` names it where its id is blank."""
    return read_row(row, number, lambda name, cells: _run(name, cells, hwdb))


def _run(name: str, cells: Cells, hwdb: Hwdb) -> Run:
    if cells.text("tier").upper() == "X":
        raise CellError(f"tier X: the source contradicts itself {cells.text('flags')}".strip())
    if not cells.text("gpu"):
        raise CellError("gpu not stated, and nothing else in the row says it")
    run_by = defaults.software(cells.text("framework"), cells.text("date"))
    gpu = blanks.gpu_of(cells, hwdb)
    named = blanks.named_model(cells)
    seq = blanks.sequence(cells, run_by)
    model = named or workload.model(cells, run_by, cells.count("tp") or 1, seq)
    stated = blanks.degrees(cells, run_by, gpu, model, seq)
    gpus, tp, pp, dp, cp, gbs = stated.gpus, stated.tp, stated.pp, stated.dp, stated.cp, stated.gbs
    ep = workload.stated_experts(cells, run_by, dp * cp)
    cluster, network_sigma = _cluster(cells, gpu, gpus, hwdb)
    per_rank = cells.count("mbs")
    if per_rank is None:
        per_rank = workload.per_rank(cells, gbs, dp)
    gbs, per_rank = blanks.fitted_batch(cells, gbs, per_rank, dp)
    vpp, schedule = workload.schedule(cells, run_by, model.layers, pp, gbs // (per_rank * dp))
    job = replace(
        workload.job(cells, run_by, cluster, gbs, seq, schedule),
        stack=stack_of(run_by),
        shard_ranks=workload.shard_ranks(cells, cluster, tp),
    )
    recompute, full_layers = workload.recompute(cells, run_by, model.layers, pp)
    zero_stage = workload.zero_stage(cells, run_by, pp)
    layout = Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=workload.expert_degree(cells, ep, tp, dp * cp, has_experts(model)),
        vpp=vpp,
        layers=stage_layers(cells.text("extra"), model.layers, pp) if vpp == 1 else (),
        zero_stage=zero_stage,
        micro_batch=per_rank,
        sequence_parallel=workload.sequence_parallel(cells, run_by, tp),
    )
    return Run(
        name,
        cells.text("source_id"),
        cells.text("table"),
        cells.text("tier"),
        cells.text("gpu"),
        cells.text("model"),
        run_by,
        model,
        cluster,
        job,
        layout,
        recompute,
        full_layers,
        tuple(cells.assumed),
        _measured(cells, gpus, gbs, seq),
        doubt=stated.doubt,
        network_sigma=network_sigma,
        highest_zero=zero_stage if cells.text("sharding") else defaults.highest_zero(run_by, zero_stage, pp),
        habit_full=0.0 if recompute else defaults.full_recompute_habit(run_by, cells.text("task")),
    )


def _cluster(cells: Cells, gpu: Gpu, gpus: int, hwdb: Hwdb) -> tuple[Cluster, float]:
    """The cluster, and how doubtful its network is."""
    nodes, per_node = cells.count("nodes"), cells.count("gpus_per_node")
    if per_node is None:
        per_node = -(-gpus // nodes) if nodes else min(gpus, 8)
        cells.assume("gpus_per_node", per_node, "gpus / nodes, else the usual node of 8")
    if nodes is None:
        nodes = -(-gpus // per_node)
    if gpus > nodes * per_node or (nodes > 1 and gpus != nodes * per_node):
        said = f"where {nodes} nodes of {per_node} GPUs do not make {gpus}"
        per_node = per_node if gpus % per_node == 0 else math.gcd(gpus, per_node)
        nodes = gpus // per_node
        cells.assume("nodes", f"{nodes} of {per_node} GPUs", said)
    cluster, assumed, network_sigma = cluster_of(
        gpu, gpus, per_node, nodes, cells.text("intra_link"), cells.text("inter_link"), hwdb
    )
    cells.assumed += assumed
    return cluster, network_sigma


def _measured(cells: Cells, gpus: int, gbs: int, seq: int) -> Measured:
    step = cells.number("iter_time_s") or cells.number("iter_time_s_derived")
    if not step and (rate := cells.number("tokens_per_s_per_gpu")):
        step = gbs * seq / (rate * gpus)
    if not step and (rate := cells.number("samples_per_s")):
        step = gbs / rate
    kind = cells.text("mem_kind").lower()
    # Drivers and frameworks divide by 1024^3 and write GB all the same; only a stated 1e9 is one.
    unit = GIGA if re.search(r"1e9|10\^9|decimal", kind) else GIB
    return Measured(step or 0.0, (cells.number("peak_mem_gb") or 0.0) * unit, memory_kind(kind))


def memory_kind(text: str) -> str:
    """What a memory figure counts, from words of its source; the driver's where they do not say.

    A maximum that a training loop logs of itself (max_mem) is the allocator's.
    """
    if "alloc" in text:
        return ALLOCATED
    return RESERVED if re.search(r"reserv|cached|max_mem", text) else DEVICE


def stage_layers(text: str, layers: int, pp: int) -> tuple[int, ...]:
    """Blocks of every stage from a remark like "layers_per_stage=[7, 9, 9, 9]"; () where there is none.

    Where the numbers add up to two more than the blocks, embedding and head are counted as layers.
    """
    found = re.search(r"layers_per_stage=\[([\d, ]+)\]", text)
    counts = [int(count) for count in re.findall(r"\d+", found[1])] if found else []
    if len(counts) != pp:
        return ()
    if sum(counts) == layers + 2:
        counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    return tuple(counts) if sum(counts) == layers and min(counts) > 0 else ()

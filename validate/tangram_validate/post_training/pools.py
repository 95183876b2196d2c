"""From the cells of a row to its pools: GPUs, training layout, engines; what is blank is as usual."""

import re

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.plan import COLOCATED, RolloutReplicas, TrainingPool
from tangram_sim.post_training.sync import BROADCAST, BUCKETED, GATHER, PACKED, weight_bytes
from tangram_sim.post_training.workload import PostTraining
from tangram_validate.published.cells import CellError, Cells
from tangram_validate.published.machines import cluster_of

USUAL_GPUS_PER_NODE = 8
VERL_PACK = 16384  # tokens of a rank's micro-batch, verl's default of `ppo_max_token_len_per_gpu`


def yes(text: str) -> bool | None:
    """A cell that answers a question; None where it is blank."""
    words = text.strip().lower()
    if not words:
        return None
    return words.startswith(("yes", "true", "1", "on"))


def pool_sizes(cells: Cells, placement: str) -> tuple[int, int]:
    """GPUs that train, GPUs that generate."""
    gpus, train, rollout = cells.count("gpus"), cells.count("gpus_train"), cells.count("gpus_rollout")
    if placement == COLOCATED:
        whole = gpus or train or rollout
        if whole is None:
            raise CellError("gpus is not stated, and nothing else in the row says it")
        return whole, whole
    if train is None and gpus is not None:
        train = gpus - rollout if rollout and rollout < gpus else gpus // 2
        if not rollout:
            cells.assume("gpus_train", train, "half of the GPUs")
    if rollout is None and gpus is not None and train:
        rollout = gpus - train
    if not train or not rollout or train < 1 or rollout < 1:
        raise CellError("gpus_train and gpus_rollout are not stated, nor gpus")
    return train, rollout


def sync_method(cells: Cells, placement: str) -> str:
    """How a framework moves weights: NeMo-RL in packed broadcasts, verl in buckets."""
    if placement == COLOCATED:
        return GATHER
    framework = cells.text("framework").lower()
    return PACKED if "nemo" in framework else BUCKETED if "verl" in framework else BROADCAST


def training_pool(
    cells: Cells, work: PostTraining, gpu: str, gpus: int, colocated: bool, hwdb: Hwdb
) -> TrainingPool:
    """The training pool of a row: its cluster, layout and packs, as stated or as usual for its framework."""
    cluster = _cluster(cells, gpu, gpus, hwdb)
    backend = f"{cells.text('train_backend')} {cells.text('sharding')}".lower()
    sharded = any(word in backend for word in ("fsdp", "zero", "deepspeed", "dtensor"))
    stack = "fsdp" if sharded else "megatron"
    tp, pp = cells.count("train_tp"), cells.count("train_pp") or 1
    cp, ep = cells.count("train_cp") or 1, cells.count("train_ep") or 1
    if tp is None:
        tp = 1 if sharded else _usual_tp(work.model, gpu, gpus, pp, hwdb)
        if not sharded:
            cells.assume("train_tp", tp, "the least that fits")
    tp, pp = min(tp, gpus), min(pp, gpus)
    while gpus % (tp * pp * cp) and cp > 1:
        cp -= 1
    recompute = cells.text("recompute").lower()
    recompute = (
        "none"
        if recompute in ("none", "no", "off", "false")
        else "selective"
        if recompute.startswith("sel")
        else "full"
    )
    longest = cells.count("max_total") or int(work.prompt_tokens + work.lengths.cap)
    nemo = "nemo" in cells.text("framework").lower()
    packed = cells.text("packing").lower() != "none" and cells.text("framework_version") != "0.1"
    micro = cells.count("micro_batch") or 1
    logprob = cells.count("logprob_batch") or micro
    if not packed:
        # A padded row is as long as both caps.
        padded = (cells.count("max_prompt") or int(2 * work.prompt_tokens)) + work.lengths.cap
        pack, pack_logprob = 0, 0
    else:
        padded = 0
        pack = (
            longest * micro
            if nemo
            else max(min(VERL_PACK, int(micro * work.mean_tokens)) if micro > 1 else VERL_PACK, longest)
        )
        pack_logprob = longest * logprob if nemo else pack
    layout = Uniform(
        tp=tp,
        pp=pp,
        dp=max(gpus // (tp * pp * cp), 1),
        cp=cp,
        ep=ep,
        zero_stage=3 if sharded else 1,
        micro_batch=1 if packed else micro,
        recompute=recompute,
        sequence_parallel=bool(yes(cells.text("sequence_parallel"))) and tp > 1,
    )
    return TrainingPool(cluster, layout, pack, padded, stack, offload=colocated, logprob_tokens=pack_logprob)


def _cluster(cells: Cells, gpu: str, gpus: int, hwdb: Hwdb) -> Cluster:
    per_node = cells.count("gpus_per_node")
    if per_node is None:
        per_node = min(gpus, USUAL_GPUS_PER_NODE)
        if gpus > 1:
            cells.assume("gpus_per_node", per_node, "usual")
    per_node = min(per_node, gpus)
    while gpus % per_node:
        per_node -= 1
    cluster, _, _ = cluster_of(hwdb.gpu(gpu), gpus, per_node, gpus // per_node, "", "", hwdb)
    return cluster


def _usual_tp(model: Model, gpu: str, gpus: int, pp: int, hwdb: Hwdb) -> int:
    """The least power of two at which weights, gradients and sharded optimizer leave room for activations."""
    memory = hwdb.gpu(gpu).memory_bytes
    tp = 1
    while (
        tp < min(8, gpus // pp)
        and 6.0 * model.parameters / (tp * pp) + 12.0 * model.parameters / gpus > 0.7 * memory
    ):
        tp *= 2
    return tp


def rollout_pool(
    cells: Cells, work: PostTraining, gpu: str, gpus: int, colocated: bool, hwdb: Hwdb
) -> RolloutReplicas:
    """The engines of a row: width and memory as stated, else the least width that leaves room for a cache."""
    share = cells.number("gen_memory_utilization")
    if not share or share > 1:
        share = 0.6 if colocated else 0.85
        cells.assume("gen_memory_utilization", share, "usual")
    tp, pp = cells.count("gen_tp"), cells.count("gen_pp") or 1
    if tp is None:
        tp = 1
        room = hwdb.gpu(gpu).memory_bytes * share
        while tp < gpus and weight_bytes(work.model, work.rollout_precision) / tp > 0.6 * room:
            tp *= 2
        cells.assume("gen_tp", tp, "the least that leaves room for the cache")
    tp = min(tp, gpus)
    engine = "sglang" if "sglang" in cells.text("rollout_engine").lower() else "vllm"
    count = max(gpus // (tp * pp), 1)
    return RolloutReplicas(gpu, count, tp, pp, engine=engine, memory_fraction=share, eager=_eager(cells))


def _eager(cells: Cells) -> bool:
    """Whether the engine captures no graphs: verl's `enforce_eager` was on by default before 0.5."""
    if "verl" not in cells.text("framework").lower():
        return False
    version = re.match(r"0\.(\d+)", cells.text("framework_version"))
    return version is not None and int(version[1]) < 5

"""Cells about the work: model, job, schedule, recomputation and sharding, with defaults for blanks."""

import math
import re
from dataclasses import replace

from tangram_sim.clusters import Cluster, Gpu
from tangram_sim.models import Model
from tangram_sim.training.job import OPTIMIZER_STATE_BYTES, Job
from tangram_validate.published import defaults, shapes
from tangram_validate.published.cells import CellError, Cells
from tangram_validate.published.vocabulary import (
    FEED_FORWARDS,
    NO,
    YES,
    Recompute,
    dtype_of,
    optimizer_of,
    recompute_of,
    shard_group_of,
    zero_stage_of,
)

_LAUNCH_BLOCKING = re.compile(r"CUDA_LAUNCH_BLOCKING\s*[=:]\s*(\d)")
_CUDA_GRAPHS = re.compile(r"cuda[ _]?graphs?\s*[=:]\s*(\w+)", re.IGNORECASE)
MLPERF = "mlcommons/training_results"  # submissions to MLPerf Training
# Sources whose launch scripts set it: BLOOM's, for its jobs on 320 and more GPUs hung without.
BLOCKING_SCRIPTS = ("bigscience-workshop/bigscience train/tr11-176B-ml",)


def model(cells: Cells, run_by: defaults.Software, tp: int, seq: int) -> Model:
    """The model that the shape columns describe. Raises CellError where no default can help."""
    layers, hidden = cells.needed("layers", "hidden")
    heads, kv_heads = cells.count("heads"), cells.count("kv_heads")
    if heads is None:
        heads, why = defaults.heads(hidden, tp)
        cells.assume("heads", heads, why)
    if kv_heads is None:
        kv_heads = heads
        cells.assume("kv_heads", heads, "as many as heads")
    if heads % tp:
        whole = -(-heads // tp) * tp
        cells.assume("heads", whole, f"{heads} is no multiple of tp {tp}")
        heads, kv_heads = whole, whole if kv_heads == heads else kv_heads
    experts, active, expert_ffn = (cells.count(name, 0) or 0 for name in ("experts", "topk", "moe_ffn"))
    kind = cells.text("ffn_kind").lower()
    kind = next((form for form, names in FEED_FORWARDS.items() if kind in names), kind)
    if kind not in ("plain", "gated", ""):
        known = ", ".join(name for names in FEED_FORWARDS.values() for name in names)
        raise CellError(f"ffn_kind is {kind!r}; known are {known}")
    if not kind:
        kind = "gated" if experts or kv_heads < heads else "plain"
        cells.assume("ffn_kind", kind, "gated goes with grouped key heads or experts")
    ffn = cells.count("ffn")
    if ffn is None and not experts:
        ffn = 4 * hidden if kind == "plain" else -(-8 * hidden // 3 // 256) * 256
        cells.assume("ffn", ffn, "4 x hidden; gated 8/3 x hidden, rounded up to 256")
    if experts and not expert_ffn:
        expert_ffn = ffn or 4 * hidden
        cells.assume("moe_ffn", expert_ffn, "as the dense feed-forward")
    if experts and not active:
        active = min(2, experts)
        cells.assume("topk", active, "usual")
    vocab = cells.count("vocab")
    if vocab is None:
        vocab, why = defaults.vocab(run_by, kind == "gated", tp)
        cells.assume("vocab", vocab, why)
    if max(layers, hidden, heads) > 1_000_000 or heads > hidden:
        raise CellError(f"{layers} layers of {hidden} columns in {heads} heads is no model")
    masked = "mlm" in cells.text("task").lower()
    made = shapes.model_of(
        layers,
        hidden,
        heads,
        kv_heads,
        ffn or 0,
        kind == "gated",
        vocab,
        seq,
        experts,
        active,
        expert_ffn,
        masked,
    )
    attention = made.blocks[-1].attention
    if attention.kv_rank:
        cells.assume("attention", "latent", "as in the model of that shape, or DeepSeek's sizes")
    elif attention.head_dim != max(hidden // heads, 1):
        cells.assume("head columns", attention.head_dim, "as in the shipped model of that shape")
    return made


def per_rank(cells: Cells, gbs: int, dp: int) -> int:
    """Sequences per data-parallel rank and microbatch, from the accumulation steps if they are stated."""
    steps = cells.count("grad_accum")
    if steps:
        return max(gbs // (steps * dp), 1)
    cells.assume("mbs", defaults.MICROBATCH, "usual of large models")
    return defaults.MICROBATCH


def schedule(
    cells: Cells, run_by: defaults.Software, layers: int, pp: int, microbatches: int
) -> tuple[int, str]:
    """(chunks per stage, schedule); chunks that a flag doubts are as good as not stated."""
    text = cells.text("schedule").lower()
    vpp = None if "W_VPP" in cells.text("flags") else cells.count("vpp")
    if vpp is None and text in ("1f1b", "gpipe"):
        vpp = 1
    if vpp is None:
        vpp, why = defaults.chunks(run_by, layers, pp, microbatches)
        cells.assume("vpp", vpp, why)
    if vpp > 1 and pp == 1:
        cells.assume("vpp", 1, f"{vpp} is stated, which means nothing without a pipeline")
        vpp = 1
    if vpp > 1 and pp * vpp > layers:
        fewer = max(layers // pp, 1)
        cells.assume(
            "vpp",
            fewer,
            f"{vpp} x pp {pp} is more than the {layers} layers: ends hold embedding or head alone",
        )
        vpp = fewer
    if vpp > 1:
        return vpp, "interleaved"
    return 1, "gpipe" if "gpipe" in text else "zb-h1" if text.startswith(("zb", "zero")) else "1f1b"


def job(cells: Cells, run_by: defaults.Software, cluster: Cluster, gbs: int, seq: int, schedule: str) -> Job:
    """Precision, optimizer and what the software does to both; adapters train a share of the model."""
    gpu = cluster.groups[0].node.gpu
    written = cells.text("dtype")
    if written:
        recipe, why = dtype_of(written, run_by, gpu)
    elif MLPERF in cells.text("source"):
        recipe, why = defaults.dtype_of_mlperf(run_by, gpu, cells.text("source"))
    else:
        recipe, why = defaults.dtype(run_by, gpu)
    if why:
        cells.assume("dtype", recipe, why)
    optimizer = cells.text("optimizer").lower()
    if not optimizer:
        optimizer, why = defaults.optimizer(run_by)
        cells.assume("optimizer", optimizer, why)
    if optimizer not in OPTIMIZER_STATE_BYTES:
        written, optimizer = optimizer, optimizer_of(optimizer)
        cells.assume("optimizer", optimizer, f"written {written}")
    job = Job(
        gbs,
        seq,
        recipe,
        optimizer,
        schedule,
        gradient_bytes=0.0 if recipe in ("fp32", "tf32") else defaults.gradient_bytes(run_by),
        flash_attention=defaults.flash_attention(run_by),
        plain_operations=defaults.plain_operations(run_by),
        fused_loss=defaults.fused_loss(run_by),
        dropout=defaults.dropout(run_by),
        launch_blocking=launch_blocking(cells, run_by),
        cuda_graphs=cuda_graphs(cells, gpu),
    )
    if "lora" not in cells.text("task").lower():
        return job
    share = cells.number("trainable")
    if share is None:
        share = defaults.TRAINABLE_SHARE
        cells.assume("trainable", share, "adapters of rank 16")
    return replace(job, trainable=min(share, 1.0))


def launch_blocking(cells: Cells, run_by: defaults.Software) -> bool:
    """Whether the device waits for every launch: as a remark or the published script says, else as usual."""
    if stated := _LAUNCH_BLOCKING.search(cells.text("extra")):
        return stated[1] == "1"
    if any(document in cells.text("source") for document in BLOCKING_SCRIPTS):
        cells.assume("CUDA_LAUNCH_BLOCKING", 1, "set in the launch script of that source")
        return True
    return defaults.launch_blocking(run_by)


def cuda_graphs(cells: Cells, gpu: Gpu) -> bool:
    """Whether blocks are captured in CUDA graphs: as a remark says, else as NVIDIA's code for MLPerf does.

    Its configurations for Llama 2 and 3.1 set LAYER_CUDA_GRAPH or source config_common_cg.sh, and others
    submit with its containers.
    """
    if stated := _CUDA_GRAPHS.search(cells.text("extra")):
        return stated[1].lower() in ("1", "true", "yes")
    if MLPERF in cells.text("source") and not gpu.architecture.startswith("CDNA"):
        cells.assume("cuda_graphs", "yes", "NVIDIA's code for MLPerf captures blocks")
        return True
    return False


def recompute(cells: Cells, run_by: defaults.Software, layers: int, pp: int) -> Recompute:
    """Recomputation as stated; the kind "" where nothing is.

    Under FSDP a bare "selective" is a share of whole blocks (foundation-model-stack/fms-fsdp,
    `selective_checkpointing`), as many as memory asks for; Megatron's is the core of attention.
    """
    text = cells.text("recompute")
    if run_by.family == "fsdp" and text.strip().lower() == "selective":
        cells.assume("recompute", "a mixture", "blocks as far as memory asks for it")
        return Recompute("")
    if not text:
        cells.assume("recompute", "a mixture", "none, selective or full as far as memory asks for it")
        return Recompute("")
    return recompute_of(text, layers, pp)


def stated_experts(cells: Cells, run_by: defaults.Software, replicas: int) -> int:
    """Expert parallelism as stated; where it is blank under FSDP2, over as many replicas as it can be."""
    stated, experts = cells.count("ep"), cells.count("experts", 0) or 0
    if stated or not experts or run_by.family != "fsdp":
        return stated or 1
    spread = math.gcd(experts, replicas)
    cells.assume("ep", spread, "recipes on FSDP2 spread experts over as many replicas as divide them")
    return spread


def expert_degree(cells: Cells, ep: int, tp: int, replicas: int, mixture: bool | None = None) -> int:
    """Expert parallelism over the `replicas` = dp x cp of a layer's dense part.

    Where tp does not split experts (etp 1: Megatron lays expert groups over tp x dp), part of ep lies across
    tp; so it does where ep fits no other way.
    """
    etp = cells.count("etp")
    if etp is None:
        etp = tp
        mixture = bool(cells.count("experts", 0)) if mixture is None else mixture
        if mixture and replicas % ep and (tp * replicas) % ep == 0:
            etp = 1
            cells.assume("etp", 1, f"ep {ep} fits only over tp x dp")
    if ep == 1 or etp == tp:
        return ep
    across = max(min(tp // etp, ep), 1)
    cells.assume(
        "ep", ep // across, f"{ep} with etp {etp}: {across} of it across tp, priced as splitting experts"
    )
    return max(ep // across, 1)


def zero_stage(cells: Cells, run_by: defaults.Software, pp: int) -> int:
    """ZeRO stage from words like fsdp-zero3, distributed-optimizer-zero1, none (DDP), beside a pipeline.

    FSDP2 then keeps weights gathered between microbatches and reduces gradients behind the last one, as
    ZeRO-1 does (pytorch/torchtitan: `reshard_after_forward = not pp_enabled`).
    """
    stage = _zero_stage(cells, run_by)
    if run_by.family == "fsdp" and pp > 1 and stage == 3:
        cells.assume("zero_stage", 1, "under a pipeline FSDP2 keeps weights gathered")
        return 1
    return stage


def _zero_stage(cells: Cells, run_by: defaults.Software) -> int:
    text = cells.text("sharding").lower()
    if not text:
        stage, why = defaults.zero_stage(run_by)
        cells.assume("zero_stage", stage, why)
        return stage
    stated = zero_stage_of(text)
    if stated is None:
        stated = max(defaults.zero_stage(run_by)[0], 1)
        cells.assume("zero_stage", stated, f"sharding is {text!r}")
    return stated


def shard_ranks(cells: Cells, cluster: Cluster, tp: int) -> int:
    """Replicas in a group of hybrid sharding; 0 where ZeRO cuts over all of them."""
    node = cluster.groups[0].node
    return shard_group_of(cells.text("sharding"), max(node.gpus // tp, 1))


def sequence_parallel(cells: Cells, run_by: defaults.Software, tp: int) -> bool:
    """Whether norms and residuals are sharded over the tensor-parallel group."""
    text = cells.text("seq_parallel").lower()
    if text in YES:
        return tp > 1
    if text in NO:
        return False
    if text:
        raise CellError(f"seq_parallel is {text!r}; give yes or no")
    on, why = defaults.sequence_parallel(run_by, tp)
    if tp > 1:
        cells.assume("seq_parallel", "yes" if on else "no", why)
    return on

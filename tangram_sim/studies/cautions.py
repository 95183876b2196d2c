"""What a practitioner would warn of before a plan is run: one sentence each, the gravest first."""

from tangram_sim.clusters import Gpu
from tangram_sim.hwdb.usual_node import ASSUMED
from tangram_sim.studies.forecast import Forecast
from tangram_sim.training.plan import Pipeline
from tangram_sim.units import show_bytes

_NEARLY_FULL = 0.95  # of a GPU: fragmentation and a longer sample can take the rest
_FEW = 2  # microbatches per stage below which waiting is the batch's fault
_WAITING = 0.25  # share of the step that is bubble, from which it is worth a word
_OPEN = 3.0  # upper over lower end of the step's interval from which a ranking by it is open


def cautions(played: Forecast, formats: str = "") -> list[str]:
    """Notes on a played plan, ordered by how much harm comes of not knowing.

    `formats`: what other number formats came to, where they were planned with too.
    """
    return [
        *_too_full(played),
        *_two_vendors(played),
        *_beyond(played),
        *_nearly_full(played),
        *_across_nodes(played),
        *([formats] if formats else _old_format(played)),
        *_few_microbatches(played),
        *_open_ranking(played),
        *_left_open(played),
        *_by_default(played),
    ]


def _too_full(played: Forecast) -> list[str]:
    """A note when a plan does not fit: the worst stage, with its numbers."""
    if played.lowered.fits():
        return []
    stages = [(step, stage) for step in played.lowered.steps for stage in range(len(step.prices))]
    names = [
        f"{number}.{stage}" if len(played.lowered.steps) > 1 else f"{stage}"
        for number, step in enumerate(played.lowered.steps)
        for stage in range(len(step.prices))
    ]
    used = [step.peak_bytes(stage) / step.capacity_bytes(stage) for step, stage in stages]
    worst = used.index(max(used))
    step, stage = stages[worst]
    return [
        f"does not fit: {sum(share > 1 for share in used)} of {len(stages)} stages are too full; stage "
        f"{names[worst]} needs {show_bytes(step.peak_bytes(stage))} of "
        f"{show_bytes(step.capacity_bytes(stage))}"
    ]


def _gpus(played: Forecast, pipeline: Pipeline) -> list[Gpu]:
    """The kinds of GPUs that a pipeline runs on, as the cluster holds them."""
    cluster = played.plan.cluster
    bounds = cluster.first_rank
    ranks = sorted(rank for stage in pipeline.stages for rank in stage.ranks)
    kinds, node = {}, 0
    for rank in ranks:
        while rank >= bounds[node + 1]:
            node += 1
        gpu = cluster.groups[cluster.node_group[node]].node.gpu
        kinds[gpu.name] = gpu
    return list(kinds.values())


def _two_vendors(played: Forecast) -> list[str]:
    """NCCL and RCCL do not speak to each other: https://github.com/NVIDIA/nccl, https://github.com/ROCm/rccl."""
    vendors = {gpu.vendor for pipeline in played.plan.pipelines for gpu in _gpus(played, pipeline)}
    if len(vendors) < 2:
        return []
    return [
        f"GPUs of {' and '.join(sorted(vendors))} in one run: no collective library spans them; it needs a "
        "transport of its own between them (gloo, UCX or MPI through host memory), slower than priced here"
    ]


def _beyond(played: Forecast) -> list[str]:
    """The sequence is longer than the model was made for; its numbers hold all the same."""
    model, job = played.plan.model, played.plan.job
    if not 0 < model.max_seq < job.seq:
        return []
    return [f"{model.name} was made for sequences of {model.max_seq} tokens or less; {job.seq} are priced"]


def _nearly_full(played: Forecast) -> list[str]:
    full = played.lowered.fullness()
    if not _NEARLY_FULL < full <= 1:
        return []
    return [
        f"the fullest GPU is {full * 100:.0f} % full: fragmentation or an uneven batch can end the run; a "
        "larger margin, recomputation or a smaller microbatch leaves room"
    ]


def _across_nodes(played: Forecast) -> list[str]:
    """Tensor parallelism whose groups do not fit into one scale-up domain."""
    wide = {
        f"tp {run.layout.tp} on nodes of {island.gpus_per_node} GPUs"
        for seat, island in zip(played.seats, played.islands, strict=True)
        for run in played.part_of(seat).layouts
        if run.layout.tp > island.gpus_per_node * island.scale_up_nodes
    }
    return [f"{words}: tensor parallelism over the network is rarely run" for words in sorted(wide)]


def _old_format(played: Forecast) -> list[str]:
    """fp16 for all because some GPUs in use have no bf16: what it costs to keep them."""
    if played.plan.job.dtype != "fp16":
        return []
    kinds = {gpu.name: gpu for pipeline in played.plan.pipelines for gpu in _gpus(played, pipeline)}
    old = [gpu for gpu in kinds.values() if not gpu.peak_flop_per_s("bf16")]
    if not old or len(old) == len(kinds):
        return []
    groups = played.plan.cluster.groups
    peaks = {
        name: gpu.peak_flop_per_s("fp16")
        * sum(group.count * group.node.gpus for group in groups if group.node.gpu.name == name)
        for name, gpu in kinds.items()
    }
    share = sum(peaks[gpu.name] for gpu in old) / sum(peaks.values())
    return [
        f"fp16 with loss scaling on all, as {', '.join(gpu.name for gpu in old)} have no bf16; without them "
        f"bf16 would do, with {share * 100:.0f} % less peak"
    ]


def _few_microbatches(played: Forecast) -> list[str]:
    """Pipelines that wait because the batch does not fill them."""
    if played.plan.job.schedule not in ("1f1b", "gpipe"):
        return []
    for pipeline in played.plan.pipelines:
        stages, count = len(pipeline.stages), pipeline.microbatches
        waiting = (stages - 1) / (count + stages - 1)
        if count < _FEW * stages and waiting > _WAITING:
            return [
                f"{count} microbatches for {stages} stages: the batch is small for this many GPUs; "
                f"{(_FEW + 2) * stages} would leave a fifth of the time waiting or less"
            ]
    return []


def _open_ranking(played: Forecast) -> list[str]:
    doubt = played.uncertainty
    if not doubt.step_s_low or doubt.step_s_high < _OPEN * doubt.step_s_low:
        return []
    return [
        f"the ends of the step's interval are {doubt.step_s_high / doubt.step_s_low:.1f} times apart: plans "
        "closer than that cannot be ranked; one measured step narrows it (`tangram calibrate run`)"
    ]


def _left_open(played: Forecast) -> list[str]:
    """What the cluster's file left open and its GPUs' usual boards said."""
    said: dict[str, str] = {}
    for group in played.plan.cluster.groups:
        for label in group.node.labels:
            if label.startswith(ASSUMED):
                said.setdefault(label, group.name)
    return [f"{group}: {label}" for label, group in said.items()]


def _by_default(played: Forecast) -> list[str]:
    """Sizes that the model's file leaves out: those of a family's usual member stand in for them."""
    model = played.plan.model
    if not model.defaults:
        return []
    return [
        f"{model.name}: its config.json does not say {_in_short(model.defaults)}; taken as is usual in "
        f"{model.family}"
    ]


def _in_short(parts: tuple[str, ...], most: int = 6) -> str:
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more

"""Warnings before a plan is run, one sentence each, the most serious first."""

from collections.abc import Iterable

from tangram_sim.clusters import Node
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb.usual_node import ASSUMED
from tangram_sim.studies.documents import GpuKind
from tangram_sim.studies.forecast import Forecast

NEARLY_FULL = 0.95  # of a GPU: fragmentation and a longer sample can take the rest
_FEW = 2  # microbatches per stage below which waiting is the batch's fault
_WAITING = 0.25  # share of the step that is bubble, from which it is worth a word
_FILLING = ("1f1b", "gpipe", "interleaved")  # schedules that fill and drain their pipelines
OPEN = 3.0  # upper over lower end of the step's interval from which a ranking by it is open


DOES_NOT_FIT = declare(
    "does-not-fit",
    Severity.WRONG,
    "does not fit: {too_full} of {stages} stages are too full; stage {stage} needs {needed_bytes:bytes} of "
    "{capacity_bytes:bytes}",
)
TWO_VENDORS = declare(
    "gpus-of-two-vendors",
    Severity.WARNING,
    "GPUs of {vendors} in one run: no collective library spans them; it needs a transport of its own between "
    "them (gloo, UCX or MPI through host memory), slower than priced here",
)
LONGER_THAN_MODEL = declare(
    "longer-than-model",
    Severity.WARNING,
    "{model} was made for sequences of {most_tokens} tokens or less; {seq} are priced",
)
FULL = declare(
    "nearly-full",
    Severity.WARNING,
    "the fullest GPU is {full:percent} full: fragmentation or an uneven batch can end the run; a larger "
    "margin, recomputation or a smaller microbatch leaves room",
)
WIDE_TENSOR_PARALLELISM = declare(
    "tensor-parallelism-over-network",
    Severity.WARNING,
    "tp {tp} on nodes of {gpus_per_node} GPUs: tensor parallelism over the network is rarely run",
)
ZERO_IN_PIPELINE = declare(
    "zero-inside-pipeline",
    Severity.WARNING,
    "ZeRO {zero_stage} inside pipelines: {moved} move for every microbatch; DeepSpeed refuses it, others "
    "need care to overlap it",
)
OLD_FORMAT = declare(
    "fp16-for-all",
    Severity.NOTE,
    "fp16 with loss scaling on all, as {old:listed} have no bf16; without them bf16 would do, with "
    "{share:percent} less peak",
)
FEW_MICROBATCHES = declare(
    "few-microbatches",
    Severity.NOTE,
    "{microbatches} microbatches for {stages} stages: the batch is small for this many GPUs; {wanted} would "
    "leave a fifth of the time waiting or less",
)
FEW_SEQUENCES = declare(
    "few-sequences",
    Severity.NOTE,
    "{global_batch} sequences a step for {gpus} GPUs: each GPU works on a part of one; a batch of {gpus} or "
    "more would give each its own",
)
OPEN_RANKING = declare(
    "open-ranking",
    Severity.WARNING,
    "the ends of the step's interval are {ratio:.1f} times apart: plans closer than that cannot be ranked; "
    "one measured step narrows it (`tangram calibrate run`)",
)
ASSUMED_OF_NODE = declare("assumed-of-node", Severity.NOTE, "{group}: {assumed}")
ASSUMED_OF_MODEL = declare(
    "assumed-of-model",
    Severity.NOTE,
    "{model}: its config.json does not say {unsaid}; taken as is usual in {family}",
)


def cautions(played: Forecast, formats: Finding | None = None, idle: Iterable[Finding] = ()) -> list[Finding]:
    """Findings on a simulated plan, the most harmful to miss first.

    `formats`: the comparison with other number formats, if any were planned with. `idle`: which GPUs a search
    left idle, and why.
    """
    return [
        *_too_full(played),
        *_two_vendors(played),
        *_beyond(played),
        *_nearly_full(played),
        *_fragile(played),
        *([formats] if formats else _old_format(played)),
        *idle,
        *_small_batch(played),
        *_open_ranking(played),
        *_left_open(played),
        *_by_default(played),
    ]


def _too_full(played: Forecast) -> list[Finding]:
    """A finding when a plan does not fit in memory: names the worst stage, with its numbers."""
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
        DOES_NOT_FIT(
            too_full=sum(share > 1 for share in used),
            stages=len(stages),
            stage=names[worst],
            needed_bytes=step.peak_bytes(stage),
            capacity_bytes=step.capacity_bytes(stage),
        )
    ]


def _two_vendors(played: Forecast) -> list[Finding]:
    """Finding if a plan mixes NCCL and RCCL: https://github.com/NVIDIA/nccl, https://github.com/ROCm/rccl."""
    vendors = played.plan.vendors
    return [between_vendors(vendors)] if len(vendors) > 1 else []


def between_vendors(vendors: Iterable[str]) -> Finding:
    """A finding on what GPUs of several vendors need to train together."""
    return TWO_VENDORS(vendors=" and ".join(sorted(vendors)))


_UNMEASURED = {
    "assumed": "assumed, not measured",
    "inherited": "inherited from measured kinds on the same chip",
}


def doubted(kinds: Iterable[GpuKind], how: Iterable[str] = tuple(_UNMEASURED)) -> list[str]:
    """Sentences that name GPU kinds with unmeasured efficiencies: rankings based on them may be wrong.

    `how` selects the sources to report: assumed, inherited.
    """
    rests = {kind.gpu: kind.rests_on for kind in kinds}
    found = []
    for way in how:
        names = [name for name, on in rests.items() if on.startswith(way)]
        if names:
            why = _UNMEASURED[way]
            found.append(f"Efficiencies of {', '.join(names)} are {why}: see `tangram hw show {names[0]}`.")
    return found


def _beyond(played: Forecast) -> list[Finding]:
    """A finding when the sequence is longer than the model's maximum; the predictions still hold."""
    model, job = played.plan.model, played.plan.job
    if not 0 < model.max_seq < job.seq:
        return []
    return [LONGER_THAN_MODEL(model=model.name, most_tokens=model.max_seq, seq=job.seq)]


def _nearly_full(played: Forecast) -> list[Finding]:
    full = played.lowered.fullness()
    if not NEARLY_FULL < full <= 1:
        return []
    return [FULL(full=full)]


def _fragile(played: Forecast) -> list[Finding]:
    """Findings on layouts that often fail: tp beyond a scale-up domain, ZeRO 2 or 3 in a pipeline."""
    found: dict[str, Finding] = {}
    for seat, island in zip(played.seats, played.islands, strict=True):
        room = island.gpus_per_node * island.scale_up_nodes
        stages = len(played.plan.pipelines[seat.pipeline].stages)
        for run in played.part_of(seat).layouts:
            if run.layout.tp > room:
                wide = WIDE_TENSOR_PARALLELISM(tp=run.layout.tp, gpus_per_node=island.gpus_per_node)
                found[wide.text] = wide
            if stages > 1 and run.layout.zero_stage > 1:
                moved = "weights" if run.layout.zero_stage > 2 else "gradients"
                sharded = ZERO_IN_PIPELINE(zero_stage=run.layout.zero_stage, moved=moved)
                found[sharded.text] = sharded
    return [found[text] for text in sorted(found)]


def _old_format(played: Forecast) -> list[Finding]:
    """A finding when fp16 is used only because some GPUs in use lack bf16: their share of peak compute."""
    if played.plan.job.dtype != "fp16":
        return []
    kinds = {gpu.name: gpu for gpu in played.plan.gpu_kinds}
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
    return [OLD_FORMAT(old=[gpu.name for gpu in old], share=share)]


def _small_batch(played: Forecast) -> list[Finding]:
    """A finding when the batch is too small to fill the pipelines, or to give each GPU a whole sequence."""
    gpus, batch = played.plan.gpus_used, played.plan.job.global_batch
    for pipeline in played.plan.pipelines:
        stages, count = len(pipeline.stages), pipeline.microbatches
        passes = count * max(len(stage.chunks) for stage in pipeline.stages)
        waiting = (stages - 1) / (passes + stages - 1)  # of schedules that fill and drain
        fills = played.plan.job.schedule in _FILLING
        if count < stages or (fills and count < _FEW * stages and waiting > _WAITING):
            return [FEW_MICROBATCHES(microbatches=count, stages=stages, wanted=(_FEW + 2) * stages)]
    alone = all(len(item.stages) == item.microbatches == 1 for item in played.plan.pipelines)
    if alone and batch < gpus:
        return [FEW_SEQUENCES(global_batch=batch, gpus=gpus)]
    return []


def _open_ranking(played: Forecast) -> list[Finding]:
    doubt = played.uncertainty
    if not doubt.step_s_low or doubt.step_s_high < OPEN * doubt.step_s_low:
        return []
    return [OPEN_RANKING(ratio=doubt.step_s_high / doubt.step_s_low)]


def _left_open(played: Forecast) -> list[Finding]:
    """Findings on facts that the cluster file omits and that are assumed from the GPUs' usual boards."""
    said = assumed_of((group.name, group.node) for group in played.plan.cluster.groups)
    return [ASSUMED_OF_NODE(group=names[0], assumed=label) for label, names in said.items()]


def assumed_of(nodes: Iterable[tuple[str, Node]]) -> dict[str, list[str]]:
    """Assumptions made for nodes given by their GPUs alone, each with the names of its nodes."""
    said: dict[str, dict[str, None]] = {}
    for name, node in nodes:
        for label in node.labels:
            if label.startswith(ASSUMED):
                said.setdefault(label, {})[name] = None
    return {label: list(names) for label, names in said.items()}


def _by_default(played: Forecast) -> list[Finding]:
    """A finding on sizes that the model's file leaves out: values usual in its family are used."""
    model = played.plan.model
    if not model.defaults:
        return []
    return [ASSUMED_OF_MODEL(model=model.name, unsaid=_in_short(model.defaults), family=model.family)]


def _in_short(parts: tuple[str, ...], most: int = 6) -> str:
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more

"""Rows of measured post-training runs, as workloads and plans; blank cells get their usual meaning."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log

from tangram_sim.clusters import Cluster
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.hwdb.models import model_names
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.lengths import LognormalLengths, lognormal, lognormal_capped
from tangram_sim.post_training.plan import (
    ASYNC,
    COLOCATED,
    DRAIN,
    IN_FLIGHT,
    ONE_STEP_OFF,
    PARTIAL,
    SPLIT,
    SYNC,
    Mode,
    RlPlan,
    RolloutReplicas,
    TrainingPool,
)
from tangram_sim.post_training.sync import BROADCAST, BUCKETED, GATHER, PACKED, weight_bytes
from tangram_sim.post_training.workload import PostTraining
from tangram_validate.published.cells import CellError, Cells
from tangram_validate.published.machines import cluster_of

COLUMNS = (
    *("run_id", "source", "framework", "mode", "gpu", "gpus", "model", "sequences_per_step"),
    *("mean_prompt", "mean_response", "max_response", "step_s"),
)
TELLING = ("gpu", "gpus", "model", "step_s")
# Phases of a row -> phases of a step. A row's log-probabilities may be policy's and reference's together.
PHASE_COLUMNS = {
    "gen_s": ("generation",),
    "old_logprob_s": ("old_logprobs",),
    "ref_s": ("reference",),
    "logprob_all_s": ("old_logprobs", "reference"),
    "values_s": ("values",),
    "update_actor_s": ("update",),
    "update_critic_s": ("critic_update",),
    "weight_sync_s": ("weight_sync",),
}
USUAL_PROMPT = 128.0  # tokens, where a row says nothing of its prompts
USUAL_SHARE_OF_CAP, USUAL_RESPONSE = (
    0.3,
    4000.0,
)  # mean response of the cap, and at most, where a row is silent
USUAL_SAMPLES = 8
USUAL_GPUS_PER_NODE = 8
VERL_PACK = 16384  # tokens of a rank's micro-batch, verl's default of `ppo_max_token_len_per_gpu`
_SUFFIXES = ("-instruct", "-chat", "-base", "-it", "-hf", "-sft", "-thinking", "-bf16")
_NAMES = {
    "qwen2.5-math-7b": "qwen2.5-7b",
    "r1-distill-qwen-7b": "qwen2.5-7b",
    "r1-distill-qwen-1.5b": "qwen2.5-1.5b",
}
_SIMILAR = 1.6  # a stand-in has at most this many times the parameters, or one part in so many


@dataclass(frozen=True)
class RlRun:
    """A measured run, as a workload on a plan; `assumed` are the cells that were blank and what they got.

    `stand_in` is the ratio of the run's parameters to those of the model that stands for it (1: itself).
    `phases_s` are measured seconds by column; `scored`: whether the step is to be compared.
    """

    id: str
    source: str
    model_name: str
    gpu: str
    framework: str
    mode: str
    work: PostTraining
    plan: RlPlan
    step_s: float | None
    phases_s: dict[str, float]
    scored: bool
    assumed: tuple[str, ...] = ()
    stand_in: float = 1.0
    version: str = ""
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class Unpredicted:
    """A row that cannot be predicted, and why."""

    id: str
    source: str
    reason: str


def read_run(row: Mapping[str, str], number: int, hwdb: Hwdb) -> RlRun | Unpredicted:
    """One row as a run, or the reason why it is none; `number` names it where its id is blank."""
    cells = Cells(row)
    name = cells.text("run_id") or cells.text("id") or f"row {number}"
    source = cells.text("source") or cells.text("source_id") or "given"
    try:
        return _run(name, source, cells, hwdb)
    except (CellError, TangramError) as error:
        return Unpredicted(name, source, str(error))


def model_of(cells: Cells) -> tuple[Model, float]:
    """The model of a row, and how many times larger the run's is than it where another one stands in.

    Raises CellError where no shipped model is near.
    """
    stated = cells.text("model")
    total, active = cells.number("params_b"), cells.number("active_b")
    for name in _spellings(stated):
        try:
            return load_model(_NAMES.get(name, name)), 1.0
        except TangramError:
            continue
    if total is None:
        raise CellError(f"model {stated or 'not stated'}: unknown, and params_b does not say its size")
    active = active or total
    near = []
    for name in model_names():
        model = load_model(name)
        apart = abs(log(model.parameters / total / 1e9)) + abs(log(model.active_parameters / active / 1e9))
        near.append((apart, name))
    apart, name = min(near)
    if apart > log(_SIMILAR):
        raise CellError(f"model {stated}: unknown, and no shipped model has about {total:g}B parameters")
    model = load_model(name)
    cells.assume("model", name, f"{stated} is not known; nearest in parameters")
    return model, active * 1e9 / model.active_parameters


def _spellings(stated: str) -> list[str]:
    """Ways in which a shipped model may have the name of a row: without its owner, suffixes and remarks."""
    plain = stated.split("(", maxsplit=1)[0].strip()
    found = [plain, plain.lower()]
    tail = plain.split("/")[-1].lower()
    found.append(tail)
    while True:
        shorter = next((tail[: -len(end)] for end in _SUFFIXES if tail.endswith(end)), tail)
        if shorter == tail:
            break
        tail = shorter
        found.append(tail)
    for owner in ("qwen", "meta-llama", "deepseek-ai", "google", "mistralai", "facebook"):
        found += [f"{owner}/{plain}", f"{owner}/{tail}"]
    squeezed = (
        tail.replace("llama-3.1-", "llama3-").replace("llama-3-", "llama3-").replace("llama-2-", "llama2-")
    )
    squeezed = (
        squeezed.replace("llama-2 ", "llama2-").replace("gemma-2-", "gemma2-").replace("gemma-3-", "gemma3-")
    )
    return [one for one in [*found, squeezed, squeezed.replace(" ", "-")] if one]


def _yes(text: str) -> bool | None:
    """A cell that answers a question; None where it is blank."""
    words = text.strip().lower()
    if not words:
        return None
    return words.startswith(("yes", "true", "1", "on"))


def _gpu_of(cells: Cells, column: str, hwdb: Hwdb) -> str:
    stated = cells.text(column)
    if not stated:
        raise CellError(f"{column} is not stated, and seconds depend on it")
    return hwdb.gpu(stated).name


def _run(name: str, source: str, cells: Cells, hwdb: Hwdb) -> RlRun:
    model, stand_in = model_of(cells)
    gpu = _gpu_of(cells, "gpu", hwdb)
    rollout_gpu = _gpu_of(cells, "gpu_rollout", hwdb) if cells.text("gpu_rollout") else gpu
    work = workload_of(cells, model)
    mode, placement = mode_of(cells)
    train_gpus, rollout_gpus = _pools(cells, placement)
    training = _training(cells, work, gpu, train_gpus, placement == COLOCATED, hwdb)
    rollout = _rollout(cells, work, rollout_gpu, rollout_gpus, placement == COLOCATED, hwdb)
    phases = {
        column: value for column in PHASE_COLUMNS if (value := cells.number(column)) is not None and value > 0
    }
    if placement != COLOCATED:
        phases.pop("gen_s", None)  # in split runs it is waiting, not generation
    step = cells.number("step_s")
    score = cells.text("score").lower()
    excluded = any(flag.startswith("X_") for flag in cells.text("flags").split())
    return RlRun(
        id=name,
        source=source,
        model_name=cells.text("model"),
        gpu=gpu,
        framework=cells.text("framework"),
        mode=cells.text("mode") or mode.kind,
        work=work,
        plan=RlPlan(training, (rollout,), placement, mode, _sync_method(cells, placement)),
        step_s=step or None,
        phases_s=phases,
        scored=score in ("", "step") and not excluded and bool(step),
        assumed=tuple(cells.assumed),
        stand_in=stand_in,
        version=cells.text("framework_version"),
        sequences=work.sequences,
    )


def workload_of(cells: Cells, model: Model) -> PostTraining:
    """The step of a row. Raises CellError where nothing says how many sequences or tokens it has."""
    prompts, samples = cells.count("prompts_per_step"), cells.count("samples_per_prompt")
    sequences = cells.count("sequences_per_step") or (prompts * samples if prompts and samples else None)
    if sequences is None and prompts is None:
        raise CellError("sequences_per_step is not stated, nor prompts_per_step and samples_per_prompt")
    if samples is None:
        samples = max(round(sequences / prompts), 1) if sequences and prompts else USUAL_SAMPLES
        if not (sequences and prompts):
            cells.assume("samples_per_prompt", samples, "usual")
    prompts = prompts or max(round((sequences or samples) / samples), 1)
    sequences = sequences or prompts * samples
    lengths, prompt = lengths_of(cells)
    epochs = cells.count("ppo_epochs") or 1
    updates = cells.count("updates_per_step")
    batch = cells.count("train_batch_sequences")
    if updates is None:
        updates = max(round(epochs * sequences / batch), 1) if batch else 1
        if not batch:
            cells.assume("updates_per_step", updates, "one update of all sequences")
    skipped = _yes(cells.text("old_logprob_skipped"))
    algorithm = cells.text("algorithm").lower()
    critic_stated = _yes(cells.text("critic"))
    critic = critic_stated if critic_stated is not None else algorithm == "ppo"
    reference = _yes(cells.text("reference"))
    if reference is None:
        reference = algorithm not in ("dapo", "gspo") and skipped is not True
        cells.assume("reference", "yes" if reference else "no", f"usual with {algorithm or 'GRPO'}")
    reward = cells.text("reward").lower().startswith("model")
    return PostTraining(
        model=model,
        prompts=prompts,
        samples=samples,
        prompt_tokens=prompt,
        lengths=lengths,
        updates=min(updates, sequences * epochs),
        epochs=epochs,
        reference=reference,
        old_logprobs=not skipped,
        critic=model if critic else None,
        reward_model=model if reward else None,
        rollout_precision=_precision(cells, "gen_precision"),
        dtype=_precision(cells, "train_precision"),
    )


def _precision(cells: Cells, column: str) -> str:
    words = cells.text(column).lower()
    return next((one for one in ("mxfp8", "fp8", "fp16", "fp32") if one in words), "bf16")


def lengths_of(cells: Cells) -> tuple[LognormalLengths, float]:
    """(response lengths, mean prompt tokens) of a row; assumed from the cap where it states no mean."""
    prompt, response = cells.number("mean_prompt"), cells.number("mean_response")
    total, cap_total = cells.number("mean_total"), cells.count("max_total")
    cap, most_prompt = cells.count("max_response"), cells.count("max_prompt")
    if prompt is None and total and response:
        prompt = max(total - response, 1.0)
    if prompt is None:
        prompt = min(USUAL_PROMPT, (most_prompt or USUAL_PROMPT * 4) / 2.0)
        cells.assume("mean_prompt", round(prompt), "usual")
    if response is None and total:
        response = max(total - prompt, 1.0)
    if cap is None:
        cap = int(cap_total - prompt) if cap_total else None
    if response is None:
        if cap is None:
            raise CellError(
                "neither mean_response nor max_response is stated: nothing says how much is generated"
            )
        response = min(USUAL_SHARE_OF_CAP * cap, USUAL_RESPONSE)
        cells.assume("mean_response", round(response), "share of the cap")
    if cap is None or cap < response:
        cap = int(4 * response)
        cells.assume("max_response", cap, "four times the mean")
    share = cells.number("capped_share")
    if share and 0 < share < 1:
        try:
            return lognormal_capped(response, cap, share), prompt
        except TangramError:
            pass
    return lognormal(max(response, 1.0), cap), prompt


def mode_of(cells: Cells) -> tuple[Mode, str]:
    """(mode, placement) in the words of a row."""
    words = cells.text("mode").lower().replace("-", "_")
    placement = cells.text("placement").lower()
    colocated = words.startswith("colocated") or (not words and placement in ("", "colocated"))
    versions = cells.number("staleness_versions")
    share = cells.number("staleness_fraction")
    fetches = cells.count("sync_every_updates") or 1
    at_sync = IN_FLIGHT if _yes(cells.text("in_flight_update")) else DRAIN
    if _yes(cells.text("partial_rollout")):
        at_sync = PARTIAL
    if colocated:
        return Mode(SYNC), COLOCATED
    if words in ("split_sync", "sync", "synchronous"):
        return Mode(SYNC), SPLIT
    if words in ("one_step_off", "one_step_off_policy") or (versions == 1 and share is None):
        return Mode(ONE_STEP_OFF, eta=1, at_sync=at_sync), SPLIT
    if share is not None and versions is None:
        return Mode(ASYNC, share=share, at_sync=at_sync, fetches=fetches), SPLIT
    if versions is None:
        cells.assume("staleness_versions", 4, "usual")
    return Mode(
        ASYNC, eta=int(versions if versions is not None else 4), at_sync=at_sync, fetches=fetches
    ), SPLIT


def _pools(cells: Cells, placement: str) -> tuple[int, int]:
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


def _sync_method(cells: Cells, placement: str) -> str:
    """How a framework moves weights: NeMo-RL in packed broadcasts, verl in buckets."""
    if placement == COLOCATED:
        return GATHER
    framework = cells.text("framework").lower()
    return PACKED if "nemo" in framework else BUCKETED if "verl" in framework else BROADCAST


def _training(
    cells: Cells, work: PostTraining, gpu: str, gpus: int, colocated: bool, hwdb: Hwdb
) -> TrainingPool:
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
        sequence_parallel=bool(_yes(cells.text("sequence_parallel"))) and tp > 1,
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


def _rollout(
    cells: Cells, work: PostTraining, gpu: str, gpus: int, colocated: bool, hwdb: Hwdb
) -> RolloutReplicas:
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


def wider(run: RlRun, sigma: float, unstated: float) -> float:
    """The log standard deviation of a run's step: wider for each kind of thing that the row leaves open."""
    return float((sigma**2 + unstated**2 * min(len(run.assumed), 4) / 2.0) ** 0.5)


def fitting_rollout(run: RlRun) -> list[RolloutReplicas]:
    """The run's replicas, and what it may have meant where they do not fit: more memory, then wider ones."""
    first = run.plan.rollout[0]
    options = [first, replace(first, memory_fraction=0.95)]
    tp = first.tp * 2
    while tp <= first.count * first.tp * first.pp and tp <= 64:
        options.append(replace(first, tp=tp, count=max(first.count * first.tp // tp, 1), memory_fraction=0.9))
        tp *= 2
    return options


def geometric(values: list[float]) -> float:
    """Geometric mean."""
    return exp(sum(map(log, values)) / len(values))

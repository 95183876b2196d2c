"""Rows of measured post-training runs, as workloads and plans; blank cells get their usual meaning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
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
)
from tangram_sim.post_training.workload import PostTraining
from tangram_validate.post_training.models import model_of
from tangram_validate.post_training.pools import pool_sizes, rollout_pool, sync_method, training_pool, yes
from tangram_validate.published.cells import CellError, Cells
from tangram_validate.published.table import WIDTH

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
    gpus: int = 0
    first_100_h: float | None = None  # hours of the first 100 steps


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
        if cells.text(WIDTH):
            raise CellError(cells.text(WIDTH))
        return _run(name, source, cells, hwdb)
    except (CellError, TangramError) as error:
        return Unpredicted(name, source, str(error))


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
    train_gpus, rollout_gpus = pool_sizes(cells, placement)
    training = training_pool(cells, work, gpu, train_gpus, placement == COLOCATED, hwdb)
    rollout = rollout_pool(cells, work, rollout_gpu, rollout_gpus, placement == COLOCATED, hwdb)
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
        plan=RlPlan(training, (rollout,), placement, mode, sync_method(cells, placement)),
        step_s=step or None,
        phases_s=phases,
        scored=score in ("", "step") and not excluded and bool(step),
        assumed=tuple(cells.assumed),
        stand_in=stand_in,
        version=cells.text("framework_version"),
        sequences=work.sequences,
        gpus=cells.count("gpus") or train_gpus + (rollout_gpus if placement != COLOCATED else 0),
        first_100_h=cells.number("total_h_100"),
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
    skipped = yes(cells.text("old_logprob_skipped"))
    algorithm = cells.text("algorithm").lower()
    critic_stated = yes(cells.text("critic"))
    critic = critic_stated if critic_stated is not None else algorithm == "ppo"
    reference = yes(cells.text("reference"))
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
    return next((item for item in ("mxfp8", "fp8", "fp16", "fp32") if item in words), "bf16")


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
    """(mode, placement) in the words of a row; a stated placement decides over the one in the mode's name."""
    words = cells.text("mode").lower().replace("-", "_")
    placement = cells.text("placement").lower()
    if placement not in (COLOCATED, SPLIT):
        placement = COLOCATED if not words or words.startswith(COLOCATED) else SPLIT
    words = words.removeprefix("colocated_").removeprefix("split_")
    versions = cells.number("staleness_versions")
    share = cells.number("staleness_fraction")
    fetches = cells.count("sync_every_updates") or 1
    at_sync = IN_FLIGHT if yes(cells.text("in_flight_update")) else DRAIN
    if yes(cells.text("partial_rollout")):
        at_sync = PARTIAL
    if placement == COLOCATED:
        return Mode(SYNC), COLOCATED
    silent = words in ("", COLOCATED, SPLIT) and not versions and not share
    if silent or words in ("sync", "synchronous"):
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

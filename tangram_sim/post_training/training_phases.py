"""Seconds of the phases that the training stack runs: updates, and forward-only passes for scores.

Packed micro-batches are priced as whole sequences of the length that a mean token attends within (mean square
over mean of the drawn lengths): products then have the tokens of the pack, attention the sum of its squared
lengths.
"""

import heapq
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.post_training.lengths import Ints
from tangram_sim.post_training.plan import TrainingPool
from tangram_sim.post_training.workload import PostTraining
from tangram_sim.training.job import Job
from tangram_sim.training.schedules.step import play_steps
from tangram_sim.training.step.lowered import LoweredStep, Lowering
from tangram_sim.units import show_bytes

FILL = 0.95  # of a packed micro-batch's tokens, as first-fit packing of drawn lengths leaves it


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Micro-batches of one rank: `count` of them, each of `sequences` sequences of `seq` tokens."""

    count: int
    sequences: int
    seq: int


@dataclass(frozen=True)
class TrainingPhases:
    """Seconds of one update and of one forward-only pass over a step; bytes of the fullest rank.

    `token_s`: compute seconds per token of a rank's share in its slowest stage, (forward and backward,
    forward), from which a search derives lower bounds for other data-parallel degrees.
    """

    update_s: float
    forward_s: float
    first_stage_bytes: float
    capacity_bytes: float
    static_bytes: float
    token_s: tuple[float, float] = (0.0, 0.0)

    def require_fit(self) -> None:
        """Raise InfeasibleError, naming the phase, where an update does not fit memory."""
        if self.first_stage_bytes > self.capacity_bytes:
            raise InfeasibleError(
                f"policy update: {show_bytes(self.first_stage_bytes)} on the fullest GPU, of "
                f"{show_bytes(self.capacity_bytes)}; give more `tp=` or `pp=`, recomputation or smaller packs"
            )


def passes_of(
    work: PostTraining, pool: TrainingPool, sequences: float, budget: int, uneven: float
) -> MicroBatches:
    """Micro-batches of a rank's share of `sequences`: packs of up to `budget` tokens, or padded rows."""
    share = sequences / pool.dp
    layout = pool.layout
    grain = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
    if not budget:
        padded = _rounded(pool.padded_tokens or work.prompt_tokens + work.lengths.cap, grain)
        return MicroBatches(max(ceil(share / layout.micro_batch - 1e-9), 1), layout.micro_batch, padded)
    tokens = share * work.mean_tokens * uneven
    count = max(ceil(tokens / (FILL * budget) - 1e-9), 1)
    each = tokens / count
    together = max(round(each / work.attended_tokens), 1)
    return MicroBatches(count, together, _rounded(each / together, grain))


def _rounded(tokens: float, grain: int) -> int:
    return max(round(tokens / grain), 1) * grain


def unevenness(lengths: Ints, prompt_tokens: float, dp: int, updates: int) -> float:
    """Tokens of the fullest rank over the mean, if the longest sequences go first to the emptiest rank."""
    tokens = lengths.reshape(-1) + prompt_tokens
    found = []
    for part in np.array_split(tokens, updates):
        loads = [0.0] * dp
        for item in np.sort(part)[::-1].tolist():
            heapq.heapreplace(loads, loads[0] + item)
        found.append(max(loads) * dp / part.sum())
    return float(np.mean(found))


def with_allowed_experts(pool: TrainingPool) -> Uniform:
    """The pool's layout, with `ep` reduced to what dp x cp allows if it spans tensor-parallel ranks."""
    layout, ranks = pool.layout, pool.dp * pool.layout.cp
    if layout.ep <= 1 or ranks % layout.ep == 0:
        return layout
    return replace(layout, ep=max(degree for degree in range(1, layout.ep + 1) if not ranks % degree))


def phases_of(
    model: Model,
    work: PostTraining,
    pool: TrainingPool,
    hwdb: Hwdb,
    uneven: float = 1.0,
) -> TrainingPhases:
    """Seconds of an update and of a forward-only pass of `model` over the step's sequences.

    Raises BadInputError or InfeasibleError for invalid layouts.
    """
    layout = with_allowed_experts(pool)
    share = (work.update_sequences, pool.pack_tokens)
    update = _lowered(model, work, pool, layout, hwdb, share, uneven=uneven)
    whole = update
    budget = pool.logprob_tokens or pool.pack_tokens
    if budget != pool.pack_tokens or work.updates != 1 or work.epochs != 1:
        every = (work.sequences, budget)
        whole = _lowered(model, work, pool, layout, hwdb, every, uneven=uneven, few=True)
    fullest = max(range(len(update.prices)), key=update.peak_bytes)
    return TrainingPhases(
        update_s=float(play_steps(update.template, update.template.durations(update.times)[None])[0]),
        forward_s=forward_only_s(whole, passes_of(work, pool, work.sequences, budget, uneven).count),
        first_stage_bytes=update.peak_bytes(fullest),
        capacity_bytes=update.capacity_bytes(fullest),
        static_bytes=sum(chunk.static_bytes for chunk in update.prices[fullest]),
        token_s=_token_s(update, passes_of(work, pool, *share, uneven)),
    )


def _token_s(step: LoweredStep, passes: MicroBatches) -> tuple[float, float]:
    """Compute seconds per token of the slowest stage: (forward and backward, forward)."""
    times, tokens = step.times, passes.sequences * passes.seq
    both = times.forward_s + times.backward_input_s + times.backward_weight_s
    return float(both.sum(axis=1).max()) / tokens, float(times.forward_s.sum(axis=1).max()) / tokens


def _lowered(
    model: Model,
    work: PostTraining,
    pool: TrainingPool,
    layout: Uniform,
    hwdb: Hwdb,
    share: tuple[float, int],
    *,
    uneven: float = 1.0,
    few: bool = False,
) -> LoweredStep:
    """The lowered step for `share`: (number of sequences, tokens of a micro-batch).

    `few`: only as many micro-batches as pricing one requires.
    """
    passes = passes_of(work, pool, *share, uneven)
    count = min(passes.count, layout.pp) if few else passes.count
    if layout.vpp > 1:  # interleaved schedules pass in whole rounds
        count = ceil(count / layout.pp) * layout.pp
    job = Job(
        global_batch=count * passes.sequences * pool.dp,
        seq=passes.seq,
        dtype=work.dtype,
        schedule="interleaved" if layout.vpp > 1 else "1f1b",
        stack=pool.stack,
    )
    plan = uniform_plan(model, pool.cluster, job, replace(layout, micro_batch=passes.sequences, dp=pool.dp))
    return Lowering.of(plan, hwdb).lower(plan.pipelines[0])


def forward_only_s(step: LoweredStep, microbatches: int) -> float:
    """Seconds in which micro-batches pass all stages of a step forward, without backward passes.

    The first pass fills the pipeline, each later one follows it by the time of the slowest stage.
    """
    stages = step.times.forward_s.sum(axis=1)
    sends = step.times.send_forward_s[: len(stages) - 1]
    slowest = float(max(stages.max(), sends.max(initial=0.0)))
    return float(stages.sum() + sends.sum()) + (microbatches - 1) * slowest


def compute_s(model: Model, work: PostTraining, pool: TrainingPool, hwdb: Hwdb) -> tuple[float, float]:
    """Compute seconds of a whole step on one GPU: (forward and backward passes, forward passes).

    Without gradient reduction, optimizer and memory limits, for use in a lower bound.
    """
    step = _lowered(model, work, pool, pool.layout, hwdb, (work.sequences, pool.pack_tokens), few=True)
    forward, backward = (
        float(step.times.forward_s.sum()),
        float(step.times.backward_input_s.sum() + step.times.backward_weight_s.sum()),
    )
    taken = passes_of(work, pool, work.sequences, pool.pack_tokens, 1.0)
    passes = work.trained_tokens / (taken.sequences * taken.seq)
    return passes * (forward + backward), passes * forward

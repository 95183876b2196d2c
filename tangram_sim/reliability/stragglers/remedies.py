"""Remedies for the slow ranks of a measured run: each with its gain, its price and its payback time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tangram_sim.reliability.stragglers.escalation import Escalation, RemedyOption, escalate
from tangram_sim.reliability.stragglers.partition import layer_times, move_layers, shared_out
from tangram_sim.reliability.stragglers.regrouping import regrouped_paces
from tangram_sim.reliability.stragglers.replay import Replay
from tangram_sim.reliability.stragglers.replicas import (
    MeasuredPipeline,
    measured_pipeline,
    split_by_speed,
)
from tangram_sim.reliability.stragglers.sequences import resorted_factors
from tangram_sim.reliability.stragglers.tensor_shares import (
    PUBLISHED_PRUNED,
    LayerCosts,
    even,
    hybrid,
    lossless_bound_s,
    resized,
)
from tangram_sim.reliability.stragglers.tensor_traffic import SharingCosts
from tangram_sim.reliability.stragglers.whatif import StragglerCost, ideal_work_s
from tangram_sim.reliability.traces.kinds import CODES

# Seconds, GREYHOUND (USENIX ATC 2025, by a third party's summary): 36 s for a re-split over 512 replicas.
RESPLIT_S = 36.0
# From the fault to full recovery, Llama 3 8B (github:meta-pytorch/torchft issue 329).
RESTART_S = 948.0

# Swapping two links' roles (the same source).
SWAP_S = 60.0
# A stage's collectives over replicas are congested from so many times the other stages' time on; the first
# and the last one hold an embedding beside their layers.
CONGESTED = 1.5

# Steps that fall by less are no gain: rounding.
_WORTH = 1e-6
# Passes longer than their stage's median by this factor are a slow worker's.
_SLOW = 1.01


@dataclass(frozen=True, slots=True)
class Setup:
    """Properties of the measured run that its trace does not contain."""

    layers: tuple[int, ...] = ()  # per stage; empty: not known
    tp: int = 1  # ranks of one worker
    restart_s: float = RESTART_S
    max_pruned: float = 0.0  # share of columns that may be pruned; 0: resizing is not considered
    sequences: tuple[tuple[int, ...], ...] = ()  # tokens of the sequences in each microbatch of a step
    gpus_per_node: int = 0  # among which tensor-parallel ranks can be exchanged; 0: among all
    added: tuple[SharingCosts, ...] = ()  # per stage, what moving columns costs there; empty: not known


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy against slow ranks: what it is, the step time that it leads to, its one-off price."""

    name: str
    step_s: float
    gain: Annotated[float, Field(description="step before over step after")]
    price_s: Annotated[float, Field(description="seconds that taking it costs once")]
    payback_s: Annotated[
        float | None, Field(description="running time that earns the price back; null: never")
    ]
    detail: str
    pruned_share: Annotated[
        float, Field(description="share of columns nobody computes: the risk to accuracy")
    ] = 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """Remedies, best first; reasons for those not considered; the order to apply them as time is lost."""

    remedies: tuple[Remedy, ...]
    left_out: tuple[str, ...]
    escalation: tuple[Escalation, ...]


def advise(found: StragglerCost, replay: Replay, setup: Setup) -> Advice:
    """Remedies for the slow ranks that the analysis found."""
    pipeline = measured_pipeline(replay)
    remedies: list[Remedy] = []
    left_out: list[str] = []
    for candidates, reason in (
        (_resplit(pipeline), "re-split microbatches: one replica only"),
        (_moved(pipeline, setup), "move layers: give `layers=`, the layers of each stage, and two stages"),
        (_dropped(pipeline, setup), "drop a replica: one replica only"),
        (_tensor(pipeline, setup), "uneven tensor shares: give `tp=`, the ranks of each worker, 2 or more"),
        (_regrouped(pipeline, setup), "regroup tensor-parallel ranks: give `tp=`, and two slow workers"),
        (_swapped(found, replay), "swap the roles of links: no stage's collectives are congested"),
        (_resorted(found, replay, setup), "re-sort sequences: microbatches do not differ by their lengths"),
        (_replaced(found, replay, setup), "replace the worker: no single worker explains half of the loss"),
    ):
        remedies += candidates
        left_out += [] if candidates else [reason]
    ranked = tuple(sorted(remedies, key=lambda remedy: (remedy.step_s, remedy.price_s)))
    lost = found.replayed_step_s
    choices = [RemedyOption("do nothing", 0.0, 1 - found.ideal_step_s / lost if lost else 0.0)]
    choices += [
        RemedyOption(r.name, r.price_s, max(1 - found.ideal_step_s / r.step_s, 0.0))
        for r in ranked
        if r.gain > 1 + _WORTH
    ]
    return Advice(ranked, tuple(left_out), escalate(choices))


def _remedy(
    pipeline_s: float, name: str, step_s: float, price_s: float, detail: str, pruned: float = 0.0
) -> Remedy:
    saved = pipeline_s - step_s
    payback = price_s / saved * step_s if saved > _WORTH * pipeline_s else None
    return Remedy(
        name,
        step_s,
        gain=pipeline_s / step_s,
        price_s=price_s,
        payback_s=payback,
        detail=detail,
        pruned_share=pruned,
    )


def _resplit(pipeline: MeasuredPipeline) -> list[Remedy]:
    """Remedy: microbatches per replica by speed, greedily by its bottleneck stage, then simulated."""
    if pipeline.dp < 2:
        return []
    counts = split_by_speed(pipeline, pipeline.forward_s, pipeline.backward_s)
    step = pipeline.changed_step_s(pipeline.forward_s, pipeline.backward_s, counts)
    detail = f"microbatches per replica {_spelled(counts)}"
    return [_remedy(pipeline.step_s, "re-split microbatches", step, RESPLIT_S, detail)]


def _moved(pipeline: MeasuredPipeline, setup: Setup) -> list[Remedy]:
    """Remedies: move layers from slow stages to fast ones, without and with redistributing microbatches."""
    if not setup.layers or pipeline.stages < 2:
        return []
    found = []
    for name, split in (("move layers", None), ("move layers and re-split microbatches", split_by_speed)):
        if split is not None and pipeline.dp < 2:
            continue
        cut, step = move_layers(pipeline, setup.layers, split)
        if split is not None and cut == setup.layers:  # that is the re-split alone
            continue
        words = f"layers per stage {' '.join(map(str, cut))} instead of {' '.join(map(str, setup.layers))}"
        if split is not None:
            counts, _ = shared_out(pipeline, layer_times(pipeline, setup.layers).passes_s(cut), split)
            words += f", microbatches {_spelled(counts)}"
        found.append(_remedy(pipeline.step_s, name, step, setup.restart_s, words))
    return found


def _dropped(pipeline: MeasuredPipeline, setup: Setup) -> list[Remedy]:
    """Remedy: drop the slowest replica; the others run its microbatches."""
    if pipeline.dp < 2:
        return []
    slowest = int((pipeline.forward_s + pipeline.backward_s).max(axis=1).argmax())
    rest, over = divmod(pipeline.dp * pipeline.microbatches, pipeline.dp - 1)
    others = [replica for replica in range(pipeline.dp) if replica != slowest]
    counts = [0] * pipeline.dp
    for place, replica in enumerate(others):
        counts[replica] = rest + (place < over)
    step = pipeline.changed_step_s(pipeline.forward_s, pipeline.backward_s, counts)
    detail = f"replica {slowest} leaves, the others run {rest + bool(over)} microbatches at most"
    return [_remedy(pipeline.step_s, "drop the replica", step, setup.restart_s, detail)]


def _tensor(pipeline: MeasuredPipeline, setup: Setup) -> list[Remedy]:
    """Remedies: columns of tensor-parallel groups by speed. One rank of each slow worker is assumed to be
    slow."""
    if setup.tp < 2:
        return []
    slowness, healthy_s = _slowness(pipeline)
    found = []
    ways = [("uneven tensor shares", ""), ("unit migration", "unit-migration")]
    if setup.max_pruned > 0:
        ways += [("ZERO-resizing", "zero-resizing"), ("SEMI-migration", "semi-migration")]
    for name, method in ways:
        factor = np.ones_like(slowness)
        pruned = 0.0
        for place in np.argwhere(slowness > 1):
            cell = tuple(place.tolist())
            slow = [float(slowness[cell]), *[1.0] * (setup.tp - 1)]
            costs = LayerCosts(float(healthy_s[cell[1]]))
            if setup.added and method:
                costs = setup.added[cell[1]].costs(costs, method)
            if not method:
                layer_s = lossless_bound_s(slow, costs)
            else:
                most = 0.0 if method == "unit-migration" else setup.max_pruned
                way = resized if method == "zero-resizing" else hybrid
                shared = way(slow, costs, PUBLISHED_PRUNED, most)
                layer_s, pruned = shared.layer_s, max(pruned, shared.pruned_share)
            factor[cell] = layer_s / even(slow, costs).layer_s
        step = pipeline.changed_step_s(
            pipeline.forward_s * factor, pipeline.backward_s * factor, [pipeline.microbatches] * pipeline.dp
        )
        detail = f"one of {setup.tp} ranks of a slow worker is slow; layers taken as divisible, none fixed"
        if method and method != "zero-resizing" and not setup.added:
            detail += "; transfer not priced: give `plan=`"
        if method in ("zero-resizing", "semi-migration"):
            detail += f"; up to {pruned * 100:.1f} % of a group's columns pruned (accuracy is not simulated)"
        if method == "semi-migration":
            detail += "; traffic as published, the split is ours"
        found.append(_remedy(pipeline.step_s, name, step, setup.restart_s, detail, pruned))
    return found


def _slowness(pipeline: MeasuredPipeline) -> tuple[npt.NDArray[np.float64], ...]:
    """How many times longer the passes of each worker take than their stage's median, 1 where hardly longer,
    [dp, stages]; that median in seconds, [stages].
    """
    passes = pipeline.forward_s + pipeline.backward_s
    healthy_s = np.median(passes, axis=0)
    slowness = passes / healthy_s
    return np.where(slowness < _SLOW, 1.0, slowness), healthy_s


def _regrouped(pipeline: MeasuredPipeline, setup: Setup) -> list[Remedy]:
    """Remedy: slow ranks of several workers form one tensor-parallel group; then microbatches by speed."""
    slowness, _ = _slowness(pipeline)
    if setup.tp < 2 or (slowness > 1).sum() < 2:
        return []
    paces = regrouped_paces(slowness, setup.tp, setup.gpus_per_node // setup.tp)
    factor = np.where(slowness > 1, paces / slowness, paces)
    forward, backward = pipeline.forward_s * factor, pipeline.backward_s * factor
    counts = [pipeline.microbatches] * pipeline.dp
    if pipeline.dp > 1:
        counts = split_by_speed(pipeline, forward, backward)
    step = pipeline.changed_step_s(forward, backward, counts)
    detail = (
        f"slow ranks of {int((slowness > 1).sum())} workers meet in {int((paces > 1).sum())}, microbatches "
        f"per replica {_spelled(counts)}; one of {setup.tp} ranks of a slow worker is slow"
    )
    return [_remedy(pipeline.step_s, "regroup tensor-parallel ranks", step, setup.restart_s, detail)]


def _swapped(found: StragglerCost, replay: Replay) -> list[Remedy]:
    """Remedy: a congested link of the ring over replicas is exchanged with a link between pipeline stages.

    The stage's collectives then take as long as others'; its sends and receives slow down by the same factor.
    """
    trace, work = replay.trace, replay.work_s.copy()
    ring, hops = (
        np.isin(trace.kind, [CODES[code] for code in codes])
        for codes in (("AG", "RS"), ("FS", "FR", "BS", "BR"))
    )
    if trace.stages < 2 or trace.dp < 2 or not ring.any() or not hops.any():
        return []
    taken = np.array([work[:, ring & (trace.rank_stage == stage)].mean() for stage in range(trace.stages)])
    stage = int(taken.argmax())
    usual = float(np.median(np.delete(taken, stage)))
    if usual <= 0 or taken[stage] < CONGESTED * usual:
        return []
    factor = float(taken[stage] / usual)
    here = trace.rank_stage == stage
    work[:, ring & here] /= factor
    work[:, hops & here] *= factor
    step = float(replay.steps_s(work).mean())
    detail = f"collectives of stage {stage} take {factor:.2f} times the others'; its hops would instead"
    return [_remedy(found.replayed_step_s, "swap the roles of links", step, SWAP_S, detail)]


def _resorted(found: StragglerCost, replay: Replay, setup: Setup) -> list[Remedy]:
    """Remedy: sort sequences into microbatches of similar cost; without `sequences`, as if all were equal."""
    if found.pattern.name != "sequence lengths" and not setup.sequences:
        return []
    trace, work = replay.trace, replay.work_s.copy()
    factors = resorted_factors(trace, setup.sequences)
    for code, factor in factors.items():
        here = trace.of_kind(code)
        work[:, here] = work[:, here] * factor[:, here]
    step = float(replay.steps_s(work).mean())
    detail = (
        "longest first onto the least sum of squares of all microbatches of a step"
        if setup.sequences
        else "at best: every microbatch as long as the mean (give `sequences=` for the lengths at hand)"
    )
    return [_remedy(found.replayed_step_s, "re-sort sequences", step, 0.0, detail)]


def _replaced(found: StragglerCost, replay: Replay, setup: Setup) -> list[Remedy]:
    """Remedy: replace the suspects' GPUs by healthy ones; these workers then take the ideal times."""
    if found.pattern.name != "worker":
        return []
    trace, work, ideal = replay.trace, replay.work_s.copy(), ideal_work_s(replay)
    for worker in found.suspects:
        here = (trace.rank_dp == worker.dp) & (trace.rank_stage == worker.stage)
        work[:, here] = ideal[here]
    step = float(replay.steps_s(work).mean())
    names = ", ".join(f"(dp {w.dp}, stage {w.stage})" for w in found.suspects)
    return [
        _remedy(found.replayed_step_s, "replace the worker", step, setup.restart_s, f"a spare for {names}")
    ]


def _spelled(counts: Sequence[int]) -> str:
    """Numbers as text, with runs of equal ones abbreviated: 8 12 x3."""
    words: list[list[int]] = []
    for count in counts:
        if words and words[-1][0] == count:
            words[-1][1] += 1
        else:
            words.append([count, 1])
    return " ".join(f"{count} x{times}" if times > 1 else f"{count}" for count, times in words)

"""Moving layers between the stages of a measured pipeline, so that slow stages hold fewer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray
from tangram_sim.reliability.stragglers.replicas import MeasuredPipeline


@dataclass(frozen=True, slots=True, eq=False)
class LayerTimes:
    """Pass times in factors: seconds of a healthy layer, of the last stage's extra work, workers' slowdown.

    Forward and backward are the two entries of `layer_s` [2] and `last_s` [2]; `slowness` is [dp, stages].
    """

    layer_s: FloatArray
    last_s: FloatArray
    slowness: FloatArray

    def passes_s(self, layers: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """(forward, backward) seconds [dp, stages] with `layers[s]` layers on stage s."""
        work = self.layer_s[:, None] * np.asarray(layers, dtype=np.float64)
        work[:, -1] += self.last_s
        return work[0] * self.slowness, work[1] * self.slowness


def layer_times(pipeline: MeasuredPipeline, layers: Sequence[int]) -> LayerTimes:
    """Split the pass times of a pipeline with `layers[s]` layers on stage s into the factors of `LayerTimes`.

    A healthy layer is the median over the workers before the last stage; the last stage's extra (the head and
    the loss) is what its fastest worker takes beyond its layers. Raises `BadInputError` unless every stage
    has a layer or more.
    """
    if len(layers) != pipeline.stages or min(layers) < 1:
        raise BadInputError(
            f"layers {list(layers)}: give one number per stage, {pipeline.stages} of them, 1 or more each"
        )
    held = np.asarray(layers, dtype=np.float64)
    passes = np.stack((pipeline.forward_s, pipeline.backward_s))  # [2, dp, stages]
    front = (passes / held)[:, :, :-1] if pipeline.stages > 1 else passes / held
    layer = np.median(front, axis=(1, 2))
    last = np.maximum(passes[:, :, -1].min(axis=1) - layer * held[-1], 0.0)
    if pipeline.stages == 1:
        last = np.zeros(2)
    expected = layer[:, None] * held
    expected[:, -1] += last
    return LayerTimes(layer, last, passes.sum(axis=0) / expected.sum(axis=0))


# Microbatches of every replica, from a pipeline and the seconds of its passes forward and backward.
Split = Callable[[MeasuredPipeline, FloatArray, FloatArray], Sequence[int]]


def move_layers(
    pipeline: MeasuredPipeline, layers: Sequence[int], split: Split | None = None
) -> tuple[tuple[int, ...], float]:
    """(layers per stage, step seconds) of the best cut found, every candidate simulated.

    `split` redistributes the microbatches where that helps a cut; None: they stay. Local search from three
    cuts (the given one, one with balanced stages and, with `split`, the best without it) moves one or two
    layers from any stage to any other while the simulated step gets shorter.
    """
    times = layer_times(pipeline, layers)
    before = shared_out(pipeline, times.passes_s(layers))[1]
    known: dict[tuple[int, ...], float] = {}

    def played(cut: tuple[int, ...]) -> float:
        if cut not in known:
            known[cut] = shared_out(pipeline, times.passes_s(cut), split)[1]
        return known[cut]

    starts = [tuple(layers), _evened(times, sum(layers))]
    if split:
        starts.append(move_layers(pipeline, layers)[0])
    best = min((_descend(start, played) for start in starts), key=played)
    return best, max(pipeline.step_s + played(best) - before, played(best))


def shared_out(
    pipeline: MeasuredPipeline, passes_s: tuple[FloatArray, FloatArray], split: Split | None = None
) -> tuple[Sequence[int], float]:
    """(microbatches per replica, seconds): equal counts, or those of `split` where these finish earlier.

    A split by speed considers only each replica's slowest stage: warm-up and drain can make it slower.
    """
    ways = [[pipeline.microbatches] * pipeline.dp, *([split(pipeline, *passes_s)] if split else [])]
    told = [(counts, float(pipeline.pipelines_s(*passes_s, counts).max())) for counts in ways]
    return min(told, key=lambda way: way[1])


def _descend(start: tuple[int, ...], played: Callable[[tuple[int, ...]], float]) -> tuple[int, ...]:
    cut, least = start, played(start)
    while True:
        near = [moved for moved in _neighbours(cut) if played(moved) < least]
        if not near:
            return cut
        cut = min(near, key=played)
        least = played(cut)


def _neighbours(cut: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Cuts that move one or two layers from one stage to another."""
    found = []
    for source in range(len(cut)):
        for target in range(len(cut)):
            for count in (1, 2):
                if source != target and cut[source] > count:
                    moved = list(cut)
                    moved[source] -= count
                    moved[target] += count
                    found.append(tuple(moved))
    return found


def _evened(times: LayerTimes, layers: int) -> tuple[int, ...]:
    """A balanced cut: each layer after one per stage goes to the stage whose slowest worker ends soonest."""
    slowness = times.slowness.max(axis=0)
    layer, last = float(times.layer_s.sum()), float(times.last_s.sum())
    cut = [1] * len(slowness)
    for _ in range(layers - len(cut)):
        ends = [
            ((held + 1) * layer + (last if stage == len(cut) - 1 else 0.0)) * slowness[stage]
            for stage, held in enumerate(cut)
        ]
        cut[int(np.argmin(ends))] += 1
    return tuple(cut)

"""Types of plans: a priced partial plan (one slice on one island), and the whole plan with its decisions.

Predictions of a whole plan are made from it (`tangram_sim.studies.forecast`) rather than stored here, so that
another hardware database re-prices the same decisions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tangram_sim.clusters import Cluster, Gpu
from tangram_sim.fields import described, stated
from tangram_sim.layouts import Layout, gradient_copies
from tangram_sim.models import Model
from tangram_sim.training.job import Job

UNLIMITED = 1 << 30  # "fits however many stages stand behind"


@dataclass(frozen=True, slots=True)
class StagePrice:
    """The price of one pipeline stage: seconds per microbatch, bytes per rank."""

    forward_s: float
    backward_s: float
    backward_weight_s: float  # the part of backward_s that only weight gradients need
    gradient_sync_s: float  # once per step, not hidden by the last backward
    optimizer_s: float
    static_bytes: float
    activation_bytes: float  # per microbatch in flight
    transient_bytes: float
    capacity_bytes: float  # what the GPU can hold of these, held as the allocator holds them
    fragmentation: float = 0.0  # what the allocator caches beyond activations, as a share of them
    workspace_bytes: float = 0.0  # tensors of the software stack, whatever the layout
    context_bytes: float = 0.0  # outside the allocator: driver context, libraries, communication

    def peak_bytes(self, in_flight: int) -> float:
        """Peak bytes held by the allocator with `in_flight` microbatches: what must fit."""
        return self.static_bytes + (1.0 + self.fragmentation) * self._activations(in_flight)

    def tensor_bytes(self, in_flight: int) -> float:
        """Peak bytes of the tensors alone, with `in_flight` microbatches."""
        return self.static_bytes + self._activations(in_flight)

    def _activations(self, in_flight: int) -> float:
        return in_flight * self.activation_bytes + self.transient_bytes

    def in_flight_limit(self) -> int:
        """The most microbatches in flight that fit memory; 0 where none does."""
        free = (self.capacity_bytes - self.static_bytes) / (1.0 + self.fragmentation) - self.transient_bytes
        if free < self.activation_bytes:
            return 0
        return UNLIMITED if self.activation_bytes <= 0 else int(min(free / self.activation_bytes, UNLIMITED))


def passage(
    forward_s: Sequence[Any], backward_s: Sequence[Any], tail_s: Sequence[Any], hop_s: float
) -> tuple[Any, Any, Any]:
    """(latency, forward latency, closing) of consecutive stages, front to back, `hop_s` between neighbours.

    Latency is the time of one microbatch forward and backward. Closing is the latest end of any stage's tail
    (the work after its last backward), counted from when the first stage starts the last microbatch, in a
    pipeline without other waits. Stages are floats, or arrays over layouts.
    """
    latency = forward = closing = 0.0 * forward_s[0]
    for place in range(len(forward_s) - 1, -1, -1):
        hop = hop_s if place < len(forward_s) - 1 else 0.0
        total = forward_s[place] + backward_s[place] + 2 * hop
        latency = latency + total
        closing = _larger(closing + forward_s[place] + hop, latency + tail_s[place])
        forward = forward + forward_s[place] + hop
    return latency, forward, closing


def _larger(a: Any, b: Any) -> Any:
    """The larger of two floats, or of two arrays element by element."""
    return max(a, b) if isinstance(a, float) else np.maximum(a, b)


@dataclass(frozen=True, slots=True)
class LayoutRun:
    """The layout of a run of atoms [start, stop) inside a partial plan."""

    start: int
    stop: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Portion:
    """Share of an island's nodes in a partial plan on several islands: sequences of a microbatch, a layout.

    0 sequences: all islands together are one part under the partial plan's layout.
    """

    island: str
    nodes: int
    sequences: int
    layout: Layout
    runs: tuple[LayoutRun, ...] = ()


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """One slice on (a part of) one island, priced; `stages` holds its inner pipeline.

    `runs` is empty where `layout` applies to all atoms. Otherwise it gives the layout of every run of atoms,
    from `start` to `stop`; `layout` is that of the first, and all have the same `pp`. On a joint island
    `portions` gives the work of the nodes of each member island, and `nodes` is 1.
    """

    start: int  # atoms [start, stop)
    stop: int
    island: str
    nodes: int
    layout: Layout
    microbatch: int
    cuts: tuple[int, ...]  # atom boundaries of the inner stages, start and stop included
    stages: tuple[StagePrice, ...]
    hop_s: float  # transfer between neighbouring inner stages
    stages_behind: int  # the most pipeline stages behind it at which it still fits; -1: never
    boundary_bytes: float  # activations handed to the next stage per microbatch
    measured: bool = False
    runs: tuple[LayoutRun, ...] = ()
    portions: tuple[Portion, ...] = ()

    @property
    def slowest_s(self) -> float:
        """Seconds per microbatch of its slowest inner stage, forward and backward."""
        return max(stage.forward_s + stage.backward_s for stage in self.stages)

    @property
    def latency_s(self) -> float:
        """Seconds of one microbatch through the slice, forward and backward, inner transfers included."""
        return sum(stage.forward_s + stage.backward_s for stage in self.stages) + 2 * self.hop_s * (
            len(self.stages) - 1
        )

    @property
    def end_copies(self) -> int:
        """Copies of whole gradients of a tied matrix at the first atom; at the last if not from atom 0."""
        place = 0 if self.start == 0 else -1
        shared: Sequence[Portion | PartialPlan] = [
            portion for portion in self.portions if portion.sequences
        ] or [self]
        return gradient_copies([(item.runs[place] if item.runs else item).layout for item in shared])

    @property
    def tail_s(self) -> float:
        """The longest time that an inner stage needs after its last backward, seconds."""
        return max(stage.gradient_sync_s + stage.optimizer_s for stage in self.stages)


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """The layout of a run of transformer blocks [start, stop) inside a part."""

    layers: tuple[int, int]
    layout: Layout


@dataclass(frozen=True, slots=True)
class Part:
    """The ranks of one GPU kind in a stage, and the sequences of each microbatch they take."""

    island: str
    ranks: tuple[int, ...]
    sequences_per_microbatch: int
    layouts: tuple[LayerLayout, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline stage; `chunks` are runs of blocks (several: interleaved, none: embedding or head only)."""

    chunks: tuple[tuple[int, int], ...]
    embedding: bool
    head: bool
    parts: tuple[Part, ...]

    @property
    def layout(self) -> Layout:
        """Layout of the first layers of the first part, which is the stage's layout in the simple case."""
        return self.parts[0].layouts[0].layout

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the stage."""
        return tuple(rank for part in self.parts for rank in part.ranks)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in forward order, and its share of the step: `microbatches` passes of `microbatch` sequences."""

    microbatches: int
    microbatch: int
    stages: tuple[Stage, ...]


def sequences_processed(pipelines: Sequence[Pipeline]) -> int:
    """Capacity in sequences per step of all `pipelines` together."""
    return sum(pipeline.microbatches * pipeline.microbatch for pipeline in pipelines)


def holds_batch(pipelines: Sequence[Pipeline], global_batch: int) -> bool:
    """Whether the pipelines' capacity matches a global batch: exactly, or with a partial last microbatch.

    Partial only in a single pipeline, and never empty: it is priced as a full one, as in Sailor's model,
    whose replicas need not divide the batch (10 of them, 1,024 sequences).
    """
    over = sequences_processed(pipelines) - global_batch
    return over == 0 or (len(pipelines) == 1 and 0 < over < pipelines[0].microbatch)


@described
@dataclass(frozen=True)
class Plan:
    """Decisions only: which ranks compute which layers, under which layout and schedule."""

    model: Model = field(metadata=stated("What is trained: a `Model`."))
    cluster: Cluster = field(metadata=stated("Where: a `Cluster`."))
    job: Job = field(metadata=stated("What one step trains: a `Job`."))
    pipelines: tuple[Pipeline, ...] = field(
        metadata=stated("Pipelines side by side, stages with ranks and layouts.")
    )

    @property
    def parts(self) -> list[Part]:
        """The parts of all stages, pipeline by pipeline."""
        return [part for pipeline in self.pipelines for stage in pipeline.stages for part in stage.parts]

    @cached_property
    def gpus_used(self) -> int:
        """Number of GPUs that the plan uses."""
        return len(self.ranks)

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that the plan uses."""
        return frozenset(
            rank for pipeline in self.pipelines for stage in pipeline.stages for rank in stage.ranks
        )

    @cached_property
    def gpu_kinds(self) -> tuple[Gpu, ...]:
        """GPU kinds that the plan uses, as defined in its cluster."""
        return self.cluster.kinds_of(self.ranks)

    @property
    def vendors(self) -> frozenset[str]:
        """Vendors of the GPUs that the plan uses."""
        return frozenset(gpu.vendor for gpu in self.gpu_kinds)


@dataclass(frozen=True, slots=True)
class Share:
    """Specification of one part of a stage: ranks of one GPU kind, their sequences per microbatch, a layout.

    `layout` is one for all layers of the stage, or runs (stop, layout) in order, up to the last layer.
    """

    island: str
    ranks: tuple[int, ...]
    sequences: int
    layout: Layout | tuple[tuple[int, Layout], ...]

    def part(self, start: int, stop: int) -> Part:
        """The part that holds blocks [start, stop)."""
        if isinstance(self.layout, Layout):
            return Part(self.island, self.ranks, self.sequences, (LayerLayout((start, stop), self.layout),))
        starts = (start, *(end for end, _ in self.layout[:-1]))
        runs = tuple(
            LayerLayout((first, end), layout)
            for first, (end, layout) in zip(starts, self.layout, strict=True)
        )
        return Part(self.island, self.ranks, self.sequences, runs)


def pipeline_of_shares(
    microbatches: int,
    cuts: Sequence[int],
    shares: Sequence[Sequence[Share]],
    chunks: int = 1,
    place: Callable[[int, int, int], int] | None = None,
) -> Pipeline:
    """A pipeline from block boundaries and the shares of every stage.

    `cuts` are the boundaries of all places in forward order, 0 and the number of blocks included: as many
    places as stages, times `chunks`. `place` is the schedule's (stage, chunk, stages) -> place; rounds over
    the stages if not given. The first place gets the embedding, the last one the head; the microbatch is the
    sum over the first stage's parts. A place at either end may have no blocks. Raises ValueError for
    inconsistent numbers; conflicts with the model, the cluster or memory are found when the plan is lowered
    or simulated.
    """
    depth = len(shares)
    if not depth or not all(shares) or len(cuts) != depth * chunks + 1:
        raise ValueError(
            f"{len(cuts)} cuts for {depth} stages of {chunks} chunks: {depth * chunks + 1} needed"
        )
    totals = {sum(share.sequences for share in stage) for stage in shares}
    if len(totals) != 1:
        raise ValueError(f"stages take {sorted(totals)} sequences of one microbatch; the same is needed")
    stages = []
    for number, given in enumerate(shares):
        places = [place(number, chunk, depth) if place else chunk * depth + number for chunk in range(chunks)]
        bounds = [(cuts[item], cuts[item + 1]) for item in places]
        parts = tuple(share.part(bounds[0][0], bounds[-1][1]) for share in given)
        kept = tuple(bound for bound in bounds if bound[1] > bound[0])
        stages.append(Stage(kept, 0 in places, depth * chunks - 1 in places, parts))
    return Pipeline(microbatches, totals.pop(), tuple(stages))

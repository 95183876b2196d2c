"""Nouns of plans: a priced partial plan (one slice on one island), and the whole plan with its decisions.

Predictions of a whole plan are not here: they are made from it (`tangram_sim.lowering.forecast`), so that
another hardware database re-prices the same decisions.
"""

from dataclasses import dataclass
from functools import cached_property

from tangram_sim.clusters import Cluster
from tangram_sim.jobs import Job
from tangram_sim.layouts import Layout
from tangram_sim.models import Model

UNLIMITED = 1 << 30  # "fits however many stages stand behind"


@dataclass(frozen=True, slots=True)
class StagePrice:
    """One pipeline stage, priced: seconds per microbatch, bytes per rank."""

    forward_s: float
    backward_s: float
    backward_weight_s: float  # the part of backward_s that only weight gradients need
    gradient_sync_s: float  # once per step, not hidden by the last backward
    optimizer_s: float
    static_bytes: float
    activation_bytes: float  # per microbatch in flight
    transient_bytes: float
    capacity_bytes: float  # what the GPU can hold

    def peak_bytes(self, in_flight: int) -> float:
        """Peak memory with that many microbatches in flight."""
        return self.static_bytes + in_flight * self.activation_bytes + self.transient_bytes

    def in_flight_limit(self) -> int:
        """The most microbatches in flight that fit; 0 when not even one does."""
        free = self.capacity_bytes - self.static_bytes - self.transient_bytes
        if free < self.activation_bytes:
            return 0
        return UNLIMITED if self.activation_bytes <= 0 else int(min(free / self.activation_bytes, UNLIMITED))


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """One slice on (a part of) one island under one layout, priced; `stages` holds its inner pipeline."""

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

    @property
    def slowest_s(self) -> float:
        """Seconds per microbatch of its slowest inner stage, forward and backward."""
        return max(stage.forward_s + stage.backward_s for stage in self.stages)

    @property
    def latency_s(self) -> float:
        """Seconds one microbatch spends in it, forward and backward, inner hops included."""
        return sum(stage.forward_s + stage.backward_s for stage in self.stages) + 2 * self.hop_s * (
            len(self.stages) - 1
        )

    @property
    def tail_s(self) -> float:
        """Longest time any inner stage still needs after its last backward."""
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
    """One pipeline place; `chunks` are runs of blocks (several when interleaved, none: embedding or head)."""

    chunks: tuple[tuple[int, int], ...]
    embedding: bool
    head: bool
    parts: tuple[Part, ...]

    @property
    def layout(self) -> Layout:
        """The layout of a stage that has one part with one layout (all that is priced today)."""
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


@dataclass(frozen=True)
class Plan:
    """Decisions only: who computes what, under which layout and schedule."""

    model: Model
    cluster: Cluster
    job: Job
    pipelines: tuple[Pipeline, ...]

    @cached_property
    def gpus_used(self) -> int:
        """GPUs that the plan occupies."""
        return len({rank for pipeline in self.pipelines for stage in pipeline.stages for rank in stage.ranks})

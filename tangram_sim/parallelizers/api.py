"""The parallelizer API: requests to a homogeneous parallelizer and its answers.

Tangram (arXiv:2606.16907) needs four functions of a parallelizer: slice_model, concatenate, profile and
parallelize. The first three are the same for all (the model is cut at its atoms, the simulator profiles), so
a plug-in implements `parallelize` and `price`. Entry-point group: `tangram_sim.parallelizers`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.constraints import Constraints as Constraints  # noqa: PLC0414 - of this API
from tangram_sim.training.job import Job
from tangram_sim.training.plan import PartialPlan


@dataclass(frozen=True, slots=True)
class Request:
    """A request for partial plans of `slice` on all GPUs of `island` with `microbatch` sequences.

    `microbatches` is their number per step; a schedule never holds more than that in flight. `pace_s` is a
    hint: the answer may leave out partial plans whose slowest stage takes longer per microbatch. `sizes` are
    microbatches that will be requested for the same part, as far as known, so that prices can be computed
    together.
    """

    slice: Slice
    island: Island
    job: Job
    microbatch: int
    microbatches: int
    hwdb: Hwdb
    constraints: Constraints = Constraints()
    pace_s: float = float("inf")
    sizes: tuple[int, ...] = ()

    def alike(self, other: "Request") -> bool:
        """Whether both requests differ only in slices and pace; compares identities, which is fast."""
        return (
            self.island is other.island
            and self.microbatch == other.microbatch
            and self.slice.model is other.slice.model
            and self.job is other.job
            and self.constraints is other.constraints
            and self.hwdb is other.hwdb
        )

    @property
    def boundary_bytes(self) -> float:
        """Bytes of activations of one microbatch that cross each end of the slice."""
        return self.job.boundary_bytes(self.slice.model, self.microbatch)


@dataclass(frozen=True, slots=True)
class Rejection:
    """A layout that was rejected, with the reason and its figures."""

    layout: Layout
    reason: str
    needed_bytes: float = 0.0
    capacity_bytes: float = 0.0


class Rejections(Sequence[Rejection]):
    """Rejections created on demand: an enumeration rejects hundreds of thousands and shows a few."""

    def __init__(self, count: int, make: Callable[[], list[Rejection]]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Rejection: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rejection]: ...
    def __getitem__(self, index: int | slice) -> Rejection | list[Rejection]:
        return self._make()[index]

    def __iter__(self) -> Iterator[Rejection]:
        return iter(self._make())


@dataclass(frozen=True, slots=True)
class Answer:
    """A Pareto set of partial plans (fast ones, and slower ones with less memory), and the rejected layouts.

    Empty `partials` means infeasible; `rejected` then holds the reasons.
    """

    partials: tuple[PartialPlan, ...]
    rejected: Sequence[Rejection]
    considered: int  # layouts looked at
    dominated: int  # feasible, but another one is no worse in everything
    exact: bool = True  # nothing outside `partials` could be part of a better plan in this layout space


class Parallelizer(ABC):
    """A homogeneous parallelizer. Implementations are deterministic and hold no state but caches."""

    name: str
    heeds_pace: bool = True  # whether a request with a pace is less work; else nobody needs to ask twice

    def slice_model(self, model: Model) -> tuple[Slice, ...]:
        """The atoms of a model: the smallest slices that this parallelizer can place."""
        return tuple(Slice(model, index, index + 1) for index in range(model.layers + 2))

    def concatenate(self, first: Slice, second: Slice) -> Slice:
        """The slice formed by two adjacent ones."""
        return first.concatenate(second)

    @abstractmethod
    def parallelize(self, request: Request) -> Answer:
        """Partial plans for one slice on one island. Infeasible is an empty answer, never an exception."""

    def parallelize_many(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers to requests that differ only in their slices and pace; at least one request.

        Parallelizers that price many slices faster together than one by one override this.
        """
        return [self.parallelize(request) for request in requests]

    @abstractmethod
    def price(self, request: Request, layout: Layout) -> PartialPlan:
        """Price one layout (`profile` of the paper). Raises InfeasibleError for an invalid layout."""

    def least_seconds(self, request: Request) -> NDArray[np.float64]:
        """Lower bounds on every atom of the model in GPU-seconds per sequence, zero where unknown.

        They hold in any slice on the request's island, under any layout that may be proposed there. Callers
        use them to skip slices without losing a proof.
        """
        return np.zeros(request.slice.model.layers + 2)

    def reprice(self, request: Request, partial: PartialPlan) -> PartialPlan:
        """Price the layouts, runs and cuts of a partial plan for another request.

        Parallelizers that give runs of layers different layouts, or choose inner cuts, override this; `price`
        is then only for single layouts. Raises InfeasibleError as `price` does.
        """
        return self.price(request, partial.layout)

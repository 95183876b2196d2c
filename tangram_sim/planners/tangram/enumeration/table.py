"""Tables of partial plans for the composition: by class of equal slices, without dominated ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.layers.atoms import atom_kinds
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import PartialPlan, passage
from tangram_sim.training.schedules import holds_whole_depth

Options: TypeAlias = list[list[tuple[int, PartialPlan]]]  # (kind of island, partial plan) by slice class


@dataclass(frozen=True)
class PartialPlanTable:
    """Partial plans for one microbatch size as arrays, the input of the composition."""

    microbatch: int
    microbatches: int
    slice_class: NDArray[np.int64]  # (atoms + 1, atoms + 1)
    option_ptr: NDArray[np.int64]
    floats: NDArray[np.float64]  # (options, 4): slowest, latency, forward, closing
    ints: NDArray[np.int64]  # (options, 4): kind, nodes (in units), depth, most stages behind
    partials: list[PartialPlan]  # of the class's first slice
    whole_depth: bool = False  # what stages hold depends on the depth of the pipeline (ZB-H1, GPipe)
    joint: tuple[tuple[int, ...], ...] = ()  # nodes of each kind that a unit of every joint kind takes


@dataclass(frozen=True, slots=True)
class Beside:
    """Partial plans on joint islands for one microbatch size, and the nodes of each joint island."""

    nodes: tuple[tuple[int, ...], ...]
    partials: tuple[tuple[int, int, PartialPlan], ...]  # (slice class, joint island, plan of its first slice)


@lru_cache(maxsize=64)
def slice_classes(model: Model) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, ...], ...]]:
    """(first slice of every class of equal signatures, class of atoms [start, stop) or -1)."""
    ids = atom_kinds(model)
    seen: dict[tuple[int, ...], int] = {}
    firsts: list[tuple[int, int]] = []
    table = [[-1] * (len(ids) + 1) for _ in range(len(ids) + 1)]
    for start in range(len(ids)):
        for stop in range(start + 1, len(ids) + 1):
            signature = ids[start:stop]
            if signature not in seen:
                seen[signature] = len(firsts)
                firsts.append((start, stop))
            table[start][stop] = seen[signature]
    return tuple(firsts), tuple(map(tuple, table))


def tabulate(
    model: Model,
    job: Job,
    microbatch: int,
    options: Options,
    units: Sequence[int],
    tied_s: float,
    dropping: bool,
) -> PartialPlanTable:
    """The table of all options; `dropping`: without those dominated wherever they could stand.

    Islands are divided into groups of `units[kind]` nodes. A head without the embedding it is tied to
    all-reduces that gradient after its last backward, which takes `tied_s` seconds.
    """

    atoms = model.layers + 2

    def extra_tail(partial: PartialPlan) -> float:
        return tied_s if partial.stop == atoms and partial.start > 0 else 0.0

    flat = [pair for group in options for pair in group]
    floats = np.array([_quantities(partial, extra_tail(partial)) for _, partial in flat]).reshape(-1, 4)
    ints = np.array(
        [
            (kind, partial.nodes // units[kind], len(partial.stages), partial.stages_behind)
            for kind, partial in flat
        ],
        dtype=np.int64,
    ).reshape(-1, 4)
    pointers = np.concatenate([[0], np.cumsum([len(group) for group in options])]).astype(np.int64)
    of_slice = np.array(slice_classes(model)[1], dtype=np.int64)
    whole_depth = holds_whole_depth(job.schedule)
    most = np.full(len(options), len(of_slice)) if whole_depth else _most_behind(of_slice, len(options))
    kept = np.ones(len(floats), dtype=bool)
    if dropping:
        ends = [
            partial.end_copies if model.tied and (partial.start > 0) != (partial.stop < atoms) else 0
            for _, partial in flat
        ]
        kept = _undominated(pointers, floats, ints, most, np.array(ends, dtype=np.int64))
    return PartialPlanTable(
        microbatch,
        microbatches=job.global_batch // microbatch,
        slice_class=of_slice,
        option_ptr=np.concatenate([[0], np.cumsum(kept)])[pointers],
        floats=np.ascontiguousarray(floats[kept]),
        ints=np.ascontiguousarray(ints[kept]),
        partials=[partial for (_, partial), keep in zip(flat, kept.tolist(), strict=True) if keep],
        whole_depth=whole_depth,
    )


def _most_behind(of_slice: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """For every class, the most stages that can stand behind any of its slices: one per remaining atom."""
    most = np.zeros(classes, dtype=np.int64)
    _, stops = np.nonzero(of_slice >= 0)
    np.maximum.at(most, of_slice[of_slice >= 0], of_slice.shape[0] - 1 - stops)
    return most


def _undominated(
    pointers: NDArray[np.int64],
    floats: NDArray[np.float64],
    ints: NDArray[np.int64],
    most: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Mask of options that no other of their class and island equals or beats in everything."""
    if not len(floats):
        return np.zeros(0, dtype=bool)
    from tangram_sim.planners.tangram.enumeration.kernels import undominated

    kept: NDArray[np.bool_] = undominated(pointers, np.ascontiguousarray(floats), ints, most, ends)
    return kept


def _quantities(partial: PartialPlan, extra_tail: float) -> tuple[float, float, float, float]:
    """(slowest stage, latency, forward latency, end with tail) in seconds; docs/models/composition.md."""
    stages = partial.stages
    latency, forward, closing = passage(
        [stage.forward_s for stage in stages],
        [stage.backward_s for stage in stages],
        [stage.gradient_sync_s + stage.optimizer_s + extra_tail for stage in stages],
        partial.hop_s,
    )
    return partial.slowest_s, latency, forward, closing

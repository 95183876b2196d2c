"""Op graphs: the work that is simulated, as a table of ops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tangram_sim.errors import BadInputError
from tangram_sim.health import Speed

IntArray = npt.NDArray[np.int32]
ShortArray = npt.NDArray[np.int16]
FloatArray = npt.NDArray[np.float64]

_NONE = -1


def column(values: npt.ArrayLike, dtype: type[Any]) -> npt.NDArray[Any]:
    """`values` as the one kind of array the engines take: contiguous, of `dtype`, read-only."""
    view = np.ascontiguousarray(values, dtype=dtype).view()
    view.flags.writeable = False
    return view


_NO_PIECES: IntArray = column((), np.int32)
_NO_TIMES: FloatArray = column((), np.float64)


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that several transfers may cross at once; `bytes_per_s` is its capacity in one direction."""

    name: str
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Op:
    """One row of an op graph with its names filled in, for people. Empty names mean "none"."""

    index: int
    label: str
    kind: str
    resource: str
    predecessors: tuple[int, ...]
    duration_s: float
    bytes: float
    device: str
    memory_start_bytes: float
    memory_end_bytes: float
    factor: str
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OpGraph:
    """`n` ops as a structure of arrays. Make one with `op_graph` or `GraphBuilder`, which validate.

    Columns are read-only. Predecessors have smaller indices, and index order is program order on every
    resource: an op starts when its predecessors and the op before it on its resource have ended, as on a CUDA
    stream.
    """

    kind: IntArray  # [n], into `kinds`
    resource: IntArray  # [n], into `resources`
    pred_ptr: IntArray  # [n + 1]; op i waits for pred[pred_ptr[i]:pred_ptr[i + 1]]
    pred: IntArray
    duration_s: FloatArray  # [n], uncontended
    bytes: FloatArray  # [n], moved over each shared link the op crosses, times the crossing's weight
    memory_start_bytes: FloatArray  # [n], change of the memory in use on `device` when the op starts
    memory_end_bytes: FloatArray  # [n], the same when it ends
    device: IntArray  # [n], memory account, into `devices`; -1 none
    factor: ShortArray  # [n], uncertainty factor, into `factors`; -1 none
    link_ptr: IntArray  # [n + 1], CSR like pred_ptr; a link listed twice is crossed twice
    link: IntArray
    link_weight: FloatArray  # of every crossing in `link`; a collective loads each link with its share
    resource_previous: (
        IntArray  # [n], the op before this one on its resource; -1 first. Derived from `resource`
    )
    memory_initial_bytes: FloatArray  # [devices], in use before the first op
    links: tuple[SharedLink, ...]
    kinds: tuple[str, ...]
    resources: tuple[str, ...]  # "process/track" groups tracks when the timeline is shown
    devices: tuple[str, ...]
    factors: tuple[str, ...]
    label: Callable[[int], str] | None  # a name for an op; called only to show it
    # How fast resources run when: resource r at speed[k] from speed_since_s[k] on, k from speed_ptr[r] to
    # speed_ptr[r + 1] - 1, its first piece from the beginning. An empty speed_ptr: all at 1 throughout.
    speed_ptr: IntArray = field(default_factory=lambda: _NO_PIECES)
    speed_since_s: FloatArray = field(default_factory=lambda: _NO_TIMES)
    speed: FloatArray = field(default_factory=lambda: _NO_TIMES)

    def __len__(self) -> int:
        return len(self.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling drops numpy's read-only flag, part of the type that the compiled engine is specialised for.
        return _restore, tuple(getattr(self, each.name) for each in fields(self))

    def with_durations(self, duration_s: FloatArray) -> "OpGraph":
        """This graph with other durations, seconds [n]; only these are validated."""
        durations = column(duration_s, np.float64)
        _check_shape("duration_s", durations, len(self))
        _check_amounts("duration_s", durations)
        return replace(self, duration_s=durations)

    def with_speeds(self, speeds: Sequence[Speed]) -> "OpGraph":
        """This graph with a speed for every resource, [resources]; all at 1 gives a graph without speeds.

        Work is `duration_s`: an op at speed 1/2 takes twice that. Transfers over shared links are limited by
        their links instead: raises `BadInputError` for a speed of their resource.
        """
        if len(speeds) != len(self.resources):
            raise BadInputError(
                f"op graph: {len(speeds)} speeds for {len(self.resources)} resources; give one each."
            )
        if all(speed.is_one for speed in speeds):
            return replace(self, speed_ptr=_NO_PIECES, speed_since_s=_NO_TIMES, speed=_NO_TIMES)
        crossing = np.unique(self.resource[np.diff(self.link_ptr) > 0]).tolist()
        for resource in crossing:
            if not speeds[resource].is_one:
                raise BadInputError(
                    f"op graph: {self.resources[resource]!r} sends over shared links and has a speed of "
                    f"its own; "
                    "slow its links instead."
                )
        counts = [len(item.speed) for item in speeds]
        return replace(
            self,
            speed_ptr=column(np.concatenate(([0], np.cumsum(counts))), np.int32),
            speed_since_s=column([since for item in speeds for since in item.since_s], np.float64),
            speed=column([value for item in speeds for value in item.speed], np.float64),
        )

    def predecessors(self, index: int) -> IntArray:
        """Indices of the ops that op `index` waits for, the op before it on its resource not included."""
        return self.pred[self.pred_ptr[index] : self.pred_ptr[index + 1]]

    def links_of(self, index: int) -> IntArray:
        """Indices of the shared links that op `index` crosses."""
        return self.link[self.link_ptr[index] : self.link_ptr[index + 1]]

    def weights_of(self, index: int) -> FloatArray:
        """Share that op `index` puts on each of `links_of(index)`, in bytes per byte it moves."""
        return self.link_weight[self.link_ptr[index] : self.link_ptr[index + 1]]

    def label_of(self, index: int) -> str:
        """Display name of op `index`."""
        return self.label(index) if self.label else f"{self.kinds[self.kind[index]]} {index}"

    def op(self, index: int) -> Op:
        """Op `index` for people."""
        device, factor = int(self.device[index]), int(self.factor[index])
        return Op(
            index=index,
            label=self.label_of(index),
            kind=self.kinds[self.kind[index]],
            resource=self.resources[self.resource[index]],
            predecessors=tuple(self.predecessors(index).tolist()),
            duration_s=float(self.duration_s[index]),
            bytes=float(self.bytes[index]),
            device="" if device == _NONE else self.devices[device],
            memory_start_bytes=float(self.memory_start_bytes[index]),
            memory_end_bytes=float(self.memory_end_bytes[index]),
            factor="" if factor == _NONE else self.factors[factor],
            links=tuple(self.links[link].name for link in self.links_of(index).tolist()),
        )


def op_graph(
    *,
    resource: npt.ArrayLike,
    duration_s: npt.ArrayLike,
    pred_ptr: npt.ArrayLike,
    pred: npt.ArrayLike,
    resources: Sequence[str],
    kind: npt.ArrayLike | None = None,
    kinds: Sequence[str] = ("op",),
    bytes: npt.ArrayLike | None = None,  # noqa: A002 - the column's name
    device: npt.ArrayLike | None = None,
    devices: Sequence[str] = (),
    memory_start_bytes: npt.ArrayLike | None = None,
    memory_end_bytes: npt.ArrayLike | None = None,
    memory_initial_bytes: npt.ArrayLike | None = None,
    factor: npt.ArrayLike | None = None,
    factors: Sequence[str] = (),
    link_ptr: npt.ArrayLike | None = None,
    link: npt.ArrayLike | None = None,
    link_weight: npt.ArrayLike | None = None,
    links: Sequence[SharedLink] = (),
    label: Callable[[int], str] | None = None,
) -> OpGraph:
    """A validated op graph from columns; those left out are zero or "none", weights of links are 1.

    Shapes and units: see `OpGraph`. Arrays of the right type are kept, not copied. Raises `BadInputError` for
    a row that makes no sense.
    """
    resource_column = column(resource, np.int32)
    n = len(resource_column)

    def ints(values: npt.ArrayLike | None, default: int) -> IntArray:
        return column(np.full(n, default, np.int32) if values is None else values, np.int32)

    def floats(values: npt.ArrayLike | None, size: int) -> FloatArray:
        return column(np.zeros(size) if values is None else values, np.float64)

    crossed = column(np.zeros(0, np.int32) if link is None else link, np.int32)
    graph = OpGraph(
        kind=ints(kind, 0),
        resource=resource_column,
        pred_ptr=column(pred_ptr, np.int32),
        pred=column(pred, np.int32),
        duration_s=column(duration_s, np.float64),
        bytes=floats(bytes, n),
        memory_start_bytes=floats(memory_start_bytes, n),
        memory_end_bytes=floats(memory_end_bytes, n),
        device=ints(device, _NONE),
        factor=column(np.full(n, _NONE, np.int16) if factor is None else factor, np.int16),
        link_ptr=column(np.zeros(n + 1, np.int32) if link_ptr is None else link_ptr, np.int32),
        link=crossed,
        link_weight=column(np.ones(len(crossed)) if link_weight is None else link_weight, np.float64),
        resource_previous=previous_on_resource(resource_column),
        memory_initial_bytes=floats(memory_initial_bytes, len(devices)),
        links=tuple(links),
        kinds=tuple(kinds),
        resources=tuple(resources),
        devices=tuple(devices),
        factors=tuple(factors),
        label=label,
    )
    _check(graph)
    return graph


def previous_on_resource(resource: IntArray) -> IntArray:
    """For each op the op before it on its resource, -1 for the first: int32 [n]."""
    previous = np.full(len(resource), _NONE, np.int32)
    order = np.argsort(resource, kind="stable").astype(np.int32)
    same = resource[order[1:]] == resource[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return column(previous, np.int32)


def _restore(*columns: Any) -> OpGraph:
    arguments: list[Any] = [column(c, c.dtype.type) if isinstance(c, np.ndarray) else c for c in columns]
    return OpGraph(*arguments)


def _check(graph: OpGraph) -> None:
    n = len(graph)
    per_op = ("duration_s", "bytes", "memory_start_bytes", "memory_end_bytes", "kind", "device", "factor")
    for name in per_op:
        _check_shape(name, getattr(graph, name), n)
    _check_shape("memory_initial_bytes", graph.memory_initial_bytes, len(graph.devices))
    for name in ("duration_s", "bytes"):
        _check_amounts(name, getattr(graph, name))
    for name in ("memory_start_bytes", "memory_end_bytes", "memory_initial_bytes"):
        if not np.isfinite(getattr(graph, name)).all():
            raise BadInputError(f"op graph: {name} has a value that is not finite; give bytes as numbers.")
    _check_csr("pred", graph.pred_ptr, graph.pred, n)
    _check_csr("link", graph.link_ptr, graph.link, n)
    for name, low, table in (
        ("kind", 0, graph.kinds),
        ("resource", 0, graph.resources),
        ("device", _NONE, graph.devices),
        ("factor", _NONE, graph.factors),
        ("link", 0, graph.links),
    ):
        indices = getattr(graph, name)
        if indices.size and (indices.min() < low or indices.max() >= len(table)):
            raise BadInputError(
                f"op graph: column {name!r} holds {indices.min()} to {indices.max()}, but its table has "
                f"{len(table)} rows; use {low} to {len(table) - 1}."
            )
    owner = np.repeat(np.arange(n, dtype=np.int32), np.diff(graph.pred_ptr))
    wrong = np.flatnonzero((graph.pred >= owner) | (graph.pred < 0))
    if wrong.size:
        raise BadInputError(
            f"op graph: op {owner[wrong[0]]} waits for op {graph.pred[wrong[0]]}; predecessors need smaller "
            "indices, so append an op after everything it waits for."
        )
    _check_shape("link_weight", graph.link_weight, len(graph.link))
    if graph.link_weight.size and not (graph.link_weight.min() > 0 and graph.link_weight.max() < np.inf):
        raise BadInputError(
            f"op graph: link_weight holds {graph.link_weight.min()} to {graph.link_weight.max()}; give "
            "positive numbers, and leave out links that an op does not cross."
        )
    for shared in graph.links:
        if not (shared.bytes_per_s > 0 and np.isfinite(shared.bytes_per_s)):
            raise BadInputError(
                f"op graph: link {shared.name!r} has {shared.bytes_per_s} bytes/s; give a positive capacity."
            )


def _check_shape(name: str, values: npt.NDArray[Any], size: int) -> None:
    if values.shape != (size,):
        raise BadInputError(f"op graph: column {name!r} has shape {values.shape}; give ({size},).")


def _check_amounts(name: str, values: FloatArray) -> None:
    # Written so that NaN fails too.
    if values.size and not (values.min() >= 0 and values.max() < np.inf):
        row = int(np.flatnonzero(~((values >= 0) & (values < np.inf)))[0])
        raise BadInputError(
            f"op graph: {name} of op {row} is {values[row]}; give a finite number, zero or more."
        )


def _check_csr(name: str, ptr: IntArray, index: IntArray, n: int) -> None:
    _check_shape(f"{name}_ptr", ptr, n + 1)
    if ptr[0] != 0 or ptr[-1] != len(index) or (np.diff(ptr) < 0).any():
        raise BadInputError(
            f"op graph: {name}_ptr must rise from 0 to len({name}) = {len(index)}, got {ptr[0]} to {ptr[-1]}."
        )

"""Op graphs made op by op, by name: for tests, small examples and lockstep programs."""

from collections.abc import Iterable
from typing import Any

from tangram_sim.opgraph import OpGraph, SharedLink, op_graph

_NONE = -1


class GraphBuilder:
    """Collects ops one by one, by name, and freezes them into an `OpGraph`."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, float, float, int, float, float, int]] = []
        self._labels: list[str] = []
        self._pred_ptr, self._pred = [0], list[int]()
        self._link_ptr, self._link, self._link_weight = [0], list[int](), list[float]()
        self._links: list[SharedLink] = []
        self._initial: list[float] = []
        self._kinds: dict[str, int] = {}
        self._resources: dict[str, int] = {}
        self._devices: dict[str, int] = {}
        self._factors: dict[str, int] = {}

    def link(self, name: str, bytes_per_s: float) -> int:
        """Add a shared link; returns its index for `op(links=...)`."""
        self._links.append(SharedLink(name, bytes_per_s))
        return len(self._links) - 1

    def device(self, name: str, initial_bytes: float = 0.0) -> int:
        """Add a memory account with `initial_bytes` in use before the first op; returns its index."""
        index = _index(self._devices, name)
        if index == len(self._initial):
            self._initial.append(0.0)
        self._initial[index] += initial_bytes
        return index

    def op(
        self,
        kind: str,
        resource: str,
        duration_s: float,
        after: Iterable[int] = (),
        *,
        label: str = "",
        bytes: float = 0.0,  # noqa: A002 - the column's name
        links: Iterable[int] = (),
        link_weights: Iterable[float] | None = None,
        device: str = "",
        memory_start_bytes: float = 0.0,
        memory_end_bytes: float = 0.0,
        factor: str = "",
    ) -> int:
        """Append an op that waits for `after` and for the op before it on `resource`; returns its index."""
        account = self.device(device) if device else _NONE
        cause = _index(self._factors, factor) if factor else _NONE
        row = (_index(self._kinds, kind), _index(self._resources, resource), duration_s, bytes)
        self._rows.append((*row, account, memory_start_bytes, memory_end_bytes, cause))
        self._labels.append(label or f"{kind} {len(self._labels)}")
        self._pred.extend(after)
        self._pred_ptr.append(len(self._pred))
        first = len(self._link)
        self._link.extend(links)
        self._link_weight.extend([1.0] * (len(self._link) - first) if link_weights is None else link_weights)
        self._link_ptr.append(len(self._link))
        return len(self._rows) - 1

    def freeze(self) -> OpGraph:
        """The validated graph of everything added so far."""
        names = (
            "kind",
            "resource",
            "duration_s",
            "bytes",
            "device",
            "memory_start_bytes",
            "memory_end_bytes",
            "factor",
        )
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(names)
        table: dict[str, Any] = dict(zip(names, columns, strict=True))
        return op_graph(
            **table,
            pred_ptr=self._pred_ptr,
            pred=self._pred,
            link_ptr=self._link_ptr,
            link=self._link,
            link_weight=self._link_weight,
            links=self._links,
            kinds=tuple(self._kinds),
            resources=tuple(self._resources),
            devices=tuple(self._devices),
            factors=tuple(self._factors),
            memory_initial_bytes=self._initial,
            label=tuple(self._labels).__getitem__,
        )


def _index(table: dict[str, int], name: str) -> int:
    return table.setdefault(name, len(table))

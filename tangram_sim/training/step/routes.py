"""Routes of transfers over shared links, stored in the columns of an op graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.opgraph import IntArray, OpGraph, SharedLink, column

# A transfer may be this much faster than its link by rounding alone.
HEADROOM = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Route:
    """Links that a transfer crosses, the weight of each (use per byte), and the bytes moved."""

    links: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    bytes: float = 0.0
    by_second: bool = False  # `bytes` are those of one second of the transfer's uncontended time


NOWHERE = Route()


def with_routes(
    graph: OpGraph,
    keys: Sequence[IntArray],
    route_of: Callable[..., Route],
    links: Sequence[SharedLink],
) -> OpGraph:
    """The graph with bytes and shared links; ops [n] with equal `keys` have the route `route_of(*key)`.

    `links` may grow during the calls of `route_of`.
    """
    if not len(graph):
        return replace(graph, links=tuple(links))
    code = np.zeros(len(graph), np.int64)  # one number for all keys of an op, in their order
    for key in keys:
        code = code * (int(key.max()) - int(key.min()) + 1) + (key - key.min())
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    routes = [route_of(*of) for of in zip(*(key[first].tolist() for key in keys), strict=True)]
    sizes = np.array([len(route.links) for route in routes])
    first = np.concatenate(([0], np.cumsum(sizes)))
    pointers = np.concatenate(([0], np.cumsum(sizes[which])))
    # Entry e of op i is entry e - pointers[i] of its route.
    entry = np.arange(pointers[-1]) + np.repeat(first[which] - pointers[:-1], sizes[which])
    seconds = np.where(np.array([route.by_second for route in routes])[which], graph.duration_s, 1.0)
    return replace(
        graph,
        bytes=column(np.array([route.bytes for route in routes])[which] * seconds, np.float64),
        link_ptr=column(pointers, np.int32),
        link=column(np.array([link for route in routes for link in route.links], np.int32)[entry], np.int32),
        link_weight=column(np.array([w for route in routes for w in route.weights])[entry], np.float64),
        links=tuple(links),
    )

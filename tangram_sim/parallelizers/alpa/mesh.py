"""Logical device meshes: costs of collectives over one axis, and of moving a tensor between two shardings."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

# How an axis of the mesh cuts a tensor of activations: not at all, by tokens, by features, by experts.
REPLICATED, TOKENS, FEATURES, EXPERTS = "R", "T", "F", "E"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a mesh. Sizes below are bytes with the axis gathered; seconds = alpha + bytes x beta."""

    ranks: int
    latency_s: float
    bytes_per_s: float

    def all_gather_s(self, size: float) -> float:
        """Seconds of an all-gather or a reduce-scatter."""
        return self._seconds(size * (self.ranks - 1) / self.ranks)

    def all_reduce_s(self, size: float) -> float:
        """Seconds of an all-reduce."""
        return self._seconds(2 * size * (self.ranks - 1) / self.ranks)

    def all_to_all_s(self, size: float) -> float:
        """Seconds of an all-to-all, in which each rank keeps one n-th of its shard."""
        return self._seconds(size * (self.ranks - 1) / self.ranks**2)

    def _seconds(self, moved: float) -> float:
        return self.latency_s + moved / self.bytes_per_s if self.ranks > 1 else 0.0


Mesh = tuple[Axis, ...]


def shards(mesh: Mesh, roles: Sequence[str], of: str) -> int:
    """Number of shards of a tensor that is cut along all axes whose role is in `of`."""
    return prod(axis.ranks for axis, role in zip(mesh, roles, strict=True) if role in of)


def reshard_s(mesh: Mesh, before: Sequence[str], after: Sequence[str], size: float) -> float:
    """Seconds to move a tensor of `size` bytes from one sharding to another, without its gradient.

    First free slices, then all-to-alls, then all-gathers, each over one axis, the last axis first.
    """
    changed = [a for a in reversed(range(len(mesh))) if before[a] != after[a]]
    held = list(before)
    seconds = 0.0
    for a in changed:
        if held[a] == REPLICATED:
            held[a] = after[a]
    for a in changed:
        if REPLICATED not in (before[a], after[a]):
            local = size / shards(mesh, held, TOKENS + FEATURES + EXPERTS)
            seconds += mesh[a].all_to_all_s(local * mesh[a].ranks)
            held[a] = after[a]
    for a in changed:
        if after[a] == REPLICATED:
            local = size / shards(mesh, held, TOKENS + FEATURES + EXPERTS)
            seconds += mesh[a].all_gather_s(local * mesh[a].ranks)
            held[a] = REPLICATED
    return seconds

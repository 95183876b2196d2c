"""Which islands join in which pipeline, and how many microbatches of what size each one takes.

Pipelines side by side need not be alike: a slow GPU may be a pipeline of its own with small microbatches, a
stage of its neighbour's, or idle. Of pipelines over sets of a few islands, disjoint ones are chosen by what
they do in a given time; then passes are shared out in whole numbers, exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf

Islands = frozenset[int]  # some of them, by number
_BISECTIONS = 40  # of the seconds of a step: to 1e-12 of them


@dataclass(frozen=True, slots=True)
class Paced:
    """A pipeline over the islands of a set: `fill_s` for its first pass of `size` sequences with all that
    follows, `pace_s` for each further one, `sync_s` to add its gradients up with one other's.
    """

    islands: Islands
    size: int
    fill_s: float
    pace_s: float
    sync_s: float

    def sequences(self, seconds: float) -> float:
        """Sequences it is through with in so many seconds, in fractions; none before the first pass ends."""
        late = seconds - self.fill_s
        return self.size * (1 + late / self.pace_s) if late >= 0 else 0.0

    def passes(self, seconds: float) -> int:
        """Whole passes in so many seconds."""
        late = seconds - self.fill_s
        return floor(late / self.pace_s * (1 + 1e-12)) + 1 if late >= 0 else 0


def sync_s(chosen: Sequence[Paced]) -> float:
    """Seconds of adding up gradients over pipelines: the ring goes at the pace of its slowest NIC."""
    count = len(chosen)
    return max(subset.sync_s for subset in chosen) * 2 * (count - 1) / count


def whole_passes(chosen: Sequence[Paced], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """The least seconds in which these pipelines, one pass each at least, do exactly `batch` sequences, and
    the passes of each. None where sizes do not add up to it.
    """
    if sum(subset.size for subset in chosen) > batch:
        return None
    most = [batch // subset.size for subset in chosen]

    def passes(seconds: float) -> tuple[int, ...] | None:
        able = [min(subset.passes(seconds), top) for subset, top in zip(chosen, most, strict=True)]
        return _adding_up([subset.size for subset in chosen], able, batch) if all(able) else None

    low, high = (
        0.0,
        max(subset.fill_s + top * subset.pace_s for subset, top in zip(chosen, most, strict=True)),
    )
    if passes(high) is None:
        return None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    shares = passes(high)
    if shares is None:
        return None
    ends = [subset.fill_s + (share - 1) * subset.pace_s for subset, share in zip(chosen, shares, strict=True)]
    return max(ends) + sync_s(chosen), shares


def _adding_up(sizes: Sequence[int], able: Sequence[int], batch: int) -> tuple[int, ...] | None:
    """Counts from 1 to `able` of each size that add up to `batch`; None where there are none."""
    left = batch - sum(sizes)
    if left < 0 or sum(size * most for size, most in zip(sizes, able, strict=True)) < batch:
        return None
    within = (1 << (left + 1)) - 1
    reached = [1]  # bit i: the sizes so far add up to i beyond one each
    for size, most in zip(sizes, able, strict=True):
        sums, more, step = reached[-1], most - 1, 1
        while more > 0:  # 1, 2, 4, ... and the rest: all counts up to `most`
            taken = min(step, more)
            sums |= (sums << (size * taken)) & within
            more, step = more - taken, 2 * step
        reached.append(sums)
    if not reached[-1] >> left & 1:
        return None
    counts = []
    for size, most, before in zip(sizes[::-1], able[::-1], reached[-2::-1], strict=True):
        extra = next(
            n for n in range(most - 1, -1, -1) if n * size <= left and before >> (left - n * size) & 1
        )
        counts.append(extra + 1)
        left -= extra * size
    return tuple(counts[::-1])


def partitions(pool: Mapping[Islands, Sequence[Paced]], islands: int) -> Iterator[list[Islands]]:
    """Every choice of two or more disjoint sets of islands out of the pool; islands may stay idle."""

    def beyond(island: int, used: Islands, taken: list[Islands]) -> Iterator[list[Islands]]:
        if island == islands:
            if len(taken) > 1:
                yield taken
            return
        yield from beyond(island + 1, used, taken)
        if island in used:
            return
        for item in pool:
            if min(item) == island and not item & used:
                yield from beyond(island + 1, used | item, [*taken, item])

    return beyond(0, frozenset(), [])


def likeliest(
    pool: Mapping[Islands, Sequence[Paced]], islands: int, batch: int, limit_s: float, most: int
) -> list[tuple[float, list[Paced], tuple[int, ...]]]:
    """(seconds, pipelines, passes) of the best choices of disjoint pipelines, `most` at most, fastest first.

    Those that do most in `limit_s`, gradients added up, are shared out in whole numbers.
    """
    found = list[tuple[float, list[Paced]]]()
    for sets in partitions(pool, islands):
        slowest = sync_s([min(pool[item], key=lambda each: each.sync_s) for item in sets])
        chosen = [max(pool[item], key=lambda each: each.sequences(limit_s - slowest)) for item in sets]
        done = [subset.sequences(limit_s - sync_s(chosen)) for subset in chosen]
        if all(done):
            found.append((-sum(done), chosen))
    found.sort(key=lambda item: (item[0], [sorted(each.islands) for each in item[1]]))
    shared = [(chosen, whole_passes(chosen, batch)) for _, chosen in found[: 2 * most]]
    ended = [(answer[0], chosen, answer[1]) for chosen, answer in shared if answer and answer[0] < inf]
    return sorted(ended, key=lambda item: item[0])[:most]

"""Division of a few islands into pipelines, and the number and size of microbatches of each pipeline.

Pipelines side by side may differ: a slow GPU may run its own pipeline with small microbatches, be a stage of
its neighbour's, or stay idle. Among pipelines over subsets of the islands, disjoint ones are chosen by the
sequences they process in a given time; then whole passes are assigned exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf

Islands = frozenset[int]  # some of them, by number
_BISECTIONS = 40  # of the seconds of a step: to 1e-12 of them


@dataclass(frozen=True, slots=True)
class Paced:
    """A pipeline over a set of islands and its timing. `fill_s`: its first pass of `size` sequences with
    everything after it; `pace_s`: each further pass; `sync_s`: its gradient all-reduce with one other
    pipeline."""

    islands: Islands
    size: int
    fill_s: float
    pace_s: float
    sync_s: float

    def sequences(self, seconds: float) -> float:
        """Sequences processed within `seconds`, fractional; 0 before the first pass ends."""
        late = seconds - self.fill_s
        return self.size * (1 + late / self.pace_s) if late >= 0 else 0.0

    def passes(self, seconds: float) -> int:
        """Number of whole passes within `seconds`."""
        late = seconds - self.fill_s
        return floor(late / self.pace_s * (1 + 1e-12)) + 1 if late >= 0 else 0


def sync_s(chosen: Sequence[Paced]) -> float:
    """Seconds of the gradient all-reduce over these pipelines, at the rate of the slowest NIC."""
    count = len(chosen)
    return max(subset.sync_s for subset in chosen) * 2 * (count - 1) / count


def whole_passes(chosen: Sequence[Paced], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """(least seconds, passes of each) for these pipelines to process exactly `batch` sequences, one pass each
    at least. None where no numbers of passes add up to the batch."""
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
    """Counts of each size, from 1 to its entry in `able`, that add up to `batch`; None: there are none."""
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
    """Yields every choice of two or more disjoint sets of islands from the pool; islands may stay idle."""

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
    """(seconds, pipelines, passes) of the best choices of disjoint pipelines, at most `most`, fastest first.

    Ranked by sequences within `limit_s` less gradient synchronisation; the best are assigned whole passes.
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

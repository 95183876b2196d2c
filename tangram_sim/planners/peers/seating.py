"""Exact assignment of GPU kinds to stages that minimises (m - 1) x slowest stage + sum of stages.

Every stage takes `dp` replicas and is as slow as the slowest kind among them: a stage with a time limit may
use the set of all kinds that are fast enough and have the memory. Whether all stages find replicas depends on
how many stages allow which set, not on their order (Hall): for every set of kinds, the stages restricted to
it must not need more replicas than it has. Stages of equal rows are interchangeable. So for a limit on the
slowest stage there remains an integer program over (class of stages, set), with a dozen variables; the limits
to try are the different seconds in the rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Row = tuple[float, ...]  # seconds of a stage on every kind; inf where it may not be
Stage = tuple[int, ...]  # replicas of every kind
Sets = list[int]  # of kinds, as bits
_Choice = tuple[int, float, int]  # class of stages, seconds, set of kinds


@dataclass(frozen=True)
class Seating:
    """An assignment problem: `rows` are the stages' seconds by kind, `replicas` those a kind can hold."""

    rows: tuple[Row, ...]
    replicas: tuple[int, ...]
    dp: int

    def best(self, repeats: int) -> Iterator[list[Stage]]:
        """Several assignments of minimal repeats x slowest + sum that differ in transfers, if any."""
        found = self.least(repeats)
        if found is None:
            return
        _, given = found
        pace = [min(row[kind] for row, _ in self.classes) for kind in range(len(self.replicas))]
        order = sorted(range(len(pace)), key=lambda kind: (pace[kind], kind))
        made = set[tuple[int, ...]]()
        for turns in ((1, 1), (-1, -1), (1, -1), (-1, 1)):  # quick stages in front, or there and back
            sets = [0] * len(self.rows)
            for number, ((_, places), own) in enumerate(zip(self.classes, given, strict=True)):
                for place, item in zip(places, own[:: turns[number % 2]], strict=True):
                    sets[place] = item
            if tuple(sets) not in made:
                made.add(tuple(sets))
                yield self.seated(sets, order)
                yield self.seated(sets, order[::-1])

    def least(self, repeats: int) -> tuple[float, list[Sets]] | None:
        """(minimal repeats x slowest + sum, sets of allowed kinds by class of stages, fastest first). None
        where there are too few GPUs."""
        quickest = [min(row) for row, _ in self.classes]
        pairs = zip(quickest, self.classes, strict=True)
        fastest = sum(seconds * len(places) for seconds, (_, places) in pairs)
        best: tuple[float, list[Sets]] | None = None
        for slowest in sorted({seconds for _, seconds, _ in self._choices if seconds >= max(quickest)}):
            if best and repeats * slowest + fastest >= best[0]:
                break
            found = self._least_sum([choice for choice in self._choices if choice[1] <= slowest])
            if found and (best is None or repeats * slowest + found[0] < best[0]):
                best = repeats * slowest + found[0], found[1]
        return best

    @cached_property
    def classes(self) -> list[tuple[Row, list[int]]]:
        """Stages grouped by equal rows: (row, positions of the stages)."""
        found: dict[Row, list[int]] = {}
        for place, row in enumerate(self.rows):
            found.setdefault(row, []).append(place)
        return list(found.items())

    @cached_property
    def _choices(self) -> list[_Choice]:
        """(class of stages, seconds, bits of the kinds within these seconds), ascending by seconds."""
        return [
            (number, seconds, sum(1 << kind for kind, item in enumerate(row) if item <= seconds))
            for number, (row, _) in enumerate(self.classes)
            for seconds in sorted({item for item in row if item < float("inf")})
        ]

    @cached_property
    def _rooms(self) -> list[tuple[int, int]]:
        """(set of kinds, number of stages it has replicas for) for every set that cannot hold all stages."""
        sets = range(1, 1 << len(self.replicas))
        rooms = ((item, _held(item, self.replicas) // self.dp) for item in sets)
        return [(item, room) for item, room in rooms if room < len(self.rows)]

    def _least_sum(self, choices: Sequence[_Choice]) -> tuple[float, list[Sets]] | None:
        """(minimal sum of stage seconds, sets of kinds by class) among these choices; None: too few GPUs."""
        counts = [len(places) for _, places in self.classes]
        widest = {choice[0]: choice for choice in choices}
        quickest = {choice[0]: choice for choice in reversed(choices)}
        if not self._holds((kinds, counts[number]) for number, _, kinds in widest.values()):
            return None
        if self._holds((kinds, counts[number]) for number, _, kinds in quickest.values()):
            taken = [counts[choice[0]] if choice in quickest.values() else 0 for choice in choices]
        else:
            taken = self._program(choices, counts)
        given: list[Sets] = [[] for _ in counts]
        for (number, _, kinds), count in zip(choices, taken, strict=True):
            given[number] += [kinds] * count
        return sum(count * item[1] for count, item in zip(taken, choices, strict=True)), given

    def _holds(self, demands: Iterable[tuple[int, int]]) -> bool:
        """Whether the replicas suffice for all stages, given as (set of allowed kinds, number of stages)."""
        wanted = list(demands)
        return all(
            sum(count for kinds, count in wanted if not kinds & ~item) <= room for item, room in self._rooms
        )

    def _program(self, choices: Sequence[_Choice], counts: Sequence[int]) -> list[int]:
        """Number of stages that take each choice, by integer programming; a solution must exist."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # half a second to import

        seconds = np.array([choice[1] for choice in choices])
        rows = [[float(number == index) for number, _, _ in choices] for index in range(len(counts))]
        rows += [[float(not kinds & ~item) for _, _, kinds in choices] for item, _ in self._rooms]
        rooms = [float(room) for _, room in self._rooms]
        found = milp(
            seconds / seconds.max(),
            integrality=np.ones(len(choices)),
            bounds=Bounds(0.0, float(max(counts))),
            constraints=LinearConstraint(np.array(rows), [*counts, *(0.0 for _ in rooms)], [*counts, *rooms]),
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            raise ValueError(f"HiGHS on {self}: {found.message}")
        return [round(item) for item in found.x]

    def seated(self, sets: Sequence[int], order: Sequence[int]) -> list[Stage]:
        """Replicas of each kind for each stage, front to back, from its set of kinds, preferring `order`.

        A stage takes as many replicas of a kind as leave enough for later stages. Taken so, kind by kind in
        any order, it gets all replicas that it needs if the assignment is feasible (a polymatroid).
        """
        left, found = list(self.replicas), list[Stage]()
        for place, own in enumerate(sets):
            taken, later = [0] * len(left), sets[place + 1 :]
            for kind in order:
                if own >> kind & 1:
                    spare = min(
                        _held(index, left) - self.dp * sum(not other & ~index for other in later)
                        for index in range(1, 1 << len(left))
                        if index >> kind & 1
                    )
                    taken[kind] = min(left[kind], self.dp - sum(taken), spare)
                    left[kind] -= taken[kind]
            found.append(tuple(taken))
        return found


def _held(kinds: int, replicas: Sequence[int]) -> int:
    """Total replicas of the kinds in a bit set."""
    return sum(count for kind, count in enumerate(replicas) if kinds >> kind & 1)

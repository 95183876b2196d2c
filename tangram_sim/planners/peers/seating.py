"""Which kinds of GPU hold which stages: the least (m - 1) x slowest stage + sum of stages, exactly.

Every stage takes `dp` replicas and is as slow as the slowest kind among them: a stage that may take some
seconds may be on all kinds that are as fast and have the memory, a set. Whether all can be seated depends on
how many stages allow which set, not on their order (Hall): for every set, the stages that allow nothing else
must not need more replicas than it has. Stages of equal rows are interchangeable. So under a limit on the
slowest stage an integer program over (class of stages, set) is left, a dozen variables, and there are as many
limits as rows have different seconds.
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
    """An assignment problem: stages front to back, `rows` their seconds by kind, `dp` replicas of each."""

    rows: tuple[Row, ...]
    replicas: tuple[int, ...]
    dp: int

    def best(self, repeats: int) -> Iterator[list[Stage]]:
        """Some assignments of the least repeats x slowest + sum that differ in transfers; none if none is."""
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
        """(repeats x slowest + sum, sets of kinds of each class of stages, quickest first); None: too few
        GPUs.
        """
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
        """Stages of equal seconds: (their row, their places)."""
        found: dict[Row, list[int]] = {}
        for place, row in enumerate(self.rows):
            found.setdefault(row, []).append(place)
        return list(found.items())

    @cached_property
    def _choices(self) -> list[_Choice]:
        """(class, seconds, kinds that take no longer, as bits) that a stage may have, quickest first."""
        return [
            (number, seconds, sum(1 << kind for kind, item in enumerate(row) if item <= seconds))
            for number, (row, _) in enumerate(self.classes)
            for seconds in sorted({item for item in row if item < float("inf")})
        ]

    @cached_property
    def _rooms(self) -> list[tuple[int, int]]:
        """(set of kinds, stages that it has replicas for) of every set that cannot hold all stages."""
        sets = range(1, 1 << len(self.replicas))
        rooms = ((item, _held(item, self.replicas) // self.dp) for item in sets)
        return [(item, room) for item, room in rooms if room < len(self.rows)]

    def _least_sum(self, choices: Sequence[_Choice]) -> tuple[float, list[Sets]] | None:
        """(least sum of stages' seconds, sets of kinds by class) among these choices; None: too few GPUs."""
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
        """Whether all stages, given as (set of kinds allowed, number of stages), find their replicas."""
        wanted = list(demands)
        return all(
            sum(count for kinds, count in wanted if not kinds & ~item) <= room for item, room in self._rooms
        )

    def _program(self, choices: Sequence[_Choice], counts: Sequence[int]) -> list[int]:
        """How many stages take each choice, by integer programming; a solution is known to exist."""
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
        """Replicas of every stage, front to back, from the set that it allows; first kinds of `order` first.

        Of a kind a stage takes as many as leave enough for the others. Taken so, one kind after the other
        come to all it needs in whatever order, if the sets can be seated at all (a polymatroid).
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
    """How many replicas the kinds in a set have together."""
    return sum(count for kind, count in enumerate(replicas) if kinds >> kind & 1)

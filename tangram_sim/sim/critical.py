"""The critical path of a timeline, and the seconds of each kind of op on it."""

from dataclasses import dataclass

import numpy as np

from tangram_sim.opgraph import IntArray
from tangram_sim.sim.timeline import Timeline

START, PREDECESSOR, RESOURCE = "start", "predecessor", "resource"


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """Ops from time 0 to the makespan, each starting when the one before it ends.

    `causes[k]` says what op `ops[k]` waited for: "predecessor" (the result of the previous op in the list),
    "resource" (its turn on the resource), or "start" (it began at 0).
    """

    timeline: Timeline
    ops: IntArray
    causes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Length of the path in seconds: the makespan."""
        return float(self._spent().sum())

    def seconds_by_kind(self) -> dict[str, float]:
        """Seconds on the path per kind of op."""
        graph = self.timeline.graph
        return self._totals(graph.kind, graph.kinds)

    def _spent(self) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return self.timeline.end_s[self.ops] - self.timeline.start_s[self.ops]

    def _totals(
        self, row: "np.ndarray[tuple[int], np.dtype[np.integer]]", names: tuple[str, ...]
    ) -> dict[str, float]:
        totals = dict.fromkeys(names, 0.0)
        for index, spent in zip(row[self.ops].tolist(), self._spent().tolist(), strict=True):
            totals[names[index]] += spent  # index -1 is the last name: unattributed
        return {name: total for name, total in totals.items() if total > 0}


def critical_path(timeline: Timeline) -> CriticalPath:
    """The critical path: from the op that ends last back to time 0, each time to the op it waited for.

    Ties: the lowest index among ops that end last; a predecessor before the resource, then the lowest index.
    Holds for either engine; under contention an op counts with its stretched duration.
    """
    graph, end = timeline.graph, timeline.end_s
    if not len(graph):
        return CriticalPath(timeline, np.zeros(0, np.int32), ())
    op = int(np.argmax(end))
    ops, causes = [op], list[str]()
    while True:
        waits = [(-end[p], PREDECESSOR, p) for p in graph.predecessors(op).tolist()]
        turn = int(graph.resource_previous[op])
        if turn >= 0:
            waits.append((-end[turn], RESOURCE, turn))
        if not waits:
            causes.append(START)
            break
        _, cause, op = min(waits)  # "predecessor" sorts before "resource"
        causes.append(cause)
        ops.append(op)
    return CriticalPath(timeline, np.array(ops[::-1], np.int32), tuple(causes[::-1]))

"""The timeline of a simulated op graph: start and end time of each op."""

from dataclasses import dataclass

import numpy as np

from tangram_sim.opgraph import FloatArray, OpGraph


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What an engine returns: `start_s` and `end_s`, seconds [n], of the ops of `graph`; time starts at 0."""

    graph: OpGraph
    start_s: FloatArray
    end_s: FloatArray

    @property
    def makespan_s(self) -> float:
        """Seconds from 0 to the end of the last op; 0 for an empty graph."""
        return float(self.end_s.max()) if len(self.end_s) else 0.0

    def busy_s(self) -> FloatArray:
        """Seconds each resource spends in ops, [resources]; the rest of the makespan it is idle."""
        spent = self.end_s - self.start_s
        busy = np.zeros(len(self.graph.resources))
        np.add.at(busy, self.graph.resource, spent)
        return busy

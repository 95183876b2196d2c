"""Nodes that have come and wait: when they are taken into the job."""

from collections.abc import Iterable, Iterator

from tangram_sim.availability import FleetChange


class JoinQueue:
    """Nodes that have come and not joined the job yet, and when they may."""

    def __init__(self, join: str | float) -> None:
        self.join = join
        self.waiting: dict[str, float] = {}

    def changes(
        self, changes: tuple[FleetChange, ...], until_s: float
    ) -> Iterator[tuple[float, FleetChange, float]]:
        """(time, what happens, time of what follows), with the times at which waiting nodes are due."""
        queue, place = list(changes), 0
        while place < len(queue) or (self._due() < until_s):
            due = self._due()
            after = queue[place].time_s if place < len(queue) else until_s
            if due < after:
                yield due, FleetChange(due, (), ()), min(after, until_s)
                continue
            change = queue[place]
            place += 1
            following = queue[place].time_s if place < len(queue) else until_s
            yield change.time_s, change, min(following, until_s)

    def _due(self) -> float:
        """When the first waiting node has waited long enough; inf: it waits for something else."""
        if not isinstance(self.join, float) or not self.waiting:
            return float("inf")
        return min(self.waiting.values()) + self.join

    def lose(self, nodes: Iterable[str]) -> None:
        """Nodes that went before they joined."""
        for node in nodes:
            self.waiting.pop(node, None)

    def admit(self, change: FleetChange, time_s: float, *, stopped: bool, loss: bool) -> tuple[str, ...]:
        """Nodes that join now."""
        self.waiting |= dict.fromkeys(change.added, time_s)
        if not (
            stopped or self.join == "at-once" or (self.join == "next-loss" and loss) or self._due() <= time_s
        ):
            return ()
        joined = tuple(self.waiting)
        self.waiting = {}
        return joined

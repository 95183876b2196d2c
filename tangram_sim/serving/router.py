"""Routers: choose a replica for each request."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np

from tangram_sim.errors import unknown_name
from tangram_sim.serving.workload import Ints, Workload

# Tokens that a replica has been sent and not yet finished, as the router knows it.
Outstanding = Callable[[int], int]


class Router(ABC):
    """Chooses a replica by number for each request; `sees_load` says whether it uses outstanding tokens."""

    sees_load = False

    @abstractmethod
    def choose(self, request: int, able: Sequence[int], outstanding: Outstanding) -> int:
        """The number of the replica for the request, one of `able` (never empty, ascending).

        `outstanding` gives the tokens that a replica was sent and has not finished.
        """

    def choose_all(self, count: int, able: Sequence[int]) -> Ints:
        """Replicas of requests 0 to count - 1 if no replica comes or goes; for routers that ignore loads."""
        return np.array([self.choose(request, able, _unseen) for request in range(count)], dtype=np.int64)


def _unseen(replica: int) -> int:
    raise AssertionError(f"a router that sees no loads asked for that of replica {replica}")


class RoundRobin(Router):
    """Requests go to the replicas in turn, whatever their load."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: int, able: Sequence[int], outstanding: Outstanding) -> int:  # noqa: ARG002
        """See Router."""
        self._last = next((replica for replica in able if replica > self._last), able[0])
        return self._last

    def choose_all(self, count: int, able: Sequence[int]) -> Ints:
        """See Router."""
        return np.asarray(able, dtype=np.int64)[np.arange(count) % len(able)]


class Weighted(Router):
    """Smooth weighted round robin (as in nginx): every replica gets its share, evenly spread.

    `weights[replica]` are a replica's shares by request type; replicas without one get no requests while
    others can take them.
    """

    def __init__(self, weights: Mapping[int, Sequence[float]], types: Sequence[int]) -> None:
        self._weights, self._types = weights, types
        self._credit: dict[tuple[int, int], float] = {}

    def choose(self, request: int, able: Sequence[int], outstanding: Outstanding) -> int:  # noqa: ARG002
        """See Router."""
        kind = self._types[request]
        weights = {replica: self._weights.get(replica, ())[kind : kind + 1] for replica in able}
        share = {replica: given[0] if given else 0.0 for replica, given in weights.items()}
        total = sum(share.values())
        if total <= 0:
            share, total = dict.fromkeys(able, 1.0), float(len(able))
        for replica in able:
            self._credit[replica, kind] = self._credit.get((replica, kind), 0.0) + share[replica]
        best = max(able, key=lambda replica: (self._credit[replica, kind], -replica))
        self._credit[best, kind] -= total
        return best


class LeastOutstanding(Router):
    """Router to the replica with the fewest outstanding tokens; ties go to the first."""

    sees_load = True

    def choose(self, request: int, able: Sequence[int], outstanding: Outstanding) -> int:  # noqa: ARG002
        """See Router."""
        return min(able, key=lambda replica: (outstanding(replica), replica))


class PowerOfTwo(Router):
    """Router to the less loaded of two random replicas (Mitzenmacher, 2001)."""

    sees_load = True

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def choose(self, request: int, able: Sequence[int], outstanding: Outstanding) -> int:  # noqa: ARG002
        """See Router."""
        drawn = sorted(self._random.sample(list(able), min(2, len(able))))
        return min(drawn, key=lambda replica: (outstanding(replica), replica))


class PrefixAffinity(Router):
    """Router that keeps requests with a shared prefix on one replica; others go to the least loaded."""

    sees_load = True

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._home: dict[int, int] = {}

    def choose(self, request: int, able: Sequence[int], outstanding: Outstanding) -> int:
        """See Router."""
        prefix = int(self._workload.prefix[request])
        home = self._home.get(prefix, -1) if prefix >= 0 else -1
        if home not in able:
            home = min(able, key=lambda replica: (outstanding(replica), replica))
            if prefix >= 0:
                self._home[prefix] = home
        return home


ROUTERS = ("round_robin", "weighted", "least_outstanding", "power_of_two", "prefix")


def named_router(
    name: str, workload: Workload, weights: Mapping[int, Sequence[float]], types: Sequence[int], seed: int
) -> Router:
    """The router of that name. Raises UnknownNameError."""
    name = name.replace("-", "_")
    if name == "round_robin":
        return RoundRobin()
    if name == "weighted":
        return Weighted(weights, types)
    if name == "least_outstanding":
        return LeastOutstanding()
    if name == "power_of_two":
        return PowerOfTwo(seed)
    if name == "prefix":
        return PrefixAffinity(workload)
    raise unknown_name("router", name, ROUTERS)

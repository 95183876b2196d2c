"""A replica as a fleet sees it, and the ledger in which replicas write what became of every request."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class RequestLedger:
    """What became of every request so far, by its number in the workload; times are nan until they come.

    `generated` are output tokens delivered, `imported` says that the KV of all but the last of them and of
    the prompt is at hand where the request goes next. `wasted` are tokens worked on and lost again, by
    preemption or with an instance; `cached` those of the last admission that were found in a prefix cache.
    """

    ready_s: Floats  # when it could be scheduled where it went last
    start_s: Floats
    first_s: Floats
    finish_s: Floats
    generated: Ints
    imported: NDArray[np.bool_]
    preemptions: Ints
    cached: Ints
    wasted: Ints

    @classmethod
    def empty(cls, count: int) -> "RequestLedger":
        """Nothing has happened yet."""
        never, none = np.full((4, count), np.nan), np.zeros((4, count), dtype=np.int64)
        times = (never[0], never[1], never[2], never[3])
        return cls(*times, none[0], np.zeros(count, np.bool_), none[1], none[2], none[3])

    def of(self, requests: Ints) -> "RequestLedger":
        """A copy for some of the requests, numbered from 0 in their order."""
        return RequestLedger(*(getattr(self, field.name)[requests] for field in fields(self)))

    def enter(self, requests: Ints, other: "RequestLedger") -> None:
        """Take over what became of some of the requests elsewhere, from a ledger that numbers them from 0."""
        for field in fields(self):
            getattr(self, field.name)[requests] = getattr(other, field.name)


class ReplicaPlayer(ABC):
    """One replica playing requests on a clock of its own; a fleet pushes requests and advances it."""

    def __init__(
        self, rules: BatchingRules, table: StepTable, workload: Workload, ledger: RequestLedger
    ) -> None:
        self.rules, self.table, self.workload, self.ledger = rules, table, workload, ledger

    @abstractmethod
    def push(self, request: int, ready_s: float) -> None:
        """Queue a request that may be scheduled from `ready_s` on; calls come in the order of these times."""

    def push_all(self, requests: Ints, ready_s: Floats) -> None:
        """Push many requests, in the order of their times."""
        for request, ready in zip(requests.tolist(), ready_s.tolist(), strict=True):
            self.push(request, ready)

    @abstractmethod
    def hold(self, requests: Ints, pause_s: float) -> None:
        """Set requests aside for closed-loop clients: one comes `pause_s` after each request that finishes.

        Requests that were pushed come before the first of these, as when all clients begin together.
        """

    @abstractmethod
    def advance(self, until_s: float) -> None:
        """Run all iterations that start before `until_s`, at the latest until the replica is halted."""

    @abstractmethod
    def halt_at(self, time_s: float) -> None:
        """Set the time at which the replica stops: an iteration that would end later is lost."""

    @abstractmethod
    def unfinished(self) -> list[int]:
        """Requests that have not finished here, in the order in which they should go on elsewhere.

        The tokens computed for them count as wasted; the replica forgets them.
        """

    @abstractmethod
    def finished_tokens(self, time_s: float) -> int:
        """Prompt and output tokens of the requests finished by `time_s`, as far as was played."""

    @property
    @abstractmethod
    def peak_blocks(self) -> int:
        """The most KV blocks ever in use, those of idle cached prefixes not counted."""

    @property
    @abstractmethod
    def busy_s(self) -> float:
        """Seconds spent in iterations."""

    @property
    @abstractmethod
    def processed_tokens(self) -> int:
        """Tokens worked on in iterations that came to their end: prompt rows and decoded tokens."""

    @property
    @abstractmethod
    def events(self) -> int:
        """How many events the player handled: a measure of its work."""

"""The interface of a simulated replica, and the ledger in which replicas record each request's progress."""

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
    """Progress of every request, by its number in the workload; times are nan until they are known.

    `generated` are output tokens delivered. `imported`: the KV of the prompt and of all delivered tokens but
    the last is available where the request goes next. `wasted` are tokens computed and lost again, by
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
        """A ledger of `count` requests before the simulation."""
        never, none = np.full((4, count), np.nan), np.zeros((4, count), dtype=np.int64)
        times = (never[0], never[1], never[2], never[3])
        return cls(*times, none[0], np.zeros(count, np.bool_), none[1], none[2], none[3])

    def of(self, requests: Ints) -> "RequestLedger":
        """A copy for some of the requests, numbered from 0 in their order."""
        return RequestLedger(*(getattr(self, field.name)[requests] for field in fields(self)))

    def enter(self, requests: Ints, other: "RequestLedger") -> None:
        """Copy the rows of `other`, which numbers requests from 0, to the rows `requests`."""
        for field in fields(self):
            getattr(self, field.name)[requests] = getattr(other, field.name)


class ReplicaPlayer(ABC):
    """Simulator of one replica with its own clock; a fleet pushes requests and advances the clock."""

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
        """Set requests aside for closed-loop clients: one arrives `pause_s` after each request that finishes.

        Requests that were pushed come before these, as when all clients begin together.
        """

    @abstractmethod
    def advance(self, until_s: float) -> None:
        """Run all iterations that start before `until_s`, but none after the replica is halted."""

    @abstractmethod
    def halt_at(self, time_s: float) -> None:
        """Set the time at which the replica stops: an iteration that would end later is lost."""

    @abstractmethod
    def unfinished(self) -> list[int]:
        """Requests that have not finished here, in the order in which they should be routed again.

        The tokens computed for them count as wasted; the replica forgets the requests.
        """

    @abstractmethod
    def finished_tokens(self, time_s: float) -> int:
        """Prompt and output tokens of the requests finished by `time_s`, up to the time simulated so far."""

    @property
    @abstractmethod
    def peak_blocks(self) -> int:
        """Peak KV blocks in use, without those of unused cached prefixes."""

    @property
    @abstractmethod
    def busy_s(self) -> float:
        """Seconds spent in iterations."""

    @property
    @abstractmethod
    def processed_tokens(self) -> int:
        """Tokens processed in completed iterations: prompt rows and decoded tokens."""

    @property
    @abstractmethod
    def events(self) -> int:
        """Number of events that the player handled: a measure of its work."""

"""A fleet of replicas that come and go, with a router: simulates every request on one clock."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from tangram_sim.errors import unknown_name
from tangram_sim.serving.batching import SAME_S, BatchingRules
from tangram_sim.serving.replica import ReplicaPlayer, RequestLedger
from tangram_sim.serving.router import Router
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.workload import Ints, Workload

Progress = Callable[[int, int, str], None]
TOLD_EVERY = 500  # requests
FAST, REFERENCE = "fast", "reference"
RESUME, FAIL = "resume", "fail"
# Why a request was not served.
TOO_LONG, NO_REPLICA, LOST = "longer than any replica's KV memory", "no replica left", "lost with its replica"


@dataclass(frozen=True, slots=True)
class Presence:
    """A period in which a replica is up, `up_s` to `down_s`, seconds; it takes requests after `boot_s`."""

    up_s: float = 0.0
    down_s: float = inf
    boot_s: float = 0.0


ALWAYS = (Presence(),)


@dataclass(frozen=True)
class FleetReplica:
    """A replica of a fleet: its batching rules, step table and price, and the periods in which it is up."""

    name: str
    rules: BatchingRules
    table: StepTable
    usd_per_hour: float = 0.0
    presences: tuple[Presence, ...] = ALWAYS
    notice_s: float = 0.0  # before it goes the router hears of it and sends nothing more
    model: str = ""  # what it serves; empty: whatever is asked


@dataclass
class Instance:
    """A replica in one of its periods of being up, with the player that simulates its requests."""

    given: FleetReplica
    presence: Presence
    player: ReplicaPlayer
    unseen: deque[tuple[float, int]] = field(default_factory=deque)  # sent, but not yet known to the router
    sent_tokens: int = 0  # known to the router
    read_s: float = 0.0  # when all that it was sent are read

    def takes(self, time_s: float) -> bool:
        """Whether the router may send a request here at `time_s`: it is up, without notice of going down."""
        begins = self.presence.up_s + self.presence.boot_s
        return begins <= time_s + SAME_S and time_s < self.presence.down_s - self.given.notice_s

    def holds(self, tokens: int) -> bool:
        """Whether a request that ends with `tokens` tokens fits the KV memory."""
        return self.given.rules.holds(tokens) <= self.given.rules.blocks


@dataclass(frozen=True)
class PlayedService:
    """The result of a run: what became of every request, and when the last one finished (`end_s`).

    `instance` is the number of the instance where each request ended (-1: none), `failed` the reason by
    request for those that were not served. Times are in seconds.
    """

    workload: Workload
    ledger: RequestLedger
    instance: Ints
    failed: dict[int, str]
    instances: list[Instance]
    end_s: float


def play(
    fleet: Sequence[FleetReplica],
    workload: Workload,
    router: Router,
    *,
    engine: str = FAST,
    on_loss: str = RESUME,
    lag_s: float = 0.0,
    ledger: RequestLedger | None = None,
    progress: Progress | None = None,
) -> PlayedService:
    """Simulate the workload on the fleet; `progress(requests, total, what)` is called now and then.

    `ledger` may hold requests in progress (with first tokens from elsewhere). An instance that goes down
    loses its requests: with `on_loss` resume they are routed again, tokens delivered stay delivered and their
    KV is recomputed; with fail they fail. The router sees loads as of `lag_s` ago.
    """
    book = RequestLedger.empty(len(workload)) if ledger is None else ledger
    players, write = players_of(engine, workload, book)
    instances = [Instance(given, presence, players(given)) for given in fleet for presence in given.presences]
    run = _FleetRun(workload, router, on_loss, lag_s, ledger=book, instances=instances, progress=progress)
    run.play()
    write()
    ends = book.finish_s[~np.isnan(book.finish_s)]
    return PlayedService(workload, book, run.instance, run.failed, instances, float(ends.max(initial=0.0)))


def players_of(
    engine: str, workload: Workload, ledger: RequestLedger
) -> tuple[Callable[[FleetReplica], ReplicaPlayer], Callable[[], None]]:
    """(a function that makes the player of a replica, one to call at the end to complete the ledger).

    `engine` is the name of the player: `fast` or `reference`. Raises UnknownNameError.
    """
    if engine == REFERENCE:
        from tangram_sim.serving.reference import ReferenceReplica

        return lambda given: ReferenceReplica(given.rules, given.table, workload, ledger), lambda: None
    if engine != FAST:
        raise unknown_name("engine of the simulator", engine, (FAST, REFERENCE))
    from tangram_sim.serving.fast import FastReplica, FastRun

    shared = FastRun(workload, ledger)
    return lambda given: FastReplica(given.rules, given.table, workload, ledger, shared), shared.write


class _FleetRun:
    """State of one simulation: events in order of time, and the instance of each request."""

    def __init__(
        self,
        workload: Workload,
        router: Router,
        on_loss: str,
        lag_s: float,
        ledger: RequestLedger,
        instances: list[Instance],
        progress: Progress | None,
    ) -> None:
        self.workload, self.router, self.on_loss, self.lag_s = workload, router, on_loss, lag_s
        self.ledger, self.instances = ledger, instances
        self.instance = np.full(len(workload), -1, dtype=np.int64)
        self.failed: dict[int, str] = {}
        self.sent: dict[int, list[int]] = {}  # requests routed at this time, by instance
        self.tokens = workload.input_tokens + workload.output_tokens
        self.events: list[tuple[float, int, int]] = []  # time; departures (0) before requests (1); which
        self.now_s = 0.0
        self.progress, self.routed = progress, 0

    def play(self) -> None:
        """Route requests and handle departures in order of time, then let every instance finish."""
        steady = all(
            instance.presence == Presence() and not instance.given.model for instance in self.instances
        )
        longest = int(self.tokens.max(initial=1)) - 1
        if (
            steady
            and not self.router.sees_load
            and all(instance.holds(longest) for instance in self.instances)
        ):
            self._route_beforehand()
        else:
            self._route_in_time()
        for place, instance in enumerate(self.instances):
            instance.player.advance(inf)
            if self.progress is not None:
                self.progress(place + 1, len(self.instances), "replicas played to their end")

    def _route_beforehand(self) -> None:
        """Route all requests at once, for steady fleets and routers that ignore loads."""
        self.instance[:] = self.router.choose_all(len(self.workload), range(len(self.instances)))
        for place, instance in enumerate(self.instances):
            mine = np.flatnonzero(self.instance == place)
            arrival_s = self.workload.arrival_s[mine]
            _, when, together = np.unique(arrival_s, return_inverse=True, return_counts=True)
            read_s = arrival_s + instance.given.table.request_s * together[when]
            instance.player.push_all(mine, np.maximum.accumulate(read_s))

    def _route_in_time(self) -> None:
        for place, instance in enumerate(self.instances):
            instance.player.halt_at(instance.presence.down_s)
            if instance.presence.down_s < inf:
                self.events.append((instance.presence.down_s, 0, place))
        self.events += [(float(at), 1, request) for request, at in enumerate(self.workload.arrival_s)]
        heapify(self.events)
        while self.events:
            self.now_s, kind, which = heappop(self.events)
            if kind:
                self._route(which)
                self.routed += 1
                if self.progress is not None and self.routed % TOLD_EVERY == 0:
                    self.progress(min(self.routed, len(self.workload)), len(self.workload), "requests sent")
            else:
                self._depart(self.instances[which])
            if not self.events or self.events[0][0] > self.now_s:
                self._push()

    def _push(self) -> None:
        """Hand on requests that were routed now, for when all of these and those before are read."""
        for place, requests in self.sent.items():
            instance = self.instances[place]
            read_s = self.now_s + instance.given.table.request_s * len(requests)
            instance.read_s = max(instance.read_s, read_s)
            for request in requests:
                instance.player.push(request, instance.read_s)
        self.sent.clear()

    def _depart(self, instance: Instance) -> None:
        """Take an instance down: its unfinished requests are routed again, or fail if `on_loss` says so."""
        instance.player.advance(self.now_s)
        for request in instance.player.unfinished():
            self.instance[request] = -1
            if self.on_loss == RESUME:
                self._route(request)
            else:
                self.failed[request] = LOST

    def _route(self, request: int) -> None:
        """Send a request to an instance; retry once one is up; fail it where none will be."""
        tokens = int(self.tokens[request])
        asked = self.workload.model_of(request)
        fitting = [
            place
            for place, instance in enumerate(self.instances)
            if instance.given.model in ("", asked) and instance.holds(tokens - 1)
        ]
        able = [place for place in fitting if self.instances[place].takes(self.now_s)]
        if not able:
            coming = [self.instances[place].presence for place in fitting]
            ends = (presence.up_s + presence.boot_s for presence in coming)
            ready = [end_s for end_s in ends if end_s > self.now_s]
            if ready:
                heappush(self.events, (min(ready), 1, request))
            else:
                self.failed[request] = NO_REPLICA if fitting else TOO_LONG
            return
        place = self.router.choose(request, able, self._outstanding)
        self.instance[request] = place
        instance = self.instances[place]
        if self.router.sees_load:
            instance.unseen.append((self.now_s, tokens))
        self.sent.setdefault(place, []).append(request)

    def _outstanding(self, place: int) -> int:
        """Tokens sent to an instance and not finished, as of `lag_s` ago."""
        instance, seen_s = self.instances[place], self.now_s - self.lag_s
        instance.player.advance(seen_s)
        while instance.unseen and instance.unseen[0][0] <= seen_s + SAME_S:
            instance.sent_tokens += instance.unseen.popleft()[1]
        return instance.sent_tokens - instance.player.finished_tokens(seen_s)

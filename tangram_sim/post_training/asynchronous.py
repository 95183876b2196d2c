"""Asynchronous post-training, simulated: rollout never stops, the trainer consumes groups as they complete.

Groups begin when the staleness rule allows (`Mode.may_begin`). Under a limit on versions the trainer waits
for the oldest groups, so that none gets older; under a limit on their share it consumes groups as they
complete. At each weight sync running requests are kept, interrupted or waited for. Rollout replicas run on a
clock that stops while engines load weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.errors import InfeasibleError
from tangram_sim.post_training.lengths import Floats, Ints
from tangram_sim.post_training.plan import DRAIN, PARTIAL, Mode
from tangram_sim.post_training.rollout import requests_of, speed
from tangram_sim.post_training.workload import PostTraining
from tangram_sim.serving.fast import FastReplica
from tangram_sim.serving.fleet import FAST, FleetReplica, players_of
from tangram_sim.serving.replica import ReplicaPlayer, RequestLedger

Flags = NDArray[np.bool_]
STEPS, WARM = 24, 8
_LOOKS = 64  # at least, while a mean response is generated: groups begin late by less than one of them


@dataclass(frozen=True)
class Loop:
    """Steady state of an asynchronous loop: seconds a step, trainer's waits, ages of consumed groups.

    Groups: begun = consumed + queued (complete, not consumed) + running.
    """

    step_s: float
    waited_s: float
    rollout_idle: float
    ages: Ints
    begun: int
    consumed: int
    queued: int
    running: int
    generated_tokens: int
    sync_ends_s: Floats


class _Pool:
    """Rollout replicas on one common clock, which stops during pauses."""

    def __init__(self, fleet: Sequence[FleetReplica], work: PostTraining, lengths: Ints, engine: str) -> None:
        self.requests = requests_of(work.prompt_tokens, lengths)
        self.samples = lengths.shape[1]
        self.ledger = RequestLedger.empty(len(self.requests))
        make, self.write = players_of(engine, self.requests, self.ledger)
        self.players: list[ReplicaPlayer] = [make(fleet_replica) for fleet_replica in fleet]
        tokens = work.prompt_tokens + work.lengths.mean / 2.0
        running = max(work.sequences / len(fleet), 1.0)
        self.rates = np.array([speed(fleet_replica, running, tokens) for fleet_replica in fleet])
        # Seconds of a mean response beside as many as there are seats for.
        self.response_s = work.lengths.mean * running / float(self.rates.max())
        self.given = np.zeros(len(fleet))
        self.home = np.full(len(lengths), -1, dtype=np.int64)
        self.finished = np.full(len(lengths), np.nan)
        self.open = np.empty(
            0, dtype=np.int64
        )  # groups that have begun and were not complete at the last look
        self.begun = 0
        self.now_s = 0.0
        self.paused_at: list[float] = []  # on rollout's clock
        self.paused_s: list[float] = []

    def wall_s(self, own_s: Floats) -> Floats:
        """Wall-clock seconds of times on the rollout clock."""
        pauses = np.concatenate([[0.0], np.cumsum(self.paused_s)])
        return np.asarray(own_s + pauses[np.searchsorted(self.paused_at, own_s, side="right")])

    def own_s(self, wall_s: float) -> float:
        """Time on the rollout clock at the wall-clock time `wall_s`, after all pauses so far."""
        return wall_s - sum(self.paused_s)

    def begin(self, groups: int, wall_s: float) -> None:
        """Begin the next groups, each on the replica with the least load relative to its speed."""
        at = max(self.own_s(wall_s), self.now_s)
        more = np.arange(self.begun, min(self.begun + groups, len(self.home)))
        for group in more:
            place = int(((self.given + 1.0) / self.rates).argmin())
            self.given[place] += 1.0
            self.home[group] = place
        for place in np.unique(self.home[more]):
            first = more[self.home[more] == place] * self.samples
            mine = (first[:, None] + np.arange(self.samples)).reshape(-1)
            self.players[place].push_all(mine, np.full(len(mine), at))
        self.open = np.concatenate([self.open, more])
        self.begun += len(more)

    def advance(self, own_s: float) -> None:
        """Simulate all replicas up to a time on the rollout clock."""
        for player in self.players:
            player.advance(own_s)
        self.now_s = max(self.now_s, own_s)

    def finished_s(self) -> Floats:
        """Wall-clock completion times of groups, [groups]; NaN for groups that are not complete."""
        own = self._own_finish_s().reshape(-1, self.samples)[self.open].max(axis=1)
        complete = ~np.isnan(own)
        self.finished[self.open[complete]] = self.wall_s(own[complete])
        self.open = self.open[~complete]
        return self.finished

    def _own_finish_s(self) -> Floats:
        """Completion times of requests on the rollout clock, [requests]; NaN for unfinished ones."""
        first = self.players[0]
        if isinstance(first, FastReplica):
            return first.finish_s  # as it stands, where writing the whole ledger takes longer than a look
        self.write()
        return self.ledger.finish_s

    def pause(self, wall_s: float, seconds: float, interrupts: bool) -> None:
        """Pause all replicas at `wall_s`; with `interrupts`, running requests are prefilled again."""
        own = self.own_s(wall_s)
        self.advance(own)
        if interrupts:
            for player in self.players:
                again = np.array(player.unfinished(), dtype=np.int64)
                player.push_all(again, np.full(len(again), max(own, self.now_s)))
        self.paused_at.append(own)
        self.paused_s.append(seconds)


def play_loop(
    fleet: Sequence[FleetReplica],
    work: PostTraining,
    mode: Mode,
    train_s: float,
    sync_s: float,
    *,
    seed: int = 0,
    steps: int = STEPS,
    engine: str = FAST,
) -> Loop:
    """Simulate `steps` steps of an asynchronous loop; the result covers those after the warm-up.

    `train_s`: seconds of scoring and updates of one step; `sync_s`: of one weight sync, during which trainer
    and rollout both pause. Raises InfeasibleError where a group never finishes.
    """
    prompts, fetches = work.prompts, mode.fetches
    depth = mode.eta if mode.share is None else int(np.ceil(mode.share))
    lengths = work.lengths.draw((steps + depth + 2) * prompts, work.samples, seed)
    pool = _Pool(fleet, work, lengths, engine)
    pool.begin(mode.may_begin(prompts, 0, 0, 0), 0.0)
    began_at = np.zeros(len(lengths), dtype=np.int64)  # version that began each group
    consumed = np.zeros(len(lengths), dtype=bool)
    look_s = max(train_s / fetches / 2.0, pool.response_s / _LOOKS)
    free_s, waited, ends, ages = 0.0, [], [], []
    for version in range(steps):
        wait = 0.0
        for fetch in range(fetches):
            wanted = prompts * (fetch + 1) // fetches - prompts * fetch // fetches
            first = version * prompts + prompts * fetch // fetches
            due = slice(first, first + wanted) if mode.share is None else slice(0, len(lengths))
            ready = _wait_for(pool, consumed, wanted, due, look_s)
            times = pool.finished_s()
            order = np.argsort(np.where(consumed | np.isnan(times), np.inf, times)[due], kind="stable")
            order = order[:wanted] + due.start
            consumed[order] = True
            ages.append(version - began_at[order])
            start_s = max(free_s, ready)
            wait += start_s - free_s
            free_s = start_s + train_s / fetches
        if mode.at_sync == DRAIN:
            free_s = max(free_s, _drained_s(pool, look_s))
        pool.pause(free_s, sync_s, mode.at_sync == PARTIAL)
        free_s += sync_s
        waited.append(wait)
        ends.append(free_s)
        left = pool.begun - int(consumed.sum())
        more = mode.may_begin(prompts, version + 1, pool.begun, left)
        began_at[pool.begun : pool.begun + more] = version + 1
        pool.begin(more, free_s)
    times = pool.finished_s()
    complete = ~np.isnan(times)
    warm = min(WARM, steps // 2)
    whole = ends[-1] - ends[warm - 1] if warm else ends[-1]
    busy = sum(player.busy_s for player in pool.players) / len(pool.players)
    return Loop(
        step_s=whole / (steps - warm),
        waited_s=float(np.mean(waited[warm:])),
        rollout_idle=float(min(max(1.0 - busy / max(ends[-1], 1e-12), 0.0), 1.0)),
        ages=np.concatenate(ages[warm * fetches :]),
        begun=pool.begun,
        consumed=int(consumed.sum()),
        queued=int((complete & ~consumed).sum()),
        running=pool.begun - int(complete.sum()),
        generated_tokens=int(lengths[complete].sum()),
        sync_ends_s=np.array(ends),
    )


def _wait_for(pool: _Pool, consumed: Flags, wanted: int, due: slice, look_s: float) -> float:
    """Wall-clock time at which `wanted` groups among those `due` are complete and not consumed."""
    idle = 0
    while True:
        times = pool.finished_s()
        free = np.sort(times[due][(~consumed & ~np.isnan(times))[due]])
        if len(free) >= wanted:
            return float(free[wanted - 1])
        before = len(free)
        pool.advance(pool.now_s + look_s * (1 + idle // 8))
        idle = idle + 1 if len(free) == before else 0
        if idle > 100_000:
            raise InfeasibleError("asynchronous rollout: fewer groups may begin than one step consumes")


def _drained_s(pool: _Pool, look_s: float) -> float:
    """Wall-clock time at which all groups begun so far are complete."""
    while True:
        times = pool.finished_s()[: pool.begun]
        if not np.isnan(times).any():
            return float(times.max(initial=0.0))
        pool.advance(pool.now_s + look_s)

"""The replay: a policy lives through a history of availability, and every second goes to an account.

Nodes that come wait in a queue until they are taken into the job.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tangram_sim.availability import Availability, FleetChange
from tangram_sim.reliability.spot.job import RunningJob, Segment
from tangram_sim.reliability.spot.speeds import Fleet, Option, Speeds
from tangram_sim.reliability.spot.transitions import Stalls, Transitions


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


Factors = tuple[tuple[str, tuple[float, ...]], ...]  # times slower, of nodes by kind, quickest first


@dataclass(frozen=True, slots=True)
class Reaction:
    """A policy's reaction to a change: the option to run from now on (None: wait), stalls before, lost work.

    `slowed`: samples/s in place of the option's own (peers take over); 0: the option's own.
    """

    option: Option | None
    stalls: Stalls = ()
    loses: str = "nothing"
    slowed: float = 0.0


@dataclass(frozen=True)
class Moment:
    """What a policy knows when it decides: the nodes, what has changed, the running plan, past changes."""

    time_s: float
    fleet: Fleet
    added: int
    removed: int
    lost_names: tuple[str, ...]
    lost_kinds: tuple[str, ...]  # of the same
    names: tuple[str, ...]  # nodes the job may use, oldest first
    running: Option | None
    pending_s: float  # of an earlier change, not over yet
    remaining_s: float  # until the next change, or the end: what a perfect forecast knows
    mean_gap_s: float  # between changes so far
    factors: Factors = ()  # of the fleet; empty: all run as priced

    def pace_of(self, option: Option) -> float:
        """Factor by which `option` is slower than priced: that of the slowest node that it uses.

        The option uses the fastest available nodes of every kind.
        """
        by_kind = dict(self.factors)
        return max(
            (by_kind[kind][min(count, len(by_kind[kind])) - 1] for kind, count in option.nodes)
            if by_kind
            else (1.0,),
            default=1.0,
        )

    def speed_of(self, option: Option) -> float:
        """Samples/s of `option` on these nodes."""
        return option.samples_per_s / self.pace_of(option)

    def paced_fleets(self) -> list[Fleet]:
        """The fleet, and for each slowdown factor that occurs, the fleet without nodes slower than that."""
        limits = sorted({factor for _, factors in self.factors for factor in factors})
        found = [self.fleet]
        for limit in limits[:-1]:
            counts = [(kind, sum(f <= limit for f in factors)) for kind, factors in self.factors]
            found.append(tuple((kind, count) for kind, count in counts if count))
        return found


class Policy(Protocol):
    """A policy: decides at every change of the fleet what runs next."""

    name: str
    speeds: Speeds
    checkpoints: bool  # whether it takes checkpoints while it runs: others rest on copies

    def react(self, moment: Moment) -> Reaction:
        """The reaction to a change; the first call starts the job."""


@dataclass(frozen=True)
class Outcome:
    """Result of a policy on an availability history. Accounts are in seconds and sum to the duration."""

    policy: str
    duration_s: float
    samples: float
    accounts: dict[str, float]
    changes: int  # times it changed over
    options: tuple[str, ...]  # layouts it ran, in order of first use
    segments: tuple[Segment, ...]
    started_s: float  # first step begins
    last_step_s: float  # last whole step ends
    whole_samples: float  # of whole steps only

    @property
    def samples_per_s(self) -> float:
        """Samples made per second of the whole duration, stalls included."""
        return self.samples / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def useful_share(self) -> float:
        """Useful seconds over wall time."""
        return self.accounts["useful"] / self.duration_s if self.duration_s > 0 else 0.0


def replay(
    availability: Availability,
    policy: Policy,
    transitions: Transitions,
    *,
    join: str | float = "at-once",
) -> Outcome:
    """The result of running `policy` through an availability history.

    `join`: new nodes join `at-once`, at the `next-loss`, or this many seconds after the first waiting one
    came; at once before the job starts. The policy sets the cost of a change during another change.
    """
    run = RunningJob(
        transitions.block_s if policy.checkpoints else 0.0,
        transitions.every_steps if policy.checkpoints else 0,
    )
    names: dict[str, str] = {}
    slow: dict[str, float] = {}
    kind_of = availability.kind_of
    queue = JoinQueue(join)
    at, made, noticed, gaps = 0.0, 0, 0, 0.0
    used: dict[str, None] = {}
    for time_s, change, following in queue.changes(availability.changes, availability.until_s):
        if time_s >= availability.until_s:
            break
        run.advance(at, time_s)
        gaps += time_s - at if noticed else 0.0
        at = time_s
        taken = [node for node in change.removed if node in names]
        for node in change.removed:
            names.pop(node, None)
            slow.pop(node, None)
        slow |= dict(change.paced)
        queue.lose(change.removed)
        joined = queue.admit(change, time_s, stopped=noticed == 0, loss=bool(taken))
        names |= {node: kind_of[node] for node in joined}
        paced = any(node in names for node, _ in change.paced)
        if not (joined or taken or paced):
            continue
        fleet = fleet_of(names.values())
        moment = Moment(
            time_s=at,
            fleet=fleet,
            added=len(joined),
            removed=len(taken),
            lost_names=tuple(taken),
            lost_kinds=tuple(kind_of[node] for node in taken),
            names=tuple(names),
            running=run.option,
            pending_s=run.pending_s,
            remaining_s=following - at,
            mean_gap_s=gaps / noticed if noticed else availability.until_s,
            factors=_factors(names, slow),
        )
        noticed += 1
        before = run.option
        reaction = policy.react(moment)
        if reaction.option == before and not (joined or taken):
            reaction = Reaction(before, (), "nothing", reaction.slowed)  # nothing to change over to
        run.lose(reaction.loses)
        kept = reaction.loses == "nothing" and reaction.option == before and not reaction.stalls
        pace = moment.pace_of(reaction.option) if reaction.option else 1.0
        run.settle(reaction.option, reaction.stalls, reaction.slowed, pace, kept=kept)
        made += reaction.option != before and before is not None
        best = policy.speeds.best(fleet)
        run.ceiling = max(best.samples_per_s if best else 0.0, run.rate)
        total = sum(count for _, count in fleet)
        spare = (best.size - reaction.option.size) / total if best and reaction.option and total else 0.0
        run.idle = max(0.0, spare)
        if reaction.option is not None:
            used[reaction.option.label] = None
    run.advance(at, availability.until_s)
    return Outcome(
        policy=policy.name,
        duration_s=availability.until_s,
        samples=run.samples,
        accounts=run.accounts,
        changes=made,
        options=tuple(used),
        segments=tuple(run.segments),
        started_s=max(run.started_s, 0.0),
        last_step_s=run.last_step_s,
        whole_samples=run.samples - run.begun,
    )


def _factors(kinds: Mapping[str, str], slow: Mapping[str, float]) -> Factors:
    """Slowdown factors of nodes by kind, fastest first; empty where all run as priced."""
    if not any(slow.get(node, 1.0) != 1.0 for node in kinds):
        return ()
    found: dict[str, list[float]] = {}
    for node, kind in kinds.items():
        found.setdefault(kind, []).append(slow.get(node, 1.0))
    return tuple((kind, tuple(sorted(factors))) for kind, factors in sorted(found.items()))


def fleet_of(kinds: Iterable[str]) -> Fleet:
    """Nodes counted by kind."""
    found: dict[str, int] = {}
    for kind in kinds:
        found[kind] = found.get(kind, 0) + 1
    return tuple(sorted(found.items()))

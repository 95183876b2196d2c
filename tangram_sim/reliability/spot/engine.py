"""The replay: a policy lives through a history of availability, and every second goes to an account."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tangram_sim.availability import Availability, FleetChange
from tangram_sim.reliability.goodput import empty_accounts
from tangram_sim.reliability.spot.speeds import Fleet, Option, Speeds
from tangram_sim.reliability.spot.transitions import Stalls, Transitions

LOSES = ("nothing", "step", "checkpoint")


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a policy does at a change: the option from now on (None: wait), stalls before it, lost work.

    `slowed` is the speed in place of the option's (peers take over), 0: as the option says.
    """

    option: Option | None
    stalls: Stalls = ()
    loses: str = "nothing"
    slowed: float = 0.0


@dataclass(frozen=True)
class Moment:
    """What a policy sees at a change."""

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


class Policy(Protocol):
    """Who decides at every change."""

    name: str
    speeds: Speeds
    checkpoints: bool  # whether it takes checkpoints while it runs: others rest on copies

    def react(self, moment: Moment) -> Reaction:
        """The decision at a change; the first one starts the job."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a timeline: what runs, or what it is stalled for."""

    start_s: float
    stop_s: float
    label: str
    account: str


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a history. Accounts are seconds and sum to the duration."""

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
        """Over the whole duration."""
        return self.samples / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def useful_share(self) -> float:
        """Of wall time."""
        return self.accounts["useful"] / self.duration_s if self.duration_s > 0 else 0.0


@dataclass
class _SpotRun:
    """The job between changes: where it stands in its rhythm of steps and checkpoints."""

    speeds: Speeds
    block_s: float
    every_steps: int
    option: Option | None = None
    slowed: float = 0.0
    ceiling: float = 0.0  # samples/s of the best on this fleet: what is below it is degraded or idle
    idle: float = 0.0  # share of the fleet's nodes without a place, beyond the best's
    pending: list[list[float]] = field(default_factory=list)
    pending_accounts: list[str] = field(default_factory=list)
    into_s: float = 0.0  # into the cycle of steps and a checkpoint
    unsaved: list[tuple[float, tuple[float, float, float]]] = field(default_factory=list)
    samples: float = 0.0
    accounts: dict[str, float] = field(default_factory=empty_accounts)
    segments: list[Segment] = field(default_factory=list)
    started_s: float = -1.0
    last_step_s: float = 0.0

    @property
    def rate(self) -> float:
        """Samples/s of running steps."""
        return self.slowed or (self.option.samples_per_s if self.option else 0.0)

    @property
    def step_s(self) -> float:
        return self.option.samples_per_step / self.rate if self.option else 0.0

    @property
    def cycle_s(self) -> float:
        """Steps up to a checkpoint, and the checkpoint; inf: none is taken."""
        return self.every_steps * self.step_s + self.block_s if self.every_steps else float("inf")

    @property
    def pending_s(self) -> float:
        return sum(entry[0] for entry in self.pending)

    def _note(self, start_s: float, stop_s: float, label: str, account: str) -> None:
        if stop_s <= start_s:
            return
        last = self.segments[-1] if self.segments else None
        if last and last.label == label and last.account == account and last.stop_s == start_s:
            self.segments[-1] = Segment(last.start_s, stop_s, label, account)
        else:
            self.segments.append(Segment(start_s, stop_s, label, account))

    def advance(self, at: float, to: float) -> None:
        """Let time pass from `at` to `to`."""
        while self.pending and at < to:
            left, account = self.pending[0], self.pending_accounts[0]
            spent = min(left[0], to - at)
            self.accounts[account] += spent
            self._note(at, at + spent, account.replace("_", " "), account)
            at, left[0] = at + spent, left[0] - spent
            if left[0] <= 0:
                self.pending.pop(0)
                self.pending_accounts.pop(0)
        if at >= to:
            return
        if self.option is None:
            self.accounts["waiting_for_nodes"] += to - at
            self._note(at, to, "waiting for nodes", "waiting_for_nodes")
            return
        if self.started_s < 0:
            self.started_s = at
        self._note(at, to, self.option.label, "useful")
        self._work(at, to)

    def _work(self, at: float, to: float) -> None:
        """Steps and checkpoints from `at` to `to`."""
        spent = to - at
        steps_s = self.every_steps * self.step_s
        if not self.every_steps:
            worked = spent
            self.into_s += spent
        else:
            before, after = self.into_s, self.into_s + spent
            worked = self._working(after, steps_s) - self._working(before, steps_s)
            self.into_s = after
        self.accounts["checkpoint"] += spent - worked
        self._credit(worked)
        whole = self._whole_step_end()
        if whole >= 0:
            self.last_step_s = max(self.last_step_s, to - whole)

    def _working(self, into_s: float, steps_s: float) -> float:
        """Seconds of steps in the first `into_s` of the rhythm."""
        cycles, rest = divmod(into_s, self.cycle_s)
        return cycles * steps_s + min(rest, steps_s)

    def _whole_step_end(self) -> float:
        """Seconds ago that the last whole step ended; negative: none has."""
        step_s = self.step_s
        if not self.every_steps:
            return self.into_s % step_s if self.into_s >= step_s else -1.0
        if self.into_s < step_s:
            return -1.0
        rest = self.into_s % self.cycle_s
        steps_s = self.every_steps * step_s
        if rest < step_s and self.into_s >= self.cycle_s:
            return rest + self.block_s
        return rest % step_s if rest < steps_s else rest - steps_s

    @property
    def begun(self) -> float:
        """Samples of the step that has begun and not ended."""
        if self.option is None:
            return 0.0
        rest = self.into_s % self.cycle_s if self.every_steps else self.into_s
        return (
            rest % self.step_s * self.rate
            if rest < self.every_steps * self.step_s or not self.every_steps
            else 0.0
        )

    def _credit(self, worked: float) -> None:
        """Worked seconds, split by how far the speed is below the fleet's best; remembered until saved."""
        share = min(1.0, self.rate / self.ceiling) if self.ceiling > 0 else 1.0
        entry = (share, min(1.0 - share, self.idle), self.rate)
        if self.unsaved and self.unsaved[-1][1] == entry:
            worked_before = self.unsaved.pop()[0]
            self.unsaved.append((worked_before + worked, entry))
        else:
            self.unsaved.append((worked, entry))
        self._book(worked, entry)

    def _book(self, worked: float, entry: tuple[float, float, float]) -> None:
        share, idle, rate = entry
        self.samples += worked * rate
        self.accounts["useful"] += worked * share
        self.accounts["idle_nodes"] += worked * idle
        self.accounts["degraded"] += worked * (1.0 - share - idle)

    def _take_back(self, seconds: float) -> None:
        """The last `seconds` of work are lost, as they were booked."""
        self.accounts["lost_work"] += seconds
        while seconds > 0 and self.unsaved:
            worked, entry = self.unsaved.pop()
            taken = min(worked, seconds)
            self._book(-taken, entry)
            seconds -= taken
            if worked > taken:
                self.unsaved.append((worked - taken, entry))

    def lose(self, what: str) -> None:
        """Take back the running step, or all since the last checkpoint."""
        if self.option is None or what == "nothing" or self.into_s <= 0:
            return
        step_s = self.step_s
        if not self.every_steps:
            back = self.into_s % step_s if what == "step" else self.into_s
        else:
            steps_s = self.every_steps * step_s
            rest = self.into_s % self.cycle_s
            worked = min(rest, steps_s)
            back = (rest % step_s if rest < steps_s else 0.0) if what == "step" else worked
        self._take_back(back)

    def settle(self, reaction: Reaction, kept: bool) -> None:
        """Take up what the policy decided. `kept`: the rhythm goes on."""
        self.option, self.slowed = reaction.option, reaction.slowed
        if not kept:
            self.into_s = 0.0
            self.unsaved = []
        if reaction.stalls:
            self.pending = [[stall.seconds] for stall in reaction.stalls if stall.seconds > 0]
            self.pending_accounts = [stall.account for stall in reaction.stalls if stall.seconds > 0]


def replay(
    availability: Availability,
    policy: Policy,
    transitions: Transitions,
    *,
    join: str | float = "at-once",
) -> Outcome:
    """Let `policy` live through a history.

    `join`: nodes that come are taken `at-once`, at the `next-loss`, or that many seconds after the first of
    them came; before it has begun, at once. What a change during a change costs, the policy says.
    """
    run = _SpotRun(
        policy.speeds,
        transitions.block_s if policy.checkpoints else 0.0,
        transitions.every_steps if policy.checkpoints else 0,
    )
    names: dict[str, str] = {}
    kind_of = availability.kind_of
    door = _Door(join)
    at, made, noticed, gaps = 0.0, 0, 0, 0.0
    used: dict[str, None] = {}
    for time_s, change, following in door.changes(availability.changes, availability.until_s):
        if time_s >= availability.until_s:
            break
        run.advance(at, time_s)
        gaps += time_s - at if noticed else 0.0
        at = time_s
        taken = [node for node in change.removed if node in names]
        for node in taken:
            names.pop(node)
        door.lose(change.removed)
        joined = door.admit(change, time_s, stopped=noticed == 0, loss=bool(taken))
        names |= {node: kind_of[node] for node in joined}
        if not joined and not taken:
            continue
        fleet = fleet_of(names.values())
        moment = Moment(
            at,
            fleet,
            len(joined),
            len(taken),
            tuple(taken),
            tuple(kind_of[node] for node in taken),
            tuple(names),
            run.option,
            run.pending_s,
            following - at,
            gaps / noticed if noticed else availability.until_s,
        )
        noticed += 1
        before = run.option
        reaction = policy.react(moment)
        run.lose(reaction.loses)
        kept = reaction.loses == "nothing" and reaction.option == before and not reaction.stalls
        run.settle(reaction, kept)
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
        policy.name,
        availability.until_s,
        run.samples,
        run.accounts,
        made,
        tuple(used),
        tuple(run.segments),
        max(run.started_s, 0.0),
        run.last_step_s,
        run.samples - run.begun,
    )


def fleet_of(kinds: Iterable[str]) -> Fleet:
    """Nodes counted by kind."""
    found: dict[str, int] = {}
    for kind in kinds:
        found[kind] = found.get(kind, 0) + 1
    return tuple(sorted(found.items()))


class _Door:
    """Nodes that came and have not joined yet."""

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

"""The job between changes: its cycle of steps and checkpoints, and the account of every second."""

from dataclasses import dataclass, field

from tangram_sim.reliability.goodput import empty_accounts
from tangram_sim.reliability.spot.speeds import Option
from tangram_sim.reliability.spot.transitions import Stall, Stalls


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a timeline: the option that runs, or the account of the stall."""

    start_s: float
    stop_s: float
    label: str
    account: str


@dataclass(frozen=True, slots=True)
class Booking:
    """How a second of work is booked: shares of accounts, and samples/s; the remaining share is degraded."""

    useful: float
    slow: float
    idle: float
    rate: float


@dataclass
class RunningJob:
    """The job's position in its cycle of steps and checkpoints, and its time by account."""

    block_s: float
    every_steps: int
    option: Option | None = None
    slowed: float = 0.0
    pace: float = 1.0  # how much slower its slowest node makes it
    ceiling: float = 0.0  # samples/s of the best on this fleet: what is below it is degraded or idle
    idle: float = 0.0  # share of the fleet's nodes without a place, beyond the best's
    pending: list[Stall] = field(default_factory=list)
    into_s: float = 0.0  # into the cycle of steps and a checkpoint
    unsaved: list[tuple[float, Booking]] = field(default_factory=list)
    samples: float = 0.0
    accounts: dict[str, float] = field(default_factory=empty_accounts)
    segments: list[Segment] = field(default_factory=list)
    started_s: float = -1.0
    last_step_s: float = 0.0

    @property
    def rate(self) -> float:
        """Samples/s of running steps."""
        return (self.slowed or (self.option.samples_per_s if self.option else 0.0)) / self.pace

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.option.samples_per_step / self.rate if self.option else 0.0

    @property
    def cycle_s(self) -> float:
        """Seconds of one cycle: the steps up to a checkpoint, and the checkpoint; inf where none is taken."""
        return self.every_steps * self.step_s + self.block_s if self.every_steps else float("inf")

    @property
    def pending_s(self) -> float:
        """Seconds of stalls left until the job runs again."""
        return sum(stall.seconds for stall in self.pending)

    def _note(self, start_s: float, stop_s: float, label: str, account: str) -> None:
        if stop_s <= start_s:
            return
        last = self.segments[-1] if self.segments else None
        if last and last.label == label and last.account == account and last.stop_s == start_s:
            self.segments[-1] = Segment(last.start_s, stop_s, label, account)
        else:
            self.segments.append(Segment(start_s, stop_s, label, account))

    def advance(self, at: float, to: float) -> None:
        """Advance the job from time `at` to `to`, seconds: first pending stalls, then waiting or work."""
        while self.pending and at < to:
            stall = self.pending.pop(0)
            spent = min(stall.seconds, to - at)
            self.accounts[stall.account] += spent
            self._note(at, at + spent, stall.account.replace("_", " "), stall.account)
            at += spent
            if stall.seconds > spent:
                self.pending.insert(0, Stall(stall.account, stall.seconds - spent))
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
        """Run steps and checkpoints from `at` to `to`, seconds."""
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
        """Seconds of steps, without checkpoints, in the first `into_s` seconds since the cycle started."""
        cycles, rest = divmod(into_s, self.cycle_s)
        return cycles * steps_s + min(rest, steps_s)

    def _whole_step_end(self) -> float:
        """Seconds since the last whole step ended; negative where none has ended."""
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
        """Samples of the unfinished step."""
        if self.option is None:
            return 0.0
        rest = self.into_s % self.cycle_s if self.every_steps else self.into_s
        return (
            rest % self.step_s * self.rate
            if rest < self.every_steps * self.step_s or not self.every_steps
            else 0.0
        )

    def _credit(self, worked: float) -> None:
        """Book `worked` seconds by the speed's shortfall from the fleet's best; `unsaved` keeps them."""
        share = min(1.0, self.rate / self.ceiling) if self.ceiling > 0 else 1.0
        slow = min(1.0 - share, max(0.0, share * (self.pace - 1.0)))
        entry = Booking(share, slow, min(1.0 - share - slow, self.idle), self.rate)
        if self.unsaved and self.unsaved[-1][1] == entry:
            worked_before = self.unsaved.pop()[0]
            self.unsaved.append((worked_before + worked, entry))
        else:
            self.unsaved.append((worked, entry))
        self._book(worked, entry)

    def _book(self, worked: float, entry: Booking) -> None:
        self.samples += worked * entry.rate
        self.accounts["useful"] += worked * entry.useful
        self.accounts["slow"] += worked * entry.slow
        self.accounts["idle_nodes"] += worked * entry.idle
        self.accounts["degraded"] += worked * (1.0 - entry.useful - entry.slow - entry.idle)

    def _take_back(self, seconds: float) -> None:
        """Book as lost the newest samples that `seconds` of work yield at the present rate."""
        samples = seconds * self.rate
        while samples > 0 and self.unsaved:
            worked, entry = self.unsaved.pop()
            taken = min(worked, samples / entry.rate)
            self._book(-taken, entry)
            self.accounts["lost_work"] += taken
            samples -= taken * entry.rate
            if worked > taken:
                self.unsaved.append((worked - taken, entry))
                return

    def lose(self, what: str) -> None:
        """Book as lost the running step, or all work since the last checkpoint; see `Reaction.loses`."""
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

    def settle(
        self, option: Option | None, stalls: Stalls, slowed: float, pace: float, *, kept: bool
    ) -> None:
        """Put a reaction into effect. `kept`: the cycle of steps and checkpoints continues."""
        before, steps_s = self.cycle_s, self.every_steps * self.step_s
        cycles, rest = divmod(self.into_s, before) if self.every_steps and before > 0 else (0.0, self.into_s)
        step_s = self.step_s
        self.option, self.slowed, self.pace = option, slowed, pace
        if stalls:
            self.pending = [stall for stall in stalls if stall.seconds > 0]
        if not kept:
            self.into_s = 0.0
            self.unsaved = []
        elif self.step_s != step_s and step_s > 0:  # the same step goes on at another speed
            worked = min(rest, steps_s) if self.every_steps else rest
            behind = cycles * self.cycle_s if cycles else 0.0
            self.into_s = behind + worked * self.step_s / step_s + (rest - worked)

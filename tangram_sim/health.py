"""Health: the speed of hardware over time, relative to what it was priced at."""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from tangram_sim.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Speed:
    """Piecewise constant speed relative to full speed: speed[k] from since_s[k] on.

    The first piece holds from the beginning, the last one for ever; a piece of speed 0 is a pause.
    """

    since_s: tuple[float, ...] = (0.0,)
    speed: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.since_s, self.since_s[1:], strict=False))
        if not self.since_s or len(self.since_s) != len(self.speed) or not rising or self.since_s[0] != 0:
            raise BadInputError(
                f"speed from {list(self.since_s)} s on: give one time per speed {list(self.speed)}, "
                f"rising from 0."
            )
        if not all(0 <= value < inf for value in self.speed) or not self.speed[-1] > 0:
            raise BadInputError(
                f"speeds {list(self.speed)}: give finite numbers, 0 or more, the last above 0 (else work "
                f"never ends)."
            )

    @property
    def is_one(self) -> bool:
        """Whether the speed is 1 throughout, as priced."""
        return all(value == 1.0 for value in self.speed)

    def at(self, time_s: float) -> float:
        """The speed at `time_s`."""
        return self.speed[bisect_right(self.since_s, time_s) - 1]

    def times(self, other: "Speed") -> "Speed":
        """The speed under both causes: at every time the product of this speed and the `other`."""
        since = sorted({*self.since_s, *other.since_s})
        return Speed(tuple(since), tuple(self.at(time) * other.at(time) for time in since))


FULL_SPEED = Speed()


def slowed(factor: float, start_s: float = 0.0, stop_s: float = inf) -> Speed:
    """The speed of something `factor` times slower from `start_s` to `stop_s`, and healthy else."""
    if not (0 < factor < inf and 0 <= start_s < stop_s):
        raise BadInputError(
            f"slowed {factor:g} times from {start_s:g} to {stop_s:g} s: give a factor above 0"
        )
    pieces = [(0.0, 1.0), (start_s, 1 / factor), (stop_s, 1.0)]
    kept = [piece for piece in pieces[1 if start_s == 0 else 0 :] if piece[0] < inf]
    return Speed(tuple(since for since, _ in kept), tuple(value for _, value in kept))


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One thing that runs `factor` times slower (below 1: faster) than it was priced at.

    `where` names nodes (`n3`, `g0`), GPUs (`n3.2`, `r12`, a kind), a link between groups (`g0-g1`) or, next
    to a plan, `stage 2` or `stage 2 replica 1`. No `steps` and `seconds`: always; `steps` are the first and
    the last one, `seconds` a window of every step. Background traffic of other jobs is `used`: (second of the
    run, share of the bandwidth from then on), again after `period_s` (0: one share throughout).
    """

    where: str = field(
        metadata={
            "description": "n3 (a node), n3.2 (its GPU 2), r12 (a rank), g0 (a group), a GPU kind, g0-g1 "
            "(the link between), network (all NICs and links), stage 2, stage 2 replica 1"
        }
    )
    factor: float = field(metadata={"gt": 0, "description": "times slower; below 1: faster"})
    what: str = field(
        default="compute",
        metadata={"description": "compute, memory (its bandwidth) or network (NICs, links)"},
    )
    steps: tuple[int, int] | None = field(
        default=None, metadata={"description": "first and last step; null: always"}
    )
    seconds: tuple[float, float] | None = field(
        default=None, metadata={"description": "window of every step; null: all of it"}
    )
    used: tuple[tuple[float, float], ...] = field(
        default=(),
        metadata={
            "description": "background traffic: second of the run, share of the bandwidth from then on"
        },
    )
    period_s: float = field(
        default=0.0, metadata={"ge": 0, "description": "after which `used` starts again; 0: it is constant"}
    )

    @property
    def mean_used(self) -> float:
        """The mean share of the bandwidth that background traffic uses, over its period."""
        ends = [*(since for since, _ in self.used[1:]), self.period_s or 1.0]
        parts = (share * (end - since) for (since, share), end in zip(self.used, ends, strict=True))
        return sum(parts) / ends[-1]

    @property
    def shortest_s(self) -> float:
        """Seconds that the shortest share of background traffic lasts; endless if it is constant."""
        ends = [*(since for since, _ in self.used[1:]), self.period_s or inf]
        return min((end - since for (since, _), end in zip(self.used, ends, strict=True)), default=inf)

    def at(self, time_s: float) -> "Slowdown":
        """The constant slowdown at `time_s`; the same object unless background traffic changes it."""
        if not self.period_s:
            return self
        _, share = self.used[bisect_right(self.used, (time_s % self.period_s, inf)) - 1]
        return replace(self, factor=1 / (1 - share), used=(), period_s=0.0)

    def lasts_s(self, time_s: float) -> float:
        """Seconds from `time_s` until the share of background traffic may change; endless if constant."""
        if not self.period_s:
            return inf
        now = time_s % self.period_s
        return min((since for since, _ in self.used if since > now), default=self.period_s) - now


@dataclass(frozen=True, slots=True)
class Pause:
    """A halt of `seconds`: of each rank with `probability` in every step, or of all once in `every_steps`."""

    seconds: float = field(metadata={"ge": 0})
    probability: float = field(
        default=0.0, metadata={"ge": 0, "le": 1, "description": "of each rank in each step, unordered"}
    )
    every_steps: int = field(
        default=0, metadata={"ge": 0, "description": "all ranks together once in so many steps; 0: unordered"}
    )

    def mean_s(self, ranks: int) -> float:
        """Mean seconds added to a step of `ranks`; where ranks halt at random, one halted rank delays all."""
        if self.every_steps:
            return self.seconds / self.every_steps
        return float(self.seconds * (1 - (1 - self.probability) ** ranks))


@dataclass(frozen=True, slots=True)
class Resizing:
    """Columns of slow tensor-parallel ranks that are sent to others or pruned, on request."""

    max_pruned: float = field(
        default=0.0, metadata={"ge": 0, "le": 1, "description": "of a group's columns; 0: they are only sent"}
    )
    cap: float = field(default=0.5, metadata={"ge": 0, "lt": 1, "description": "of one rank's own columns"})
    method: Literal["unit-migration", "semi-migration", "zero-resizing"] = field(
        default="unit-migration",
        metadata={
            "description": "unit-migration: weights of whole units out and gradients back once a step; "
            "semi-migration: the published traffic of every linear and micro-batch; zero-resizing: pruning "
            "only"
        },
    )
    shares: Literal["best", "published"] = field(
        default="best",
        metadata={"description": "published: a pruning rank drops 1/2, the slowest sends 28/32"},
    )


@dataclass(frozen=True, slots=True)
class Health:
    """Slowdown factors by rank and by node, sorted; ranks and nodes that are not named are healthy."""

    compute: tuple[tuple[int, float], ...] = ()  # by rank: everything that its GPU computes
    memory: tuple[tuple[int, float], ...] = ()  # by rank: its memory's bandwidth
    network: tuple[tuple[int, float], ...] = ()  # by node: its NICs

    @property
    def is_full(self) -> bool:
        """Whether nothing is slow."""
        return not (self.compute or self.memory or self.network)


HEALTHY = Health()

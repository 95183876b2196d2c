"""Request and result types of whole-cluster planners."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from tangram_sim.errors import TangramError
from tangram_sim.findings import Finding
from tangram_sim.planners.search_options import POLICIES as POLICIES  # noqa: PLC0414 - of this API
from tangram_sim.planners.search_options import SearchOptions as SearchOptions  # noqa: PLC0414
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import LoweredStep

Progress: TypeAlias = Callable[[int, int, str], None]  # done, of how many, what


@dataclass(slots=True)
class Counts:
    """Counters of a search: (slice, part of an island, microbatch) requests, and the partial plans found."""

    asked: int = 0
    redundant: int = 0
    imbalanced: int = 0
    infeasible: int = 0
    dominated: int = 0
    composed: int = 0  # complete pipelines that the composition handed over
    played: int = 0  # plans simulated whole
    windowed: int = 0  # outside the window that was asked for, though inside what the bound allows

    def add(self, other: "Counts") -> None:
        """Add the counters of another search to these."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan, its lowered step and the simulated seconds of that step."""

    plan: Plan
    step: LoweredStep
    step_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One partial plan that was considered, for `--candidates`."""

    start: int
    stop: int
    island: str
    nodes: int
    microbatch: int
    layout: str
    seconds: float
    stages_behind: int | None  # None: fits however many stages stand behind it
    peak_bytes: float
    capacity_bytes: float


@dataclass(slots=True)
class Found:
    """Result of a search: plans, fastest first, a lower bound on the step time, and counters and findings."""

    ranked: list[Scored]
    lower_bound_step_s: float
    counts: Counts
    findings: list[Finding] = field(default_factory=list)
    stopped: list[Finding] = field(default_factory=list)  # what ended it early
    candidates: list[Candidate] = field(default_factory=list)
    loads: tuple[float, float] = (0.0, 0.0)  # least and largest load of a pair that was asked about
    lost: float = 0.0  # at most this share of the step was lost to a window
    pipeline_bound_s: float = 0.0  # no single pipeline is played in less; 0 where that is not known
    gained: float = 1.0  # how many times as long the best plan of whole islands and halves takes


class NothingBelowError(TangramError):
    """Raised when a search for plans faster than `below_s` found none; slower plans were not searched for."""

    def __init__(self, below_s: float, counts: Counts) -> None:
        super().__init__(f"no plan was found below {below_s:.4g} s, and no slower one was looked for")
        self.counts = counts

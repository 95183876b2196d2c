"""What a whole-cluster planner is asked, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from tangram_sim.errors import TangramError
from tangram_sim.findings import Finding
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.placement.cutting import Tolerances
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import LoweredStep

Progress: TypeAlias = Callable[[int, int, str], None]  # done, of how many, what

# Why a question need not be asked, or its answer not be kept (arXiv:2606.16907, section on pruning).
POLICIES = ("redundancy", "imbalance", "infeasibility", "incompatibility")


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What the user fixes or asks for beyond model, cluster and job."""

    constraints: Constraints = field(default_factory=Constraints)
    order: tuple[str, ...] = ()  # islands front to back; others are not used
    exclude: tuple[str, ...] = ()
    top: int = 1
    kept: int = 0  # plans that are handed over, shown or not, for other schedules to begin at
    parallelizer: str = "grid"
    sub_islands: bool = True  # islands may be cut into groups of whole nodes
    every_candidate: bool = False  # keep a record of all partial plans
    policies: tuple[str, ...] = POLICIES  # how the enumeration is pruned
    window: float = 0.0  # loads asked about: 1/window to window; 0: what provably loses nothing
    replicate: bool = True  # also try pipelines side by side
    spanning: bool = True  # also try stages on several islands, and islands cut finer (with `replicate` only)
    tolerances: Tolerances | None = None  # of the cut into islands; None: the default, and the search decides
    time_limit_s: float = float("inf")  # of the search; 0: the best trivial plan
    jobs: int = 1  # processes of the search
    effort: str = "normal"  # how much is looked at: a name in `budget.EFFORTS`
    memory_margin: float | None = None  # share of every GPU's memory left free; None: what its error needs
    frameworks: tuple[str, ...] = ()  # only plans that one of these can launch; (): any plan
    lasting: bool = False  # also score stages on whole islands that are slower: they lose least with a node
    beside: bool = True  # also look for the nearest plan that a framework can launch
    # A launchable plan wins that takes so much longer and cannot be told apart; None: by the cluster.
    simple_within: float | None = None
    fleet_bound: bool = False  # take as long as the bound on fleets of pipelines needs

    @property
    def most(self) -> int:
        """Plans that a search hands over."""
        return max(self.top, self.kept, 1)


@dataclass(slots=True)
class Counts:
    """What happened to the (slice, part of an island, microbatch) pairs, and to the partial plans found."""

    asked: int = 0
    redundant: int = 0
    imbalanced: int = 0
    infeasible: int = 0
    dominated: int = 0
    composed: int = 0  # complete pipelines that the composition handed over
    played: int = 0  # plans simulated whole
    windowed: int = 0  # outside the window that was asked for, though inside what the bound allows

    def add(self, other: "Counts") -> None:
        """Count what another search counted, too."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True, slots=True)
class Scored:
    """A plan and the simulated step of its pipeline."""

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
    """The answer: best plans first, the bound, and how the search went."""

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
    """A search was asked for plans below a step, found none, and looked for no others."""

    def __init__(self, below_s: float, counts: Counts) -> None:
        super().__init__(f"no plan was found below {below_s:.4g} s, and no slower one was looked for")
        self.counts = counts

"""Options that a user sets for a search, beyond model, cluster and job."""

from dataclasses import dataclass, field

from tangram_sim.fields import LIMITS, SEARCH, SOFTWARE, described, fact, option, part
from tangram_sim.parallelizers.constraints import Constraints
from tangram_sim.placement.tolerances import Tolerances
from tangram_sim.planners.budget import EFFORTS
from tangram_sim.written import margin, name_list, seconds

# Why a question need not be asked, or its answer not be kept (arXiv:2606.16907, section on pruning).
POLICIES = ("redundancy", "imbalance", "infeasibility", "incompatibility")


def _window(text: str) -> float:
    """Parse an imbalance window: a number above 1, or 0 for `auto`, where the search chooses it."""
    try:
        window = 0.0 if text == "auto" else float(text)
    except ValueError:
        window = -1.0
    if window and not 1 < window < float("inf"):
        raise ValueError("give auto, or a number above 1, e.g. 4")
    return window


@described
@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options and constraints of a search beyond model, cluster and job."""

    constraints: Constraints = field(default=Constraints(), metadata=part())
    order: tuple[str, ...] = option(
        (),
        "Islands front to back, e.g. g1,g0; others stay idle.",
        label="Islands, front to back",
        reads=name_list,
        group=SEARCH,
    )
    exclude: tuple[str, ...] = option(
        (),
        "Islands not to use, e.g. g2, or a kind: A100.",
        label="Islands not to use",
        reads=name_list,
        group=SEARCH,
    )
    top: int = option(
        1,
        "Show this many plans, and what they trade.",
        label="Plans to show",
        least=1,
        most=1000,
        group=SEARCH,
    )
    kept: int = fact(0, "Plans that are handed over, shown or not, for other schedules to begin at.", "plans")
    parallelizer: str = option(
        "grid",
        "Who plans one slice on one island; auto: try grid and galvatron.",
        label="Parallelizer",
        group=SEARCH,
    )
    sub_islands: bool = option(
        True, "Whether islands may be split.", spelled="--sub-islands/--whole-islands", group=SEARCH
    )
    every_candidate: bool = fact(False, "Whether to keep a record of all partial plans.")
    policies: tuple[str, ...] = fact(POLICIES, "How the enumeration is pruned.")
    window: float = option(
        0.0,
        "Ask only about loads from 1/N to N. auto: what provably loses nothing.",
        reads=_window,
        unit="a ratio",
        unset="auto",
        group=SEARCH,
        on_page=False,
    )
    replicate: bool = option(
        True,
        "Whether pipelines may stand side by side, and stages on several islands.",
        spelled="--replicate/--one-pipeline",
        group=SEARCH,
    )
    spanning: bool = option(
        True,
        "Whether a stage may take GPUs of several islands.",
        spelled="--spanning/--island-stages",
        group=SEARCH,
    )
    tolerances: Tolerances | None = fact(None, "Spreads of GPUs in one island; None: searched.")
    time_limit_s: float = option(
        float("inf"),
        "Seconds after which to take the best plan so far; 0: of tangram the best uniform one, over all "
        "GPUs or one island.",
        label="Seconds at most",
        unit="seconds",
        least=0,
        spelled="--time-limit",
        reads=seconds,
        unset="none",
        group=LIMITS,
        basic=True,
    )
    jobs: int = option(1, "Processes of the search (0: all cores).", group=LIMITS, on_page=False)
    effort: str = option(
        "normal",
        "Search effort: quick, normal or exhaustive. Deterministic: the same effort finds the same plan on "
        "every machine.",
        label="Effort",
        choices=tuple(EFFORTS),
        group=SEARCH,
        basic=True,
    )
    memory_margin: float | None = option(
        None,
        "Share of every GPU's memory to leave free, e.g. 0.1. auto: so much that the upper end of the "
        "peak's interval fits.",
        label="Memory to leave free",
        unit="a share",
        reads=margin,
        unset="auto",
        group=LIMITS,
    )
    frameworks: tuple[str, ...] = option(
        (),
        "Only plans that this can launch: megatron, torchtitan, deepspeed, flagscale or any of them.",
        label="Launched with",
        spelled="--for,--to",
        reads=name_list,
        group=SOFTWARE,
        basic=True,
    )
    interleave: bool = option(
        True,
        "Whether a plan for a framework under 1f1b may have several chunks in a stage; --schedule, typed, is "
        "kept.",
        spelled="--interleave/--one-chunk",
        group=SEARCH,
        on_page=False,
    )
    lasting: bool = fact(False, "Whether to score slower stages, which lose least with a node.")
    beside: bool = fact(True, "Whether to look for the nearest plan that a framework can launch, too.")
    only_shown: bool = fact(False, "Whether to leave out plans that would not be shown.")
    simple_within: float | None = option(
        None,
        "A plan that a framework can launch wins if it is at most this fraction slower and statistically "
        "tied.",
        label="A launchable plan may be slower by",
        unit="a share",
        least=0,
        unset="0.002, 0.03 where all nodes are alike",
        group=SOFTWARE,
    )
    fleet_bound: bool = option(
        False,
        "Spend ten times the effort on the lower bound; say why if nothing is found.",
        label="More effort on the lower bound",
        spelled="--bound",
        group=SEARCH,
    )

    @property
    def most(self) -> int:
        """Number of plans that a search returns."""
        return max(self.top, self.kept, 1)

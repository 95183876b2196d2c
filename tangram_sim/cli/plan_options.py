"""Options that only `tangram plan` has, and their translation to search options of the planner."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_type_hints

import typer

from tangram_sim.cli import options as shared
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.placement.cutting import Tolerances
    from tangram_sim.planners.api import SearchOptions

# Sequences per rank that arXiv:2606.16907 uses: 1 for dense models, 4 for Mixtral and Qwen3; without ZeRO.
PRESETS = {"tangram-paper": 1, "tangram-paper-moe": 4}

Parallelizer = Annotated[
    str,
    typer.Option("--parallelizer", help="Who plans one slice on one island; auto: try grid and galvatron."),
]
PlanSchedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        parser=shared.schedule,
        metavar="TEXT",
        help="1f1b, gpipe, zb-h1, interleaved, zb-v, dualpipe-v, or an added one; auto: try the first five.",
    ),
]
Planner = Annotated[
    str, typer.Option("--planner", help="Who plans the cluster: tangram, or a peer that `compare` names.")
]
Objective = Annotated[str, typer.Option("--objective", help="What is best: throughput.")]
Fix = Annotated[
    list[str] | None,
    typer.Option("--fix", help="Fix degrees of every stage: tp=4, dp, cp, ep, pp (inner), zero."),
]
PerRank = Annotated[
    int | None,
    typer.Option(
        "--microbatch-per-rank", help="Sequences of a microbatch per data-parallel rank.  [default: free]"
    ),
]
Recompute = Annotated[
    str | None, typer.Option("--recompute", help="Allow only these: none, selective, full.  [default: all]")
]
Order = Annotated[
    str | None, typer.Option("--order", help="Islands front to back, e.g. g1,g0; others stay idle.")
]
Exclude = Annotated[
    str | None, typer.Option("--exclude", help="Islands not to use, e.g. g2, or a kind: A100.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", help="tangram-paper or tangram-paper-moe: microbatch per rank 1 or 4, and no ZeRO."
    ),
]
Top = Annotated[int, typer.Option("--top", help="Show this many plans, and what they trade.")]
Candidates = Annotated[
    Path | None, typer.Option("--candidates", help="Write every partial plan considered to this CSV file.")
]
SubIslands = Annotated[
    bool, typer.Option("--sub-islands/--whole-islands", help="Whether islands may be split.")
]
NoPrune = Annotated[
    str | None,
    typer.Option(
        "--no-prune", help="Policies off: redundancy, imbalance, infeasibility, incompatibility; or all."
    ),
]
Window = Annotated[
    str,
    typer.Option("--window", help="Ask only about loads from 1/N to N. auto: what provably loses nothing."),
]
Ablation = Annotated[
    bool, typer.Option("--ablation", help="Plan with policies on and off; print a table, no plan.")
]
Replicate = Annotated[
    bool,
    typer.Option(
        "--replicate/--one-pipeline",
        help="Whether pipelines may stand side by side, and stages on several islands.",
    ),
]
Spanning = Annotated[
    bool,
    typer.Option("--spanning/--island-stages", help="Whether a stage may take GPUs of several islands."),
]
ComputeTolerance = Annotated[
    float | None,
    typer.Option("--compute-tolerance", help="Cut islands by this spread of compute.  [default: free]"),
]
MemoryTolerance = Annotated[
    float | None,
    typer.Option("--memory-tolerance", help="Cut islands by this spread of memory.  [default: free]"),
]
LinkTolerance = Annotated[
    float | None,
    typer.Option("--link-tolerance", help="Cut islands by this spread of links.  [default: free]"),
]
TimeLimit = Annotated[
    float | None,
    shared.time_limit(
        "Seconds after which to take the best plan so far; 0: of tangram the best uniform one, over all "
        "GPUs or one island.  [default: none]"
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Processes of the search (0: all cores).")]

Without = Annotated[
    str | None,
    typer.Option("--without", help="Plan without these nodes, e.g. n3,n7, and say what must move for it."),
]
Losses = Annotated[
    float | None,
    typer.Option(
        "--losses",
        metavar="PER_HOUR",
        help="Rank by liveput: the speed after so many losses of nodes in an hour.",
    ),
]
Bound = Annotated[
    bool,
    typer.Option(
        "--bound",
        help="Look ten times as long for what no fleet of pipelines beats; say why if nothing is found.",
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        "--to",
        help="Only plans that this can launch: megatron, torchtitan, deepspeed, flagscale or any of them.",
    ),
]
SimpleWithin = Annotated[
    float | None,
    typer.Option(
        "--simple-within",
        help="A plan that a framework can launch wins if it takes so much longer at most and cannot be told "
        "apart.  [default: 0.002, 0.03 where all nodes are alike]",
    ),
]


# Of TangramOptions: what is said of the layouts of stages, and of who can launch them.
OF_LAYOUTS = ("fix", "microbatch_per_rank", "recompute", "order", "exclude", "preset", "launch_with")


@dataclass(frozen=True, slots=True)
class TangramOptions:
    """Options that only the planner `tangram` supports, and not the other planners."""

    parallelizer: Parallelizer = "grid"
    fix: Fix = None
    microbatch_per_rank: PerRank = None
    recompute: Recompute = None
    order: Order = None
    exclude: Exclude = None
    preset: Preset = None
    top: Top = 1
    candidates: Candidates = None
    sub_islands: SubIslands = True
    no_prune: NoPrune = None
    window: Window = "auto"
    ablation: Ablation = False
    replicate: Replicate = True
    spanning: Spanning = True
    compute_tolerance: ComputeTolerance = None
    memory_tolerance: MemoryTolerance = None
    link_tolerance: LinkTolerance = None
    effort: shared.Effort = "normal"
    bound: Bound = False
    without: Without = None
    losses: Losses = None
    launch_with: For = None
    simple_within: SimpleWithin = None

    def given(self, among: Collection[str] = ()) -> list[str]:
        """The names, as typed, of the options that differ from their default.

        `among`: look at these fields only; empty: at all.
        """
        hints = get_type_hints(type(self), include_extras=True)
        found = []
        for one in fields(self):
            if getattr(self, one.name) not in (one.default, []) and one.name in (among or hints):
                declared = hints[one.name].__metadata__[0].default  # where typer keeps an option's first name
                found.append(declared.split("/")[-1])  # of --yes/--no what is not the default: all are yes
        return found

    def wishes(self, time_limit_s: float, jobs: int, memory_margin: float | None) -> "SearchOptions":
        """The search options for the planner. Raises BadInputError or UnknownNameError for bad values."""
        from tangram_sim.planners.api import SearchOptions
        from tangram_sim.studies.launch_choice import frameworks_named

        fixes, per_rank = _preset(self.preset, list(self.fix or []), self.microbatch_per_rank)
        return SearchOptions(
            constraints=shared.constraints(fixes, per_rank, self.recompute),
            order=shared.names("--order", self.order),
            exclude=shared.names("--exclude", self.exclude),
            top=self.top,
            parallelizer=self.parallelizer,
            sub_islands=self.sub_islands,
            every_candidate=self.candidates is not None,
            policies=_policies(self.no_prune),
            window=_window(self.window),
            replicate=self.replicate,
            spanning=self.spanning,
            tolerances=_tolerances(self.compute_tolerance, self.memory_tolerance, self.link_tolerance),
            time_limit_s=time_limit_s,
            jobs=jobs,
            fleet_bound=self.bound,
            effort=shared.effort(self.effort),
            memory_margin=memory_margin,
            frameworks=frameworks_named(self.launch_with),
            simple_within=self.simple_within,
        )


def _tolerances(compute: float | None, memory: float | None, link: float | None) -> "Tolerances | None":
    """How far GPUs of one island may differ, as fractions; what is not given keeps its default.

    None, if nothing is given, leaves the choice to the search. Raises BadInputError.
    """
    from tangram_sim.placement.cutting import Tolerances

    given = {"compute": compute, "memory": memory, "intra": link}
    for name, value in given.items():
        if value is not None:
            shared.require_fraction(f"--{'link' if name == 'intra' else name}-tolerance", value)
    said = {name: value for name, value in given.items() if value is not None}
    return Tolerances(**said) if said else None


def _preset(
    preset: str | None, fixes: list[str], microbatch_per_rank: int | None
) -> tuple[list[str], int | None]:
    """(--fix, --microbatch-per-rank) with the settings of a preset added.

    Raises BadInputError if the user's own settings contradict the preset, UnknownNameError for an unknown
    preset.
    """
    if preset is None:
        return fixes, microbatch_per_rank
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    size = PRESETS[preset]
    if microbatch_per_rank not in (None, size):
        raise BadInputError(f"--preset {preset} means --microbatch-per-rank {size}; drop one of the two")
    zero = [item for item in fixes if "zero" in item]
    if any(not item.endswith("=0") for item in zero):
        raise BadInputError(f"--preset {preset} means --fix zero=0, not {zero[0]}; drop one of the two")
    return fixes if zero else [*fixes, "zero=0"], size


def _policies(left_out: str | None) -> tuple[str, ...]:
    """All pruning policies but those named in --no-prune. Raises UnknownNameError for unknown names."""
    from tangram_sim.planners.api import POLICIES

    names = shared.names("--no-prune", left_out)
    for name in names:
        if name not in (*POLICIES, "all"):
            raise unknown_name("pruning policy", name, [*POLICIES, "all"])
    return tuple(policy for policy in POLICIES if policy not in names and "all" not in names)


def _window(given: str) -> float:
    """--window as a number above 1; 0 for `auto`, where the planner decides. Raises BadInputError."""
    if given == "auto":
        return 0.0
    try:
        window = float(given)
    except ValueError:
        window = 0.0
    if not 1 < window < float("inf"):
        raise BadInputError(f"--window {given}: give auto, or a number above 1, e.g. 4")
    return window

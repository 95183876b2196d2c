"""`tangram plan`: lay a model out over a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.clusters import Cluster
    from tangram_sim.placement.cutting import Tolerances
    from tangram_sim.studies.results import Result

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
        help="1f1b, gpipe, zb-h1, interleaved, zb-v, dualpipe-v, or an added one; auto: try the fast ones.",
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
Exclude = Annotated[str | None, typer.Option("--exclude", help="Islands not to use, e.g. g2.")]
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
    typer.Option(
        "--time-limit",
        help="Seconds after which to take the best plan so far; 0: of tangram the best uniform one, over all "
        "GPUs or one island.  [default: none]",
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
        help="Large clusters: also prove what no fleet of pipelines beats (a minute; more for many experts).",
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", help="Only plans that this can launch: megatron, torchtitan, deepspeed or any of them."
    ),
]
SimpleWithin = Annotated[
    float | None,
    typer.Option(
        "--simple-within",
        help="A plan that a framework can launch wins if it takes so much longer at most and cannot be told "
        "apart.  [default: 0.01, 0.03 where all nodes are alike]",
    ),
]


def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    planner: Planner = "tangram",
    parallelizer: Parallelizer = "grid",
    schedule: PlanSchedule = "1f1b",
    objective: Objective = "throughput",
    fix: Fix = None,
    microbatch_per_rank: PerRank = None,
    recompute: Recompute = None,
    order: Order = None,
    exclude: Exclude = None,
    preset: Preset = None,
    top: Top = 1,
    candidates: Candidates = None,
    sub_islands: SubIslands = True,
    no_prune: NoPrune = None,
    window: Window = "auto",
    ablation: Ablation = False,
    replicate: Replicate = True,
    spanning: Spanning = True,
    compute_tolerance: ComputeTolerance = None,
    memory_tolerance: MemoryTolerance = None,
    link_tolerance: LinkTolerance = None,
    effort: shared.Effort = "normal",
    time_limit: TimeLimit = None,
    jobs: Jobs = 1,
    bound: Bound = False,
    without: Without = None,
    losses: Losses = None,
    memory_margin: shared.MemoryMargin = "auto",
    launch_with: For = None,
    simple_within: SimpleWithin = None,
    stack: shared.Stack = "generic",
    slow: shared.Slow = None,
    output: shared.Output = None,
    as_json: shared.AsJson = False,
    trace: shared.Trace = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Find the fastest plan for MODEL on CLUSTER and predict what it achieves."""
    if objective != "throughput":
        raise unknown_name("objective", objective, ["throughput"])
    if not 1 <= top <= shared.MOST_SHOWN:
        raise BadInputError(f"--top {top}: give 1 to {shared.MOST_SHOWN}")
    if planner != "tangram":
        _refuse(
            f"--planner {planner}",
            "plan with tangram",
            {
                "--parallelizer": parallelizer != "grid",
                "--fix": fix,
                "--microbatch-per-rank": microbatch_per_rank,
                "--recompute": recompute,
                "--order": order,
                "--exclude": exclude,
                "--preset": preset,
                "--top": top > 1,
                "--candidates": candidates,
                "--whole-islands": not sub_islands,
                "--no-prune": no_prune,
                "--window": window != "auto",
                "--ablation": ablation,
                "--one-pipeline": not replicate,
                "--island-stages": not spanning,
                "--compute-tolerance": compute_tolerance is not None,
                "--memory-tolerance": memory_tolerance is not None,
                "--link-tolerance": link_tolerance is not None,
                "--bound": bound,
                "--slow": slow,
                "--effort": effort != "normal",
                "--without": without,
                "--losses": losses is not None,
                "--for": launch_with is not None,
                "--simple-within": simple_within is not None,
            },
        )
    if sum(given is not None for given in (slow, without, losses)) > 1:
        raise BadInputError(
            "--slow, --without and --losses: nodes are slow, gone, or may go; give one of them"
        )
    if losses is not None:
        _refuse(
            "--losses, which compares uniform layouts over all GPUs,",
            "plan without it",
            {
                "--fix": fix,
                "--microbatch-per-rank": microbatch_per_rank,
                "--recompute": recompute,
                "--order": order,
                "--exclude": exclude,
                "--preset": preset,
                "--for": launch_with is not None,
            },
        )
    time_limit_s = shared.time_limit_s(time_limit)
    margin = shared.memory_margin(memory_margin)
    fixes, microbatch_per_rank = _preset(preset, list(fix or []), microbatch_per_rank)

    from tangram_sim.cli import writing
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.planners.api import SearchOptions
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.studies import tried
    from tangram_sim.studies.launch_choice import frameworks_named
    from tangram_sim.training.job import Job

    writing.require_writable(output=output, trace=trace, candidates=candidates)
    wishes = SearchOptions(
        constraints=shared.constraints(fixes, microbatch_per_rank, recompute),
        order=shared.names("--order", order),
        exclude=shared.names("--exclude", exclude),
        top=top,
        parallelizer=parallelizer,
        sub_islands=sub_islands,
        every_candidate=candidates is not None,
        policies=_policies(no_prune),
        window=_window(window),
        replicate=replicate,
        spanning=spanning,
        tolerances=_tolerances(compute_tolerance, memory_tolerance, link_tolerance),
        time_limit_s=time_limit_s,
        jobs=jobs,
        fleet_bound=bound,
        effort=shared.effort(effort),
        memory_margin=margin,
        frameworks=frameworks_named(launch_with),
        simple_within=simple_within,
    )
    deadline = Deadline(time_limit_s)
    database = shared.load_hwdb(hwdb)
    job = Job(global_batch, seq, dtype, optimizer, schedule, stack=stack)
    if ablation:
        from tangram_sim.studies.ablation import ablation as ablated
        from tangram_sim.studies.ablation import table

        if as_json or output or trace or candidates or slow:
            raise BadInputError(
                "--ablation prints a table; drop --json, --output, --trace, --candidates and --slow"
            )
        from tangram_sim.cli.console import print_line

        with SlowProgress("planning with policies on and off"):
            rows = ablated(load_model(model), load_cluster(cluster, database), job, database, wishes)
        for line in table(rows).splitlines():
            print_line(line)
        return
    if planner != "tangram":
        from tangram_sim.studies.comparison import plan_with

        with deadline.hearing_interrupts():
            result = plan_with(
                planner,
                load_model(model),
                load_cluster(cluster, database),
                job,
                hwdb=database,
                deadline=deadline,
                memory_margin=margin,
            )
        writing.show(result, as_json=as_json, output=output, trace=trace)
        return
    loaded = load_cluster(cluster, database)

    with SlowProgress("planning") as progress, deadline.hearing_interrupts():

        def planned(where: "Cluster") -> "Result":
            return tried.plan(
                load_model(model),
                where,
                job,
                wishes=wishes,
                hwdb=database,
                progress=progress.report,
                deadline=deadline,
            )

        if slow is not None:
            from tangram_sim.studies.slow_files import read_every_slow
            from tangram_sim.studies.slow_plans import plan_slow

            result = plan_slow(loaded, read_every_slow(slow, loaded), database.fresh(), planned)
        elif without is not None:
            from tangram_sim.studies.losses import plan_without

            result = plan_without(loaded, shared.names("--without", without), database, planned)
        elif losses is not None:
            from tangram_sim.studies.liveput_plans import plan_for_losses

            result = plan_for_losses(loaded, losses, load_model(model), job, database, planned)
        else:
            result = planned(loaded)
    output = writing.reported(result, output, database, as_json=as_json)
    writing.show(result, as_json=as_json, output=output, trace=trace, candidates=candidates)


def _tolerances(compute: float | None, memory: float | None, link: float | None) -> "Tolerances | None":
    """The spreads by which islands are cut; None leaves the cut to the search. Others keep their default."""
    from tangram_sim.placement.cutting import Tolerances

    given = {"compute": compute, "memory": memory, "intra": link}
    for name, value in given.items():
        if value is not None:
            shared.require_fraction(f"--{'link' if name == 'intra' else name}-tolerance", value)
    said = {name: value for name, value in given.items() if value is not None}
    return Tolerances(**said) if said else None


def _refuse(who: str, instead: str, given: dict[str, object]) -> None:
    """Raise BadInputError for options that a way of planning does not understand."""
    named = [option for option, value in given.items() if value]
    if named:
        raise BadInputError(f"{who} does not know {', '.join(named)}; drop them, or {instead}")


def _preset(
    preset: str | None, fixes: list[str], microbatch_per_rank: int | None
) -> tuple[list[str], int | None]:
    """(--fix, --microbatch-per-rank) with what a preset adds; what the user fixes besides must agree."""
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
    """All policies but those named. Raises UnknownNameError for others."""
    from tangram_sim.planners.api import POLICIES

    names = shared.names("--no-prune", left_out)
    for name in names:
        if name not in (*POLICIES, "all"):
            raise unknown_name("pruning policy", name, [*POLICIES, "all"])
    return tuple(policy for policy in POLICIES if policy not in names and "all" not in names)


def _window(given: str) -> float:
    """The widest load asked about; 0 where the bound decides."""
    if given == "auto":
        return 0.0
    try:
        window = float(given)
    except ValueError:
        window = 0.0
    if not 1 < window < float("inf"):
        raise BadInputError(f"--window {given}: give auto, or a number above 1, e.g. 4")
    return window

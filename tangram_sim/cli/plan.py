"""`tangram plan`: lay a model out over a cluster."""

from typing import TYPE_CHECKING

from tangram_sim.cli import options as shared
from tangram_sim.cli import plan_options as own
from tangram_sim.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from tangram_sim.clusters import Cluster
    from tangram_sim.placement.cutting import Tolerances
    from tangram_sim.studies.results import Result

# Sequences per rank that arXiv:2606.16907 uses: 1 for dense models, 4 for Mixtral and Qwen3; without ZeRO.
PRESETS = {"tangram-paper": 1, "tangram-paper-moe": 4}


def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    planner: own.Planner = "tangram",
    parallelizer: own.Parallelizer = "grid",
    schedule: own.PlanSchedule = "1f1b",
    objective: own.Objective = "throughput",
    fix: own.Fix = None,
    microbatch_per_rank: own.PerRank = None,
    recompute: own.Recompute = None,
    order: own.Order = None,
    exclude: own.Exclude = None,
    preset: own.Preset = None,
    top: own.Top = 1,
    candidates: own.Candidates = None,
    sub_islands: own.SubIslands = True,
    no_prune: own.NoPrune = None,
    window: own.Window = "auto",
    ablation: own.Ablation = False,
    replicate: own.Replicate = True,
    spanning: own.Spanning = True,
    compute_tolerance: own.ComputeTolerance = None,
    memory_tolerance: own.MemoryTolerance = None,
    link_tolerance: own.LinkTolerance = None,
    effort: shared.Effort = "normal",
    time_limit: own.TimeLimit = None,
    jobs: own.Jobs = 1,
    bound: own.Bound = False,
    without: own.Without = None,
    losses: own.Losses = None,
    memory_margin: shared.MemoryMargin = "auto",
    launch_with: own.For = None,
    simple_within: own.SimpleWithin = None,
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

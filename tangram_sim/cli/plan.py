"""`tangram plan`: lay a model out over a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.errors import BadInputError, unknown_name

# Sequences per rank that arXiv:2606.16907 uses: 1 for dense models, 4 for Mixtral and Qwen3; without ZeRO.
PRESETS = {"tangram-paper": 1, "tangram-paper-moe": 4}

Parallelizer = Annotated[str, typer.Option("--parallelizer", help="Who plans one slice on one island.")]
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
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        help="Seconds after which to take the best plan so far; 0: the best uniform one.  [default: none]",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Processes that search large clusters (0: all cores).")]


def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    parallelizer: Parallelizer = "grid",
    schedule: shared.Schedule = "1f1b",
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
    time_limit: TimeLimit = None,
    jobs: Jobs = 1,
    stack: shared.Stack = "generic",
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
    if time_limit is not None and not time_limit >= 0:
        raise BadInputError(f"--time-limit {time_limit:g}: give seconds, 0 or more")
    fixes, microbatch_per_rank = _preset(preset, list(fix or []), microbatch_per_rank)

    from tangram_sim.cli import writing
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.jobs import Job
    from tangram_sim.planners.api import Wishes
    from tangram_sim.studies import api

    writing.require_writable(output=output, trace=trace, candidates=candidates)
    wishes = Wishes(
        constraints=shared.constraints(fixes, microbatch_per_rank, recompute),
        order=shared.names("--order", order),
        exclude=shared.names("--exclude", exclude),
        top=top,
        parallelizer=parallelizer,
        sub_islands=sub_islands,
        every_candidate=candidates is not None,
        time_limit_s=float("inf") if time_limit is None else time_limit,
        jobs=jobs,
    )
    database = shared.load_hwdb(hwdb)
    with SlowProgress("planning") as progress:
        result = api.plan(
            load_model(model),
            load_cluster(cluster, database),
            Job(global_batch, seq, dtype, optimizer, schedule, stack=stack),
            wishes=wishes,
            hwdb=database,
            progress=progress.report,
        )
    writing.show(result, as_json=as_json, output=output, trace=trace, candidates=candidates)


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

"""`tangram plan`: lay a model out over a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.errors import BadInputError, unknown_name

PRESETS = {
    "tangram-paper": "microbatch 1 per rank and no ZeRO, as in arXiv:2606.16907 for dense models",
    "tangram-paper-moe": "microbatch 4 per rank, as in arXiv:2606.16907 for Mixtral and Qwen3",
}


def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    parallelizer: Annotated[str, typer.Option("--parallelizer", help="Who plans one slice on one island.")] = "grid",
    schedule: shared.Schedule = "1f1b",
    objective: Annotated[str, typer.Option("--objective", help="throughput")] = "throughput",
    fix: Annotated[list[str] | None, typer.Option("--fix", help="Fix degrees: tp=4, dp=2, cp, ep, pp (inner), zero.")] = None,
    microbatch_per_rank: Annotated[int, typer.Option("--microbatch-per-rank", help="Sequences per data-parallel rank.")] = 0,
    recompute: Annotated[str | None, typer.Option("--recompute", help="Allow only these: none, selective, full.")] = None,
    order: Annotated[str | None, typer.Option("--order", help="Islands front to back, e.g. g1,g0; others stay idle.")] = None,
    exclude: Annotated[str | None, typer.Option("--exclude", help="Islands not to use, e.g. g2.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="tangram-paper or tangram-paper-moe.")] = None,
    top: Annotated[int, typer.Option("--top", help="Show this many plans and what they trade.")] = 1,
    candidates: Annotated[Path | None, typer.Option("--candidates", help="Write every partial plan considered to a CSV.")] = None,
    sub_islands: Annotated[bool, typer.Option("--sub-islands/--whole-islands", help="Whether islands may be split.")] = True,
    output: shared.Output = None,
    as_json: shared.AsJson = False,
    trace: shared.Trace = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Find the fastest plan for MODEL on CLUSTER and predict what it achieves."""
    if objective != "throughput":
        raise unknown_name("objective", objective, ["throughput"])
    if top < 1:
        raise BadInputError(f"--top {top}: give 1 or more")
    fixes, recompute, microbatch_per_rank = _preset(preset, fix, recompute, microbatch_per_rank)

    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.jobs import Job
    from tangram_sim.planners.api import Wishes
    from tangram_sim.studies import api

    database = shared.load_hwdb(hwdb)
    wishes = Wishes(
        constraints=shared.constraints(fixes, microbatch_per_rank, recompute, None),
        order=shared.names(order),
        exclude=shared.names(exclude),
        top=top,
        parallelizer=parallelizer,
        sub_islands=sub_islands,
        every_candidate=candidates is not None,
    )
    with SlowProgress("planning") as progress:
        result = api.plan(
            load_model(model),
            load_cluster(cluster, database),
            Job(global_batch, seq, dtype, optimizer, schedule),
            wishes=wishes,
            hwdb=database,
            progress=progress.report,
        )
    from tangram_sim.cli import writing

    writing.show(result, as_json=as_json, output=output, trace=trace)
    if candidates is not None:
        writing.write_candidates(result.candidates, candidates)


def _preset(
    preset: str | None, fix: list[str] | None, recompute: str | None, microbatch_per_rank: int
) -> tuple[list[str], str | None, int]:
    fixes = list(fix or [])
    if preset is None:
        return fixes, recompute, microbatch_per_rank
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    size = 4 if preset.endswith("moe") else 1
    if microbatch_per_rank not in (0, size):
        raise BadInputError(f"--preset {preset} means --microbatch-per-rank {size}; drop one of the two")
    return [*fixes, "zero=0"] if not any("zero" in item for item in fixes) else fixes, recompute, size

"""`tangram estimate`: price one explicit uniform layout."""

from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.errors import BadInputError


def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    schedule: shared.Schedule = "1f1b",
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel degree.")] = 1,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option("--dp", help="Data-parallel degree; 0 takes all GPUs that are left.")] = 0,
    cp: Annotated[int, typer.Option("--cp", help="Context-parallel degree.")] = 1,
    ep: Annotated[int, typer.Option("--ep", help="Expert-parallel degree; divides dp x cp.")] = 1,
    vpp: Annotated[int, typer.Option("--vpp", help="Chunks per stage (interleaved schedule).")] = 1,
    zero: Annotated[int, typer.Option("--zero", min=0, max=3, help="ZeRO stage.")] = 0,
    micro_batch: Annotated[int, typer.Option("--micro-batch", help="Sequences per data-parallel rank.")] = 1,
    recompute: Annotated[str, typer.Option("--recompute", help="none, selective or full.")] = "none",
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel/--no-sequence-parallel")] = False,
    layers: Annotated[str | None, typer.Option("--layers", help="Blocks per stage, e.g. 10,10,6,6.")] = None,
    order: Annotated[str | None, typer.Option("--order", help="Node groups in the order stages take them.")] = None,
    output: shared.Output = None,
    as_json: shared.AsJson = False,
    trace: shared.Trace = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Predict one uniform layout of MODEL on CLUSTER; ranks are numbered node by node, tp fastest, then cp, dp, pp."""
    from tangram_sim.errors import unknown_name
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.jobs import Job
    from tangram_sim.layouts import RECOMPUTE
    from tangram_sim.planners.uniform import Uniform
    from tangram_sim.studies import api

    if recompute not in RECOMPUTE:
        raise unknown_name("recompute kind", recompute, RECOMPUTE)
    database = shared.load_hwdb(hwdb)
    wanted = Uniform(
        tp, pp, dp, cp, ep, vpp, zero, micro_batch, recompute, sequence_parallel, _layers(layers), shared.names(order)
    )
    job = Job(global_batch, seq, dtype, optimizer, schedule)
    result = api.estimate(load_model(model), load_cluster(cluster, database), job, wanted, hwdb=database)

    from tangram_sim.cli import writing

    writing.show(result, as_json=as_json, output=output, trace=trace)


def _layers(text: str | None) -> tuple[int, ...]:
    parts = shared.names(text)
    if not all(part.isdigit() for part in parts):
        raise BadInputError(f"--layers {text}: give whole numbers separated by commas, e.g. 10,10,6,6")
    return tuple(int(part) for part in parts)

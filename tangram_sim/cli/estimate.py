"""`tangram estimate`: price one explicit uniform layout."""

from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.goal_options import RunOptions
from tangram_sim.cli.option_groups import grouped
from tangram_sim.errors import BadInputError, unknown_name

Tp = Annotated[int, typer.Option("--tp", help="Tensor-parallel degree.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]
Dp = Annotated[
    int, typer.Option("--dp", help="Data-parallel degree; 0: as many replicas as the cluster's GPUs hold.")
]
Cp = Annotated[int, typer.Option("--cp", help="Context-parallel degree.")]
Ep = Annotated[int, typer.Option("--ep", help="Expert-parallel degree; divides dp x cp.")]
Vpp = Annotated[int, typer.Option("--vpp", help="Chunks per stage; 2 or more means --schedule interleaved.")]
Zero = Annotated[int, typer.Option("--zero", help="ZeRO stage, 0 to 3.")]
MicroBatch = Annotated[int, typer.Option("--micro-batch", help="Sequences per data-parallel rank.")]
Recompute = Annotated[str, typer.Option("--recompute", help="none, selective or full.")]
SequenceParallel = Annotated[
    bool,
    typer.Option("--sequence-parallel/--no-sequence-parallel", help="Split norms over the tp ranks too."),
]
Layers = Annotated[
    str | None, typer.Option("--layers", help="Blocks per stage, e.g. 10,10,6,6.  [default: even]")
]
Order = Annotated[
    str | None, typer.Option("--order", help="Node groups in the order stages take them, e.g. g1,g0.")
]
Trainable = Annotated[
    float, typer.Option("--trainable", help="Share of the parameters that is trained; adapters: below 0.01.")
]
LoraRank = Annotated[
    int | None,
    typer.Option("--lora-rank", help="Train only LoRA adapters of this rank on the attention projections."),
]
FlashAttention = Annotated[
    bool,
    typer.Option(
        "--flash-attention/--no-flash-attention", help="Whether the software calls a fused attention kernel."
    ),
]
Dropout = Annotated[
    bool, typer.Option("--dropout/--no-dropout", help="Whether blocks of GPT's and BERT's kind use dropout.")
]


@grouped
def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    schedule: shared.Schedule = "1f1b",
    tp: Tp = 1,
    pp: Pp = 1,
    dp: Dp = 0,
    cp: Cp = 1,
    ep: Ep = 1,
    vpp: Vpp = 1,
    zero: Zero = 0,
    micro_batch: MicroBatch = 1,
    recompute: Recompute = "none",
    sequence_parallel: SequenceParallel = False,
    layers: Layers = None,
    order: Order = None,
    trainable: Trainable = 1.0,
    lora_rank: LoraRank = None,
    stack: shared.Stack = "generic",
    flash_attention: FlashAttention = True,
    dropout: Dropout = True,
    *,
    run: RunOptions,
    slow: shared.Slow = None,
    output: shared.Output = None,
    as_json: shared.AsJson = False,
    trace: shared.Trace = None,
    memory: shared.MemoryFile = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Predict one uniform layout of MODEL on CLUSTER; ranks go node by node, tp fastest, then cp, dp, pp."""
    from tangram_sim.cli import writing
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.layouts import RECOMPUTE
    from tangram_sim.planners.uniform.layouts import Uniform
    from tangram_sim.studies import api
    from tangram_sim.studies.training_run import with_run
    from tangram_sim.training.job import Job

    if recompute not in RECOMPUTE:
        raise unknown_name("recompute kind", recompute, RECOMPUTE)
    wanted = Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        vpp=vpp,
        zero_stage=zero,
        micro_batch=micro_batch,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        layers=_layers(layers),
        order=shared.names("--order", order),
    )
    writing.require_writable(output=output, trace=trace, memory=memory)
    database = shared.load_hwdb(hwdb)
    what = load_model(model)
    job = Job(
        global_batch,
        seq,
        dtype,
        optimizer,
        schedule,
        trainable=trainable if lora_rank is None else api.lora_share(what, lora_rank, trainable),
        stack=stack,
        flash_attention=flash_attention,
        dropout=dropout,
    )
    result = api.estimate(what, load_cluster(cluster, database), job, wanted, hwdb=database)
    if slow is not None:
        from tangram_sim.studies.slow_files import read_every_slow
        from tangram_sim.studies.slow_plans import replayed

        given = read_every_slow(slow, result.forecast.plan.cluster)
        result = result if given.is_nothing else replayed(result.forecast.plan, given, database)
    result = with_run(result, database, run.wanted)
    output = writing.reported(result, output, database, as_json=as_json)
    writing.show(result, as_json=as_json, output=output, trace=trace, memory=memory)


def _layers(text: str | None) -> tuple[int, ...]:
    parts = shared.names("--layers", text)
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise BadInputError(f"--layers {text}: give whole numbers separated by commas, e.g. 10,10,6,6")
    return tuple(int(part) for part in parts)

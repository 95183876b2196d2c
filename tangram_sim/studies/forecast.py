"""Predictions of a whole plan: play it, and say what it achieves and where time and memory go."""

from dataclasses import dataclass

import numpy as np

from tangram_sim import __version__
from tangram_sim.clusters import Cluster, Island
from tangram_sim.hwdb import Hwdb, cluster_to_dict
from tangram_sim.lowering.factors import ClassShares
from tangram_sim.lowering.ideal import model_flop
from tangram_sim.lowering.program import CLASSES
from tangram_sim.lowering.step import LoweredStep, Lowering, atom_runs, single_layout
from tangram_sim.plans import Plan, Stage
from tangram_sim.sim import contention
from tangram_sim.sim.timeline import Timeline
from tangram_sim.studies.documents import GpuKind, PlanDocument, StageForecast
from tangram_sim.studies.intervals import Uncertainty, uncertainty
from tangram_sim.studies.planfile import job_document, model_to_dict, pipeline_documents


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of a critical path with one cause."""

    cause: str
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """A plan, lowered and played."""

    plan: Plan
    step: LoweredStep
    timeline: Timeline
    islands: tuple[Island, ...]  # what each stage's ranks form
    inside: tuple[tuple[Share, ...], ...]  # per stage: one microbatch's critical path by kernel class
    uncertainty: Uncertainty

    @property
    def step_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.timeline.makespan_s


def forecast(plan: Plan, hwdb: Hwdb, engine: str = "fast", lowering: Lowering | None = None) -> Forecast:
    """Play `plan` (one pipeline).

    `fast` takes the compiled engine, and the reference only where transfers overfill a link that they share;
    `reference` takes the reference always: the answers are the same.
    """
    lowering = lowering or Lowering.of(plan, hwdb)
    step = lowering.lower(plan.pipelines[0])
    graph = step.graph()
    if engine == "reference":
        from tangram_sim.sim import reference

        timeline = reference.play(graph)
    else:
        timeline = contention.play(graph, contention=len(graph) <= contention.CONTENDED_OPS)
    stages = plan.pipelines[0].stages
    islands = tuple(lowering.placement.island(stage.ranks) for stage in stages)
    shares = ClassShares()
    return Forecast(
        plan,
        step,
        timeline,
        islands,
        tuple(_inside(plan, stage, lowering, shares) for stage in stages),
        uncertainty(step, lowering, timeline, shares),
    )


def _inside(plan: Plan, stage: Stage, lowering: Lowering, shares: ClassShares) -> tuple[Share, ...]:
    """Critical path of one microbatch through a stage and back, by kernel class, longest first."""
    island = lowering.placement.island(stage.ranks)
    pricer = lowering.prices.pricer(island, single_layout(stage), plan.pipelines[0].microbatch)
    total = sum(
        shares.seconds(pricer, start, stop, direction)[0]
        for start, stop in atom_runs(stage, plan.model.layers)
        for direction in ("forward", "backward")
    )
    found = [Share(name, seconds) for name, seconds in zip(CLASSES, np.asarray(total).tolist(), strict=True)]
    return tuple(sorted((one for one in found if one.seconds > 0), key=lambda one: -one.seconds))


def stage_forecasts(result: Forecast) -> list[StageForecast]:
    """The flat view of every stage."""
    pipeline, step = result.plan.pipelines[0], result.step
    busy = result.timeline.busy_s()[: len(pipeline.stages)]  # compute streams come first
    rows = []
    for number, stage in enumerate(pipeline.stages):
        layout, chunks = single_layout(stage), step.prices[number]
        layers = (
            (stage.chunks[0][0], stage.chunks[-1][1]) if stage.chunks else stage.parts[0].layouts[0].layers
        )
        island, inside = result.islands[number], result.inside[number]
        rows.append(
            StageForecast(
                layers=layers,
                embedding=stage.embedding,
                head=stage.head,
                island=stage.parts[0].island,
                gpu=island.gpu.name,
                gpus=len(stage.ranks),
                nodes=len(island.node_indices),
                tp=layout.tp,
                dp=layout.dp,
                cp=layout.cp,
                ep=layout.ep,
                zero_stage=layout.zero_stage,
                recompute=layout.recompute,
                sequence_parallel=layout.sequence_parallel,
                microbatch_per_rank=layout.sequences_per_rank(pipeline.microbatch),
                forward_s=sum(chunk.forward_s for chunk in chunks),
                backward_s=sum(chunk.backward_s for chunk in chunks),
                gradient_sync_s=sum(chunk.gradient_sync_s for chunk in chunks),
                optimizer_s=sum(chunk.optimizer_s for chunk in chunks),
                send_s=float(step.times.send_forward_s[number]),
                idle_fraction=float(1 - busy[number] / result.step_s),
                in_flight=step.in_flight[number],
                peak_memory_bytes=step.peak_bytes(number),
                peak_memory_reserved_bytes=step.reserved_bytes(number),
                peak_memory_allocated_bytes=step.allocated_bytes(number),
                memory_capacity_bytes=step.capacity_bytes(number),
                measured=island.gpu.measured,
                limited_by=inside[0].cause if inside else "",
                limited_by_share=_share(inside),
            )
        )
    return rows


def _share(inside: tuple[Share, ...]) -> float:
    total = sum(share.seconds for share in inside)
    return inside[0].seconds / total if total else 0.0


def document(
    result: Forecast, hwdb: Hwdb, lower_bound_step_s: float, notes: list[str] | None = None
) -> PlanDocument:
    """The full document of a played plan (timings of the search and alternatives are the caller's)."""
    plan, pipeline = result.plan, result.plan.pipelines[0]
    stages = stage_forecasts(result)
    sizes = np.array([stage.gpus for stage in stages], dtype=np.float64)
    idle = np.array([stage.idle_fraction for stage in stages])
    flop = model_flop(plan.model, plan.job, result.islands[0].gpu, hwdb)
    dtype = plan.job.recipe.gemm_dtype
    peaks = _rank_peaks(plan, dtype)
    used_peak = sum(peaks[rank] for stage in pipeline.stages for rank in stage.ranks)
    all_peak = sum(peaks)
    fullest = max(stages, key=lambda stage: stage.peak_memory_bytes / stage.memory_capacity_bytes)
    tokens = plan.job.tokens / result.step_s
    note_rows(plan.cluster, hwdb)
    doubt = result.uncertainty
    return PlanDocument(
        package_version=__version__,
        hwdb_hash=hwdb.digest(),
        hwdb_rows=[f"{row.table}/{row.name}" for row in hwdb.rows_read() if row.table in ("gpus", "links")],
        model=model_to_dict(plan.model),
        cluster=cluster_to_dict(plan.cluster),
        job=job_document(plan.job),
        feasible=result.step.fits(),
        step_s=result.step_s,
        step_s_low=doubt.step_s_low,
        step_s_high=doubt.step_s_high,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / plan.gpus_used,
        mfu=flop / (result.step_s * used_peak),
        mfu_cluster=flop / (result.step_s * all_peak),
        schedule=plan.job.schedule,
        microbatch=pipeline.microbatch,
        microbatch_per_rank=max(stage.microbatch_per_rank for stage in stages),
        microbatches=pipeline.microbatches,
        gpus_used=plan.gpus_used,
        gpus_total=plan.cluster.gpus,
        bubble_fraction=float((idle * sizes).sum() / sizes.sum()),
        peak_memory_bytes=fullest.peak_memory_bytes,
        peak_memory_reserved_bytes=fullest.peak_memory_reserved_bytes,
        peak_memory_allocated_bytes=fullest.peak_memory_allocated_bytes,
        peak_memory_bytes_high=doubt.peak_high(fullest.peak_memory_bytes),
        lower_bound_step_s=lower_bound_step_s,
        pipelines=pipeline_documents(plan),
        stages=stages,
        gpu_kinds=gpu_kinds(result, hwdb),
        notes=notes or [],
    )


def gpu_kinds(result: Forecast, hwdb: Hwdb) -> list[GpuKind]:
    """What the times of each GPU kind in use rest on, in order of the stages."""
    job, cluster = result.plan.job, result.plan.cluster
    kinds = {group.node.gpu.name: group.node.gpu for group in cluster.groups}
    used = dict.fromkeys(name for island in result.islands for name in island.gpu.name.split("+"))
    return [
        GpuKind(
            gpu=name,
            measured=kinds[name].measured,
            rests_on=hwdb.rests_on(kinds[name], job.recipe.gemm_dtype, job.stack),
        )
        for name in used
    ]


def note_rows(cluster: Cluster, hwdb: Hwdb) -> None:
    """Record the rows that a cluster's figures come from as read, as its file or a plan file may embed them.

    A fingerprint is thus the same for a plan and for its replay: it depends on the cluster, not on how it
    was read.
    """
    for group in cluster.groups:
        node = group.node
        for table, name in (("nodes", node.name), ("gpus", node.gpu.name), ("links", node.intra.name)):
            hwdb.note_read(table, name)
        if node.name in hwdb.node_names():
            hwdb.node(node.name)  # with the rows it refers to
        if node.bridge is not None:
            hwdb.note_read("links", node.bridge.name)
            if node.gpu.name in hwdb.gpu_names():
                hwdb.bridge_of(node.gpu.name)


def _rank_peaks(plan: Plan, dtype: str) -> list[float]:
    """Dense peak of every rank of the cluster, flop/s."""
    return [
        group.node.gpu.peak_flop_per_s(dtype)
        for group in plan.cluster.groups
        for _ in range(group.count * group.node.gpus)
    ]

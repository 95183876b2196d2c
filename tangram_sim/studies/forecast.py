"""Predictions for a whole plan: simulate it, and report its step and where time and memory go."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.clusters import Cluster, Island
from tangram_sim.findings import Finding
from tangram_sim.hwdb import Hwdb, ReadSet, cluster_to_dict
from tangram_sim.hwdb.model_section import model_to_dict
from tangram_sim.layers.chain import class_seconds
from tangram_sim.layers.program import CLASSES
from tangram_sim.opgraph import OpGraph
from tangram_sim.planners.uniform.frameworks import launching
from tangram_sim.sim import contention, fast
from tangram_sim.sim.timeline import Timeline
from tangram_sim.studies.documents import GpuKind, PlanDocument, StageForecast
from tangram_sim.studies.planfile import job_document, pipeline_documents
from tangram_sim.studies.stage_names import stage_name
from tangram_sim.training.plan import LayerLayout, Part, Plan, Stage
from tangram_sim.training.stage import peaks
from tangram_sim.training.stage.runs import programs_of
from tangram_sim.training.stage.sharing import atoms_held
from tangram_sim.training.step.factors import ClassShares
from tangram_sim.training.step.ideal import model_flop
from tangram_sim.training.step.intervals import Uncertainty, uncertainty
from tangram_sim.training.step.lowered import LoweredStep, Lowering
from tangram_sim.training.step.side_by_side import LoweredPlan, lower_plan
from tangram_sim.version import __version__


@dataclass(frozen=True, slots=True)
class PathShare:
    """Seconds on a critical path that one cause takes."""

    cause: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PartAddress:
    """One part of one stage of one pipeline, by number."""

    pipeline: int
    stage: int
    part: int


@dataclass(frozen=True)
class Forecast:
    """A plan, lowered and simulated; `islands` and `inside` have one entry per part, ordered as `seats`."""

    plan: Plan
    lowered: LoweredPlan
    timeline: Timeline
    seats: tuple[PartAddress, ...]
    islands: tuple[Island, ...]  # what the ranks of each part form
    inside: tuple[tuple[PathShare, ...], ...]  # one microbatch's critical path by kernel class
    uncertainty: Uncertainty

    @property
    def step_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.timeline.makespan_s

    @property
    def step(self) -> LoweredStep:
        """The lowered step of the first pipeline."""
        return self.lowered.steps[0]

    def stage_of(self, seat: PartAddress) -> Stage:
        """The stage that a part, given by its address, belongs to."""
        return self.plan.pipelines[seat.pipeline].stages[seat.stage]

    def part_of(self, seat: PartAddress) -> Part:
        """The part at an address."""
        return self.stage_of(seat).parts[seat.part]

    def name(self, seat: PartAddress) -> str:
        """Name of a part: "0" in the simple case, "1.0b" for part 2 of stage 0 of pipeline 1."""
        several = len(self.plan.pipelines) > 1
        mixed = len(self.stage_of(seat).parts) > 1
        return stage_name(seat.pipeline, seat.stage, seat.part, several=several, mixed=mixed)


_ELSE = ("fp16", "bf16", "fp32")  # what a GPU without the job's format could have computed in


def forecast(
    plan: Plan,
    hwdb: Hwdb,
    engine: str = "fast",
    lowering: Lowering | None = None,
    paced: Callable[[OpGraph], OpGraph] = lambda graph: graph,
) -> Forecast:
    """Simulate `plan`, all pipelines together; `paced` may change the speeds of resources within the step.

    Engine `fast` is compiled and shares only links whose transfers exceed their bandwidth; `reference` shares
    all. Both give the same answers.
    """
    lowering = lowering or Lowering.of(plan, hwdb)
    lowered = lower_plan(plan, lowering)
    graph = paced(lowered.graph())
    if engine == "reference":
        from tangram_sim.sim import reference

        timeline = reference.play(graph)
    else:
        timeline = contention.play(graph)
    seats = tuple(
        PartAddress(number, place, part)
        for number, pipeline in enumerate(plan.pipelines)
        for place, stage in enumerate(pipeline.stages)
        for part in range(len(stage.parts))
    )
    shares = ClassShares()
    played = Forecast(
        plan,
        lowered,
        timeline,
        seats,
        islands=(),
        inside=(),
        uncertainty=_uncertainty(lowered, lowering, timeline, shares),
    )
    return replace(
        played,
        islands=tuple(lowering.placement.island(played.part_of(seat).ranks) for seat in seats),
        inside=tuple(_inside(played, seat, lowering, shares) for seat in seats),
    )


def seconds_of(plan: Plan, hwdb: Hwdb) -> float:
    """Seconds of one step of `plan`, as `forecast` gives them, without critical path or uncertainty."""
    return contention.play(lower_plan(plan, Lowering.of(plan, hwdb)).graph()).makespan_s


def _uncertainty(
    lowered: LoweredPlan, lowering: Lowering, timeline: Timeline, shares: ClassShares
) -> Uncertainty:
    """Uncertainty of the step; with several pipelines that of the slowest, scaled to the step."""
    if len(lowered.steps) == 1:
        return uncertainty(lowered.steps[0], lowering, timeline, shares)
    slowest = max(lowered.steps, key=lambda step: fast.makespan(step.bare_graph()))
    return uncertainty(slowest, lowering, None, shares).stretched(timeline.makespan_s)


def _inside(
    played: Forecast, seat: PartAddress, lowering: Lowering, shares: ClassShares
) -> tuple[PathShare, ...]:
    """Seconds of one microbatch's critical path through a part and back, by kernel class, longest first."""
    part, holders = played.part_of(seat), played.lowered.steps[seat.pipeline].holders
    total = np.zeros(len(CLASSES))
    stage = played.stage_of(seat)
    for runs in lowering.parts.runs(stage, part, holders) if holders else ():
        for direction in ("forward", "backward"):
            total += class_seconds([program for program, _ in programs_of(runs, direction)])[0]
    for start, stop in () if holders else atoms_held(stage, played.plan.model.layers):
        island = lowering.placement.island(part.ranks)
        pricer = lowering.prices.pricer(island, part.layouts[0].layout, part.sequences_per_microbatch)
        for direction in ("forward", "backward"):
            total += shares.seconds(pricer, start, stop, direction)[0]
    found = [PathShare(name, seconds) for name, seconds in zip(CLASSES, total.tolist(), strict=True)]
    return tuple(
        sorted(
            (path_share for path_share in found if path_share.seconds > 0),
            key=lambda path_share: -path_share.seconds,
        )
    )


def longest_run(part: Part) -> LayerLayout:
    """The run of layers under one layout that holds the most layers of a part."""
    return max(part.layouts, key=lambda run: run.layers[1] - run.layers[0])


def stage_forecasts(result: Forecast) -> list[StageForecast]:
    """Decisions and predictions of every stage, one row per part."""
    busy = result.timeline.busy_s()
    rows = []
    for seat, island, inside in zip(result.seats, result.islands, result.inside, strict=True):
        stage, part = result.stage_of(seat), result.part_of(seat)
        step = result.lowered.steps[seat.pipeline]
        layout, chunks = longest_run(part).layout, step.of_part(seat.stage, seat.part)
        layers = (stage.chunks[0][0], stage.chunks[-1][1]) if stage.chunks else part.layouts[0].layers
        forward, backward = (
            sum(chunk.forward_s for chunk in chunks),
            sum(chunk.backward_s for chunk in chunks),
        )
        computing = busy[result.lowered.compute_stream(seat.pipeline, seat.stage)]
        if step.part_prices:  # a part waits for the slowest one of its stage in every pass
            whole = step.prices[seat.stage]
            computing *= (forward + backward) / sum(chunk.forward_s + chunk.backward_s for chunk in whole)
        held = step.in_flight[seat.stage]
        rows.append(
            StageForecast.from_objects(
                layout,
                seat,
                stage,
                layers=layers,
                island=part.island,
                gpu=island.gpu.name,
                gpus=len(part.ranks),
                nodes=len(island.node_indices),
                microbatch_per_rank=layout.sequences_per_rank(part.sequences_per_microbatch),
                forward_s=forward,
                backward_s=backward,
                gradient_sync_s=sum(chunk.gradient_sync_s for chunk in chunks),
                tied_embeddings_s=step.times.tied_s if seat.stage in _tied(step) else 0.0,
                optimizer_s=sum(chunk.optimizer_s for chunk in chunks),
                send_s=float(step.times.send_forward_s[seat.stage]),
                idle_fraction=float(1 - computing / result.step_s),
                in_flight=held,
                peak_memory_bytes=peaks.device_bytes(chunks, held),
                peak_memory_reserved_bytes=peaks.reserved_bytes(chunks, held),
                peak_memory_allocated_bytes=peaks.allocated_bytes(chunks, held),
                memory_capacity_bytes=peaks.capacity_bytes(chunks),
                measured=island.gpu.measured,
                limited_by=inside[0].cause if inside else "",
                limited_by_share=_share(inside),
                runs=len(part.layouts),
                chunks=list(stage.chunks) if len(stage.chunks) > 1 else [],
            )
        )
    return rows


def _tied(step: LoweredStep) -> tuple[int, ...]:
    """The stages of a pipeline that hold copies of one tied matrix."""
    return (0, len(step.pipeline.stages) - 1) if step.template.tied else ()


def _share(inside: tuple[PathShare, ...]) -> float:
    total = sum(share.seconds for share in inside)
    return inside[0].seconds / total if total else 0.0


def document(
    result: Forecast,
    hwdb: Hwdb,
    reads: ReadSet,
    lower_bound_step_s: float,
    findings: Sequence[Finding] = (),
) -> PlanDocument:
    """The document of a simulated plan; timings of the search and alternatives are left to the caller.

    `reads` are the rows that the plan was simulated with, from `hwdb.read_into(reads)`; the rows behind its
    cluster are added. `lower_bound_step_s` must bound the step of every plan.
    """
    plan = result.plan
    stages = stage_forecasts(result)
    sizes = np.array([stage.gpus for stage in stages], dtype=np.float64)
    idle = np.array([stage.idle_fraction for stage in stages])
    flop = model_flop(plan.model, plan.job, result.islands[0].gpu, hwdb)
    dtype = plan.job.precision.compute
    peaks_of = _rank_peaks(plan, dtype)
    used_peak = sum(peaks_of[rank] for seat in result.seats for rank in result.part_of(seat).ranks)
    all_peak = sum(peaks_of)
    fullest = max(stages, key=lambda stage: stage.peak_memory_bytes / stage.memory_capacity_bytes)
    tokens = plan.job.tokens / result.step_s
    note_rows(plan.cluster, hwdb.read_into(reads))
    doubt = result.uncertainty
    return PlanDocument(
        package_version=__version__,
        hwdb_hash=reads.digest(),
        hwdb_rows=[f"{row.table}/{row.name}" for row in reads.rows() if row.table in ("gpus", "links")],
        model=model_to_dict(plan.model),
        cluster=cluster_to_dict(plan.cluster),
        job=job_document(plan.job),
        feasible=result.lowered.fits(),
        step_s=result.step_s,
        step_s_low=doubt.step_s_low,
        step_s_high=doubt.step_s_high,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / plan.gpus_used,
        mfu=flop / (result.step_s * used_peak),
        mfu_cluster=flop / (result.step_s * all_peak),
        schedule=plan.job.schedule,
        microbatch=max(pipeline.microbatch for pipeline in plan.pipelines),
        microbatch_per_rank=max(stage.microbatch_per_rank for stage in stages),
        microbatches=max(pipeline.microbatches for pipeline in plan.pipelines),
        gpus_used=plan.gpus_used,
        gpus_total=plan.cluster.gpus,
        bubble_fraction=float((idle * sizes).sum() / sizes.sum()),
        peak_memory_bytes=fullest.peak_memory_bytes,
        peak_memory_reserved_bytes=fullest.peak_memory_reserved_bytes,
        peak_memory_allocated_bytes=fullest.peak_memory_allocated_bytes,
        peak_memory_bytes_high=doubt.peak_high(fullest.peak_memory_bytes),
        lower_bound_step_s=lower_bound_step_s,
        work_bound_step_s=lower_bound_step_s,
        pipelines=pipeline_documents(plan),
        stages=stages,
        gpu_kinds=gpu_kinds(result, hwdb),
        launchable_with=list(launching(plan)),
    ).with_findings(findings)


def gpu_kinds(result: Forecast, hwdb: Hwdb) -> list[GpuKind]:
    """What the predicted times of each GPU kind in use are based on, in order of the stages."""
    job, cluster = result.plan.job, result.plan.cluster
    kinds = {group.node.gpu.name: group.node.gpu for group in cluster.groups}
    used = dict.fromkeys(name for island in result.islands for name in island.gpu.name.split("+"))
    return [
        GpuKind(
            gpu=name,
            measured=kinds[name].measured,
            rests_on=hwdb.rests_on(kinds[name], job.precision.compute, job.stack),
        )
        for name in used
    ]


def note_rows(cluster: Cluster, hwdb: Hwdb) -> None:
    """Record in `hwdb` the rows behind a cluster's figures as read.

    The fingerprint of a plan and of its replay is thus the same: it depends on the cluster, not on how the
    cluster was read.
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
    """Dense peak of every rank of the cluster, FLOP/s; without `dtype` that of 16 bits or fp32."""
    return [
        next((peak for known in (dtype, *_ELSE) if (peak := group.node.gpu.peak_flop_per_s(known))), 0.0)
        for group in plan.cluster.groups
        for _ in range(group.count * group.node.gpus)
    ]

"""Plans to documents and back: what `-o plan.json` writes and `tangram simulate` reads."""

from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import read_json
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb, cluster_from_dict, cluster_to_dict
from tangram_sim.jobs import OPTIMIZER_STATE_BYTES, RECIPES, SCHEDULES, Job
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.models import Block, Model
from tangram_sim.plans import LayerLayout, Part, Pipeline, Plan, Stage
from tangram_sim.studies.documents import (
    SCHEMA_VERSION,
    JobDocument,
    LayoutDocument,
    PartDocument,
    PipelineDocument,
    PlanDocument,
    StageDocument,
)

_BLOCK: TypeAdapter[Block] = TypeAdapter(Block)


def model_to_dict(model: Model) -> dict[str, Any]:
    """Everything that defines a model, equal neighbouring blocks once with their count."""
    fields = {name: getattr(model, name) for name in Model.__dataclass_fields__ if name != "blocks"}
    runs = [(block, len(list(same))) for block, same in groupby(model.blocks)]
    return {**fields, "blocks": [{"count": count, "block": _BLOCK.dump_python(block)} for block, count in runs]}


def model_from_dict(data: dict[str, Any], where: str) -> Model:
    """The inverse of `model_to_dict`. Raises BadInputError naming `where` and the key."""
    try:
        fields = dict(data)
        runs = fields.pop("blocks")
        blocks = tuple(block for run in runs for block in [_BLOCK.validate_python(run["block"])] * int(run["count"]))
        unknown = set(fields) - set(Model.__dataclass_fields__)
        if unknown:
            raise BadInputError(f"{where}: model has unknown keys {', '.join(sorted(unknown))}")
        return TypeAdapter(Model).validate_python({**fields, "blocks": blocks})
    except ValidationError as error:
        raise BadInputError(f"{where}: model: {first_problem(error)}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInputError(f"{where}: model: {error!r} is missing or malformed") from None


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation error in plain words: key path and complaint."""
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    more = f" (and {error.error_count() - 1} more problems)" if error.error_count() > 1 else ""
    return f"{path or 'document'}: {problem['msg'].lower()}{more}"


def job_document(job: Job) -> JobDocument:
    """The job as a document."""
    return JobDocument(global_batch=job.global_batch, seq=job.seq, dtype=job.dtype, optimizer=job.optimizer, schedule=job.schedule)


def pipeline_documents(plan: Plan) -> list[PipelineDocument]:
    """The decisions of a plan."""
    return [
        PipelineDocument(
            microbatches=pipeline.microbatches,
            microbatch=pipeline.microbatch,
            stages=[_stage_document(stage) for stage in pipeline.stages],
        )
        for pipeline in plan.pipelines
    ]


def _stage_document(stage: Stage) -> StageDocument:
    parts = [
        PartDocument(
            island=part.island,
            ranks=list(part.ranks),
            sequences_per_microbatch=part.sequences_per_microbatch,
            layouts=[_layout_document(run) for run in part.layouts],
        )
        for part in stage.parts
    ]
    return StageDocument(chunks=list(stage.chunks), embedding=stage.embedding, head=stage.head, parts=parts)


def _layout_document(run: LayerLayout) -> LayoutDocument:
    layout = run.layout
    return LayoutDocument(
        layers=run.layers,
        tp=layout.tp,
        cp=layout.cp,
        ep=layout.ep,
        dp=layout.dp,
        zero_stage=layout.zero_stage,
        recompute=layout.recompute,
        sequence_parallel=layout.sequence_parallel,
    )


def plan_from_document(document: PlanDocument, hwdb: Hwdb, where: str) -> Plan:
    """The decisions of a plan file, with the cluster and model it embeds. Raises BadInputError naming `where`."""
    model = model_from_dict(document.model, where)
    cluster = cluster_from_dict(document.cluster, hwdb, where)
    job = Job(**document.job.model_dump())
    for kind, given, known in (
        ("dtype", job.dtype, RECIPES),
        ("optimizer", job.optimizer, OPTIMIZER_STATE_BYTES),
        ("schedule", job.schedule, SCHEDULES),
    ):
        if given not in known:
            raise unknown_name(f"{kind} in {where}", given, known)
    pipelines = tuple(_pipeline(pipeline, where) for pipeline in document.pipelines)
    if not pipelines:
        raise BadInputError(f"{where}: pipelines is empty; a plan needs one")
    for pipeline in pipelines:
        _check_pipeline(pipeline, model, cluster, where)
    total = sum(pipeline.microbatches * pipeline.microbatch for pipeline in pipelines)
    if total != job.global_batch:
        raise BadInputError(f"{where}: pipelines process {total} sequences, the job's global_batch is {job.global_batch}")
    return Plan(model, cluster, job, pipelines)


def _pipeline(document: PipelineDocument, where: str) -> Pipeline:
    stages = []
    for stage in document.stages:
        parts = []
        for part in stage.parts:
            runs = []
            for run in part.layouts:
                if run.recompute not in RECOMPUTE:
                    raise unknown_name(f"recompute kind in {where}", run.recompute, RECOMPUTE)
                layout = Layout(run.tp, run.dp, run.cp, run.ep, 1, run.zero_stage, run.recompute, run.sequence_parallel)
                runs.append(LayerLayout(run.layers, layout))
            parts.append(Part(part.island, tuple(part.ranks), part.sequences_per_microbatch, tuple(runs)))
        stages.append(Stage(tuple(stage.chunks), stage.embedding, stage.head, tuple(parts)))
    return Pipeline(document.microbatches, document.microbatch, tuple(stages))


def _check_pipeline(pipeline: Pipeline, model: Model, cluster: Cluster, where: str) -> None:
    """Every block exactly once, the ends where they belong, ranks that exist and are used once."""
    blocks = sorted(block for stage in pipeline.stages for start, stop in stage.chunks for block in range(start, stop))
    if blocks != list(range(model.layers)):
        raise BadInputError(f"{where}: the stages' chunks must hold each of the {model.layers} layers exactly once")
    if not pipeline.stages[0].embedding or not pipeline.stages[-1].head:
        raise BadInputError(f"{where}: the first stage must hold the embedding and the last one the head")
    if sum(stage.embedding for stage in pipeline.stages) != 1 or sum(stage.head for stage in pipeline.stages) != 1:
        raise BadInputError(f"{where}: embedding and head belong to one stage each")
    used: set[int] = set()
    for number, stage in enumerate(pipeline.stages):
        if not stage.chunks and not (stage.embedding or stage.head):
            raise BadInputError(f"{where}: stage {number} holds nothing")
        for rank in stage.ranks:
            if not 0 <= rank < cluster.gpus:
                raise BadInputError(f"{where}: stage {number} names rank {rank}; the cluster has ranks 0 to {cluster.gpus - 1}")
            if rank in used:
                raise BadInputError(f"{where}: rank {rank} is used twice in one pipeline")
            used.add(rank)
        layout = stage.layout
        if layout.dp > pipeline.microbatch:
            raise BadInputError(f"{where}: stage {number}: dp {layout.dp} ranks share a microbatch of {pipeline.microbatch}")
        if (layout.dp * layout.cp) % layout.ep:
            raise BadInputError(f"{where}: stage {number}: ep {layout.ep} does not divide dp {layout.dp} x cp {layout.cp}")


def read_plan(path: Path) -> PlanDocument:
    """A plan file, checked against the schema.

    Raises BadInputError for another major schema version, unknown keys or malformed values.
    """
    data = read_json(path)
    if not isinstance(data, dict) or "schema_version" not in data:
        raise BadInputError(f"{path}: not a plan file: no schema_version; write one with `tangram plan ... -o {path.name}`")
    version = str(data["schema_version"])
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise BadInputError(
            f"{path}: plan schema version {version}, this tangram-sim reads {SCHEMA_VERSION.split('.')[0]}.x; plan again with this version"
        )
    try:
        return PlanDocument.model_validate(data)
    except ValidationError as error:
        raise BadInputError(f"{path}: {first_problem(error)}") from None

"""Plans to documents and back: what `-o plan.json` writes and `tangram simulate` reads."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import read_json
from tangram_sim.digests import warn_of_change, with_digest
from tangram_sim.errors import BadInputError, TangramError, unknown_name
from tangram_sim.file_parts import first_problem
from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.hwdb.file_kinds import plan_version
from tangram_sim.hwdb.model_section import model_from_dict
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.studies.documents import (
    SCHEMA_VERSION,
    JobDocument,
    LayoutDocument,
    PartDocument,
    PipelineDocument,
    PlanDocument,
    StageDocument,
)
from tangram_sim.studies.replay import check_pipelines, overlaid
from tangram_sim.training.job import RECIPES, Job
from tangram_sim.training.plan import (
    LayerLayout,
    Part,
    Pipeline,
    Plan,
    Stage,
    holds_batch,
    sequences_processed,
)
from tangram_sim.training.schedules import schedule_names


def job_document(job: Job) -> JobDocument:
    """The job as a document."""
    return JobDocument.from_objects(job)


def pipeline_documents(plan: Plan) -> list[PipelineDocument]:
    """The decisions of a plan as documents, one per pipeline."""
    return [
        PipelineDocument.from_objects(pipeline, stages=[_stage_document(stage) for stage in pipeline.stages])
        for pipeline in plan.pipelines
    ]


def _stage_document(stage: Stage) -> StageDocument:
    parts = [
        PartDocument.from_objects(part, layouts=[_layout_document(run) for run in part.layouts])
        for part in stage.parts
    ]
    return StageDocument.from_objects(stage, parts=parts)


def _layout_document(run: LayerLayout) -> LayoutDocument:
    return LayoutDocument.from_objects(run, run.layout)


def plan_from_document(
    document: PlanDocument, hwdb: Hwdb, where: str, cluster: Cluster | None = None
) -> Plan:
    """The plan that a file's decisions describe, with its embedded model and its cluster.

    Figures of GPUs, links and nodes are the file's, except those in an overlay of `hwdb`. Pass `cluster` if
    it is at hand: one of many groups takes long to read. Raises BadInputError naming `where`.
    """
    model = model_from_dict(document.model, where)
    _require_present(document.hwdb_rows, hwdb, where)
    if cluster is None:
        cluster = cluster_from_dict(overlaid(document.cluster, hwdb, where), hwdb, f"{where}: cluster")
    try:
        job = Job(**document.job.model_dump())
    except TangramError as error:
        raise type(error)(f"{where}: job: {error}") from None
    for kind, given, known in (
        ("dtype", job.dtype, RECIPES),  # `auto` is settled in a plan
        ("schedule", job.schedule, schedule_names()),
    ):
        if given not in known:
            raise unknown_name(f"{kind} in {where}", given, known)
    pipelines = tuple(_pipeline(pipeline, where) for pipeline in document.pipelines)
    if not pipelines:
        raise BadInputError(f"{where}: 0 pipelines; a plan has one or more")
    check_pipelines(pipelines, model, cluster, job, where)
    total = sequences_processed(pipelines)
    if not holds_batch(pipelines, job.global_batch):
        raise BadInputError(
            f"{where}: pipelines process {total} sequences, the job's global_batch is {job.global_batch}"
        )
    return Plan(model, cluster, job, pipelines)


def _require_present(rows: Sequence[str], hwdb: Hwdb, where: str) -> None:
    """Raise UnknownNameError for a GPU or link that the plan's prices depend on and the database lacks."""
    for kind, table, names in (("GPU", "gpus", hwdb.gpu_names()), ("link", "links", hwdb.link_names())):
        for row in rows:
            name = row.removeprefix(f"{table}/")
            if name != row and name not in names:
                raise unknown_name(
                    kind,
                    name,
                    names,
                    f"{where} was priced with it: give `hwdb=` DIR with its row, or plan again.",
                )


def _pipeline(document: PipelineDocument, where: str) -> Pipeline:
    stages = []
    for stage in document.stages:
        parts = []
        for part in stage.parts:
            runs = []
            for run in part.layouts:
                if run.recompute not in RECOMPUTE:
                    raise unknown_name(f"recompute kind in {where}", run.recompute, RECOMPUTE)
                layout = Layout(
                    run.tp,
                    run.dp,
                    run.cp,
                    run.ep,
                    pp=1,
                    zero_stage=run.zero_stage,
                    recompute=run.recompute,
                    sequence_parallel=run.sequence_parallel,
                    fsep=run.fsep,
                    slices=run.slices,
                )
                runs.append(LayerLayout(run.layers, layout))
            parts.append(Part(part.island, tuple(part.ranks), part.sequences_per_microbatch, tuple(runs)))
        stages.append(Stage(tuple(stage.chunks), stage.embedding, stage.head, tuple(parts)))
    return Pipeline(document.microbatches, document.microbatch, tuple(stages))


def plan_keys(document: PlanDocument, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """The JSON object of a plan, with the digest by which a later reader sees whether it was changed."""
    unasked = () if document.run else ("run",)
    return with_digest(document.model_dump(exclude={*leave_out, *unasked}))


def read_plan(path: Path) -> PlanDocument:
    """A plan file, checked against the schema.

    Issues a ChangedFileWarning where it was changed since it was written. Raises BadInputError for another
    major schema version, unknown keys or malformed values.
    """
    document, data = read_plan_keys(path)
    warn_of_change(data, path)
    return document


def read_plan_keys(path: Path) -> tuple[PlanDocument, dict[str, Any]]:
    """(plan document, JSON object) of a plan file; no warning if it was changed. Raises as `read_plan`."""
    data = read_json(path)
    if not isinstance(data, dict) or "schema_version" not in data:
        raise BadInputError(
            f"{path}: not a plan file: no schema_version; write one with `tangram plan ... -o {path.name}`"
        )
    version = plan_version(data, path)
    try:
        return PlanDocument.model_validate(data), data
    except ValidationError as error:
        newer = (
            ""
            if version == SCHEMA_VERSION
            else f"; the file is of schema {version[:20]}, this is {SCHEMA_VERSION}"
        )
        raise BadInputError(f"{path}: {first_problem(error)}{newer}") from None
